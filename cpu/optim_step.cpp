// Kernels of ops/optim_step.h: one pass over memory each.
#include <tapegrad/cpu/loop.h>
#include <tapegrad/cpu/sums.h>
#include <tapegrad/ops/optim_step.h>

#include <cmath>
#include <vector>

namespace tg::cpu::TG_ISA_NS {
namespace {
// Sum of squares of elements [begin, end) in row-major order.
template <class T> double square_sum(const Buf& x, const Walk<1>& walk, int64_t begin, int64_t end) {
  using At = std::array<int64_t, 1>;
  double sum = 0;
  walk.rows(begin, end, [&](int64_t n, const At& at, const At& step) {
    RowOperand<T> row(x.data<T>() + at[0], step[0]);
    for (int64_t i = 0; i < n; i += kBlock) {
      const T* p = row.block(i, std::min(kBlock, n - i));
      sum += lane_sum<double>(std::min(kBlock, n - i), [p](int64_t j) { return double(p[j]) * double(p[j]); });
    }
  });
  return sum;
}
void global_norm(const GlobalNorm&, Bufs in, Bufs out, Context&) {
  struct Chunk {
    size_t tensor;
    int64_t begin;
  };
  std::vector<Chunk> chunks;
  std::vector<Walk<1>> walks;
  for (const Buf& x : in) {
    for (int64_t i = 0; i < x.numel(); i += kGrain) chunks.push_back({walks.size(), i});
    walks.emplace_back(x.shape(), std::array<Strides, 1>{x.strides()});
  }
  std::vector<double> part(chunks.size());
  parallel_for(int64_t(chunks.size()), [&](int64_t t) {
    const auto [k, begin] = chunks[size_t(t)];
    const int64_t end = std::min(in[k].numel(), begin + kGrain);
    visit_float(in[k].dtype(),
                [&, b = begin, i = k]<class T>() { part[size_t(t)] = square_sum<T>(in[i], walks[i], b, end); });
  });
  double sum = 0;
  for (const double s : part) sum += s;
  *out[0].data<float>() = float(std::sqrt(sum));
}

template <class T> struct AdamWNumbers {  // computed in double, used in T
  T before = 1, after = 1, l2 = 0, beta1, rest1, beta2, rest2, rate, root, eps, clip = 1;
  AdamWNumbers(const AdamWStep& op, Bufs in) {
    const AdamWOptions& o = op.o;
    if (o.decay == WeightDecay::l2)
      l2 = T(o.weight_decay);
    else
      (o.decay == WeightDecay::before ? before : after) = T(1 - op.lr * o.weight_decay);
    beta1 = T(o.beta1), rest1 = T(1 - o.beta1), beta2 = T(o.beta2), rest2 = T(1 - o.beta2), eps = T(o.eps);
    const double first = 1 - std::pow(o.beta1, double(op.t)), second = std::sqrt(1 - std::pow(o.beta2, double(op.t)));
    const bool corrected = o.eps_placement == EpsPlacement::corrected;
    rate = T(corrected ? op.lr / first : op.lr * second / first);
    root = T(corrected ? 1 / second : 1);
    if (in.size() < 5) return;
    const double c = op.max_norm / (double(*in[4].data<float>()) + 1e-6);
    clip = T(c > 1 ? 1 : c);  // NaN stays: a bad gradient shows
  }
};
template <class T>
void adamw_block(int64_t n, const AdamWNumbers<T>& numbers, const std::array<const T*, 4>& in,
                 const std::array<T*, 3>& out) {
  const AdamWNumbers<T> c = numbers;
  const T *w = in[0], *m = in[1], *v = in[2], *g = in[3];
  T *w1 = out[0], *m1 = out[1], *v1 = out[2];
  TG_SAME_INDEX
  for (int64_t i = 0; i < n; ++i) {
    const T x = g[i] * c.clip + c.l2 * w[i], a = c.beta1 * m[i] + c.rest1 * x, b = c.beta2 * v[i] + c.rest2 * (x * x);
    const T y = w[i] * c.before - c.rate * (a / (std::sqrt(b) * c.root + c.eps));
    w1[i] = y * c.after, m1[i] = a, v1[i] = b;
  }
}
void adamw_step(const AdamWStep& op, Bufs in, Bufs out, Context&) {
  const auto run = [&]<class T>() {
    const AdamWNumbers<T> numbers(op, in);
    using At = std::array<int64_t, 5>;
    for_rows<5>(
        out[0].shape(), {out[0].strides(), in[0].strides(), in[1].strides(), in[2].strides(), in[3].strides()},
        [&](int64_t n, const At& at, const At& step) {
          const auto operand = [&](size_t k) { return RowOperand<T>(in[k].data<T>() + at[k + 1], step[k + 1]); };
          RowOperand<T> w = operand(0), m = operand(1), v = operand(2), g = operand(3);
          for (int64_t i = 0; i < n; i += kBlock) {
            const int64_t size = std::min(kBlock, n - i), o = at[0] + i;
            adamw_block<T>(size, numbers, {w.block(i, size), m.block(i, size), v.block(i, size), g.block(i, size)},
                           {out[0].data<T>() + o, out[1].data<T>() + o, out[2].data<T>() + o});
          }
        });
  };
  if (out[0].dtype() == DType::f64)
    run.template operator()<double>();
  else
    run.template operator()<float>();
}
TG_KERNEL(GlobalNorm, cpu, global_norm);
TG_KERNEL(AdamWStep, cpu, adamw_step);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
