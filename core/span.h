// One range of a thread in a profile, for core/scope.h and core/profile/. Programs use ProfileRange
// (core/profile/profile_range.h).
#pragma once
#include <atomic>
#include <cstdint>

namespace tg {

struct Scope;

/// The kind of a range: a name given by the program, a part of a model, or one run of an op.
enum class RangeKind : uint8_t { range, layer, op };

namespace detail {
inline constinit std::atomic<uint64_t> g_profiling{0};  // number of the running profiler; 0: none
inline bool profiling() { return g_profiling.load(std::memory_order_relaxed) != 0; }
// The named ranges of the calling thread, or null. Nodes keep it, so that a kernel that runs later belongs to the range
// that called it.
extern constinit thread_local const Scope* t_range;

// One range of the calling thread. Ranges end in reverse order, in the thread that began them.
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
