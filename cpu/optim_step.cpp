// Kernels of ops/optim_step.h: one pass over memory each, by all threads over all tensors.
#include <tapegrad/cpu/loop.h>
#include <tapegrad/cpu/sums.h>
#include <tapegrad/ops/optim_step.h>

#include <cmath>
#include <optional>
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
// All tensors in one parallel loop: tile t is elements [begin, end) of one of them, in row-major order.
struct Tile {
  size_t tensor;
  int64_t begin, end;
};
std::vector<Tile> tiles_of(Bufs tensors) {
  std::vector<Tile> tiles;
  for (size_t k = 0; k < tensors.size(); ++k)
    for (int64_t i = 0, n = tensors[k].numel(); i < n; i += kGrain) tiles.push_back({k, i, std::min(n, i + kGrain)});
  return tiles;
}
void global_norm(const op::GlobalNorm&, Bufs in, Bufs out, Context&) {
  const std::vector<Tile> tiles = tiles_of(in);
  std::vector<Walk<1>> walks;
  walks.reserve(in.size());
  for (const Buf& x : in) walks.emplace_back(x.shape(), std::array<Strides, 1>{x.strides()});
  std::vector<double> part(tiles.size());
  parallel_for(int64_t(tiles.size()), [&](int64_t t) {
    const Tile& tile = tiles[size_t(t)];
    const Buf& x = in[tile.tensor];
    visit_float(x.dtype(),
                [&]<class T>() { part[size_t(t)] = square_sum<T>(x, walks[tile.tensor], tile.begin, tile.end); });
  });
  double sum = 0;
  for (const double s : part) sum += s;
  const double norm = std::sqrt(sum);
  if (out[0].dtype() == DType::f64)
    *out[0].data<double>() = norm;
  else
    *out[0].data<float>() = float(norm);
}

template <class T> struct AdamWNumbers {  // of all tensors; computed in double, used in T
  T beta1, rest1, beta2, rest2, rate, root, eps, clip = 1;
  AdamWNumbers(const op::AdamWStep& op, const std::optional<double>& norm) {
    const AdamWOptions& o = op.o;
    beta1 = T(o.beta1), rest1 = T(1 - o.beta1), beta2 = T(o.beta2), rest2 = T(1 - o.beta2), eps = T(o.eps);
    const double first = 1 - std::pow(o.beta1, double(op.t)), second = std::sqrt(1 - std::pow(o.beta2, double(op.t)));
    const bool corrected = o.eps_placement == EpsPlacement::corrected;
    rate = T(corrected ? op.lr / first : op.lr * second / first);
    root = T(corrected ? 1 / second : 1);
    if (!norm) return;
    const double c = op.max_norm / (*norm + 1e-6);
    clip = T(c > 1 ? 1 : c);  // NaN stays: a bad gradient shows
  }
};
template <class T> struct AdamWDecay {  // of one tensor
  T before = 1, after = 1, l2 = 0;
  AdamWDecay(const op::AdamWStep& op, double weight_decay) {
    if (op.o.decay == WeightDecay::l2)
      l2 = T(weight_decay);
    else
      (op.o.decay == WeightDecay::before ? before : after) = T(1 - op.lr * weight_decay);
  }
};
template <class T>
void adamw_block(int64_t n, const AdamWNumbers<T>& numbers, const AdamWDecay<T>& decay,
                 const std::array<const T*, 4>& in, const std::array<T*, 3>& out) {
  const AdamWNumbers<T> c = numbers;
  const AdamWDecay<T> d = decay;
  const T *w = in[0], *m = in[1], *v = in[2], *g = in[3];
  T *w1 = out[0], *m1 = out[1], *v1 = out[2];
  TG_SAME_INDEX
  for (int64_t i = 0; i < n; ++i) {
    const T x = g[i] * c.clip + d.l2 * w[i], a = c.beta1 * m[i] + c.rest1 * x, b = c.beta2 * v[i] + c.rest2 * (x * x);
    const T y = w[i] * d.before - c.rate * (a / (std::sqrt(b) * c.root + c.eps));
    w1[i] = y * d.after, m1[i] = a, v1[i] = b;
  }
}
// in: w, m, v and the gradient of a tensor; out: w, m and v. The walk is over w of out, then over all of in.
template <class T>
void adamw_tile(const Tile& tile, const Walk<5>& walk, const AdamWNumbers<T>& numbers, const AdamWDecay<T>& decay,
                const std::array<const T*, 4>& in, const std::array<T*, 3>& out) {
  using At = std::array<int64_t, 5>;
  walk.rows(tile.begin, tile.end, [&](int64_t n, const At& at, const At& step) {
    const auto operand = [&](size_t k) { return RowOperand<T>(in[k] + at[k + 1], step[k + 1]); };
    RowOperand<T> w = operand(0), m = operand(1), v = operand(2), g = operand(3);
    for (int64_t i = 0; i < n; i += kBlock) {
      const int64_t size = std::min(kBlock, n - i), o = at[0] + i;
      adamw_block<T>(size, numbers, decay, {w.block(i, size), m.block(i, size), v.block(i, size), g.block(i, size)},
                     {out[0] + o, out[1] + o, out[2] + o});
    }
  });
}
void adamw_step(const op::AdamWStep& op, Bufs in, Bufs out, Context&) {
  const size_t n = op.tensors();
  const std::vector<Tile> tiles = tiles_of(out.first(n));
  std::vector<Walk<5>> walks;
  walks.reserve(n);
  for (size_t k = 0; k < n; ++k)
    walks.emplace_back(out[k].shape(), std::array<Strides, 5>{out[k].strides(), in[k].strides(), in[n + k].strides(),
                                                              in[2 * n + k].strides(), in[3 * n + k].strides()});
  std::optional<double> norm;
  if (in.size() > 4 * n)
    norm = in[4 * n].dtype() == DType::f64 ? *in[4 * n].data<double>() : double(*in[4 * n].data<float>());
  const AdamWNumbers<float> f32(op, norm);
  const AdamWNumbers<double> f64(op, norm);
  const auto run = [&]<class T>(const Tile& tile, const AdamWNumbers<T>& numbers) {
    const size_t k = tile.tensor;
    const auto x = [&](size_t role) -> const T* { return in[role * n + k].template data<T>(); };
    const auto y = [&](size_t role) { return out[role * n + k].template data<T>(); };
    adamw_tile<T>(tile, walks[k], numbers, {op, op.weight_decay[k]}, {x(0), x(1), x(2), x(3)}, {y(0), y(1), y(2)});
  };
  parallel_for(int64_t(tiles.size()), [&](int64_t t) {
    const Tile& tile = tiles[size_t(t)];
    out[tile.tensor].dtype() == DType::f64 ? run(tile, f64) : run(tile, f32);
  });
}
TG_STRIDED_KERNEL(op::GlobalNorm, cpu, global_norm);
TG_STRIDED_KERNEL(op::AdamWStep, cpu, adamw_step);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
