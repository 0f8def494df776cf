/// @file
/// The cpus of this process, the limits of its cgroups, and the cpu of each thread.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace tg::cpu::detail {

/// The cpus of the process's affinity mask, ascending; at least one.
std::vector<int> usable_cpus();
/// The lowest cpu of `cpu`'s core; `cpu` itself where the system does not say.
int core_of(int cpu);
int current_cpu();
/// Pins a thread. A failure (the mask has been narrowed) is ignored.
void pin(std::thread&, int cpu);

/// Nanoseconds that a thread has run; negative if unknown.
int64_t run_time(std::thread&);

/// The threads' cpus in order: `here`, the caller's, if listed; one per other core; the remaining hyperthreads.
std::vector<int> placement(std::vector<int> cpus, int here, const std::function<int(int cpu)>& core_of);

/// The /proc/self/cgroup of the process.
std::string own_groups();
/// The cpu time that cgroups grant a process, in cpus: the least cpu.max (version 2) or cpu.cfs_quota_us (version 1) of
/// its group and those above; infinity without a readable limit. `groups`: its /proc/self/cgroup; `root`: the mount of
/// cgroups.
double cpu_quota(const std::string& root = "/sys/fs/cgroup", const std::string& groups = own_groups());
/// Bytes: the least limit of these groups, physical memory and `ulimit -v`; 0: unknown.
double memory_limit(const std::string& root = "/sys/fs/cgroup", const std::string& groups = own_groups());

}  // namespace tg::cpu::detail
