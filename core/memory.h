// Small-object memory of the engine: intrusive counts (Counted, Ref), a slab for the objects that every emit makes,
// and SmallVec (inline first, heap when it grows). Knows nothing of tensors; everything in core/ stands on it.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <new>
#include <type_traits>
#include <utility>

namespace tg {

#if defined(__SANITIZE_ADDRESS__)
#define TG_PLAIN_MEMORY 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TG_PLAIN_MEMORY 1
#endif
#endif
#ifdef TG_PLAIN_MEMORY  // AddressSanitizer: nothing is kept, so that it sees each use after free
inline constexpr bool kPlainMemory = true;
#else
inline constexpr bool kPlainMemory = false;
#endif

// The slab: 64-byte aligned blocks in classes of 64, 128, ... kSlabMax bytes, kept for the next block of their class,
// at any time of a thread's or of the process's life. Larger ones, and all of them when kPlainMemory, are operator
// new's.
inline constexpr size_t kSlabMax = 1024;
void* slab_alloc(size_t bytes);                  // 0 bytes is a block too; std::bad_alloc without memory
void slab_free(void* p, size_t bytes) noexcept;  // in any thread; bytes as asked for
int64_t slab_bytes();                            // of the chunks that blocks are cut from, used or free
void slab_release();  // gives back chunks that are free as a whole, except what other running threads keep

template <class Self> struct Counted {
  static constexpr uint32_t kImmortal =
      1u << 31;  // objects in static storage: never counted, hence never a contended cache line
  mutable std::atomic<uint32_t> refs{0};
  Counted() = default;
  Counted(const Counted&) {}  // a copy is a new object with its own count
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
template <class T, class... A> Ref<T> make(A&&... a) { return Ref<T>(new T(std::forward<A>(a)...)); }

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
