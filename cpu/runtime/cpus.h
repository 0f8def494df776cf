/// @file
/// The cpus that threads of this process may run on, how much of them its cgroup grants, and which cpu each thread
/// gets.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace tg::cpu::detail {

/// The cpus of the process's affinity mask, ascending; at least one.
std::vector<int> usable_cpus();
/// The lowest cpu of the core that `cpu` is part of; `cpu` itself where the system does not say.
int core_of(int cpu);
/// The cpu of the calling thread.
int current_cpu();
/// Puts a thread on that cpu. A hint: a thread that cannot be placed (the mask was narrowed since) still works.
void pin(std::thread&, int cpu);

/// Nanoseconds that a thread has run so far; negative where the system does not say.
int64_t run_time(std::thread&);

/// `cpus` in the order in which threads get them: that of the calling thread, if it is there, then one per other core,
/// then the other cpus of all cores.
std::vector<int> placement(std::vector<int> cpus, int here, const std::function<int(int cpu)>& core_of);

/// The cpus' worth of time that cgroups grant a process, by the text of its /proc/self/cgroup and the files below
/// `root`, where cgroups are mounted: the least of cpu.max (version 2), or cpu.cfs_quota_us (version 1), of its group
/// and those above. Infinity where nothing is limited or can be read.
double cpu_quota(const std::string& root, const std::string& groups);
/// cpu_quota() of this process.
double cpu_quota();

}  // namespace tg::cpu::detail
