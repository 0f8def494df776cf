// Peak rates of a GPU through the library's own large GEMM and copy. For peak.cpp.
#pragma once
#include <tapegrad/core/device.h>

#include <cstdint>
#include <functional>
#include <string>

namespace tg::bench {

// f repeated, then synchronised, so that a sample takes milliseconds: a launch alone is not the work.
std::function<void()> batched(std::function<void()> f, Device, int repeats);
int repeats_for(const std::function<void()>& f, Device, double seconds_per_sample);

// GFLOP/s of a square GEMM; operands "f64", "f32", "tf32" or "bf16".
double device_product_rate(Device, const std::string& operands, double seconds);
// GB/s, read plus written, of a copy within `bytes` in total.
double device_copy_rate(Device, int64_t bytes, double seconds);

}  // namespace tg::bench
