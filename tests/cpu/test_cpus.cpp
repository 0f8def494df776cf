// The cpus that the thread pool takes, and the share of them that cgroups grant.
#include <tapegrad/cpu/runtime/cpus.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "support/files.h"

using namespace tg::cpu::detail;

namespace {
class Groups {
 public:
  Groups& file(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
    return *this;
  }
  double quota(const std::string& groups) const { return cpu_quota(root_.path, groups); }
  double memory(const std::string& groups) const { return memory_limit(root_.path, groups); }

 private:
  const tg::Folder root_;
};
constexpr double kUnlimited = std::numeric_limits<double>::infinity();
}  // namespace

TEST_CASE("cgroup v2: the least cpu.max of a group and those above") {
  Groups g;
  CHECK(g.quota("0::/\n") == kUnlimited);
  g.file("cpu.max", "400000 100000\n").file("a/cpu.max", "max 100000\n").file("a/b/cpu.max", "150000 100000\n");
  CHECK(g.quota("0::/\n") == 4);
  CHECK(g.quota("0::/a\n") == 4);
  CHECK(g.quota("0::/a/b\n") == 1.5);
  CHECK(g.quota("0::/a/b/gone/c\n") == 1.5);
  CHECK(g.quota("0::/elsewhere") == 4);
  g.file("a/cpu.max", "50000 100000\n");
  CHECK(g.quota("0::/a/b\n") == 0.5);
}

TEST_CASE("cgroup v1: the quota over the period of the hierarchy of cpu") {
  Groups g;
  const auto limit = [&](const std::string& folder, const std::string& quota) {
    g.file(folder + "/cpu.cfs_quota_us", quota).file(folder + "/cpu.cfs_period_us", "50000\n");
  };
  limit("cpu", "-1\n");
  limit("cpu/a", "100000\n");
  limit("memory/a", "50000\n");
  CHECK(g.quota("4:memory:/a\n1:cpu:/\n") == kUnlimited);
  CHECK(g.quota("4:memory:/a\n1:cpu:/a/b\n") == 2);
  CHECK(g.quota("2:cpu,cpuacct:/a\n0::/\n") == 2);
  CHECK(g.quota("2:cpuacct:/a\n3:cpuset:/a\n") == kUnlimited);
}

TEST_CASE("what is no quota limits nothing") {
  for (const std::string text : {"", "max", "x y", "0 100000", "-1 100000", "100000", "100000 0", "100000 x"})
    CHECK(Groups().file("cpu.max", text).quota("0::/\n") == kUnlimited);
  Groups g;
  g.file("cpu.max", "100000 100000");
  for (const std::string groups : {"", "\n", "0", "0:", "nonsense\n:\n"}) CHECK(g.quota(groups) == kUnlimited);
  for (const std::string groups : {"0::", "0::a/b", "0::a"}) CHECK(g.quota(groups) == 1);
  CHECK(cpu_quota() > 0);
}

TEST_CASE("memory: the least limit of the groups of both versions and those above, physical memory, ulimit -v") {
  Groups g;
  g.file("memory.max", "max\n").file("memory/memory.limit_in_bytes", "9223372036854771712\n");
  const double all = g.memory("0::/\n5:memory:/\n");
  g.file("memory.max", "400000\n").file("a/b/memory.max", "150000\n").file("memory/memory.limit_in_bytes", "500000\n");
  g.file("memory/a/memory.limit_in_bytes", "300000\n").file("cpu/memory.limit_in_bytes", "7\n");
  for (const auto& [groups, bytes] : {std::pair("0::/a", 4e5),
                                      {"0::/a/b/gone", 1.5e5},
                                      {"4:hugetlb,memory:/", 5e5},
                                      {"1:cpu:/\n4:memory:/a/b", 3e5},
                                      {"4:memory:/a\n0::/a/b\n", 1.5e5},
                                      {"", all}})
    CHECK(g.memory(groups) == bytes);
}

TEST_CASE("threads get the caller's cpu, then other cores, then the rest") {
  using Cpus = std::vector<int>;
  const auto none = [](int cpu) { return cpu; };
  const auto neighbours = [](int cpu) { return cpu / 2 * 2; };  // cores 0-1, 2-3, ...
  const auto halves = [](int cpu) { return cpu % 4; };          // cores 0-4, 1-5, ...
  CHECK(placement({0, 1, 2, 3}, 0, none) == Cpus{0, 1, 2, 3});
  CHECK(placement({0, 1, 2, 3}, 2, none) == Cpus{2, 0, 1, 3});
  CHECK(placement({0, 1, 2, 3, 4, 5}, 0, neighbours) == Cpus{0, 2, 4, 1, 3, 5});
  CHECK(placement({0, 1, 2, 3, 4, 5}, 3, neighbours) == Cpus{3, 0, 4, 1, 2, 5});
  CHECK(placement({0, 1, 2, 3, 4, 5, 6, 7}, 5, halves) == Cpus{5, 0, 2, 3, 1, 4, 6, 7});
  CHECK(placement({1, 3, 7}, 3, neighbours) == Cpus{3, 1, 7});
  CHECK(placement({1, 3}, 9, none) == Cpus{1, 3});  // a changed mask
  CHECK(placement({6}, 6, neighbours) == Cpus{6});
}

TEST_CASE("the cpus and cores of this process") {
  const std::vector<int> cpus = usable_cpus();
  REQUIRE(!cpus.empty());
  CHECK(std::is_sorted(cpus.begin(), cpus.end()));
#ifdef __linux__
  CHECK(std::binary_search(cpus.begin(), cpus.end(), current_cpu()));
  for (const int cpu : cpus) CHECK((core_of(cpu) >= 0 && core_of(cpu) <= cpu));
#endif
}
