#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/composed.h>
#include <tapegrad/ops/norm.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/shape_ops.h>

#include <cmath>

namespace tg {
namespace {
Layout statistic(const Tensor& x) { return contiguous_like(x, x.shape().without_last(), detail::dtype_of_sums(x)); }

template <class Op> Layouts infer_norm(const Op& op, Inputs in) {
  constexpr std::string_view kRoles[] = {"weight", "bias"};
  constexpr std::string_view kName = Op::kName;
  const Tensor& x = in[0];
  check::ndim_at_least(kName, x, 1);
  check::computes(kName, x);
  TG_CHECK(op.eps >= 0 && std::isfinite(op.eps), value, "[{}] eps is {}. It must be 0 or more, and finite.", kName,
           op.eps);
  TG_CHECK(op.to == x.dtype() || (op.to == DType::bf16 && x.dtype() == DType::f32), dtype,
           "[{}] x is {}, and {} is {}. It must have x's dtype, or be bf16 where x is f32: use .to(dtype).", kName, x,
           Op::kTerms > 1 ? "r" : "the dtype of the result",
           Op::kTerms > 1 ? fmt::format("{}", in[1]) : std::string(name_of(op.to)));
  for (size_t i = Op::kTerms; i < in.size(); ++i) check::same_dtype(kName, x, in[i]);
  if constexpr (Op::kTerms > 1)
    TG_CHECK(in[1].shape() == x.shape(), shape,
             "[{}] x is {}, r is {}. There is no broadcasting: give them one shape with expand() or reshape().", kName,
             x, in[1]);
  for (size_t i = Op::kTerms; i < in.size(); ++i) {
    const auto role = kRoles[i - Op::kTerms];
    TG_CHECK(in[i].shape() == Shape{x.shape().back()}, shape,
             "[{}] {} is {}, x is {}. The {} must have one element per column of x: shape ({}).", kName, role, in[i], x,
             role, x.shape().back());
  }
  Layouts l;
  for (size_t k = 0; k < Op::kTerms; ++k) l.emplace_back(contiguous_like(x));  // y, and s of two terms
  l[0].dtype = op.to;
  for (size_t k = 0; k < 1 + size_t(Op::kCentred); ++k) l.emplace_back(statistic(x));
  return l;
}
Layouts gradients(const Tensor& dy, const Tensor& x, op::NormWants wants) {
  const Layout column = contiguous_like(x, {x.shape().back()});
  Layouts l;
  if (wants.dx) l.emplace_back(contiguous_like(x));
  if (wants.dw) l.emplace_back(column);
  if (wants.db) l.emplace_back(column);
  if (wants.dr) l.emplace_back(contiguous_like(dy));
  return l;
}
// Kernel's formulas by plain ops.
template <class Op> Tensors composed(const Op& op, Inputs in) {
  const op::NormWants& wants = op.wants;
  const size_t at_ds = Op::kCentred ? 4 : 3, at_weight = at_ds + size_t(op.has_ds);
  const DType to = in[1].dtype();
  const Tensor dy = widened(in[0]), rstd = unsqueeze(in[at_ds - 1], -1);
  const Tensor weight = in.size() > at_weight ? widened(in[at_weight]) : Tensor();
  Tensor centred = widened(in[1]);
  if (Op::kCentred) centred = centred - unsqueeze(in[2], -1);
  const auto n = double(std::max<int64_t>(1, dy.shape().back()));
  const Shape column{dy.shape().back()};
  const Tensor h = centred * rstd;
  Tensors r;
  if (wants.dx) {
    const Tensor g = weight ? dy * weight : dy;
    Tensor along = g - h * (row_sum(g * h) / n);
    if (Op::kCentred) along = along - row_sum(g) / n;
    const Tensor dx = (along * rstd).to(to);
    r.emplace_back(op.has_ds ? dx + in[at_ds] : dx);
  }
  if (wants.dw) r.emplace_back(detail::sum_to(dy * h, column).to(to));
  if (wants.db) r.emplace_back(detail::sum_to(dy, column).to(to));
  if (wants.dr) r.emplace_back(r[0].to(in[0].dtype()));
  return r;
}
// Gradient of x through mean and rstd, which only a second backward reads. d mean = 1 / n, d rstd = -rstd^3 centred /
// n.
Tensor through_statistics(const Tensor& centred, const Tensor& rstd, const Tensor& dmean, const Tensor& drstd) {
  const auto n = double(centred.shape().back());
  Tensor dx;
  if (drstd) dx = centred * (rstd * rstd * rstd * unsqueeze(drstd, -1) / -n);
  if (!dmean) return dx;
  const Tensor even = expand(unsqueeze(dmean, -1) / n, centred.shape());
  return dx ? dx + even : even;
}
// vjp() of norms. Inputs are x, or x and r, whose sum is output 1; then weight and bias. The statistics are the last
// outputs.
template <class Op> Tensors norm_vjp(const Vjp& v) {
  constexpr size_t kWeight = Op::kTerms, kMean = Op::kTerms, kRstd = kMean + size_t(Op::kCentred);
  constexpr bool kSum = Op::kTerms > 1;
  const auto wants = [&](size_t i) { return i < v.inputs() && v.wants(i); };
  const auto x = [&] { return kSum ? v.out(1) : v.in(0); };
  const bool dx_wanted = v.wants(0) || (kSum && v.wants(1));
  const bool dr_wanted = kSum && v.wants(1) && v.in_dtype(1) != v.in_dtype(0);
  const op::NormWants w{dx_wanted, wants(kWeight), wants(kWeight + 1), dr_wanted};
  Tensor dx = kSum && w.dx ? v.grad(1) : Tensor(), dr, dw, db;  // dx: gradient of the sum
  if (v.grad() && !w.dx && !w.dw) {
    db = detail::sum_to(v.grad().to(v.in_dtype(kWeight + 1)), v.in_shape(kWeight + 1));
  } else if (v.grad()) {
    SmallVec<Tensor, 6> in{v.grad(), x()};
    for (size_t k = kMean; k <= kRstd; ++k) in.emplace_back(v.out(k));
    if (dx) in.emplace_back(dx);
    if (w.dx && v.inputs() > kWeight) in.emplace_back(v.in(kWeight));
    Tensors made = emit(make_ref<op::NormGrad<Op::kCentred>>(w, bool(dx)), {in.data(), in.size()});
    size_t next = 0;
    if (w.dx) dx = made[next++];
    if (w.dw) dw = made[next++];
    if (w.db) db = made[next++];
    if (w.dr) dr = made[next++];
  }
  const Tensor dmean = Op::kCentred ? v.grad(kMean) : Tensor(), drstd = v.grad(kRstd);
  if (w.dx && (dmean || drstd)) {
    const Tensor centred = Op::kCentred ? widened(x()) - unsqueeze(v.out(kMean), -1) : widened(x());
    const Tensor more = through_statistics(centred, unsqueeze(v.out(kRstd), -1), dmean, drstd).to(v.in_dtype(0));
    dx = dx ? dx + more : more, dr = {};
  }
  if (w.dr && dx && !dr) dr = dx.to(v.in_dtype(1));
  Tensors r;
  for (size_t i = 0; i < Op::kTerms; ++i) r.emplace_back(!v.wants(i) ? Tensor() : i > 0 && w.dr ? dr : dx);
  r.emplace_back(dw), r.emplace_back(db);
  return r;
}
// y has the dtype `to`, or that of the last term.
template <class Op> Tensors emit_norm(double eps, std::initializer_list<Tensor> in, std::optional<DType> to = {}) {
  size_t n = Op::kTerms;
  while (n < in.size() && in.begin()[n]) ++n;
  return emit(make_ref<Op>(eps, to.value_or(in.begin()[Op::kTerms - 1].dtype())), {in.begin(), n});
}
void check_shift(std::string_view op, const Tensor& weight, const Tensor& bias) {
  TG_CHECK(weight || !bias, value,
           "[{}] there is a bias, {}, but no weight. A shift needs a scale. Pass a weight of ones.", op, bias);
}
}  // namespace

template <size_t terms, bool centred> Layouts op::Norm<terms, centred>::infer(Inputs in) const {
  return infer_norm(*this, in);
}
template <size_t terms, bool centred> Tensors op::Norm<terms, centred>::vjp(const Vjp& v) const {
  return norm_vjp<Norm>(v);
}
template <size_t terms, bool centred> Tensor op::Norm<terms, centred>::recompute(const Vjp& v, size_t k) const {
  if (terms == 1) return Op::recompute(v, k);
  SmallVec<Tensor, 3> in{v.out(1)};
  for (size_t i = terms; i < v.inputs(); ++i) in.emplace_back(v.in(i));
  return emit(make_ref<Norm<1, centred>>(eps, to), {in.data(), in.size()})[0];
}
template <bool centred> Layouts op::NormGrad<centred>::infer(Inputs in) const { return gradients(in[0], in[1], wants); }
template <bool centred> Tensors op::NormGrad<centred>::compose(Inputs in) const { return composed(*this, in); }
template struct op::Norm<1, true>;
template struct op::Norm<1, false>;
template struct op::Norm<2, true>;
template struct op::Norm<2, false>;
template struct op::NormGrad<true>;
template struct op::NormGrad<false>;

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, std::optional<DType> to) {
  check_shift(op::LayerNorm::kName, weight, bias);
  return emit_norm<op::LayerNorm>(eps, {x, weight, bias}, to)[0];
}
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, std::optional<DType> to) {
  return emit_norm<op::RmsNorm>(eps, {x, weight}, to)[0];
}
AddedNorm add_layer_norm(const Tensor& x, const Tensor& r, const Tensor& weight, const Tensor& bias, double eps) {
  check_shift(op::AddLayerNorm::kName, weight, bias);
  const Tensors made = emit_norm<op::AddLayerNorm>(eps, {x, r, weight, bias});
  return {made[1], made[0]};
}
AddedNorm add_rms_norm(const Tensor& x, const Tensor& r, const Tensor& weight, double eps) {
  const Tensors made = emit_norm<op::AddRmsNorm>(eps, {x, r, weight});
  return {made[1], made[0]};
}
}  // namespace tg
