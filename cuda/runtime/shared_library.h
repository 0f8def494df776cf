// Loaded at first use, so that programs start without it.
#pragma once
#include <atomic>
#include <mutex>
#include <string>

namespace tg::cuda {

class SharedLibrary {
 public:
  // Searches by the system's rules, then in `folder`. `install` tells users where to get it.
  SharedLibrary(std::string file, std::string folder, std::string install)
      : file_(std::move(file)), folder_(std::move(folder)), install_(std::move(install)) {}
  // An Error(cuda) if library or function is missing; the next call searches again.
  void* function(const char* name);

 private:
  std::mutex mutex_;
  std::string file_, folder_, install_;
  void* handle_ = nullptr;
};

// Hides a function's declaration and resolves it when called.
template <class F, SharedLibrary& (*library)()> class LibraryFunction;
template <class R, class... A, SharedLibrary& (*library)()> class LibraryFunction<R(A...), library> {
 public:
  explicit constexpr LibraryFunction(const char* name) : name_(name) {}
  R operator()(A... a) const {
    auto* f = address_.load(std::memory_order_relaxed);
    if (!f) [[unlikely]]
      address_.store(f = reinterpret_cast<R (*)(A...)>(library().function(name_)), std::memory_order_relaxed);
    return f(a...);
  }

 private:
  const char* name_;
  mutable std::atomic<R (*)(A...)> address_{nullptr};
};

}  // namespace tg::cuda
