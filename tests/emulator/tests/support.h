#pragma once
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <vector>

#include <tapegrad/cuda/device/device.h>

inline void check(cudaError_t e) {
  if (e != cudaSuccess) throw std::runtime_error(cudaGetErrorString(e));
}

inline bool more_effort() {  // TG_TEST_EFFORT is 10 or 100
  const char* effort = std::getenv("TG_TEST_EFFORT");
  return effort && std::string_view(effort) != "1";
}

template <class T> class Buffer {
 public:
  explicit Buffer(std::size_t n) : size_(n) { check(cudaMalloc(&data_, n * sizeof(T))); }
  explicit Buffer(const std::vector<T>& v) : Buffer(v.size()) {
    check(cudaMemcpy(data_, v.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(data_); }
  operator T*() const { return data_; }
  std::vector<T> host() const {
    std::vector<T> v(size_);
    check(cudaDeviceSynchronize());
    check(cudaMemcpy(v.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return v;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

struct Stream {
  cudaStream_t s = nullptr;
  Stream() { check(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(s); }
  operator cudaStream_t() const { return s; }
};

inline std::vector<float> noise(std::size_t n, std::uint32_t seed = 1) {
  std::vector<float> v(n);
  std::uint32_t x = seed * 2654435761U + 12345;
  for (float& f : v) {
    x ^= x << 13, x ^= x >> 17, x ^= x << 5;
    f = static_cast<float>(x >> 8) / 8388608.0F - 1.0F;
  }
  return v;
}

template <class F> void under_schedules(F f, std::uint64_t schedules = 8) {
  for (std::uint64_t seed = 0; seed < schedules; ++seed) {
    CAPTURE(seed);
    simt::reset(seed);
    f();
    CHECK_MESSAGE(simt::reports().empty(), simt::describe());
  }
  simt::reset();
}
