/// @file
/// OneUser, a member of objects that one thread at a time may use.
#pragma once
#include <tapegrad/core/check.h>

#include <atomic>

namespace tg::detail {

class OneUser {
 public:
  struct Use {
    std::atomic<bool>& busy;
    ~Use() { busy.store(false, std::memory_order_release); }
  };
  /// Holds the object until the result dies. An Error if another thread does.
  [[nodiscard]] Use use(std::string_view op, std::string_view what) {
    TG_CHECK(!busy_.exchange(true, std::memory_order_acquire), state,
             "[{}] two threads call one {} at once. Give each thread its own, or use a mutex.", op, what);
    return {busy_};
  }

 private:
  std::atomic<bool> busy_ = false;
};

}  // namespace tg::detail
