#include "support/added_norms.h"

using namespace tg;

TEST_CASE("norms of a sum on the device: the bits of add, then the norm") {
  for (int64_t n : {5, 40, 512, 516, 1030})
    for (const DType branch : {DType::f32, DType::bf16}) check_added_norms(Device::cuda(), 9, n, DType::f32, branch);
  for (int64_t n : {6, 40, 520}) check_added_norms(Device::cuda(), 9, n, DType::bf16, DType::bf16);
  check_added_norms(Device::cuda(), 9, 30, DType::f64, DType::f64);
}
TEST_CASE("norms of a sum on the device: rows of blocks of 1024 threads, and rows that are read again") {
  for (const DType branch : {DType::f32, DType::bf16})
    for (const int64_t n : {4100, 4101, 16'400})
      check_added_norms(Device::cuda(), n > 10'000 ? 1 : 2, n, DType::f32, branch);
  check_added_norms(Device::cuda(), 1, 16'400, DType::bf16, DType::bf16);
}
TEST_CASE("norms into bf16 on the device: the bits of a cast behind them") {
  for (int64_t n : {1, 7, 40, 516, 4100, 16'400}) check_narrow_norms(Device::cuda(), 3, n);
}
