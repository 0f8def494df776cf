/// @file
/// Vectorised, threaded loops of CPU kernels over elements or rows of the last dimension. The split depends on sizes
/// alone: results do not depend on threads. For other loops: parallel_for() (thread_pool.h).
#pragma once
#include <tapegrad/cpu/simd/map.h>
#include <tapegrad/cpu/simd/rows.h>

#include <utility>
#include <vector>

namespace tg::cpu::TG_ISA_NS {
/// T, once per index of a pack.
template <size_t, class T> using Repeated = T;

/// out[i] = f(in[i]...): `for_each({in[0], in[1]}, out[0], [](auto x, auto y) { return x * y; })`. All have one dtype:
/// f64, f32 or bf16. f takes and returns double for f64, else float; bf16 is rounded once. Inputs broadcast, with any
/// strides; out is contiguous and may be an input. Several threads call f. An Error if dtypes or shapes do not fit.
template <size_t N, class F> void for_each(const Buf (&in)[N], const Buf& out, F f) {
  tg::detail::check_elements(in, out);
  visit_computed(out.dtype(), [&]<class T>() {
    [&]<size_t... K>(std::index_sequence<K...>) {
      map<T, Repeated<K, T>...>(in, {&out, 1}, f);
    }(std::make_index_sequence<N>());
  });
}

/// row(n, y, x...) for each row y of out (n elements) and row x of each input: `for_each_row({in[0]}, out[0], []<class
/// T>(int64_t n, T* y, const T* x) {...})`. All have one dtype T (f64, f32 or bf16) and the same number of rows;
/// compute in compute_t<T>. Rows of inputs are contiguous for any strides and may have other lengths; y may be one of
/// them. Several threads call it. An Error if dtypes or shapes do not fit.
template <size_t N, class F> void for_each_row(const Buf (&in)[N], const Buf& out, F&& row) {
  tg::detail::check_rows(in, out);
  const int64_t n = out.shape().back(), total = out.numel();
  if (total == 0) return;
  kernel::visit_float(out.dtype(), [&]<class T>() {
    [&]<size_t... K>(std::index_sequence<K...>) {
      const Rows<T> x[] = {Rows<T>(in[K])...};
      for_row_tiles(total / n, n, [&](int64_t begin, int64_t end) {
        std::vector<T> gathered[N];
        for (int64_t r = begin; r < end; ++r) row(n, out.data<T>() + r * n, x[K](r, gathered[K])...);
      });
    }(std::make_index_sequence<N>());
  });
}

}  // namespace tg::cpu::TG_ISA_NS
