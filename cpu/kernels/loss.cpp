// Losses of rows are summed in f64, squared differences in chunks.
#include <tapegrad/cpu/simd/lanes.h>
#include <tapegrad/cpu/simd/rows.h>
#include <tapegrad/ops/loss.h>

#include <vector>

namespace tg::cpu::TG_ISA_NS {
namespace {
struct Targets {
  std::vector<int64_t> ids;  // one per row; -1 if ignored
  int64_t kept = 0;

  Targets(const CrossEntropyOptions& o, const Buf& b, int64_t classes) {
    ids = flat_indices(b);
    for (size_t i = 0; i < ids.size(); ++i) {
      int64_t& id = ids[i];
      if (o.ignore_index == id) {
        id = -1;
        continue;
      }
      ++kept;
      if (id < 0 || id >= classes) [[unlikely]]
        throw tg::kernel::target_outside(id, tg::detail::position_of(int64_t(i), b.shape()), *b.layout, classes,
                                         o.ignore_index);
    }
    if (kept == 0 && o.reduction == Reduction::mean)
      throw tg::kernel::no_rows_left(int64_t(ids.size()), o.ignore_index);
  }
};

void cross_entropy(const op::CrossEntropy& op, Bufs in, Bufs out, Context&) {
  const int64_t n = in[0].shape().back();
  const Targets targets(op.o, in[1], n);
  const auto rows = int64_t(targets.ids.size());
  kernel::visit_float(in[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const C s = C(op.o.label_smoothing);
    C* const lse = out[1].data<C>();
    std::vector<C> losses(static_cast<size_t>(rows));
    over_rows<T>(in[0], rows, [&](int64_t r, const T* p) {
      const int64_t target = targets.ids[size_t(r)];
      lse[r] = 0;
      if (target < 0) return;
      const C top = top_of<C>(n, p);
      const C log_sum = math::log(sum_of_exp(n, p, top));
      lse[r] = top + log_sum;
      // Large logits cost the loss no digits.
      C loss = (C(1) - s) * (log_sum - (C(p[target]) - top));
      if (s != C(0)) loss += s * (log_sum - lane_sum<C>(n, [&](int64_t j) { return C(p[j]) - top; }) / C(n));
      losses[size_t(r)] = loss;
    });
    C* const y = out[0].data<C>();
    if (op.o.reduction == Reduction::none) {
      std::copy_n(losses.data(), rows, y);
      return;
    }
    const double total = lane_sum<double>(rows, [&](int64_t r) { return double(losses[size_t(r)]); });
    y[0] = C(op.o.reduction == Reduction::mean ? total / double(targets.kept) : total);
  });
}

// dlogits = g * (exp(x - lse) - s / V - (1 - s) at the target); g: the row's loss gradient.
void cross_entropy_grad(const op::CrossEntropyGrad& op, Bufs in, Bufs out, Context&) {
  const int64_t n = in[0].shape().back();
  const Targets targets(op.o, in[1], n);
  const auto rows = int64_t(targets.ids.size());
  kernel::visit_float(in[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const C s = C(op.o.label_smoothing), even = n ? s / C(n) : C(0);
    const auto lse = flat<C, C>(in[2]), dloss = flat<C, C>(in[3]);
    const C divisor = op.o.reduction == Reduction::mean ? C(targets.kept) : C(1);
    over_rows<T>(in[0], rows, [&](int64_t r, const T* p) {
      const int64_t target = targets.ids[size_t(r)];
      T* to = out[0].data<T>() + r * n;
      if (target < 0) return void(std::fill_n(to, n, T(C(0))));
      const C at = lse[size_t(r)], base = even, g = dloss[op.o.reduction == Reduction::none ? size_t(r) : 0] / divisor;
      const C hit = math::exp(C(p[target]) - at) - even - (C(1) - s);  // reads p before it is overwritten
      for_lanes<C>(n, [&]<class V>(int64_t j) { store(to + j, V(g * (exp_to_zero(V(load<V>(p + j) - at)) - base))); });
      to[target] = T(g * hit);
    });
  });
}
void mse_loss(const op::MseLoss& op, Bufs in, Bufs out, Context&) {
  constexpr int64_t kChunk = 4096;  // elements of a partial sum
  kernel::visit_float(in[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    std::vector<T> x_copy, t_copy;
    const T *x = contiguous_data(in[0], x_copy), *t = contiguous_data(in[1], t_copy);
    const int64_t n = in[0].numel();
    C* const y = out[0].data<C>();
    if (op.reduction == Reduction::none) {
      parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) y[i] = (C(x[i]) - C(t[i])) * (C(x[i]) - C(t[i]));
      });
      return;
    }
    std::vector<double> part(size_t((n + kChunk - 1) / kChunk));
    parallel_for(n, kChunk, [&](int64_t begin, int64_t end) {
      part[size_t(begin / kChunk)] = double(lane_sum<C>(end - begin, [p = x + begin, q = t + begin](int64_t i) {
        return (C(p[i]) - C(q[i])) * (C(p[i]) - C(q[i]));
      }));
    });
    const double total = lane_sum<double>(int64_t(part.size()), [&](int64_t i) { return part[size_t(i)]; });
    y[0] = C(op.reduction == Reduction::mean ? total / double(n) : total);
  });
}
TG_STRIDED_KERNEL(op::MseLoss, cpu, mse_loss);
TG_STRIDED_KERNEL(op::CrossEntropy, cpu, cross_entropy);
TG_STRIDED_KERNEL(op::CrossEntropyGrad, cpu, cross_entropy_grad);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
