// Kernels of ops/factories.h. Random values are functions of (seed, position), so tiles may be filled in any order.
#include <tapegrad/cpu/loop.h>
#include <tapegrad/ops/factories.h>

namespace tg::cpu::TG_ISA_NS {
namespace {
template <class T, class F> void fill(Bufs out, F f) {  // out[i] = f(i)
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
// out[i] = the i-th value that bulk(generator, floats) writes, in any dtype: drawn in f32 and then converted.
template <class F> void draw(Bufs out, Rng rng, F bulk) {
  visit_float(out[0].dtype(), [&]<class T>() {
    T* y = out[0].data<T>();
    parallel_for(out[0].numel(), kGrain, [&](int64_t begin, int64_t end) {
      float buffer[kBlock];
      for (int64_t i = begin; i < end; i += kBlock) {
        const auto n = size_t(std::min(kBlock, end - i));
        Rng at{rng.seed, rng.offset + uint64_t(i) / 4};  // kGrain and kBlock are multiples of a block of four words
        bulk(at, std::span(buffer, n));
        for (size_t k = 0; k < n; ++k) y[i + int64_t(k)] = T(buffer[k]);
      }
    });
  });
}
void random_normal(const op::RandomNormal& op, Bufs, Bufs out, Context&) {
  draw(out, op.rng, [&](Rng& at, std::span<float> to) { at.fill_normal(to, float(op.mean), float(op.std)); });
}
void random_truncated_normal(const op::RandomTruncatedNormal& op, Bufs, Bufs out, Context&) {
  draw(out, op.rng, [&](Rng& at, std::span<float> to) { at.fill_truncated_normal(to, float(op.mean), float(op.std)); });
}
void random_uniform(const op::RandomUniform& op, Bufs, Bufs out, Context&) {
  draw(out, op.rng, [&](Rng& at, std::span<float> to) { at.fill_uniform(to, float(op.lo), float(op.hi)); });
}
TG_KERNEL(op::Full, cpu, full);
TG_KERNEL(op::Arange, cpu, arange);
TG_KERNEL(op::RandomNormal, cpu, random_normal);
TG_KERNEL(op::RandomTruncatedNormal, cpu, random_truncated_normal);
TG_KERNEL(op::RandomUniform, cpu, random_uniform);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
