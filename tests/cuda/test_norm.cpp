// The norms of a sum on Device::cuda(): the bits of add, then the norm, at every form of the kernels.
#include "support/added_norms.h"

using namespace tg;

TEST_CASE("norms of a sum on the device: the bits of add, then the norm") {
  for (int64_t n : {5, 40, 512, 516, 1030}) check_added_norms(Device::cuda(), 9, n, DType::f32);
  for (int64_t n : {6, 40, 520}) check_added_norms(Device::cuda(), 9, n, DType::bf16);
  check_added_norms(Device::cuda(), 9, 30, DType::f64);
}
TEST_CASE("norms of a sum on the device: rows of blocks of 1024 threads, and rows that are read again") {
  check_added_norms(Device::cuda(), 2, 4100, DType::f32);
  check_added_norms(Device::cuda(), 2, 4101, DType::f32);
  check_added_norms(Device::cuda(), 1, 16'400, DType::f32);
  check_added_norms(Device::cuda(), 1, 16'400, DType::bf16);
}
