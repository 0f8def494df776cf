#include <tapegrad/cuda/device/copy.h>

#include <algorithm>

namespace tg::cuda {
namespace {
constexpr int kThreads = 256, kBatch = 16;  // 3.6 KiB of kernel arguments

struct Part {
  Strided<2> walk{Shape(), {Strides(), Strides()}};  // y, x
  int64_t units = 0;
  std::byte* y = nullptr;
  const std::byte* x = nullptr;
};
struct Parts {
  Part part[kBatch];
};
template <class Unit> __global__ void __launch_bounds__(kThreads) copy_parts(const __grid_constant__ Parts all) {
  const Part& part = all.part[blockIdx.y];
  Unit* y = reinterpret_cast<Unit*>(part.y);
  const Unit* x = reinterpret_cast<const Unit*>(part.x);
  for (GridLoop i(part.units); i; ++i) {
    int64_t at[2];
    part.walk.offsets(*i, at);
    y[at[0]] = x ? x[at[1]] : Unit{};
  }
}

Part part_of(const Region& r) {
  return {Strided<2>(r.shape, {r.y_strides, r.x ? r.x_strides : r.y_strides}), r.shape.product(), r.y, r.x};
}
bool allows(const Part& p, size_t size, int64_t bytes) {
  const auto whole = [&](int64_t elements) { return elements * int64_t(size) % bytes == 0; };
  const auto aligned = [&](const void* a) { return reinterpret_cast<uintptr_t>(a) % uintptr_t(bytes) == 0; };
  const Strided<2>& w = p.walk;
  if (w.dims == 0 || w.stride[0][0] != 1 || w.stride[1][0] != 1 || !whole(w.shape[0])) return false;
  bool ok = aligned(p.y) && aligned(p.x);
  for (int32_t d = 1; d < w.dims; ++d) ok = ok && whole(w.stride[0][d]) && whole(w.stride[1][d]);
  return ok;
}
void widen_units(Part& p, int64_t elements) {
  p.units /= elements;
  p.walk.shape[0] /= elements;
  for (int32_t d = 1; d < p.walk.dims; ++d)
    for (auto& stride : p.walk.stride) stride[d] /= elements;
}
}  // namespace

cudaError_t find_kernel() {
  cudaFuncAttributes a;
  return cudaFuncGetAttributes(&a, copy_parts<uint8_t>);
}
void copy_regions(const Context& c, size_t size, std::span<const Region> regions) {
  for (size_t begin = 0; begin < regions.size();) {
    Parts parts;
    unsigned n = 0;
    int64_t most = 0;
    for (; begin < regions.size() && n < kBatch; ++begin)
      if (regions[begin].shape.product() > 0) parts.part[n++] = part_of(regions[begin]);
    if (n == 0) return;
    size_t unit = 16;
    const auto all_allow = [&] {
      return std::all_of(parts.part, parts.part + n, [&](auto& p) { return allows(p, size, int64_t(unit)); });
    };
    while (unit > size && !all_allow()) unit /= 2;
    for (unsigned k = 0; k < n; ++k) {
      if (unit > size) widen_units(parts.part[k], int64_t(unit / size));
      most = std::max(most, parts.part[k].units);
    }
    const dim3 grid(blocks_for(c, most, kThreads), n);
    const auto run = [&]<class Unit>() { launch(c, copy_parts<Unit>, grid, kThreads, 0, parts); };
    switch (unit) {
      case 1: run.template operator()<uint8_t>(); break;
      case 2: run.template operator()<uint16_t>(); break;
      case 4: run.template operator()<uint32_t>(); break;
      case 8: run.template operator()<uint64_t>(); break;
      default: run.template operator()<Vec<uint32_t>>();
    }
  }
}
}  // namespace tg::cuda
