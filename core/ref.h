/// @file
/// Ref: an intrusive counted pointer, and Counted, the base of what it points to. The objects live in the slab.
#pragma once
#include <tapegrad/core/slab.h>

#include <atomic>
#include <type_traits>
#include <utility>

namespace tg {

template <class Self> struct Counted {
  static constexpr uint32_t kImmortal =
      1u << 31;  ///< objects in static storage: never counted, hence never a contended cache line
  mutable std::atomic<uint32_t> refs{0};
  Counted() = default;
  Counted(const Counted&) {}  ///< a copy is a new object with its own count
  Counted& operator=(const Counted&) = delete;
  static void* operator new(size_t n) { return slab_alloc(n); }
  static void operator delete(void* p, size_t n) { slab_free(p, n); }
  static void dispose(const Self* p) { delete p; }
};

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
  void drop() const {  // the last owner needs no read-modify-write: nobody else can revive the object
    if (!p_) return;
    const uint32_t n = p_->refs.load(std::memory_order_acquire);
    if (n & T::kImmortal) return;
    if (n == 1 || p_->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) T::dispose(p_);
  }
  T* p_;
};
template <class T, class... A> Ref<T> make_ref(A&&... a) { return Ref<T>(new T(std::forward<A>(a)...)); }

}  // namespace tg
