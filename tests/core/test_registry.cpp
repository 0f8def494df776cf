// The linked ops and kernels: each op can run, with the kernels of this machine's level.
#include <tapegrad/ops/ops.h>

#include <cstdlib>
#include <map>
#include <set>

#include "support/files.h"
#include "support/helpers.h"
#include "support/with_env.h"

using namespace tg;
namespace {
std::vector<OpInfo> library_ops() {  // excludes ops that tests define
  auto ops = detail::all_ops();
  std::erase_if(ops, [](auto& o) { return o.name.starts_with("test_"); });
  return ops;
}
}  // namespace

TEST_CASE("every op has a CPU kernel, is a view, or composes") {
  std::set<std::string_view> kernels;
  for (auto& k : detail::all_kernels())
    if (k.backend == Backend::cpu) kernels.insert(k.op);
  std::set<std::string_view> names;
  for (auto& o : library_ops()) {
    CAPTURE(o.name);
    CHECK((kernels.contains(o.name) || o.is_view || o.composes));
    CHECK_FALSE((kernels.contains(o.name) && o.is_view));
    CHECK(names.insert(o.name).second);
  }
  CHECK(names.contains("matmul"));
  CHECK(names.contains("reshape"));
  CHECK(names.size() >= 40);
}
TEST_CASE("every kernel belongs to an op, and each level to one file and line of it") {
  std::set<std::string_view> names;
  for (auto& o : detail::all_ops()) names.insert(o.name);
  std::map<std::pair<std::string_view, Backend>, std::vector<KernelInfo>> kernels;
  for (auto& k : detail::all_kernels()) {
    CAPTURE(k.op);
    CHECK(names.contains(k.op));
    CHECK((k.level == 1 || k.level == 3 || k.level == 4));
    CHECK(k.level <= detail::isa_level());
    CHECK(k.line > 0);
    if (!k.op.starts_with("test_")) CHECK(k.file.starts_with(k.backend == Backend::cuda ? "cuda/" : "cpu/"));
    kernels[{k.op, k.backend}].push_back(k);
  }
  for (auto& [of, list] : kernels) {
    CAPTURE(of.first);
    CHECK(list.front().level == 1);
    for (size_t i = 1; i < list.size(); ++i) {
      CHECK(list[i - 1].level < list[i].level);
      CHECK(list[i].file == list[0].file);
      CHECK(list[i].line == list[0].line);
    }
  }
}
TEST_CASE("a kernel file has the baseline alone or all levels") {
  std::map<std::string_view, std::set<int>> levels;
  for (auto& k : detail::all_kernels())
    if (!k.op.starts_with("test_")) levels[k.file].insert(k.level);
  const std::set<int> all = levels["cpu/kernels/matmul.cpp"], baseline{1};
  REQUIRE(all.contains(1));
  for (auto& [file, set] : levels) {
    CAPTURE(file);
    CHECK((set == all || set == baseline));
  }
}
TEST_CASE("TG_ISA lowers the level and never raises it") {
  CHECK((detail::isa_level() == 1 || detail::isa_level() == 3 || detail::isa_level() == 4));
  if (const char* wish = std::getenv("TG_ISA")) CHECK(detail::isa_level() <= std::max(1, std::atoi(wish)));
}
TEST_CASE("TG_ISA that is no level is an error") {
  const WithEnv right("TG_ISA", "3");
  CHECK(detail::kernel_level(Backend::cpu) >= 1);
  for (const char* wrong : {"rubbish", "", "2", "99", "-3", "3x"}) {
    const WithEnv env("TG_ISA", wrong);
    const std::string what = fmt::format("[kernels] TG_ISA is '{}'. It must be 1, 3 or 4", wrong);
    CHECK_SAYS_OF(value, detail::kernel_level(Backend::cpu), what);
    CHECK_SAYS_OF(value, detail::runtime_of(Device::cpu()).describe(0), what);
  }
}
TEST_CASE("the CPU is described by the level of its kernels") {
  const int level = detail::kernel_level(Backend::cpu);
  CHECK(level <= detail::isa_level());
  CHECK_HAS(detail::runtime_of(Device::cpu()).describe(0),
            level == 1 ? "baseline instructions" : fmt::format("x86-64-v{}", level));
}
TEST_CASE("gradients: what is for training has one, what is a gradient or an update has none") {
  std::map<std::string_view, OpInfo> ops;
  for (auto& o : library_ops()) ops.emplace(o.name, o);
  for (auto name : {"matmul", "linear", "softmax", "layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm",
                    "embedding", "attention", "cross_entropy", "linear_cross_entropy", "sum", "concat", "pad", "slice",
                    "dropout", "cast", "topk"}) {
    CAPTURE(name);
    REQUIRE(ops.contains(name));
    CHECK(ops.at(name).has_vjp);
  }
  for (auto name : {"adamw_step", "square_sums", "argmax", "full", "randn", "detach"}) {
    CAPTURE(name);
    REQUIRE(ops.contains(name));
    CHECK_FALSE(ops.at(name).has_vjp);
  }
}
