/// @file
/// ScopedValue: sets a variable for its life, and gives it the former value back. Every mode of a thread is one.
#pragma once
#include <utility>

namespace tg {

template <class T> class ScopedValue {
 public:
  ScopedValue(T& variable, T value) : variable_(variable), former_(std::exchange(variable, std::move(value))) {}
  ~ScopedValue() { variable_ = std::move(former_); }
  ScopedValue(const ScopedValue&) = delete;
  ScopedValue& operator=(const ScopedValue&) = delete;
  const T& former() const { return former_; }

 private:
  T& variable_;
  T former_;
};

}  // namespace tg
