/// @file
/// OneUser, a member of objects that one thread at a time may use.
#pragma once
#include <tapegrad/core/check.h>

#include <atomic>

namespace tg::detail {

class OneUser {
 public:
  class Use {
   public:
    explicit Use(std::atomic<const void*>* user = nullptr) : user_(user) {}
    ~Use() {
      if (user_) user_->store(nullptr, std::memory_order_release);
    }
    Use(const Use&) = delete;

   private:
    std::atomic<const void*>* user_;
  };
  OneUser() = default;
  OneUser(const OneUser&) {}
  OneUser& operator=(const OneUser&) { return *this; }
  /// Reserves the object for this thread while the result lives. An Error if another thread holds it.
  [[nodiscard]] Use use(std::string_view op, std::string_view what) {
    const void* user = nullptr;
    TG_CHECK(user_.compare_exchange_strong(user, this_thread(), std::memory_order_acquire), state,
             "[{}] two threads call one {} at once. Give each thread its own, or use a mutex.", op, what);
    return Use(&user_);
  }
  /// use(), which the same thread may nest.
  [[nodiscard]] Use use_within(std::string_view op, std::string_view what) {
    if (user_.load(std::memory_order_relaxed) == this_thread()) return Use();
    return use(op, what);
  }

 private:
  static const void* this_thread() {
    static constinit thread_local char here = 0;
    return &here;
  }
  std::atomic<const void*> user_ = nullptr;
};

}  // namespace tg::detail
