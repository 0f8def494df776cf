/// @file
/// Hash: 64 bits of a file or model, against damage, not attacks. For .cpp files only.
#pragma once
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/safetensors.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace tg {

/// A hash of words; each step is a bijection: one changed word changes it.
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
  /// Adds the name, dtype, shape and elements of a tensor of any device and layout. `widen`, for bf16: equal to
  /// t.to(DType::f32).
  void add(std::string_view name, const Tensor& t, bool widen = false) {
    const Tensor here = t.detach().to(Device::cpu()).contiguous();
    add(name);
    add(name_of(widen ? DType::f32 : t.dtype()));
    for (const int64_t size : t.shape()) add(uint64_t(size));
    if (!widen) {
      const void* p = visit_dtype(t.dtype(), [&]<class T>() -> const void* { return here.data<T>(); });
      return add(std::span(static_cast<const std::byte*>(p), here.layout().bytes()));
    }
    const std::span<const bf16> all(here.data<bf16>(), size_t(t.numel()));
    add(4 * all.size());
    for (size_t i = 0; i <= all.size(); i += 2) {
      float two[2] = {};
      for (size_t k = i; k < std::min(i + 2, all.size()); ++k) two[k - i] = float(all[k]);
      uint64_t word;
      std::memcpy(&word, two, 8);
      add(word);
    }
  }
  uint64_t value() const { return h_; }
  std::string hex() const { return fmt::format("{:016x}", h_); }

 private:
  uint64_t h_ = 0xcbf29ce484222325;
};

}  // namespace tg
