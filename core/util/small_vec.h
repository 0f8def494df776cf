/// @file
/// SmallVec, for short lists of the engine.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <new>
#include <utility>

namespace tg {

/// A vector with room for N elements inside the object. It grows by allocation.
template <class T, size_t N> class SmallVec {
 public:
  SmallVec() = default;
  SmallVec(std::initializer_list<T> l) {
    for (auto& x : l) emplace_back(x);
  }
  SmallVec(const SmallVec& o) {
    for (auto& x : o) emplace_back(x);
  }
  SmallVec(SmallVec&& o) noexcept {
    for (auto& x : o) emplace_back(std::move(x));
    o.clear();
  }
  SmallVec& operator=(SmallVec o) noexcept {
    clear();
    for (auto& x : o) emplace_back(std::move(x));
    return *this;
  }
  ~SmallVec() {
    clear();
    if (data_ != inline_()) ::operator delete(data_, std::align_val_t(alignof(T)));
  }
  template <class... A> T& emplace_back(A&&... a) {
    if (size_ == cap_) grow();
    return *new (data_ + size_++) T{std::forward<A>(a)...};
  }
  void clear() {
    while (size_) data_[--size_].~T();
  }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& back() { return data_[size_ - 1]; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }

 private:
  T* inline_() { return reinterpret_cast<T*>(buf_); }
  void grow() {
    auto* p = static_cast<T*>(::operator new(2 * cap_ * sizeof(T), std::align_val_t(alignof(T))));
    for (uint32_t i = 0; i < size_; ++i) {
      new (p + i) T(std::move(data_[i]));
      data_[i].~T();
    }
    if (data_ != inline_()) ::operator delete(data_, std::align_val_t(alignof(T)));
    data_ = p;
    cap_ *= 2;
  }
  alignas(T) std::byte buf_[N * sizeof(T)];
  T* data_ = inline_();
  uint32_t size_ = 0, cap_ = N;
};

}  // namespace tg
