// Counts are exact, times merely ordered. CUPTI numbers nodes as the driver copies them, so it may lose the op of a few
// kernels of a graph.
#include <tapegrad/core/mode.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/core/profile/profile_tables.h>
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/optim/adamw.h>
#include <tapegrad/ops/loss.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/reduce.h>

#include <algorithm>
#include <map>
#include <thread>
#ifdef TG_CUDA_EMULATED
#include <tapegrad/emulator/cupti.h>
#endif

#include "support/helpers.h"
#include "support/with_env.h"

using namespace tg;

namespace {
using Counts = std::map<std::string, int>;

std::string path_of(const Scope* s) { return s && s->parent ? s->path() : ""; }
Counts ops_of(const Profile& p) {
  Counts r;
  for (const Profile::Kernel& k : p.kernels)
    ++r[fmt::format("{} in {}{}", k.op, path_of(k.path),
                    k.layer && k.layer->parent ? fmt::format(" of {}", path_of(k.layer)) : "")];
  return r;
}
Counts copies_of(const Profile& p) {
  Counts r;
  for (const Profile::Copy& c : p.copies) ++r[fmt::format("{} {}", int(c.kind), c.bytes)];
  return r;
}
int calls_of(const Profile& p, std::string_view name) {
  int n = 0;
  for (const Profile::Call& c : p.calls) n += c.name == name;
  return n;
}
#ifdef TG_CUDA_EMULATED
constexpr double kAttributed = 1;
constexpr int64_t kOutside = 0;
#else
constexpr double kAttributed = 0.95;
constexpr int64_t kOutside = 1'000'000;  // clocks are converted
#endif
void check_times(const Profile& p) {
  const auto check = [&](int64_t begin, int64_t end) {
    CHECK(begin >= -kOutside);
    CHECK(begin <= end);
    CHECK(end <= p.duration + kOutside);
  };
  for (const auto& k : p.kernels) check(k.begin, k.end);
  for (const auto& c : p.copies) check(c.begin, c.end);
  for (const auto& c : p.calls) check(c.begin, c.end);
}
bool attributed(const Profile& p) {
  const auto known = std::ranges::count_if(p.kernels, [](const Profile::Kernel& k) { return !k.op.empty(); });
  const bool enough = double(known) >= kAttributed * double(p.kernels.size());
  if (kAttributed == 1 || known > 0) CHECK(enough);
  if (!enough) {
    REQUIRE(!p.notes.empty());
    MESSAGE(p.notes[0]);
  }
  return enough;
}
int kernels_of(const std::function<void()>& op) {
  Profiler profiler;
  op();
  return int(profiler.stop().kernels.size());
}
}  // namespace

