// Records of ranges, ops, kernels and memory, eager, lazy and compiled, in any thread. Tables and traces:
// test_profile_tables.cpp; layers and training: test_profile_models.cpp.
#include <tapegrad/core/mode.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/core/profile/profiler_record.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/reduce.h>

#include <thread>

#include "support/helpers.h"

using namespace tg;

namespace {
std::string path_of(const Scope* s) { return s && s->parent ? s->path() : ""; }
// "tanh in outer.inner of layer": kernels in order.
std::vector<std::string> kernels_of(const Profile& p) {
  std::vector<std::string> r;
  for (const Profile::Kernel& k : p.kernels)
    r.push_back(fmt::format("{}{}{}", k.op, k.path ? " in " + path_of(k.path) : "",
                            k.layer && k.layer->parent ? " of " + path_of(k.layer) : ""));
  return r;
}
std::vector<std::string> named_ranges(const Profile& p) {
  std::vector<std::string> r;
  for (const Profile::Range& x : p.ranges)
    if (x.kind != RangeKind::op) r.push_back(std::string(x.name));
  return r;
}
using Strings = std::vector<std::string>;
std::string lines(const Strings& all) {
  std::string s;
  for (const std::string& x : all) s += x + "\n";
  return s;
}
}  // namespace

TEST_CASE("profiler: ranges nest, lie within their parents, and end where they end") {
  Profiler profiler;
  {
    const ProfileRange outer("outer");
    for (int i = 0; i < 3; ++i) {
      const ProfileRange inner("inner");
      const NameScope layer("layer");
      const NameScope same(detail::current_scope());  // the layer that it is in already: no range
    }
  }
  const ProfileRange open("open at the end");
  const Profile p = profiler.stop();
  CHECK(named_ranges(p) == Strings{"outer", "inner", "layer", "inner", "layer", "inner", "layer", "open at the end"});
  REQUIRE(p.ranges.size() == 8);
  int64_t within = 0;
  for (size_t i = 0; i < 7; ++i) {
    const Profile::Range& r = p.ranges[i];
    CHECK(r.thread == 0);
    CHECK(r.begin >= 0);
    CHECK(r.begin <= r.end);
    CHECK(r.end <= p.duration);
    CHECK(r.parent == (i == 0 ? Profile::kNone : i % 2 ? 0 : uint32_t(i - 1)));
    if (i == 0) continue;
    CHECK(r.begin >= p.ranges[r.parent].begin);
    CHECK(r.end <= p.ranges[r.parent].end);
    if (i % 2) within += r.end - r.begin;
    CHECK(path_of(r.path) == "outer.inner");
  }
  CHECK(within <= p.ranges[0].end - p.ranges[0].begin);
  CHECK(p.ranges[7].end == p.duration);
  CHECK(p.ranges[7].parent == Profile::kNone);
}
TEST_CASE("profiler: what began before it is not recorded; without one, nothing is") {
  const ProfileRange before("before"), phase(Phase::loss);
  const Tensor x = random({3}, 1) + 1.0;
  Profiler profiler;
  { const ProfileRange inside("inside"); }
  const Profile p = profiler.stop();
  CHECK(named_ranges(p) == Strings{"inside"});
  CHECK(path_of(p.ranges[0].path) == "loss.inside");  // a phase still names its contents
  CHECK(p.kernels.empty());
}
TEST_CASE("profiler: kernels of eager ops, with their ranges, layers and shapes") {
  const Tensor x = random({4, 3}, 1), w = random({3, 2}, 2);
  Profiler profiler;
  {
    const ProfileRange range("step");
    const NameScope layer("fc");
    const Tensor y = tg::tanh(matmul(x, w));
    CHECK(values(reshape(y, {8})).size() == 8);
  }
  const Tensor z = x + x;
  const Profile p = profiler.stop();
  CHECK(kernels_of(p) == Strings{"matmul in step of fc", "tanh in step of fc", "add"});
  for (const Profile::Kernel& k : p.kernels) {
    CHECK(k.name == k.op);
    CHECK(k.device == Device());
    REQUIRE(k.range != Profile::kNone);
    const Profile::Range& op = p.ranges[k.range];
    CHECK(op.kind == RangeKind::op);
    CHECK(op.begin <= k.begin);
    CHECK(k.begin <= k.end);
    CHECK(k.end <= op.end);
  }
  CHECK(p.ranges[p.kernels[0].range].shapes == "(4, 3) f32, (3, 2) f32");
  CHECK(p.ranges[p.kernels[1].range].shapes == "(4, 2) f32");
}
TEST_CASE("profiler: kernels of lazy ops belong to the ranges in which the ops were made") {
  const Tensor x = random({3, 3}, 1);
  Profiler profiler;
  lazy_in_ranges(x);
  CHECK(kernels_of(profiler.stop()) == Strings{"matmul in a", "sum in b of norm"});
}
TEST_CASE("profiler: a chain of lazy ops is one kernel, by the names of all") {
  const Tensor x = random({64}, 1);
  Profiler profiler;
  {
    const LazyScope lazy;
    const Tensor y = tg::exp(tg::tanh(x) * x);
    eval({y});
  }
  const Profile p = profiler.stop();
  CHECK(kernels_of(p) == Strings{"tanh+mul+exp"});
  CHECK(p.kernels[0].name == "tanh+mul+exp");
}
TEST_CASE("profiler: replays of a compiled function, which was traced before or meanwhile") {
  for (const bool traced_meanwhile : {false, true}) {
    CAPTURE(traced_meanwhile);
    const Tensor w = random({3, 3}, 1).requires_grad_();
    const Compiled step = compile([&](Inputs x) {
      Tensor loss;
      {
        const ProfileRange forward(Phase::forward);
        const NameScope layer("fc");
        const ProfileRange product("product");
        loss = sum(matmul(x[0], w));
      }
      return std::vector<Tensor>{loss.detach(), backward(loss)[w]};
    });
    const Tensor x = random({3, 3}, 2);
    if (!traced_meanwhile) step({x});
    Profiler profiler;
    if (traced_meanwhile) {
      const ProfileRange warm_up("warm-up");
      step({x});
    }
    const size_t traced = traced_meanwhile ? 1 : 0;
    for (int i = 0; i < 2; ++i) {
      const ProfileRange range("step");
      step({x});
    }
    // Names of ranges are known only while a profiler runs; those of phases and layers always.
    const Strings all = kernels_of(profiler.stop());
    const std::string product = traced_meanwhile ? "forward.product of fc" : "forward of fc";
    Strings want;
    for (size_t i = 0; i < 2 + traced; ++i) {
      const std::string outer = i < traced ? "warm-up" : "step";
      want.push_back("matmul in " + outer + "." + product);
      want.push_back("sum in " + outer + "." + product);
      want.push_back("full in " + outer + ".backward");
      want.push_back("matmul in " + outer + ".backward of fc");
    }
    CHECK(lines(all) == lines(want));
  }
}
TEST_CASE("profiler: memory is counted allocation by allocation, and ends where memory_stats() says") {
  const int64_t before = memory_stats().live;
  Profiler profiler;
  {
    const Tensor a = filled({1000}, 1.f);
    const Tensor b = a + a;
  }
  const Tensor kept = filled({500}, 2.f);
  const int64_t after = memory_stats().live;
  const Profile p = profiler.stop();
  std::vector<int64_t> bytes;
  for (const Profile::Memory& m : p.memory) bytes.push_back(m.bytes);
  CHECK(bytes == std::vector<int64_t>{4000, 4000, -4000, -4000, 2000});
  CHECK(p.memory[1].live == before + 8000);
  CHECK(p.memory.back().live == after);
  CHECK(after == before + 2000);
  size_t allocated = 0, freed = 0;
  for (const Profile::Call& c : p.calls) {
    allocated += c.name == "allocate";
    freed += c.name == "deallocate";
    CHECK(c.begin <= c.end);
  }
  CHECK(allocated == 3);
  CHECK(freed == 2);
}
TEST_CASE("profiler: ranges and ops of two threads at once") {
  constexpr int kTimes = 200;
  Profiler profiler;
  const auto work = [](const char* name, uint64_t seed) {
    const Tensor x = random({8}, seed);
    for (int i = 0; i < kTimes; ++i) {
      const ProfileRange outer(name);
      const ProfileRange inner("inner");
      const Tensor y = x + x;
    }
  };
  std::thread a(work, "a", 1), b(work, "b", 2);
  a.join();
  b.join();
  std::thread(work, "c", 3).join();
  const Profile p = profiler.stop();
  std::map<std::string, int> count;
  for (const Profile::Range& r : p.ranges) {
    ++count[fmt::format("{}", r.name)];
    if (r.parent == Profile::kNone) continue;
    CHECK(p.ranges[r.parent].thread == r.thread);
    CHECK(p.ranges[r.parent].begin <= r.begin);
    CHECK(p.ranges[r.parent].end >= r.end);
  }
  CHECK(count == std::map<std::string, int>{
                     {"a", kTimes}, {"b", kTimes}, {"c", kTimes}, {"inner", 3 * kTimes}, {"add", 3 * kTimes}});
  std::map<uint32_t, int> by_thread;
  for (const Profile::Kernel& k : p.kernels) ++by_thread[k.track];
  CHECK(by_thread.size() == 3);
  for (const auto& [thread, n] : by_thread) CHECK(n == kTimes);
}
TEST_CASE("profiler: profilers come and go while another thread works") {
  std::atomic<bool> end = false;
  std::thread worker([&] {
    const Tensor x = random({8}, 1);
    while (!end) {
      const ProfileRange range("work");
      const Tensor y = x + x;
    }
  });
  for (int i = 0; i < 50; ++i) {
    Profiler profiler;
    { const ProfileRange mine("mine"); }
    const Profile p = profiler.stop();
    size_t count = 0;
    for (const Profile::Range& r : p.ranges) {
      count += r.name == "mine";
      CHECK(r.end <= p.duration);
      CHECK((r.parent == Profile::kNone || r.parent < p.ranges.size()));
    }
    CHECK(count == 1);
  }
  end = true;
  worker.join();
}
TEST_CASE("profiler: totals count the same as records do") {
  const auto work = [] {
    const Tensor x = filled({16}, 1.f);
    for (int i = 0; i < 5; ++i) {
      const ProfileRange range("outer");
      const ProfileRange inner("inner");
      const Tensor y = tg::tanh(x + x);
    }
  };
  Profiler records;
  work();
  const Profile all = records.stop();
  Profiler totals({.keep = ProfileOptions::Keep::totals});
  work();
  const Profile sums = totals.stop();
  CHECK(sums.ranges.empty());
  CHECK(sums.kernels.empty());
  CHECK(all.range_totals.empty());
  std::map<std::string, int64_t> ranges, kernels, calls;
  for (const auto& r : all.ranges) ++ranges[std::string(r.name)];
  for (const auto& k : all.kernels) ++kernels[std::string(k.name)];
  for (const auto& c : all.calls) ++calls[std::string(c.name)];
  const auto counts = [](const Profile::Totals& t) {
    std::map<std::string, int64_t> r;
    for (const auto& [name, total] : t) {
      r[name] = total.count;
      CHECK(total.min * total.count <= total.total);
      CHECK(total.max * total.count >= total.total);
    }
    return r;
  };
  CHECK(counts(sums.range_totals) == ranges);
  CHECK(counts(sums.kernel_totals) == kernels);
  CHECK(counts(sums.call_totals) == calls);
  CHECK(ranges == std::map<std::string, int64_t>{{"outer", 5}, {"inner", 5}, {"add", 5}, {"tanh", 5}});
}
TEST_CASE("profiler: records beyond the limit are counted") {
  Profiler profiler({.most_records = 4});
  for (int i = 0; i < 10; ++i) const ProfileRange range("r");
  const Profile p = profiler.stop();
  CHECK(p.ranges.size() == 4);
  CHECK(p.dropped == 6);
}
TEST_CASE("profiler: ranges for tools outside") {
  static std::vector<std::string> seen;
  static constexpr detail::RangeListener kListener{[](const char* name) { seen.push_back(name); },
                                                   [] { seen.push_back("end"); }};
  const detail::RangeListener* const before = detail::set_range_listener(nullptr);
  CHECK(error_of([] { Profiler p({.nvtx = true}); }) ==
        "[profiler] ProfileOptions::nvtx is set, but this build has no CUDA and thus no NVTX. Configure with "
        "TG_CUDA=ON, or do not set it.");
  detail::set_range_listener(&kListener);
  Profiler profiler({.keep = ProfileOptions::Keep::nothing, .nvtx = true});
  {
    const ProfileRange range("step");
    const Tensor y = filled({2}, 1.f) * 2.0;
  }
  const Profile p = profiler.stop();
  detail::set_range_listener(before);
  CHECK(lines(seen) == lines({"step", "mul_scalar", "end", "end"}));
  CHECK(p.ranges.empty());
  CHECK(p.kernels.empty());
  CHECK(p.memory.empty());
}
TEST_CASE("profiler: errors") {
  Profiler profiler;
  CHECK(error_of([] { Profiler second; }) ==
        "[profiler] another profiler is running. A profiler records all threads of the process, so only one may run "
        "at a time: stop() that one first.");
  (void)profiler.stop();
  CHECK(error_of([&] { (void)profiler.stop(); }) == "[profiler] stop() was called before. Make a new Profiler.");
  CHECK(error_of([] { Profiler p({.most_records = 0}); }) ==
        "[profiler] most_records is 0. It must be between 1 and 2^32 - 2.");
  { Profiler forgotten; }
  Profiler next;  // a new profiler may start
  const Tensor x = filled({2}, 1.f);
  CHECK_HAS(error_of([&] {
              const ProfileRange range("fails");
              (void)matmul(x, filled({3, 3}, 1.f));
            }),
            "[matmul]");
  const Profile p = next.stop();
  REQUIRE(p.ranges.size() == 1);  // the range ended with the Error
  CHECK(p.ranges[0].end < p.duration);
}
