// Loops over views and broadcasts, strides per operand (0 repeats). Dimensions that all operands step through evenly
// are merged. Tiles depend on the problem alone.
#pragma once
#include <tapegrad/cpu/runtime/thread_pool.h>
#include <tapegrad/cpu/simd/function_ref.h>
#include <tapegrad/cpu/simd/isa.h>

#include <array>
#include <vector>

namespace tg::cpu::TG_ISA_NS {

inline constexpr int64_t kGrain =
    // Elements per tile: about 5 us of cheap work, more than a wake-up costs.
    1 << 14;

// Per operand.
template <size_t N> using At = std::array<int64_t, N>;
template <size_t N> struct Walk {
  Shape shape;  // merged; never empty
  std::array<Strides, N> strides;

  Walk(const Shape& s, const std::array<Strides, N>& st) {
    for (size_t d = 0; d < s.size(); ++d) {
      if (s[d] == 1) continue;
      bool merge = !shape.empty();
      for (size_t k = 0; merge && k < N; ++k) merge = strides[k].back() == st[k][d] * s[d];
      if (merge)
        shape.back() *= s[d];
      else
        shape.push_back(s[d]);
      for (size_t k = 0; k < N; ++k) {
        if (merge)
          strides[k].back() = st[k][d];
        else
          strides[k].push_back(st[k][d]);
      }
    }
    if (!shape.empty()) return;
    shape.push_back(1);
    for (auto& k : strides) k.push_back(0);
  }
  // Calls row(n, at, step) for innermost runs that cover elements [begin, end).
  template <class F> void rows(int64_t begin, int64_t end, F&& row) const {
    if (begin >= end) return;  // size 0
    const size_t inner = shape.size() - 1;
    int64_t index[kMaxDims] = {};
    At<N> at{}, step;
    for (size_t d = inner + 1, rest = size_t(begin); d-- > 0; rest /= size_t(shape[d]))
      index[d] = int64_t(rest % size_t(shape[d]));
    for (size_t k = 0; k < N; ++k) {
      step[k] = strides[k][inner];
      for (size_t d = 0; d <= inner; ++d) at[k] += index[d] * strides[k][d];
    }
    while (begin < end) {
      const int64_t n = std::min(end - begin, shape[inner] - index[inner]);
      row(n, at, step);
      begin += n;
      index[inner] += n;
      for (size_t k = 0; k < N; ++k) at[k] += n * step[k];
      for (size_t d = inner; index[d] == shape[d] && d > 0; --d) {
        index[d] = 0;
        ++index[d - 1];
        for (size_t k = 0; k < N; ++k) at[k] += strides[k][d - 1] - shape[d] * strides[k][d];
      }
    }
  }
};

template <size_t N> using RowFn = FunctionRef<void(int64_t n, const At<N>& at, const At<N>& step)>;

template <size_t N> void run_rows(const Shape& s, const std::array<Strides, N>& strides, RowFn<N> row) {
  const Walk<N> walk(s, strides);
  parallel_for(walk.shape.product(), kGrain, [&](int64_t begin, int64_t end) { walk.rows(begin, end, row); });
}
template <size_t N, class F> void for_rows(const Shape& s, const std::array<Strides, N>& strides, F&& row) {
  run_rows<N>(s, strides, RowFn<N>(row));
}
template <size_t N, class F> void for_indices(const Shape& s, const std::array<Strides, N>& strides, F&& f) {
  const Walk<N> walk(s, strides);
  walk.rows(0, walk.shape.product(), [&](int64_t n, At<N> at, const At<N>& step) {
    for (int64_t i = 0; i < n; ++i) {
      [&]<size_t... K>(std::index_sequence<K...>) { f(at[K]...); }(std::make_index_sequence<N>());
      for (size_t k = 0; k < N; ++k) at[k] += step[k];
    }
  });
}
inline Strides dense(const Shape& s) { return Layout::contiguous(s, DType::f32).strides; }
template <class To, class From> std::vector<To> flat(const Buf& b) {
  std::vector<To> v;
  if (b.numel() == 0) return v;
  v.reserve(size_t(b.numel()));
  for_indices<1>(b.shape(), {b.strides()}, [&](int64_t at) { v.push_back(To(b.data<From>()[at])); });
  return v;
}
inline std::vector<int64_t> flat_indices(const Buf& b) {
  std::vector<int64_t> v;
  kernel::visit_index(b.dtype(), [&]<class I>() { v = flat<int64_t, I>(b); });
  return v;
}
// Copies the elements of `from` to `to`, with `strides` over the same shape.
template <class T> void copy_elements(const Buf& from, T* to, const Strides& strides) {
  for_rows<2>(from.shape(), {strides, from.strides()}, [&](int64_t n, const At<2>& at, const At<2>& step) {
    T* const y = to + at[0];
    const T* const x = from.raw<T>() + at[1];
    if (step[0] == 1 && step[1] == 1)
      std::copy_n(x, n, y);
    else
      for (int64_t i = 0; i < n; ++i) y[i * step[0]] = x[i * step[1]];
  });
}
template <class T> const T* contiguous_data(const Buf& b, std::vector<T>& scratch) {
  if (b.is_contiguous()) return b.data<T>();
  scratch.resize(size_t(b.numel()));
  copy_elements(b, scratch.data(), dense(b.shape()));
  return scratch.data();
}

// An operand of a row, in blocks: in place, or gathered into a buffer. So functions need one contiguous loop.
inline constexpr int64_t kBlock = 512;
template <class T> class RowOperand {
 public:
  RowOperand(const T* p, int64_t step) : p_(p), step_(step) {
    if (step == 0) std::fill_n(buffer_, kBlock, *p);
  }
  const T* block(int64_t at, int64_t n) {
    if (step_ == 1) return p_ + at;
    if (step_ != 0) gather(at, n);
    return buffer_;
  }

 private:
  [[gnu::noinline]] void gather(int64_t at, int64_t n) {
    for (int64_t i = 0; i < n; ++i) buffer_[i] = p_[(at + i) * step_];
  }
  const T* p_;
  int64_t step_;
  T buffer_[kBlock];
};
// In compute_t<T>. Each index is read before it is written: out may be an operand.
template <class T, class F, class... X> void map_row(int64_t n, T* out, F&& f, RowOperand<X>... x) {
  for (int64_t at = 0; at < n; at += kBlock) {
    const int64_t m = std::min(kBlock, n - at);
    [&](auto*... p) {
      TG_SAME_INDEX
      for (int64_t i = 0; i < m; ++i) out[at + i] = T(f(compute_t<X>(p[i])...));
    }(x.block(at, m)...);
  }
}

}  // namespace tg::cpu::TG_ISA_NS