TEST_CASE("profiler: kernels of eager ops on the device belong to the op, its range and its layer") {
  const Tensor x = random({16, 16}, 1).to(Device::cuda()), y = x + x;
  Profiler profiler;
  {
    const ProfileRange range("step");
    const NameScope layer("fc");
    const Tensor z = tg::tanh(x + y);
  }
  const Tensor last = x * y;
  const Profile p = profiler.stop();
  CHECK(ops_of(p) == Counts{{"add in step of fc", 1}, {"tanh in step of fc", 1}, {"mul in ", 1}});
  int launches = 0;
  for (const char* call : {"cudaLaunchKernel", "cudaLaunchKernelExC", "__cudaLaunchKernel"})
    launches += calls_of(p, call);
  CHECK(launches == 3);
  CHECK(calls_of(p, "cudaGetLastError") == 0);
  CHECK(p.dropped == 0);
  check_times(p);
  for (const Profile::Kernel& k : p.kernels) {
    CHECK(k.device == Device::cuda());
    CHECK_FALSE(k.in_graph);
    CHECK(k.name != k.op);
    CHECK_FALSE(k.name.starts_with("_Z"));
    REQUIRE(k.range != Profile::kNone);
    CHECK(p.ranges[k.range].kind == RangeKind::op);
  }
  for (const Profile::Call& c : p.calls) CHECK(c.backend == Backend::cuda);
  const std::vector<ProfileTable> tables = profile_tables(p);
  std::vector<std::string> reports;
  for (const ProfileTable& t : tables) reports.push_back(t.report);
  for (const char* report : {"nvtx_sum", "cuda_api_sum", "cuda_gpu_kern_sum"})  // a driver may add copies
    CHECK(std::ranges::count(reports, report) == 1);
#ifdef TG_CUDA_EMULATED
  REQUIRE(p.notes.size() == 1);
  CHECK_HAS(p.notes[0], "emulated");
#endif
}
TEST_CASE("profiler: copies have their direction, bytes and range") {
  Profiler profiler;
  {
    const ProfileRange range("moving");
    const Tensor x = filled({1000}, 1.f).to(Device::cuda());
    const Tensor back = x.to(Device::cpu());
    CHECK(values(back)[999] == 1);
  }
  const Profile p = profiler.stop();
  using Kind = Profile::Copy::Kind;
  CHECK(copies_of(p) == Counts{{fmt::format("{} 4000", int(Kind::host_to_device)), 1},
                               {fmt::format("{} 4000", int(Kind::device_to_host)), 1}});
  for (const Profile::Copy& c : p.copies) CHECK(path_of(c.path) == "moving");
  const std::vector<ProfileTable> tables = profile_tables(p);
  CHECK(tables.back().report == "cuda_gpu_mem_size_sum");
  CHECK(tables.back().at("[CUDA memcpy Host-to-Device]", "Total (MB)") == 0.004);
  int64_t live = 0;
  for (const Profile::Memory& m : p.memory)
    if (m.device == Device::cuda()) live += m.bytes;
  CHECK(live == 0);
}
TEST_CASE("profiler: kernels of cuBLASLt, which launches without the runtime, belong to their op") {
  const Tensor x = random({64, 64}, 1).to(Device::cuda());
  const int alone = kernels_of([&] { (void)matmul(x, x); });
  Profiler profiler;
  {
    const ProfileRange range("product");
    const Tensor y = matmul(x, x);
  }
  CHECK(ops_of(profiler.stop()) == Counts{{"matmul in product", alone}});
}
TEST_CASE("profiler: lazy ops on the device belong to the ranges in which they were made") {
  const Tensor x = random({16, 16}, 1).to(Device::cuda());
  const int product = kernels_of([&] { (void)matmul(x, x); }), total = kernels_of([&] { (void)sum(x); });
  Profiler profiler;
  lazy_in_ranges(x);
  CHECK(ops_of(profiler.stop()) == Counts{{"matmul in a", product}, {"sum in b of norm", total}});
}
TEST_CASE("profiler: a chain that is compiled at run time is one kernel of all its ops") {
  const WithEnv chains("TG_EMULATE_CHAINS", "1"), cache("TG_CACHE_DIR", TG_TEST_KERNELS);
  const Tensor x = random({16, 16}, 1).to(Device::cuda());
  Profiler profiler;
  {
    const LazyScope lazy;
    const ProfileRange range("step");
    const Tensor y = tg::tanh(x) * x;
    eval({y});
  }
  CHECK(ops_of(profiler.stop()) == Counts{{"tanh+mul in step", 1}});
}
TEST_CASE("profiler: kernels of a graph belong to the ops, phases and layers that were recorded, in each replay") {
  const GptConfig config{.vocab_size = 11, .context = 6, .layers = 2, .heads = 2, .width = 8, .dropout = 0.2};
  for (const bool recorded_before : {false, true}) {
    CAPTURE(recorded_before);
    const Params params(Device::cuda(), 5);
    const Gpt model(params, config);
    AdamW optimiser(params.trainable(), {.lr = 1e-3});
    Rng noise{4};
    const tg::Compiled step = compile(
        [&](Inputs x) {
          Tensor loss;
          {
            const ProfileRange forward(Phase::forward);
            loss = cross_entropy(model.forward(x[0], {.rng = &noise}), x[1]);
          }
          optimiser.step(backward(loss), {.clip_norm = 1});
          return std::vector<Tensor>{loss.detach()};
        },
        {.generators = {&noise}});
    const Tensor ids = tensor<int32_t>({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1}, {2, 6}, Device::cuda());
    step({ids, ids});
    if (recorded_before)
      for (int i = 0; i < 4; ++i) step({ids, ids});
    const auto profiled = [&](int steps, const char* name) {
      Profiler profiler;
      for (int i = 0; i < steps; ++i) {
        const ProfileRange range(name);
        step({ids, ids});
      }
      return profiler.stop();
    };
    Counts one_by_one;
    if (!recorded_before) {
      one_by_one = ops_of(profiled(1, "step"));
      CHECK(step.stats().graph_launches == 0);
      CHECK(one_by_one.size() > 20);
    }
    const uint64_t launches = step.stats().graph_launches;
    const Profile p = profiled(3, "step");
    CHECK(step.stats().graph_launches == launches + 3);
    CHECK(calls_of(p, "cudaGraphLaunch") == 3);
    check_times(p);
    for (const Profile::Kernel& k : p.kernels) CHECK(k.in_graph);
    if (!attributed(p)) continue;
    Counts in_graph;
    for (const auto& [what, n] : ops_of(p)) {
      if (kAttributed < 1 && what.starts_with(" in ")) continue;
      if (kAttributed == 1) CHECK(n % 3 == 0);
      in_graph[what] = n / 3;
      CHECK_MESSAGE((has(what, " in step.forward of gpt") || has(what, " in step.backward") ||
                     has(what, " in step.optimizer of adamw") || has(what, " in step")),
                    what);
    }
    CHECK(in_graph.contains("linear in step.forward of gpt.h.1.mlp.fc"));
    if (!recorded_before && kAttributed == 1) CHECK(in_graph == one_by_one);
  }
}
TEST_CASE("profiler: two threads on one device, each with its own ranges") {
  const Tensor x = random({16}, 1).to(Device::cuda());
  synchronize(Device::cuda());
  Profiler profiler;
  const auto work = [&](const char* name) {
    for (int i = 0; i < 20; ++i) {
      const ProfileRange range(name);
      const Tensor y = tg::exp(x);
    }
  };
  std::thread other(work, "other");
  work("mine");
  other.join();
  CHECK(ops_of(profiler.stop()) == Counts{{"exp in mine", 20}, {"exp in other", 20}});
}
TEST_CASE("profiler: totals of the device's kernels") {
  const Tensor x = random({16}, 1).to(Device::cuda());
  Profiler profiler({.keep = ProfileOptions::Keep::totals});
  for (int i = 0; i < 3; ++i) (void)tg::exp(x);
  const Profile p = profiler.stop();
  CHECK(p.kernels.empty());
  REQUIRE(p.kernel_totals.size() == 1);
  CHECK(p.kernel_totals.begin()->second.count == 3);
  CHECK(p.range_totals.at("exp").count == 3);
}
#ifdef TG_CUDA_EMULATED
TEST_CASE("profiler: kernels of a graph of which too few have an op have their own names, and a note says so") {
  const Tensor x = random({16, 16}, 1).to(Device::cuda());
  const tg::Compiled f = compile([](Inputs in) { return std::vector<Tensor>{tg::tanh(matmul(in[0], in[0]))}; });
  for (int i = 0; i < 4; ++i) f({x});
  simt::set_cupti(CUPTI_ERROR_INVALID_OPERATION, "cuptiEnableCallback");
  Profiler profiler;
  simt::set_cupti(CUPTI_SUCCESS);
  f({x});
  const Profile p = profiler.stop();
  REQUIRE(p.kernels.size() == 2);
  for (const Profile::Kernel& k : p.kernels) CHECK((k.in_graph && k.op.empty() && !k.name.empty()));
  CHECK(std::ranges::any_of(p.notes, [](const std::string& n) {
    return has(n, "0.0 % of the kernels of CUDA graphs (0 of 2) have an op, which is too few");
  }));
}
TEST_CASE("profiler: a driver that refuses leaves a note, and the rest of the profile") {
  const Tensor x = random({16}, 1).to(Device::cuda());
  simt::set_cupti(CUPTI_ERROR_INSUFFICIENT_PRIVILEGES);
  Profiler profiler;
  simt::set_cupti(CUPTI_SUCCESS);
  {
    const ProfileRange range("step");
    const Tensor y = tg::exp(x);
  }
  const Profile p = profiler.stop();
  CHECK(p.kernels.empty());
  CHECK(p.ranges.size() == 2);
  REQUIRE(p.notes.size() == 1);
  CHECK(p.notes[0] ==
        "kernels of the GPU are missing: [profiler] CUPTI refuses to be used: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES. The "
        "driver lets only administrators profile: set NVreg_RestrictProfilingToAdminUsers=0 for its module, or run as "
        "root.");
}
TEST_CASE("profiler: without what a profile can do without it is whole, and a note says so") {
  const Tensor x = random({16}, 1).to(Device::cuda());
  const auto profile = [&](const char* refuser) {
    simt::set_cupti(CUPTI_ERROR_INVALID_OPERATION, refuser);
    Profiler profiler;
    simt::set_cupti(CUPTI_SUCCESS);
    const Tensor y = tg::exp(x);
    synchronize(Device::cuda());
    Profile p = profiler.stop();
    CAPTURE(refuser);
    CHECK(p.kernels.size() == 1);
    check_times(p);
    return p.notes;
  };
  for (int again = 0; again < 2; ++again) {
    const auto clock = profile("cuptiActivityRegisterTimestampCallback"), nodes = profile("cuptiEnableCallback");
    REQUIRE(clock.size() == 2);  // the other note: the GPU is emulated
    CHECK_HAS(clock[0] + clock[1], "CUPTI refuses the clock of the host, so its own times are shifted to it: ");
    REQUIRE(nodes.size() == 2);
    CHECK_HAS(nodes[0] + nodes[1], "CUPTI refuses to say which op a kernel of a graph belongs to: ");
    CHECK(profile("nothing").size() == 1);
  }
  simt::set_cupti(CUPTI_ERROR_INVALID_OPERATION, "cuptiActivityEnable");
  Profiler profiler;
  simt::set_cupti(CUPTI_SUCCESS);
  REQUIRE(!profiler.stop().notes.empty());
}
#endif
