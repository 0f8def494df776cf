// A limit of the process (ulimit) in a scope. Included by doctest files only.
#pragma once
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>

namespace tg {

class Limit {
 public:
  Limit(decltype(RLIMIT_FSIZE) resource, rlim_t most) : resource_(resource) {
    REQUIRE(getrlimit(resource, &former_) == 0);
    const rlimit low{most, former_.rlim_max};
    REQUIRE(setrlimit(resource, &low) == 0);
  }
  ~Limit() {
    setrlimit(resource_, &former_);
    signal(SIGXFSZ, handler_);
  }
  Limit(const Limit&) = delete;

 private:
  decltype(RLIMIT_FSIZE) resource_;
  rlimit former_;
  void (*handler_)(int) = signal(SIGXFSZ, SIG_IGN);  // a write fails instead
};

}  // namespace tg
