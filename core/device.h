/// @file
/// Device: a backend and a device number. backend.h has the capabilities of a backend.
#pragma once
#include <tapegrad/core/error.h>

#include <cstdint>
#include <string>

namespace tg {

/// Kinds of devices.
enum class Backend : uint8_t { cpu, cuda };
/// Number of backends.
inline constexpr int kBackends = 2;

/// One device; the CPU by default.
struct Device {
  Backend backend = Backend::cpu;
  int8_t index = 0;
  static Device cpu() { return {}; }
  /// The CUDA device with this number, which may be missing; an Error outside of [0, 127].
  static Device cuda(int index = 0);
  /// Device of "cpu", "cuda" or "cuda:1"; an Error for any other text.
  static Device parse(std::string_view text);
  bool operator==(const Device&) const = default;
};
/// "cpu" or "cuda".
std::string_view name_of(Backend);
/// "cpu" or "cuda:0", which Device::parse() reads.
std::string to_string(Device);

}  // namespace tg
