// Forward: rows at a time, whole, as the loss needs; the gradient overwrites their logits. Backward that computes
// logits again: classes at a time, so that a row of dweight is one product, and the weight is read once.
#include <tapegrad/cpu/gemm/gemm_bf16.h>
#include <tapegrad/cpu/simd/block_rows.h>
#include <tapegrad/cpu/simd/lanes.h>
#include <tapegrad/cpu/simd/rows.h>
#include <tapegrad/cpu/simd/scratch.h>
#include <tapegrad/ops/linear_cross_entropy.h>

#include <algorithm>
#include <vector>

namespace tg::cpu::TG_ISA_NS {
namespace {
constexpr int64_t kPanelBytes = 1 << 24, kFewClasses = 32;  // sums of fewer columns depend on their number
thread_local Scratch t_panel;

// The rows that are not ignored.
template <class T> struct Head {
  using C = compute_t<T>;
  int64_t rows, classes, width;
  std::vector<int64_t> at, target;
  Rows<T> x;
  MatView<T> weight;  // (classes, width), unless in blocks
  std::optional<BlockFormat> format;
  const uint8_t* codes;
  C smoothing;

  Head(const CrossEntropyOptions& o, Bufs in, std::optional<BlockFormat> f = {})
      : rows(in[2].numel()),
        classes(in[1].size(0)),
        width(in[0].shape().back()),
        x(in[0]),
        weight{f ? nullptr : in[1].data<T>(), in[1].strides()[0], in[1].strides()[1]},
        format(f),
        codes(f ? in[1].data<uint8_t>() : nullptr),
        smoothing(C(o.label_smoothing)) {
    const std::vector<int64_t> ids = flat_indices(in[2]);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t id = ids[size_t(i)];
      if (o.ignore_index == id) continue;
      if (id < 0 || id >= classes) [[unlikely]]
        throw tg::kernel::target_outside(id, tg::detail::position_of(i, in[2].shape()), *in[2].layout, classes,
                                         o.ignore_index);
      at.push_back(i), target.push_back(id);
    }
    if (at.empty() && o.reduction == Reduction::mean) throw tg::kernel::no_rows_left(rows, o.ignore_index);
  }
  int64_t kept() const { return int64_t(at.size()); }
  // Calls f(first, rows of the weight, their number): all at once, or panels of dequantized blocks.
  template <class F> void for_panels(F&& f) const {
    if (!format) return f(0, weight, classes);
    const tg::detail::BlockLayout& l = tg::detail::layout_of_block(*format);
    const int64_t some = std::max(kFewClasses, kPanelBytes / std::max<int64_t>(1, width * int64_t(sizeof(T))));
    for (int64_t first = 0, n; first < classes; first += n) {
      n = classes - first < some + kFewClasses ? classes - first : some;
      T* const panel = t_panel.get<T>(n * width);
      over_rows(n, width, [&](int64_t r) {
        dequantize_blocks(*format, codes + (first + r) * (width / l.elements * l.bytes), 0, width, panel + r * width);
      });
      f(first, MatView<T>{panel, width, 1}, n);
    }
  }
  MatView<T> gather(int64_t first, int64_t n, T* to) const {
    std::vector<T> scratch;
    for (int64_t r = 0; r < n; ++r) std::copy_n(x(at[size_t(first + r)], scratch), width, to + r * width);
    return {to, width, 1};
  }
  // d(loss of kept row r) / d(logits of columns [begin, begin + n)). `to` may be the logits.
  void row_gradient(int64_t r, int64_t begin, int64_t n, C lse, const C* logits, T* to) const {
    const C even = smoothing / C(classes);
    const int64_t own = target[size_t(r)] - begin;
    const bool here = own >= 0 && own < n;
    const C hit = here ? math::exp(logits[own] - lse) - even - (C(1) - smoothing) : C(0);
    for_lanes<C>(n, [&]<class V>(int64_t j) { store(to + j, V(exp_to_zero(V(load<V>(logits + j) - lse)) - even)); });
    if (here) to[own] = T(hit);
  }
};

// c = a b, not rounded to bf16.
template <class T>
void unrounded(MatmulPrecision precision, int64_t m, int64_t n, int64_t k, MatView<T> a, MatView<T> b, compute_t<T>* c,
               int64_t ldc) {
  if constexpr (std::is_same_v<T, bf16>)
    gemm<T>(m, n, k, a, b, nullptr, ldc, {.unrounded = c});
  else
    gemm_as(precision, m, n, k, a, b, c, ldc);
}
// The gradient of logits in their place: narrower elements are at the start of each row.
template <class T> MatView<T> in_place(compute_t<T>* logits, int64_t classes) {
  return {reinterpret_cast<T*>(logits), classes * int64_t(sizeof(compute_t<T>) / sizeof(T)), 1};
}
template <class T> T* row_of(const MatView<T>& m, int64_t r) { return const_cast<T*>(m.p) + r * m.row; }

void linear_cross_entropy(const op::LinearCrossEntropy& op, Bufs in, Bufs out, Context& c) {
  kernel::visit_float(in[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Head<T> head(op.o.loss, in, op.format);
    const int64_t classes = head.classes, width = head.width, kept = head.kept();
    std::vector<C> losses(size_t(head.rows));
    C* const lse = out[1].data<C>();
    std::fill_n(lse, head.rows, C(0));
    C* const dx = op.keeps_dx ? out[2].data<C>() : nullptr;
    T* const kept_d = op.keeps_dlogits ? out[op.keeps_dx ? 3 : 2].data<T>() : nullptr;
    if (dx) std::fill_n(dx, out[2].numel(), C(0));
    if (kept_d) std::fill_n(kept_d + kept * classes, (head.rows - kept) * classes, T(C(0)));
    const int64_t most = op.rows_at_a_time(in);
    C* logits = static_cast<C*>(c.scratch(size_t(op.scratch_bytes(in, out))));
    std::vector<T> x(size_t(most * width));
    std::vector<C> some_dx(size_t(dx ? most * width : 0));
    std::vector<C> sums(size_t(2 * most));
    const op::CrossEntropy each({.reduction = Reduction::none, .label_smoothing = op.o.loss.label_smoothing});
    for (int64_t first = 0; first < kept; first += most) {
      const int64_t n = std::min(most, kept - first);
      if constexpr (std::is_same_v<T, C>)
        if (kept_d) logits = kept_d + first * classes;
      const MatView<T> some_x = head.gather(first, n, x.data());
      head.for_panels([&](int64_t begin, const MatView<T>& w, int64_t count) {
        unrounded<T>(op.precision, n, count, width, some_x, w.transposed(), logits + begin, classes);
      });
      const Layout l = Layout::contiguous({n, classes}, dtype_of<C>()), row = Layout::contiguous({n}, dtype_of<C>()),
                   ids = Layout::contiguous({n}, DType::i64);
      const auto bytes = [](const void* p) { return static_cast<std::byte*>(const_cast<void*>(p)); };
      const Buf from[] = {{&l, bytes(logits)}, {&ids, bytes(head.target.data() + first)}};
      const Buf to[] = {{&row, bytes(sums.data())}, {&row, bytes(sums.data() + most)}};
      each.run(from, to, c);
      for (int64_t r = 0; r < n; ++r) {
        losses[size_t(head.at[size_t(first + r)])] = sums[size_t(r)];
        lse[head.at[size_t(first + r)]] = sums[size_t(most + r)];
      }
      if (!dx && !kept_d) continue;
      const MatView<T> d = kept_d ? MatView<T>{kept_d + first * classes, classes, 1} : in_place<T>(logits, classes);
      over_rows(n, classes, [&](int64_t r) {
        head.row_gradient(first + r, 0, classes, sums[size_t(most + r)], logits + r * classes, row_of(d, r));
      });
      if (!dx) continue;
      head.for_panels([&](int64_t begin, const MatView<T>& w, int64_t count) {
        unrounded<T>(op.precision, n, width, count, d.at(0, begin), w, some_dx.data(), width);
        for (int64_t r = 0; r < n; ++r) {
          C *const part = some_dx.data() + r * width, *const sum = dx + head.at[size_t(first + r)] * width;
          for (int64_t j = 0; j < width; ++j) sum[j] = begin == 0 ? part[j] : sum[j] + part[j];
        }
      });
    }
    C* const y = out[0].data<C>();
    if (op.o.loss.reduction == Reduction::none) {
      std::copy_n(losses.data(), head.rows, y);
      return;
    }
    const double total = lane_sum<double>(head.rows, [&](int64_t r) { return double(losses[size_t(r)]); });
    y[0] = C(op.o.loss.reduction == Reduction::mean ? total / double(kept) : total);
  });
}

void linear_cross_entropy_grad(const op::LinearCrossEntropyGrad& op, Bufs in, Bufs out, Context& c) {
  kernel::visit_float(in[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Head<T> head(op.o.loss, in);
    const int64_t classes = head.classes, width = head.width, kept = head.kept();
    const auto lse = flat<C, C>(in[3]), dloss = flat<C, C>(in[4]);
    const C divisor = op.o.loss.reduction == Reduction::mean ? C(kept) : C(1);
    std::vector<T> gathered(size_t(kept * width));
    const MatView<T> x = head.gather(0, kept, gathered.data());
    std::vector<T> weighted(size_t(kept * width));  // x by the gradients of the rows' losses
    for (int64_t r = 0; r < kept; ++r) {
      const C g = dloss[op.o.loss.reduction == Reduction::none ? size_t(head.at[size_t(r)]) : 0] / divisor;
      for_lanes<C>(width, [&]<class V>(int64_t j) {
        store(weighted.data() + r * width + j, V(g * load<V>(x.p + r * width + j)));
      });
    }
    const bool found = in.size() > 5;
    const int64_t most = found ? classes : op.classes_at_a_time(in);
    C* const logits = static_cast<C*>(c.scratch(size_t(op.scratch_bytes(in, out))));
    for (int64_t first = 0; first < classes; first += most) {
      const int64_t n = std::min(most, classes - first);
      const MatView<T> d = found ? MatView<T>{in[5].data<T>(), classes, 1} : in_place<T>(logits, n);
      if (!found) {
        unrounded<T>(op.precision, kept, n, width, x, head.weight.at(first, 0).transposed(), logits, n);
        over_rows(kept, n, [&](int64_t r) {
          head.row_gradient(r, first, n, lse[size_t(head.at[size_t(r)])], logits + r * n, row_of(d, r));
        });
      }
      gemm_as(op.precision, n, width, kept, d.transposed(), MatView<T>{weighted.data(), width, 1},
              out[0].data<T>() + first * width, width);
    }
  });
}
TG_STRIDED_KERNEL(op::LinearCrossEntropy, cpu, linear_cross_entropy);
TG_STRIDED_KERNEL(op::LinearCrossEntropyGrad, cpu, linear_cross_entropy_grad);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
