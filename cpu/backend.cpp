#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/backend/registry.h>
#include <tapegrad/core/check.h>
#include <tapegrad/cpu/runtime/allocator.h>
#include <tapegrad/cpu/runtime/chain.h>
#include <tapegrad/cpu/runtime/cpus.h>
#include <tapegrad/cpu/runtime/product_path.h>
#include <tapegrad/cpu/runtime/thread_pool.h>

#include <cstring>

namespace tg {
int num_threads() { return cpu::num_threads(); }
void set_num_threads(int n) { cpu::set_num_threads(n); }

namespace cpu {
namespace {
std::string_view bf16_products() {
  switch (bf16_path()) {
    case Bf16Path::amx: return ", bf16 by AMX";
    case Bf16Path::avx512: return ", bf16 by AVX512_BF16";
    default: return ", bf16 by f32";
  }
}
std::string_view int8_products() {
  switch (int8_path()) {
    case Int8Path::amx: return ", int8 by AMX";
    case Int8Path::avx512_vnni: return ", int8 by AVX512_VNNI";
    case Int8Path::avx_vnni: return ", int8 by AVX_VNNI";
    default: return "";
  }
}

class CpuRuntime final : public BackendRuntime {
 public:
  int device_count() const override { return 1; }
  std::string describe(int) const override {
    const int level = tg::detail::kernel_level(Backend::cpu);
    return fmt::format("{}, {} thread(s){}{}", level <= 1 ? "baseline instructions" : fmt::format("x86-64-v{}", level),
                       num_threads(), int8_products(), bf16_products());
  }
  std::string_view bf16_method() const override { return name_of(bf16_path()); }
  size_t memory(int) const override { return size_t(detail::memory_limit()); }
  Allocator& allocator(int) override { return cpu_allocator(); }
  bool runs_in_chains(const Op&) override { return true; }
  void run_chain(const Chain& c) override { cpu::run_chain(c); }
  void synchronize(int) override {}
  void copy(int, void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy_from_host(int, void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void copy_to_host(int, void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
};
// Leaked: static tensors may be freed later.
[[maybe_unused]] const bool registered = tg::detail::register_backend(Backend::cpu, new CpuRuntime);
}  // namespace
}  // namespace cpu
}  // namespace tg
