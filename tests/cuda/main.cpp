// Without Device::cuda() it exits with 77, skipped for ctest. TG_EMULATE_SCHEDULE chooses the emulator's order.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>

#include <cstdio>

int main(int argc, char** argv) {
  try {
    fmt::print("cuda:0 is {}\n", tg::detail::runtime_of(tg::Device::cuda()).describe(0));
    std::fflush(stdout);
  } catch (const tg::Error& e) {
    fmt::print("skipped: {}\n", e.what());
    return 77;
  }
  return doctest::Context(argc, argv).run();
}
