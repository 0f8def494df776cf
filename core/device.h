/// @file
/// Device: which backend and which of its devices; a value of two numbers that owns nothing. What a backend can do is
/// in backend.h. In every Layout, so that tensors know where they are, and in Params, which says where to make them.
#pragma once
#include <tapegrad/core/error.h>

#include <cstdint>
#include <string>

namespace tg {

enum class Backend : uint8_t { cpu, cuda };
inline constexpr int kBackends = 2;

struct Device {
  Backend backend = Backend::cpu;
  int8_t index = 0;
  static Device cpu() { return {}; }
  static Device cuda(int index = 0) {
    TG_CHECK(index >= 0 && index < 128, device, "[device] cuda:{} is no device. Numbers go from 0 to 127.", index);
    return {Backend::cuda, int8_t(index)};
  }
  static Device parse(std::string_view text);  ///< "cpu", "cuda", "cuda:1"; an Error for anything else
  bool operator==(const Device&) const = default;
};
std::string_view name_of(Backend);
std::string to_string(Device);  ///< "cpu", "cuda:0"

}  // namespace tg

template <> struct fmt::formatter<tg::Device> : tg::PlainFormatter {
  template <class C> auto format(tg::Device d, C& c) const { return write(tg::to_string(d), c); }
};
