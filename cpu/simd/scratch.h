// Per-thread scratch, kept between calls: grows to the largest request, losing its contents.
#pragma once
#include <tapegrad/cpu/simd/isa.h>

#include <memory>
#include <new>

namespace tg::cpu::TG_ISA_NS {

class Scratch {
 public:
  // n elements, aligned to a cache line.
  template <class T> T* get(int64_t n) {
    const size_t bytes = size_t(n) * sizeof(T);
    if (bytes > size_) {
      size_ = 0, memory_.reset();
      memory_.reset(static_cast<std::byte*>(::operator new(bytes, std::align_val_t(64))));
      size_ = bytes;
    }
    return reinterpret_cast<T*>(memory_.get());
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t(64)); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t size_ = 0;
};

}  // namespace tg::cpu::TG_ISA_NS
