#include <tapegrad/core/check.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/core/profile/work.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/comparison.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/fragments.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/shape_ops.h>
#include <tapegrad/ops/softmax.h>

#include <cmath>

namespace tg {
Layouts op::FragmentWeights::infer(Inputs in) const {
  const Tensor &x = in[0], &s = in[1];
  check::ndim_at_least(kName, x, 1);
  check::same_dtype(kName, x, s);
  check::computes(kName, x);
  TG_CHECK(s.ndim() == 2 && s.size(0) >= 1, shape,
           "[fragment_weights] selector is {}. It must be (F, D): a row for each of 1 or more fragments.", s);
  TG_CHECK(
      x.shape().back() == s.numel(), shape,
      "[fragment_weights] x is {}, selector is {}. x's last size ({}) must be the size of all fragments, {} times {}.",
      x, s, x.shape().back(), s.size(0), s.size(1));
  return {contiguous_like(x, x.shape().without_last().followed_by(s.size(0)))};
}
Tensors op::FragmentWeights::vjp(const Vjp& v) const {
  const Shape &xs = v.in_shape(0), &ss = v.in_shape(1);
  const int64_t rows = xs.without_last().product();
  const Tensor dz = reshape(emit1(stateless<op::SoftmaxGrad>(), {v.out(0), v.grad()}), {rows, ss[0], 1});
  return {v.wants(0) ? reshape(dz * v.in(1), xs) : Tensor(),
          v.wants(1) ? sum(dz * reshape(v.in(0), {rows, ss[0], ss[1]}), {0}) : Tensor()};
}
Tensor fragment_weights(const Tensor& x, const Tensor& selector) {
  return emit1(stateless<op::FragmentWeights>(), {x, selector});
}
Error kernel::score_not_finite(int64_t row, int64_t fragment, double score, const Layout& x) {
  return {Error::Kind::non_finite,
          fmt::format("[fragment_weights] the score of row {}, fragment {} is {}; x is {}. Scores must be finite: look "
                      "for NaN or infinities in x and in the selector{}.",
                      row, fragment, std::isnan(score) ? "NaN" : fmt::format("{}", score), x,
                      anomaly_enabled() ? "" : "; an AnomalyScope finds the op that made them")};
}

OpWork op::IndexMatmul::work(Bufs in, Bufs out) const {
  OpWork w = Op::work(in, out);
  const int64_t rows = in[0].size(0), matrices = in[1].size(0), all = detail::distinct_bytes(*in[1].layout);
  if (rows < matrices) w.read -= all / matrices * (matrices - rows);
  return w;
}
Layouts op::IndexMatmul::infer(Inputs in) const {
  const Tensor &a = in[0], &b = in[1], &index = in[2];
  check::same_dtype(kName, a, b);
  check::computes(kName, a);
  check::index(kName, index);
  TG_CHECK(a.ndim() == 2 && b.ndim() == 3, shape,
           "[index_matmul] a is {}, b is {}. They must be (B, K) and (E, K, N), or (E, N, K) transposed.", a, b);
  const int64_t k = b.size(trans_b ? 2 : 1), n = b.size(trans_b ? 1 : 2);
  TG_CHECK(a.size(1) == k, shape,
           "[index_matmul] inner sizes differ: a is {}, b is {}{}. a's last size ({}) must equal the rows of a matrix "
           "of b ({}).",
           a, b, trans_b ? " transposed" : "", a.size(1), k);
  TG_CHECK(index.shape() == Shape{a.size(0)}, shape,
           "[index_matmul] index is {}, a is {}. There must be an index for each row of a ({}).", index, a, a.size(0));
  return {contiguous_like(a, {a.size(0), n})};
}
namespace {
// Row i of x becomes row index[i] of E rows: (B, E N).
Tensor in_place_of_index(const Tensor& x, const Tensor& index, int64_t e) {
  const int64_t rows = x.size(0), n = x.size(1);
  const Tensor places = arange(0, double(e), 1, index.dtype(), x.device());
  const Tensor named = reshape(reshape(index, {rows, 1}) == places, {rows, e, 1});
  return reshape(where(named, reshape(x, {rows, 1, n}), zeros({}, x.dtype(), x.device())), {rows, e * n});
}
}  // namespace
Tensors op::IndexMatmul::vjp(const Vjp& v) const {
  const Tensor &g = v.grad(), index = v.in(2);
  const Shape& b = v.in_shape(1);
  Tensor da, db;
  if (v.wants(0)) da = index_matmul(g, v.in(1), index, !trans_b);
  if (v.wants(1)) {  // dense: zeros for matrices without an index
    const Tensor a = v.in(0);
    db = trans_b ? matmul(in_place_of_index(g, index, b[0]), a, {.trans_a = true})
                 : matmul(in_place_of_index(a, index, b[0]), g, {.trans_a = true});
    db = reshape(db, b);
  }
  return {da, db, Tensor()};
}
Tensor index_matmul(const Tensor& a, const Tensor& b, const Tensor& index, bool trans_b) {
  return emit1(make_ref<op::IndexMatmul>(trans_b), {a, b, index});
}
}  // namespace tg
