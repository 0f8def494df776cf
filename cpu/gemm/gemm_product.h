#pragma once
#include <tapegrad/cpu/gemm/gemm.h>

namespace tg::cpu::TG_ISA_NS {
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

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
