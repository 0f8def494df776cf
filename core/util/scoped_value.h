/// @file
/// ScopedValue, the base of all modes of a thread.
#pragma once
#include <utility>

namespace tg {

/// Sets a variable while it lives, and restores the former value. Constructors of such classes are nodiscard: a
/// statement `LazyScope();` would end at once.
template <class T> class ScopedValue {
 public:
  [[nodiscard]] ScopedValue(T& variable, T value)
      : variable_(variable), former_(std::exchange(variable, std::move(value))) {}
  ~ScopedValue() { variable_ = std::move(former_); }
  ScopedValue(const ScopedValue&) = delete;
  ScopedValue& operator=(const ScopedValue&) = delete;
  /// The value that will be restored.
  const T& former() const { return former_; }

 private:
  T& variable_;
  T former_;
};

}  // namespace tg
