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
#include <time.h>
#include <unistd.h>
#endif

namespace tg::cpu::detail {
namespace {
constexpr double kUnlimited = std::numeric_limits<double>::infinity();

// The limit of one group. A missing file or "max" means unlimited.
double limit_of(const std::string& folder, bool second_version) {
  double quota = 0, period = 0;
  if (second_version) {
    std::ifstream(folder + "/cpu.max") >> quota >> period;
  } else {
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? quota / period : kUnlimited;
}
// The least limit of the group at `path` ("/a/b") and those above, `mount` included.
double least_limit(const std::string& mount, std::string path, bool second_version) {
  double least = limit_of(mount, second_version);
  for (; path.size() > 1 && path[0] == '/'; path.resize(path.rfind('/')))
    least = std::min(least, limit_of(mount + path, second_version));
  return least;
}
}  // namespace

double cpu_quota(const std::string& root, const std::string& groups) {
  double least = kUnlimited;
  std::istringstream lines(groups);
  for (std::string line; std::getline(lines, line);) {  // hierarchy:controllers:path
    const size_t one = line.find(':'), two = line.find(':', one + 1);
    if (one == std::string::npos || two == std::string::npos) continue;
    const std::string controllers = line.substr(one + 1, two - one - 1), path = line.substr(two + 1);
    if (controllers.empty())
      least = std::min(least, least_limit(root, path, true));
    else if (("," + controllers + ",").find(",cpu,") != std::string::npos)
      least = std::min(least, least_limit(root + "/cpu", path, false));
  }
  return least;
}
double cpu_quota() {
  std::ifstream f("/proc/self/cgroup");
  return cpu_quota("/sys/fs/cgroup", {std::istreambuf_iterator<char>(f), {}});
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
// One cpu_set_t holds 1024 cpus; the kernel refuses a mask shorter than its own.
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
