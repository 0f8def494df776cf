/// @file
/// Ref, an intrusive counted pointer, and Counted, the base of its objects, which the slab allocates.
#pragma once
#include <tapegrad/core/util/slab.h>

#include <atomic>
#include <type_traits>
#include <utility>

namespace tg {

/// The base of objects that Ref counts: `struct Node : Counted<Node>`.
template <class Self> struct Counted {
  /// Counter of objects that are never freed. They are not counted, so threads do not contend for a cache line.
  static constexpr uint32_t kImmortal = 1u << 31;
  mutable std::atomic<uint32_t> refs{0};
  Counted() = default;
  /// A copy is a new object with its own counter.
  Counted(const Counted&) {}
  Counted& operator=(const Counted&) = delete;
  static void* operator new(size_t n) { return detail::slab_alloc(n); }
  static void operator delete(void* p, size_t n) { detail::slab_free(p, n); }
  static void dispose(const Self* p) { delete p; }
};

/// A shared owner of an object; empty by default. Threads may share the object, but not the Ref.
template <class T> class Ref {
 public:
  Ref(T* p = nullptr) : p_(p) { take(); }
  Ref(const Ref& o) : p_(o.p_) { take(); }
  Ref(Ref&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
  template <class U>
    requires std::is_convertible_v<U*, T*>
  Ref(Ref<U> o) noexcept : p_(o.detach()) {}
  Ref& operator=(Ref o) noexcept {
    std::swap(p_, o.p_);
    return *this;
  }
  ~Ref() { drop(); }
  T* get() const { return p_; }
  /// Gives the pointer away without decrementing.
  T* detach() { return std::exchange(p_, nullptr); }
  T* operator->() const { return p_; }
  T& operator*() const { return *p_; }
  explicit operator bool() const { return p_ != nullptr; }
  uint32_t use_count() const { return p_->refs.load(std::memory_order_acquire); }

 private:
  void take() const {
    if (p_ && !(p_->refs.load(std::memory_order_relaxed) & T::kImmortal))
      p_->refs.fetch_add(1, std::memory_order_relaxed);
  }
  // The last owner needs no read-modify-write: no one else can revive the object.
  void drop() const {
    if (!p_) return;
    const uint32_t n = p_->refs.load(std::memory_order_acquire);
    if (n & T::kImmortal) return;
    if (n == 1 || p_->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) T::dispose(p_);
  }
  T* p_;
};
/// A new object with these arguments of its constructor.
template <class T, class... A> Ref<T> make_ref(A&&... a) { return Ref<T>(new T(std::forward<A>(a)...)); }

}  // namespace tg
