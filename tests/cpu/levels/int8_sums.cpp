// Compiled per level, in the kernels' namespace.
#include <tapegrad/cpu/gemm/gemm_int8.h>

#include "int8_sums.h"

namespace {
namespace level = tg::cpu::TG_ISA_NS;
void sums(int64_t m, int64_t n, int64_t k, Int8Matrix a, Int8Matrix b, const Int8Store& store) {
  level::gemm_int8(m, n, k, {a.p, a.row, a.col}, {b.p, b.row, b.col}, store);
}
[[maybe_unused]] const bool added = (int8_levels().push_back({TG_ISA_LEVEL, sums}), true);
}  // namespace
