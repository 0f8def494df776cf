/// @file
/// ProfileRange: a named stretch of a thread's time, for a Profiler (profiler.h) that runs meanwhile. Without a
/// Profiler it costs a load and a branch. Ops and layers have ranges of their own: NameScope (core/scope.h) opens one.
/// Programs use it, and the parts of core/ that record ranges.
#pragma once
#include <tapegrad/core/span.h>

#include <string_view>

namespace tg {

struct Scope;

/// The parts of a training step. backward() and AdamW::step() open their own; the program opens forward and loss.
enum class Phase : uint8_t { forward, loss, backward, optimizer };

namespace detail {
const Scope* path_within(const Scope* path, std::string_view name);  // one object per path; null: of no range
const Scope* path_within(const Scope* path, Phase);
}  // namespace detail

/// One instance of a range: "profiled_step", "rope encoding". It begins with the constructor and ends with the
/// destructor. Ranges nest, and each thread has its own. Names are never freed, so they must not contain a step number.
///
/// A kernel belongs to the range in which its op was called, also under LazyScope. In a compiled function it belongs to
/// the range of the traced call, if a Profiler ran then. NameScope is better for parts of a model: its names are kept
/// in every trace.
class ProfileRange {
 public:
  /// Opens the range `name` inside the open one.
  explicit ProfileRange(std::string_view name) {
    if (detail::profiling()) [[unlikely]]
      enter(detail::path_within(detail::t_range, name));
  }
  /// Opens a part of a training step. Kernels of compiled functions belong to their phase even if no Profiler ran when
  /// they were traced.
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
