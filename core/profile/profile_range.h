/// @file
/// ProfileRange: a named range of a thread's time, for a running Profiler (profiler.h). Without one it costs a load and
/// a branch. NameScope (core/scope.h) opens the ranges of layers.
#pragma once
#include <tapegrad/core/span.h>

#include <string_view>

namespace tg {

struct Scope;

/// Phases of a training step. backward() and AdamW::step() open a phase; the program opens forward and loss.
enum class Phase : uint8_t { forward, loss, backward, optimizer };

namespace detail {
const Scope* path_within(const Scope* path, std::string_view name);  // one object per path; null: outermost
const Scope* path_within(const Scope* path, Phase);
const Scope* joined_path(const Scope* outer, const Scope* inner);  // the path `inner` in `outer`; null: empty
}  // namespace detail

/// One instance of a range: "profiled_step", "rope encoding". It lasts from constructor to destructor. Ranges nest
/// within a thread. Names are never freed, so they must not contain a step number.
///
/// A kernel belongs to the range that called its op, also under LazyScope. In a compiled function that is the range of
/// the traced call, if a Profiler ran then. Use NameScope for parts of a model: every trace keeps its names.
class ProfileRange {
 public:
  [[nodiscard]] explicit ProfileRange(std::string_view name) {
    if (detail::profiling()) [[unlikely]]
      enter(detail::path_within(detail::t_range, name));
  }
  /// Opens a phase. Compiled functions' kernels keep it even without a Profiler during the trace.
  [[nodiscard]] explicit ProfileRange(Phase phase) { enter(detail::path_within(detail::t_range, phase)); }
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
