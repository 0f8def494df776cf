#include <fmt/core.h>
#include <tapegrad/cpu/runtime/cpus.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <sstream>

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#endif

namespace tg::cpu::detail {
namespace {
constexpr double kUnlimited = std::numeric_limits<double>::infinity();

// Infinite for a missing file, "max" or -1.
double cpu_limit_of(const std::string& folder, bool second_version) {
  double quota = 0, period = 0;
  if (second_version) {
    std::ifstream(folder + "/cpu.max") >> quota >> period;
  } else {
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? quota / period : kUnlimited;
}
double least_limit(double (*limit_of)(const std::string& folder, bool second_version), const std::string& controller,
                   const std::string& root, const std::string& groups) {
  double least = kUnlimited;
  std::istringstream lines(groups);
  for (std::string line; std::getline(lines, line);) {  // hierarchy:controllers:path
    const size_t one = line.find(':'), two = line.find(':', one + 1);
    if (one == std::string::npos || two == std::string::npos) continue;
    const std::string controllers = line.substr(one + 1, two - one - 1);
    const bool second = controllers.empty();
    if (!second && ("," + controllers + ",").find("," + controller + ",") == std::string::npos) continue;
    const std::string mount = second ? root : root + "/" + controller;
    least = std::min(least, limit_of(mount, second));
    for (std::string path = line.substr(two + 1); path.size() > 1 && path[0] == '/'; path.resize(path.rfind('/')))
      least = std::min(least, limit_of(mount + path, second));
  }
  return least;
}
}  // namespace

std::string own_groups() {
  std::ifstream f("/proc/self/cgroup");
  return {std::istreambuf_iterator<char>(f), {}};
}
double cpu_quota(const std::string& root, const std::string& groups) {
  return least_limit(cpu_limit_of, "cpu", root, groups);
}
double memory_limit(const std::string& root, const std::string& groups) {
  const auto limit_of = [](const std::string& folder, bool second_version) {
    double x = -1;
    std::ifstream(folder + (second_version ? "/memory.max" : "/memory.limit_in_bytes")) >> x;
    return x > 0 ? x : kUnlimited;
  };
  double least = least_limit(limit_of, "memory", root, groups);
#ifdef __linux__
  least = std::min(least, double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGESIZE)));
  rlimit space{};
  if (getrlimit(RLIMIT_AS, &space) == 0) least = std::min(least, double(space.rlim_cur));
#endif
  return least > 0 && least < kUnlimited ? least : 0;
}

int64_t l2_bytes() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  return std::max<int64_t>(0, sysconf(_SC_LEVEL2_CACHE_SIZE));
#else
  return 0;
#endif
}

std::vector<int> placement(std::vector<int> cpus, int here, const std::function<int(int cpu)>& core_of) {
  const auto first = std::find(cpus.begin(), cpus.end(), here);
  if (first != cpus.end()) std::rotate(cpus.begin(), first, first + 1);
  std::set<int> cores;
  std::vector<int> place, siblings;
  for (int cpu : cpus) (cores.insert(core_of(cpu)).second ? place : siblings).push_back(cpu);
  place.insert(place.end(), siblings.begin(), siblings.end());
  return place;
}

#ifdef __linux__
// A cpu_set_t holds 1024 cpus; Linux refuses masks shorter than its own.
using CpuSet = cpu_set_t[16];

std::vector<int> usable_cpus() {
  CpuSet set;
  std::vector<int> cpus;
  if (sched_getaffinity(getpid(), sizeof set, set) == 0) {
    for (int i = 0; i < int(8 * sizeof set); ++i)
      if (CPU_ISSET_S(i, sizeof set, set)) cpus.push_back(i);
  }
  for (int i = 0; cpus.empty() && i < int(std::max(1u, std::thread::hardware_concurrency())); ++i) cpus.push_back(i);
  return cpus;
}
int core_of(int cpu) {
  std::ifstream f(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
  int first = cpu;
  return f >> first ? first : cpu;
}
int current_cpu() { return sched_getcpu(); }
void pin(std::thread& thread, int cpu) {
  CpuSet set;
  CPU_ZERO_S(sizeof set, set);
  CPU_SET_S(cpu, sizeof set, set);
  (void)pthread_setaffinity_np(thread.native_handle(), sizeof set, set);
}
int64_t run_time(std::thread& thread) {
  clockid_t clock;
  timespec t;
  if (pthread_getcpuclockid(thread.native_handle(), &clock) != 0 || clock_gettime(clock, &t) != 0) return -1;
  return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}
#else
std::vector<int> usable_cpus() { return std::vector<int>(std::max(1u, std::thread::hardware_concurrency())); }
int core_of(int cpu) { return cpu; }
int current_cpu() { return 0; }
void pin(std::thread&, int) {}
int64_t run_time(std::thread&) { return -1; }
#endif

}  // namespace tg::cpu::detail
