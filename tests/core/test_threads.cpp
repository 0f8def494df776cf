// Different threads run different graphs; one graph belongs to one thread at a time. Meant for the thread sanitizer
// too.
#include "support/helpers.h"
#include "support/small_training.h"

#include <thread>

using namespace tg;
namespace {
// f(0) and f(1) at once; rethrows what either threw.
template <class F> void both(F f) {
  std::exception_ptr failed[2];
  const auto run = [&](size_t i) {
    try {
      f(i);
    } catch (...) {
      failed[i] = std::current_exception();
    }
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  for (auto& e : failed)
    if (e) std::rethrow_exception(e);
}
}  // namespace

TEST_CASE("a graph continued in a second thread") {
  uint64_t ids[2];
  for (auto& id : ids) std::thread([&] { id = filled({1}, 0.f).id(); }).join();
  CHECK(ids[0] != ids[1]);  // never reused, in any thread
  Tensor x = random({3, 3}, 1).requires_grad_(), w = random({3, 3}, 2).requires_grad_();
  const auto tail = [&](Tensor h) {
    for (int i = 0; i < 5; ++i) h = h + tg::tanh(matmul(h, w)) * h;
    return sum(h);
  };
  const auto head = [&] {
    Tensor h = x;
    for (int i = 0; i < 50; ++i) h = silu(h) + x;
    return h;
  };
  const auto expected = backward(tail(head()));
  for (bool lazy : {false, true}) {
    Mode mode(lazy);
    Tensor h = head();
    GradMap g;
    std::thread([&] {
      Mode inner(lazy);
      g = backward(tail(h));
      evaluate({g[x], g[w]});
      h = Tensor();
    }).join();
    CHECK(values(g[x]) == values(expected[x]));
    CHECK(values(g[w]) == values(expected[w]));
  }
}
TEST_CASE("modes belong to their thread") {
  NoGradScope off;
  LazyScope lazy;
  bool grad = false, is_lazy = true;
  std::thread([&] { grad = grad_enabled(), is_lazy = lazy_enabled(); }).join();
  CHECK(grad);
  CHECK_FALSE(is_lazy);
}
TEST_CASE("an error in a second thread reaches its own caller and leaves the other alone") {
  const Tensor a = random({2, 3}, 1);
  std::string messages[2];
  both([&](size_t i) {
    for (int k = 0; k < 100; ++k) {
      NameScope s(i ? "second" : "first");
      messages[i] = error_of([&] { matmul(a, a); });
    }
  });
  CHECK(has(messages[0], "in first"));
  CHECK(has(messages[1], "in second"));
}
TEST_CASE("two threads train two models at once") {
  const std::vector<float> expected[] = {train_small(false, 1), train_small(true, 2)};
  std::vector<float> got[2];
  both([&](size_t i) {
    for (int k = 0; k < 20; ++k) got[i] = train_small(i == 1, i + 1);
  });
  CHECK(got[0] == expected[0]);
  CHECK(got[1] == expected[1]);
}
TEST_CASE("two threads read shared weights, with kernels large enough for the pool") {
  const Tensor w = random({256, 256}, 9).requires_grad_(), x = random({128, 256}, 3);
  const auto infer = [&](bool lazy) {
    NoGradScope off;
    Mode mode(lazy);
    return values(softmax(gelu(matmul(x, w))));
  };
  const auto expected = infer(false);
  int wrong[2] = {};
  both([&](size_t i) {
    for (int k = 0; k < 20; ++k) wrong[i] += infer(i == 1) != expected;
  });
  CHECK(wrong[0] == 0);
  CHECK(wrong[1] == 0);
}
TEST_CASE("training and inference at once") {
  const auto expected = train_small(true, 3);
  const Tensor w = random({64, 64}, 9), x = random({4, 64}, 3);
  const auto y = values(matmul(x, w));
  std::vector<float> trained;
  int wrong = 0;
  both([&](size_t i) {
    for (int k = 0; k < 20; ++k) {
      if (i == 0)
        trained = train_small(true, 3);
      else
        wrong += values(matmul(x, w)) != y;
    }
  });
  CHECK(trained == expected);
  CHECK(wrong == 0);
}
TEST_CASE("tensors made in one thread end in another") {
  const auto base = memory_stats().live;
  for (int k = 0; k < 10; ++k) {
    std::vector<Tensor> made;
    std::thread([&] {
      for (int64_t i = 1; i <= 200; ++i) made.push_back(random({i}, 1));
    }).join();
    std::thread([&] { made.clear(); }).join();
  }
  CHECK(memory_stats().live == base);
}
