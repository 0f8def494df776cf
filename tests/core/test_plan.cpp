// The passes of a plan keep all bits: common subexpressions, pointwise chains, reused storage, one block of
// temporaries.
#include <tapegrad/core/io/json.h>
#include <tapegrad/core/node.h>
#include <tapegrad/core/plan/plan.h>

#include "support/files.h"
#include "support/small_training.h"
#include "support/with_env.h"

using namespace tg;
namespace {
// Kernels of one evaluation.
uint64_t kernels_of(const std::function<Tensor()>& f) {
  LazyScope lazy;
  const Tensor y = f();
  const uint64_t before = engine_stats().kernels;
  eval({y});
  return engine_stats().kernels - before;
}
std::vector<std::byte> lazy_bits(const std::function<Tensor()>& f) {
  const Tensor y = under<LazyScope>(f);
  return bits_of(y);
}
const char* const kSwitches[] = {"",       "-cse",     "-rewrite", "-fuse",
                                 "-order", "-inplace", "-arena",   "-cse,-rewrite,-fuse,-order,-inplace,-arena"};
}  // namespace

TEST_CASE("nodes that compute the same run once, unless they may differ") {
  const Tensor x = random({64}, 1), z = random({64}, 2);
  CHECK(kernels_of([&] { return matmul(reshape(tg::exp(x), {8, 8}), reshape(tg::exp(x), {8, 8})); }) == 2);
  CHECK(kernels_of([&] { return sum(x) + sum(x) + sum(z); }) == 3);  // two sums, and a chain
  const auto twice = [&](auto f) { return kernels_of([&] { return concat({f(), f()}, 0); }); };
  CHECK(twice([&] { return cumsum(x, 0); }) == 2);
  CHECK(twice([&] { return cumsum(x, 0) * 2.0; }) == 4);  // numbers change from step to step
  Rng rng{1};
  CHECK(twice([&] { return dropout(x, 0.5, rng); }) == 3);
  // Held duplicates stay separate: a write to one does not change the other.
  const std::vector<float> want = values(cumsum(x, 0));
  LazyScope lazy;
  Tensor a = cumsum(x, 0), b = cumsum(x, 0), view = reshape(cumsum(x, 0), {8, 8}), unheld = cumsum(x, 0) + z;
  const uint64_t before = engine_stats().kernels;
  eval({a, b, view, unheld});
  CHECK(engine_stats().kernels == before + 4);  // three sums and an addition
  a.mutable_data<float>()[0] = 100;
  view.mutable_data<float>()[1] = 100;
  CHECK(values(b) == want);
  CHECK(values(a)[1] == want[1]);
  CHECK(values(view)[0] == want[0]);
}
TEST_CASE("what was merged is differentiated and kept as if it was not") {
  const Tensor x = random({4, 4}, 1).requires_grad_();
  const auto loss = [&] {
    const Tensor a = softmax(x), b = softmax(x);
    return sum(matmul(a, b) * a);
  };
  const Tensor eager = backward(loss())[x];
  for (const bool at_once : {false, true}) {
    LazyScope lazy;
    const Tensor l = loss();
    if (at_once) eval({l});  // the tape keeps what both share
    CHECK(bits_of(backward(l)[x]) == bits_of(eager));
  }
}
TEST_CASE("a chain of pointwise ops is one kernel, whoever else reads parts of it") {
  const Tensor x = random({5, 7}, 1), row = random({7}, 2), column = random({5, 1}, 3), one = random({1}, 4);
  CHECK(kernels_of([&] { return tg::tanh(x * 2.0 + row) * one; }) == 1);
  CHECK(kernels_of([&] { return tg::exp(x - column) * column; }) == 1);
  CHECK(kernels_of([&] { return where(gt(x, 0.0), x * x, tg::exp(x)); }) == 1);
  CHECK(kernels_of([&] { return (x * x).to(DType::f64); }) == 2);  // a cast is no pointwise op
  CHECK(kernels_of([&] { return (x + row) * column; }) == 1);
  const Tensor cube = random({2, 3, 5}, 5), plane = random({3, 5}, 6), line = random({5}, 7);
  CHECK(kernels_of([&] { return (cube + plane) * line; }) == 2);        // rows of 15 and of 5
  CHECK(kernels_of([&] { return tg::exp(transpose(x)) * 2.0; }) == 2);  // gaps in what is read
  CHECK(kernels_of([&] { return sum(tg::exp(x) * 2.0) * 3.0; }) == 3);  // a sum between
  const auto branches = [&] {
    const Tensor a = tg::exp(x), b = a * row, c = a + x;
    return b * c;
  };
  CHECK(kernels_of(branches) == 1);
  const auto read_between = [&] {
    const Tensor a = tg::exp(x), s = sum(a, {0});  // held outside, and part of the next evaluation
    return (a * 2.0) * s;
  };
  CHECK(kernels_of(read_between) == 3);
  CHECK(lazy_bits(branches) == bits_of(branches()));
  CHECK(lazy_bits(read_between) == bits_of(read_between()));
  LazyScope lazy;  // a part that is held
  const Tensor a = tg::exp(x), b = a * 2.0, c = tg::tanh(b);
  const uint64_t before = engine_stats().kernels;
  eval({c});
  CHECK(engine_stats().kernels == before + 1);
  CHECK(a.materialized());
  CHECK(bits_of(b) == bits_of(tg::exp(x) * 2.0));
  CHECK(bits_of(c) == bits_of(tg::tanh(tg::exp(x) * 2.0)));
  Tensor y = x;  // long chains are cut
  for (int i = 0; i < 100; ++i) y = tg::tanh(y + 0.25);
  const uint64_t start = engine_stats().kernels;
  eval({y});
  CHECK(engine_stats().kernels - start < 12);
}
TEST_CASE("chains give the bits of op after op: sizes about a tile, rows, columns, dtypes, any number of threads") {
  const Shape shapes[] = {{1},       {3},       {4095},    {4096},   {4097},    {20'000},  {1, 5000},
                          {5000, 1}, {3, 4097}, {4097, 3}, {64, 64}, {63, 130}, {2, 3, 5}, {7, 1, 9}};
  for (const Shape& s : shapes)
    for (const DType t : {DType::f32, DType::f64, DType::bf16})
      for (const int threads : {1, 2}) {
        CAPTURE_ALL(to_string(s), name_of(t));
        if (threads > 1 && num_threads() < 2) continue;
        Shape column = s;
        column.back() = 1;
        const Tensor x = random(s, 1).to(t), row = random({s.back()}, 2).to(t), col = random(column, 3).to(t),
                     one = random({1}, 4).to(t);
        const auto with = [&](const Tensor& other) {
          const Tensor a = tg::tanh(x * other) + one, b = where(gt(a, 0.25), a, other * 0.5), c = a * b;
          return maximum(c, b - x);
        };
        const int usual = num_threads();
        for (const Tensor& other : {x, row, col, one}) {
          const std::vector<std::byte> want = bits_of(with(other));
          set_num_threads(threads);
          CHECK(lazy_bits([&] { return with(other); }) == want);
          set_num_threads(usual);
        }
      }
}
TEST_CASE("integers and bools in a chain") {
  const Tensor i = tensor<int64_t>({1, -2, 3, 4}, {4}), j = tensor<int64_t>({2, 2, 2, 2}, {4});
  const auto f = [&] { return where(gt(i * j, j + i), abs(i), i - j); };
  CHECK(kernels_of(f) == 1);
  CHECK(lazy_bits(f) == bits_of(f()));
}
TEST_CASE("a chain leaves nothing behind but what is held") {
  const Tensor x = random({1 << 16}, 1);
  constexpr int64_t kBytes = 4 << 16;
  const auto peak_of = [&](const std::function<Tensor()>& f) {
    LazyScope lazy;
    const Tensor y = f();
    reset_peak();
    const int64_t base = memory_stats().live;
    eval({y});
    CHECK(memory_stats().live - base == kBytes);
    return memory_stats().peak - base;
  };
  const auto chain = [&] {
    const Tensor a = tg::exp(x), b = tg::tanh(x);
    return a * b + a;
  };
  CHECK(peak_of(chain) == kBytes);
  const WithEnv off("TG_PASSES", "-fuse");
  CHECK(peak_of(chain) >= 2 * kBytes);
}
TEST_CASE(
    "a step of training takes no more memory than in eager mode, and its block is the largest sum of what lives") {
  const auto peak_of = [](bool lazy) {
    SmallTraining model(64, 32);
    int64_t peak = 0;
    for (int i = 0; i < 3; ++i) {
      Mode mode(lazy);
      reset_peak();
      const int64_t base = memory_stats().live;
      const Tensor loss = model.step();
      eval(model.roots(loss));
      peak = std::max(peak, memory_stats().peak - base);
    }
    return peak;
  };
  CHECK(peak_of(true) <= peak_of(false));
  const Tensor x = random({64, 64}, 1);  // 16 KiB each, and three of them live when the third is made
  LazyScope lazy;
  const auto before = engine_stats().planned_bytes;
  Tensor root;
  {
    const Tensor a = matmul(x, x), b = matmul(a, a), c = matmul(b, a), d = matmul(c, c);
    root = sum(matmul(d, d));
  }
  eval({root});
  CHECK(engine_stats().planned_bytes - before == 3 << 14);
}
TEST_CASE("steps run in an order that takes less memory: branch by branch") {
  const Tensor x = random({64, 64}, 1);  // 16 KiB
  std::vector<Tensor> weights;
  for (uint64_t k = 0; k < 40; ++k) weights.push_back(random({64, 64}, k));
  const auto f = [&] {  // level order keeps all branches alive
    std::vector<Tensor> a, b, c;
    for (const Tensor& w : weights) a.push_back(matmul(x, w));
    for (const Tensor& t : a) b.push_back(matmul(t, x));
    for (const Tensor& t : b) c.push_back(sum(t));
    Tensor all = c[0];
    for (size_t k = 1; k < c.size(); ++k) all = all + c[k];
    return all;
  };
  const auto planned = [&] {
    LazyScope lazy;
    const Tensor y = f();
    const auto before = engine_stats().planned_bytes;
    eval({y});
    return std::pair(engine_stats().planned_bytes - before, bits_of(y));
  };
  const auto [bytes, bits] = planned();
  CHECK(bytes < 4 << 14);
  const WithEnv off("TG_PASSES", "-order");
  const auto [bytes_in_order, bits_in_order] = planned();
  CHECK(bytes_in_order >= 40 << 14);
  CHECK(bits == bits_in_order);
}
TEST_CASE("passes can be switched off one by one, and change no bit") {
  // Sizes that no other test has, because their plans are counted.
  const std::vector<float> want = train_small(false, 7, 5, 12);
  for (const char* const off : kSwitches) {
    CAPTURE(off);
    const WithEnv passes("TG_PASSES", off);
    CHECK(train_small(true, 7, 5, 12) == want);
  }
  const Tensor x = random({4}, 1);
  for (const char* const wrong : {"fuse", "-nothing", "-fuse,", "-fuse,merge", "-"}) {
    const WithEnv passes("TG_PASSES", wrong);
    LazyScope lazy;
    const Tensor y = tg::exp(x) * x;
    const std::string e = error_of([&] { eval({y}); });
    CAPTURE(wrong);
    if (std::string(wrong) == "-fuse,") {
      CHECK(e == "no error");
      continue;
    }
    CHECK_HAS(e, fmt::format("[eval] TG_PASSES is '{}', but '", wrong),
              "-cse, -rewrite, -fuse, -order, -inplace, -arena and -branch");
  }
}
TEST_CASE("a plan is written down as JSON") {
  const Folder folder;
  const Tensor x = random({4, 4}, 1).label("the \"input\"");
  {
    const WithEnv dump("TG_DUMP_PLANS", folder.path);
    LazyScope lazy;
    const NameScope scope("layer");
    const Tensor y = matmul(tg::exp(x) * 3.25, softmax(x) + softmax(x));
    eval({y});
  }
  std::vector<fs::path> found;
  for (const auto& f : fs::directory_iterator(folder.path)) found.push_back(f.path());
  REQUIRE(found.size() == 1);
  CHECK(found[0].extension() == ".json");
  const auto json = detail::own_json(read_file(found[0]));
  REQUIRE(json["nodes"].size() == 6);
  REQUIRE(json["leaves"].size() == 1);
  CHECK(json["leaves"][0]["label"].get<std::string>() == "the \"input\"");
  CHECK(json["leaves"][0]["layout"].get<std::string>() == "(4, 4) f32");
  size_t duplicates = 0;
  for (const Json& s : json["steps"]) duplicates += s.contains("as");
  CHECK(duplicates == 1);  // the second softmax
  CHECK(json["nodes"][5]["op"].get<std::string>() == "matmul");
  CHECK(json["nodes"][5]["scope"].get<std::string>() == "layer");
  CHECK(json["steps"].size() < 6);
  REQUIRE(json["arenas"].size() == 1);
  CHECK(json["arenas"][0]["bytes"].get<int64_t>() > 0);
}
