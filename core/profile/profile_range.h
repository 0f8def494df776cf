/// @file
/// ProfileRange: a named stretch of a thread's time, for a Profiler (profiler.h) that runs meanwhile; without one it
/// costs a load and a branch. Ops and layers have ranges of their own: NameScope (error.h) is one too. For programs,
/// and for what records ranges in core/.
#pragma once
#include <atomic>
#include <cstdint>
#include <string_view>

namespace tg {

struct Scope;

/// The parts of a training step. backward() and AdamW::step() open theirs; forward and loss are the program's.
enum class Phase : uint8_t { forward, loss, backward, optimizer };

/// What a range stands for: one that a program named, a part of a model, one run of an op.
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
const Scope* path_within(const Scope* path, std::string_view name);  // one object per path; null: of no range
const Scope* path_within(const Scope* path, Phase);
}  // namespace detail

/// Its life is one instance of the range `name`: "profiled_step", "rope encoding". Ranges nest, and each thread has its
/// own. Names live as long as the process: give no number of a step in them. Kernels belong to the range that is open
/// where their ops are made; so under LazyScope too, and in a compiled function where a profiler ran when it was
/// traced. Parts of a model are better named by NameScope, whose name stays with what is traced in any case.
class ProfileRange {
 public:
  explicit ProfileRange(std::string_view name) {
    if (detail::profiling()) [[unlikely]]
      enter(detail::path_within(detail::t_range, name));
  }
  /// Kernels of compiled functions belong to their phase in any case.
  explicit ProfileRange(Phase phase) { enter(detail::path_within(detail::t_range, phase)); }
  ~ProfileRange() {
    if (entered_) detail::t_range = previous_;
  }
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;

 private:
  void enter(const Scope* path) {
    previous_ = detail::t_range;
    detail::t_range = path;
    entered_ = true;
    if (detail::profiling()) [[unlikely]]
      span_.begin_range(path);
  }
  detail::Span span_;
  const Scope* previous_ = nullptr;
  bool entered_ = false;
};

}  // namespace tg
