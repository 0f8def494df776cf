// A thread's range in a profile. Programs use ProfileRange (core/profile/profile_range.h).
#pragma once
#include <atomic>
#include <cstdint>

namespace tg {

struct Scope;

/// Kind of a range: a name given by the program, a part of a model, or one run of an op.
enum class RangeKind : uint8_t { range, layer, op };

namespace detail {
inline constinit std::atomic<uint64_t> g_profiling{0};  // running profiler; 0: none
inline bool profiling() { return g_profiling.load(std::memory_order_relaxed) != 0; }
// Thread's named ranges or null. Nodes keep it for kernels that run later.
extern constinit thread_local const Scope* t_range;

// Thread's range. Ranges end in reverse order in their thread.
class Span {
 public:
  Span() = default;
  ~Span() {
    if (session_) [[unlikely]]
      end();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;
  void begin_range(const Scope* path);
  void begin_layer(const Scope*);

 protected:
  void end() noexcept;
  uint64_t session_ = 0;
  uint32_t index_ = 0;
};
}  // namespace detail

}  // namespace tg
