// For softmax, norms, losses and embeddings.
#pragma once
#include <tapegrad/cpu/simd/loop.h>

#include <vector>

namespace tg::cpu::TG_ISA_NS {

template <class T> struct Rows {
  const T* data;
  int64_t n, step;
  bool whole;
  Shape lead;
  Strides strides;
  explicit Rows(const Buf& b)
      : data(b.data<T>()),
        n(b.shape().back()),
        step(b.strides().back()),
        whole(b.is_contiguous()),
        lead(b.shape().without_last()),
        strides(b.strides().without_last()) {}
  const T* operator()(int64_t r, std::vector<T>& scratch) const {
    if (whole) return data + r * n;
    const T* p = data;
    for (size_t d = lead.size(); d-- > 0; r /= lead[d]) p += r % lead[d] * strides[d];
    if (step == 1) return p;
    scratch.resize(size_t(n));
    for (int64_t j = 0; j < n; ++j) scratch[size_t(j)] = p[j * step];
    return scratch.data();
  }
};
// Calls f(begin, end) for ranges of rows of n elements, on the thread pool.
template <class F> void for_row_tiles(int64_t rows, int64_t n, F&& f) {
  parallel_for(rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, n)), f);
}
// f(r), or f(r, row r of x), for each.
template <class F> void over_rows(int64_t rows, int64_t n, F&& f) {
  for_row_tiles(rows, n, [&](int64_t r, int64_t end) {
    for (; r < end; ++r) f(r);
  });
}
template <class T, class F> void over_rows(const Buf& x, int64_t rows, F&& f) {
  const Rows<T> row(x);
  for_row_tiles(rows, row.n, [&](int64_t r, int64_t end) {
    std::vector<T> gathered;
    for (; r < end; ++r) f(r, row(r, gathered));
  });
}

}  // namespace tg::cpu::TG_ISA_NS
