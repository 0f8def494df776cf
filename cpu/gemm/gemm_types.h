// Arguments of products.
#pragma once
#include <tapegrad/cpu/simd/function_ref.h>
#include <tapegrad/cpu/simd/vector.h>

#include <array>
#include <utility>

namespace tg::cpu::TG_ISA_NS {

// Whether a row has the same bits alone and in any batch.
inline constexpr bool kRowsAlone = TG_ISA_LEVEL >= 3;

// Element (i, j) is p[i * row + j * col]. Fast paths need row or col == 1.
template <class T> struct MatView {
  const T* p;
  int64_t row, col;
  MatView at(int64_t i, int64_t j) const { return {p + i * row + j * col, row, col}; }
  MatView transposed() const { return {p, col, row}; }
};
template <class T> struct GemmOptions {
  bool accumulate = false;  // C += A B
  // Called per segment of a row of C, from column j on, when its sums are complete and still in cache.
  const FunctionRef<void(T* row, int64_t j, int64_t n)>* finish = nullptr;
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
// of<1>() to of<N>().
template <int N, class F> constexpr auto functions_of(F of) {
  return [&]<int... I>(std::integer_sequence<int, I...>) {
    return std::array{of.template operator()<I + 1>()...};
  }(std::make_integer_sequence<int, N>());
}

// Prefetches contiguous rows or columns, or nothing. Hint: 3 to L1, 2 to L2.
template <class T> struct Ahead {
  static constexpr int64_t kLine = 64 / sizeof(T);
  const T* row = nullptr;
  int64_t stride = 0, cols = 0, rows = 0, at = 0;
  static Ahead of(MatView<T> v, int64_t rows, int64_t cols) {
    if (v.row != 1 && v.col != 1) return {};
    return v.col == 1 ? Ahead{v.p, v.row, cols, rows} : Ahead{v.p, v.col, rows, cols};
  }
  int64_t lines() const { return rows * ceil_div(cols, kLine); }
  template <int Hint> void prefetch(int64_t n = 1) {
    for (; n > 0 && rows > 0; --n) {
      __builtin_prefetch(row + at, 0, Hint);
      if ((at += kLine) >= cols) at = 0, row += stride, --rows;
    }
  }
};

template <class T> struct Product {
  int64_t m, n, k;
  MatView<T> a, b;
  T* c;
  int64_t ldc;
  GemmOptions<T> o;

  void finish(int64_t i, int64_t rows, int64_t j, int64_t cols) const {
    if (!o.finish) return;
    for (int64_t r = i; r < i + rows; ++r) (*o.finish)(c + r * ldc + j, j, cols);
  }
};

}  // namespace tg::cpu::TG_ISA_NS
