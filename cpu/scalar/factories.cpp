// Functions of (seed, position): tiles may run in any order.
#include <tapegrad/cpu/simd/loop.h>
#include <tapegrad/ops/factories.h>

namespace tg::cpu::TG_ISA_NS {
namespace {
template <class T, class F> void fill(Bufs out, F f) {
  T* y = out[0].data<T>();
  parallel_for(out[0].numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = T(compute_t<T>(f(i)));
  });
}
void full(const op::Full& op, Bufs, Bufs out, Context&) {
  visit_dtype(out[0].dtype(), [&]<class T>() { fill<T>(out, [v = compute_t<T>(op.value)](int64_t) { return v; }); });
}
void arange(const op::Arange& op, Bufs, Bufs out, Context&) {
  visit_dtype(out[0].dtype(),
              [&]<class T>() { fill<T>(out, [&](int64_t i) { return op.start + double(i) * op.step; }); });
}
// Drawn in f32, then converted.
template <op::Distribution D> void random(const op::Random<D>& op, Bufs, Bufs out, Context&) {
  const auto a = float(op.a), b = float(op.b);
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    T* y = out[0].data<T>();
    const tg::detail::DrawnRange<T> inside(op.a, op.b);
    parallel_for(out[0].numel(), kGrain, [&](int64_t begin, int64_t end) {
      float buffer[kBlock];
      for (int64_t i = begin; i < end; i += kBlock) {
        const std::span to(buffer, size_t(std::min(kBlock, end - i)));
        Rng at{op.rng.seed, op.rng.offset + uint64_t(i) / 4};
        if constexpr (D == op::Distribution::normal)
          at.fill_normal(to, a, b);
        else if constexpr (D == op::Distribution::truncated_normal)
          at.fill_truncated_normal(to, a, b);
        else
          at.fill_uniform(to, a, b);
        for (size_t k = 0; k < to.size(); ++k) {
          const auto x = T(buffer[k]);
          y[i + int64_t(k)] = D == op::Distribution::uniform ? T(inside(compute_t<T>(x))) : x;
        }
      }
    });
  });
}
TG_STRIDED_KERNEL(op::Full, cpu, full);
TG_STRIDED_KERNEL(op::Arange, cpu, arange);
TG_STRIDED_KERNEL(op::RandomNormal, cpu, random);
TG_STRIDED_KERNEL(op::RandomTruncatedNormal, cpu, random);
TG_STRIDED_KERNEL(op::RandomUniform, cpu, random);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
