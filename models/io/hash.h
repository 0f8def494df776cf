/// @file
/// Hash: 64 bits that tell one file's or model's content from another's. It protects against damage and mistakes, not
/// against somebody who looks for two equal hashes. Only .cpp files include it.
#pragma once
#include <tapegrad/core/check.h>
#include <tapegrad/core/safetensors.h>

#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace tg {

/// A hash of words. Each step is a bijection of the state, so a change of one word always changes it.
class Hash {
 public:
  void add(uint64_t word) {
    h_ = (h_ ^ word) * 0x9E3779B97F4A7C15u;
    h_ ^= h_ >> 32;
  }
  void add(std::span<const std::byte> bytes) {
    add(bytes.size());
    for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
      uint64_t word;
      std::memcpy(&word, bytes.data(), 8);
      add(word);
    }
    uint64_t rest = 0;
    if (!bytes.empty()) std::memcpy(&rest, bytes.data(), bytes.size());
    add(rest);
  }
  void add(std::string_view text) { add(std::as_bytes(std::span(text))); }
  /// Adds the name, dtype, shape and elements of a tensor of any device and layout.
  void add(std::string_view name, const Tensor& t) {
    const Tensor here = t.detach().to(Device::cpu()).contiguous();
    add(name);
    add(name_of(t.dtype()));
    for (const int64_t size : t.shape()) add(uint64_t(size));
    const void* p = visit_dtype(t.dtype(), [&]<class T>() -> const void* { return here.data<T>(); });
    add(std::span(static_cast<const std::byte*>(p), here.layout().bytes()));
  }
  uint64_t value() const { return h_; }
  std::string hex() const { return fmt::format("{:016x}", h_); }

 private:
  uint64_t h_ = 0xcbf29ce484222325;
};

}  // namespace tg
