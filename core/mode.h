// Modes of the calling thread: whether ops are recorded on the tape, whether they run at once or when read, and whether
// their results are searched for NaN and infinities. RAII only; all nest.
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

// Inside a NoGrad: ops emitted during its life are recorded again.
class WithGrad {
 public:
  WithGrad();
  ~WithGrad();
  WithGrad(const WithGrad&) = delete;
  WithGrad& operator=(const WithGrad&) = delete;

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

// All results of ops that run during its life are read: the first NaN, and the first infinity that an op makes out of
// finite inputs (unless it is told to: full, masked_fill), is an Error of kind non_finite that names the op, its scope
// and its inputs. For finding where a run begins to diverge; it makes every op several times slower.
class AnomalyScope {
 public:
  AnomalyScope();
  ~AnomalyScope();
  AnomalyScope(const AnomalyScope&) = delete;
  AnomalyScope& operator=(const AnomalyScope&) = delete;

 private:
  bool previous_;
};

bool grad_enabled();
bool lazy_enabled();
bool anomaly_enabled();

}  // namespace tg
