// Sines and cosines of all (position, pair) once per call, then every row in one pass.
#include <tapegrad/core/math.h>
#include <tapegrad/cpu/simd/rows.h>
#include <tapegrad/ops/rope.h>

namespace tg::cpu::TG_ISA_NS {
namespace {
template <class C> struct Turns {  // (starts, T, HS / 2)
  std::vector<C> sine, cosine;
  Turns(const op::Rope& op, const std::vector<int64_t>& starts, int64_t rows, int64_t pairs)
      : sine(starts.size() * size_t(rows * pairs)), cosine(sine.size()) {
    std::vector<double> frequency(static_cast<size_t>(pairs));
    for (int64_t i = 0; i < pairs; ++i)
      frequency[size_t(i)] = tg::kernel::rope_frequency(op.theta, op.scaling, i, pairs);
    over_rows(int64_t(starts.size()) * rows, pairs, [&](int64_t t) {
      const double at = double(starts[size_t(t / rows)] + t % rows), *f = frequency.data();
      C *s = sine.data() + t * pairs, *c = cosine.data() + t * pairs;
      for (int64_t i = 0; i < pairs; ++i) math::sincos(at * f[i], s[i], c[i]);
      for (int64_t i = 0; op.inverse && i < pairs; ++i) s[i] = -s[i];
    });
  }
};
// y may be x.
template <class T, class C> void turn(int64_t pairs, const C* s, const C* c, const T* x, T* y) {
  TG_SAME_INDEX
  for (int64_t i = 0; i < pairs; ++i) {
    const C a = C(x[2 * i]), b = C(x[2 * i + 1]);
    y[2 * i] = T(c[i] * a - s[i] * b);
    y[2 * i + 1] = T(s[i] * a + c[i] * b);
  }
}
template <class T, class F> void for_rows(const Buf& in, const Layout& from, const Buf& out, const Layout& to, F&& f) {
  const Rows<T> x(Buf{&from, in.bytes}), y(Buf{&to, out.bytes});
  if (from.numel() == 0) return;
  for_row_tiles(from.numel() / x.n, x.n, [&](int64_t begin, int64_t end) {
    std::vector<T> scratch, none;
    for (int64_t r = begin; r < end; ++r) f(x(r, scratch), const_cast<T*>(y(r, none)), r);
  });
}
void rope(const op::Rope& op, Bufs in, Bufs out, Context&) {
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    if (out[0].numel() == 0) return;
    const Layout from = op.rotated(*in[0].layout), to = op.rotated(*out[0].layout);
    const int64_t hs = to.shape.back(), positions = to.shape[to.shape.size() - 2];
    const std::vector<int64_t> starts = op.starts ? flat_indices(in[1]) : std::vector{op.start};
    for (size_t b = 0; op.starts && b < starts.size(); ++b)
      if (starts[b] < 0 || starts[b] > op::kRopeEnd - positions)
        throw tg::kernel::rope_outside(op.name(), starts[b], int64_t(b), positions);
    const Turns<compute_t<T>> turns(op, starts, positions, hs / 2);
    const int64_t same = to.numel() / hs / positions / int64_t(starts.size());  // heads per start
    for_rows<T>(in[0], from, out[0], to, [&](const T* x, T* y, int64_t r) {
      const int64_t at = (r / positions / same * positions + r % positions) * (hs / 2);
      turn(hs / 2, turns.sine.data() + at, turns.cosine.data() + at, x, y);
    });
    for_rows<T>(in[0], op.kept(*in[0].layout), out[0], op.kept(*out[0].layout), [&](const T* x, T* y, int64_t) {
      if (x != y) std::copy_n(x, hs, y);
    });
  });
}
TG_STRIDED_KERNEL(op::Rope, cpu, rope);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
