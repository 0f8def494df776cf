// Modes of the calling thread: whether ops are recorded on the tape, and whether they run at once or when read.
// RAII only; both nest.
#pragma once

namespace tg {

// Ops emitted during its life are not recorded: no tape, nothing saved.
class NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool previous_;
};

// Ops emitted during its life are not run until a value is read or evaluate() is called.
class LazyScope {
 public:
  LazyScope();
  ~LazyScope();
  LazyScope(const LazyScope&) = delete;
  LazyScope& operator=(const LazyScope&) = delete;

 private:
  bool previous_;
};

bool grad_enabled();
bool lazy_enabled();

}  // namespace tg
