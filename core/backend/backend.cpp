#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>

namespace tg {
namespace {
constinit BackendRuntime* g_runtimes[kBackends] = {};
}  // namespace

bool detail::register_backend(Backend b, BackendRuntime* r) {
  g_runtimes[size_t(b)] = r;
  return true;
}
BackendRuntime& detail::runtime_of(Device d) {
  BackendRuntime* r = g_runtimes[size_t(d.backend)];
  if (!r && d.backend == Backend::cuda)
    detail::fail(Error::Kind::device,
                 "[device] cuda was asked for, and this build has no CUDA backend. Use the device cpu, or a "
                 "build of tapegrad that was configured with one (TG_CUDA).");
  if (!r)
    detail::fail(Error::Kind::device,
                 "[device] the CPU backend was not linked. Link the target tapegrad::tapegrad, "
                 "which keeps the whole archive, and not the archive alone.");
  const int n = r->device_count();
  TG_CHECK(n > 0, device, "[device] {} was asked for, and there is none: {}. Use the device cpu.", d, r->why_missing());
  TG_CHECK(d.index >= 0 && d.index < n, device,
           "[device] there is no {}: this machine has {} {} device(s), numbered from 0.", d, n, name_of(d.backend));
  return detail::running_dry() ? detail::dry_runtime(d.backend, *r) : *r;
}
bool has_device(Device d) {
  const BackendRuntime* r = g_runtimes[size_t(d.backend)];
  return r && d.index >= 0 && d.index < r->device_count();
}
MemoryStats memory_stats(Device d) { return detail::runtime_of(d).allocator(d.index).stats(); }
void reset_peak(Device d) { detail::runtime_of(d).allocator(d.index).reset_peak(); }
void empty_cache(Device d) { detail::runtime_of(d).allocator(d.index).empty_cache(); }
void synchronize(Device d) { detail::runtime_of(d).synchronize(d.index); }
}  // namespace tg
