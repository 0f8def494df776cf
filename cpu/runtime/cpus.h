/// @file
/// The cpus of this process, the limits of its cgroups, and the cpu of each thread.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace tg::cpu::detail {

/// Cpus of the process's affinity mask, ascending; at least one.
std::vector<int> usable_cpus();
/// Lowest cpu of `cpu`'s core; `cpu` itself where the system does not say.
int core_of(int cpu);
int current_cpu();
/// Bytes of a core's L2; 0: unknown.
int64_t l2_bytes();
/// Pins a thread, or ignores that the mask has been narrowed.
void pin(std::thread&, int cpu);

/// Nanoseconds that a thread has run; negative if unknown.
int64_t run_time(std::thread&);

/// The threads' cpus in order: `here`, the caller's, if listed; one per other core; the remaining hyperthreads.
std::vector<int> placement(std::vector<int> cpus, int here, const std::function<int(int cpu)>& core_of);

/// Process's /proc/self/cgroup.
std::string own_groups();
/// The cpu time that cgroups grant, in cpus: least cpu.max (version 2) or cpu.cfs_quota_us (version 1) of the group and
/// those above; infinity without a readable limit. `groups`: /proc/self/cgroup; `root`: the mount of cgroups.
double cpu_quota(const std::string& root = "/sys/fs/cgroup", const std::string& groups = own_groups());
/// Bytes: least of these groups' limits, physical memory and `ulimit -v`; 0: unknown.
double memory_limit(const std::string& root = "/sys/fs/cgroup", const std::string& groups = own_groups());

}  // namespace tg::cpu::detail
