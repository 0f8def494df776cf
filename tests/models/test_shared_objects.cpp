// Table "Threads" of core/README.md. Not for the thread sanitizer: sizes are read without a lock.
#include <tapegrad/tapegrad.h>

#include <atomic>
#include <thread>

#include "support/files.h"
#include "support/helpers.h"

using namespace tg;

namespace {
GptConfig tiny() { return {.vocab_size = 13, .context = 16, .layers = 3, .heads = 2, .width = 8, .init_std = 0.3}; }
// Runs f(0) and f(1) at once, and returns what failed.
template <class F> std::vector<std::string> errors_of_both(F f) {
  std::string said[2];
  std::atomic<int> started = 0;
  const auto run = [&](size_t i) {
    for (++started; started < 2;) std::this_thread::yield();
    said[i] = error_of([&] { f(i); });
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  std::vector<std::string> all;
  for (const std::string& s : said)
    if (s != "no error") all.push_back(s);
  return all;
}
}  // namespace

TEST_CASE("a KvCache is shared: an Error, or one pass after the other") {
  const Params params(Device(), 9);
  const Gpt model(params, tiny());
  const Tensor next = tensor<int64_t>({3, 1}, {1, 2});
  size_t refused = 0;
  for (int round = 0; round < 200 || (refused == 0 && round < 20'000); ++round) {  // busy machines rarely overlap
    KvCache cache = round % 2 ? KvCache() : model.make_cache(1);
    const auto errors = errors_of_both([&](size_t) {
      NoGradScope off;
      (void)model.forward(next, {.cache = &cache}).to_vector<float>();
    });
    for (const std::string& e : errors) CHECK_HAS(e, "two threads call one KV cache at once");
    refused += errors.size();
    CHECK(cache.length() == 4 - 2 * int64_t(errors.size()));
  }
  CHECK(refused > 0);
  KvCache cache;  // belongs to a model that does not hold it
  const auto pair = [] { return KvCache::Pair{zeros({1, 1, 1, 2}), zeros({1, 1, 1, 2})}; };
  for (const int64_t layer : {0, 1, 0, 0}) cache.append(layer, pair());
  CHECK_SAYS(cache.append(1, pair()), "[kv_cache] layer 1 would hold 2 positions, and layer 0 holds 3");
}
TEST_CASE("one Params is shared") {
  for (int round = 0; round < 50; ++round) {
    const Params params(Device(), 9);
    const auto errors = errors_of_both([&](size_t i) {
      for (int k = 0; k < 20; ++k) {
        params.at(int64_t(i)).get(fmt::format("w{}", k), {2, 3}, Init::normal(1));
        const StateDict now = params.state();
        CHECK(params.numel() >= 6 * int64_t(now.size()));
        params.at(int64_t(i)).assign(params.state());
      }
    });
    for (const std::string& e : errors) CHECK_HAS(e, "[params] no value for");
    CHECK(params.trainable().size() <= 40);
  }
}
