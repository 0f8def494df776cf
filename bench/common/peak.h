// What this machine can do, measured in the same run as what is compared with it. CPU: multiply-adds on registers, and
// the bandwidth of memory for a given working set, both on all threads of the CPU backend; loops of our own for the
// level of instructions that the kernels use (core/backend/registry.h). GPU: the largest product of the vendor's
// library, and copies that its copy engine makes.
#pragma once
#include <tapegrad/core/device.h>
#include <tapegrad/core/dtype.h>

#include <cstdint>
#include <map>
#include <string>

namespace tg::bench {

struct Bandwidth {     // GB/s; bytes read and bytes written count once each; by plain stores or past the caches
  double copy, triad;  // a = b; a = b + 3 c: plain stores read a before they write it, which does not count
  double update;       // a = b + a / 2 or a = -a: nothing is moved that does not count, and writes hide behind reads
  double read;         // a sum over a: on a GPU that of copies
  double best() const { return copy > triad ? copy : triad; }
};

// Each figure is that of the quickest of short rounds in about so many seconds, and is measured when it is first asked
// for.
class Peaks {
 public:
  explicit Peaks(double seconds, Device device = {}) : seconds_(seconds), device_(device) {}
  // Of products whose operands are "f64", "f32", "tf32", "bf16" or "i8" (on the CPU); the last two on the CPU as its
  // kernels compute them.
  double gflops(const std::string& operands);
  // Arrays that take `bytes` together, shared out over the threads, on huge pages where there are some; rounded to a
  // power of 2, at least 16 KiB for each thread and at most 512 MiB in all, which is beyond all caches.
  Bandwidth bandwidth(double bytes);
  const std::map<std::string, double>& products() const { return gflops_; }       // by operands
  const std::map<int64_t, Bandwidth>& bandwidths() const { return bandwidths_; }  // by bytes

 private:
  double seconds_;
  Device device_;
  std::map<std::string, double> gflops_;
  std::map<int64_t, Bandwidth> bandwidths_;
};

}  // namespace tg::bench
