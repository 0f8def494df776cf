// What scopes and ranges of a profile share: one range of a thread, recorded while a Profiler runs. For core/scope.h
// and core/profile/; programs use ProfileRange (core/profile/profile_range.h).
#pragma once
#include <atomic>
#include <cstdint>

namespace tg {

struct Scope;

/// What a range stands for: a name that the program gave, a part of a model, or one run of an op.
enum class RangeKind : uint8_t { range, layer, op };

namespace detail {
inline constinit std::atomic<uint64_t> g_profiling{0};  // the number of the profiler that runs; 0: none does
inline bool profiling() { return g_profiling.load(std::memory_order_relaxed) != 0; }
// The path of named ranges that the calling thread is in, null where it is in none: nodes keep it, so that a kernel
// that runs later belongs to the range that asked for it.
extern constinit thread_local const Scope* t_range;

// One range of the calling thread. They end in the reverse order of their begins, in the thread that began them.
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
