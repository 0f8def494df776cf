// Peak rates of this machine, measured in the same run as the results. CPU, on all threads: register multiply-adds and
// memory bandwidth for a working set, by loops at the kernels' instruction level (core/backend/registry.h). GPU: the
// vendor library's largest GEMM, and copies by the copy engine.
#pragma once
#include <tapegrad/core/device.h>
#include <tapegrad/core/dtype.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tg::bench {

// GB/s, each byte read or written counted once; the better of plain and non-temporal stores.
struct Bandwidth {
  // a = b; a = b + 3 c. Plain stores also read a (write allocate), not counted.
  double copy, triad;
  // a = b + a / 2 or a = -a: all traffic is counted, and writes overlap with reads.
  double update;
  double read;     // a sum over a; on a GPU that of copies
  double latency;  // ns of a load at a random line of one thread's share; 0: GPU
  double best() const { return copy > triad ? copy : triad; }
};

// Each rate is the best of short rounds over about `seconds`, measured on first use.
class Peaks {
 public:
  explicit Peaks(double seconds, Device device = {}) : seconds_(seconds), device_(device) {}
  // GEMM rate for operands "f64", "f32", "tf32", "bf16" or (CPU) "i8", by the kernels' instructions.
  double gflops(const std::string& operands);
  // Bandwidth of arrays of `bytes` in total over the threads, on huge pages if available. `bytes` is rounded to a power
  // of 2, from 16 KiB per thread to 512 MiB, beyond all caches.
  Bandwidth bandwidth(double bytes);
  // L1, L2, L3 where the system gives their sizes, and memory: bytes over all threads. GPU: memory.
  std::vector<std::pair<std::string, double>> levels() const;
  const std::map<std::string, double>& products() const { return gflops_; }       // key: operands
  const std::map<int64_t, Bandwidth>& bandwidths() const { return bandwidths_; }  // key: bytes

 private:
  double seconds_;
  Device device_;
  std::map<std::string, double> gflops_;
  std::map<int64_t, Bandwidth> bandwidths_;
};

// f repeated, then synchronised, so that a sample takes milliseconds: a launch alone is not the work.
std::function<void()> batched(std::function<void()> f, Device, int repeats);
int repeats_for(const std::function<void()>& f, Device, double seconds_per_sample);

// GFLOP/s of a square GEMM; operands "f64", "f32", "tf32" or "bf16".
double device_product_rate(Device, const std::string& operands, double seconds);
// GB/s, read plus written, of a copy within `bytes` in total.
double device_copy_rate(Device, int64_t bytes, double seconds);

}  // namespace tg::bench
