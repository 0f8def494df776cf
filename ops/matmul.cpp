#include <tapegrad/core/check.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/shape_ops.h>

namespace tg {
namespace {
// One op object per precision, for plain operands.
template <class OpT, class Make> OpPtr shared(MatmulPrecision p, Make make_op) {
  static const std::array<OpPtr, 3> ops = [&] {
    std::array<OpPtr, 3> r;
    for (auto choice : {MatmulPrecision::highest, MatmulPrecision::high, MatmulPrecision::medium}) {
      OpT* op = make_op(choice);
      op->refs = OpT::kImmortal;
      r[size_t(choice)] = OpPtr(op);
    }
    return r;
  }();
  return ops[size_t(p)];
}
}  // namespace

Layouts op::Matmul::infer(Inputs in) const {
  check::ndim_at_least(kName, in[0], 2);
  check::ndim_at_least(kName, in[1], 2);
  check::same_dtype(kName, in[0], in[1]);
  check::computes(kName, in[0]);
  const Shape &a = in[0].shape(), &b = in[1].shape();
  const size_t na = a.size(), nb = b.size();
  const int64_t m = a[na - 1 - !o.trans_a], ka = a[na - 1 - o.trans_a], kb = b[nb - 1 - !o.trans_b],
                n = b[nb - 1 - o.trans_b];
  TG_CHECK(ka == kb, shape,
           "[matmul] inner sizes differ: lhs is {}{}, rhs is {}{}. The lhs's last size ({}) must equal the rhs's "
           "second to last ({}). Did you pass the weight untransposed?",
           in[0], o.trans_a ? " transposed" : "", in[1], o.trans_b ? " transposed" : "", ka, kb);
  const size_t batch = std::max(na, nb) - 2;
  Shape r;
  for (size_t i = 0; i < batch; ++i) {
    const int64_t x = i + na < batch + 2 ? 1 : a[i + na - batch - 2],
                  y = i + nb < batch + 2 ? 1 : b[i + nb - batch - 2];
    TG_CHECK(x == y || x == 1 || y == 1, shape,
             "[matmul] batch sizes do not broadcast: lhs is {}, rhs is {}. Before the last two dimensions each size "
             "must be equal or 1.",
             in[0], in[1]);
    r.push_back(x == 1 ? y : x);
  }
  r.push_back(m);
  r.push_back(n);
  return {contiguous_like(in[0], r)};
}
double op::Matmul::multiply_adds(Bufs in, Bufs out) const {
  return double(out[0].numel()) * double(in[0].size(in[0].shape().size() - (o.trans_a ? 2 : 1)));
}
Tensors op::Matmul::vjp(const Vjp& v) const {
  const Tensor& dy = v.grad();
  const auto [ta, tb, how] = o;
  // dA = g B^T, dB = A^T g, transposed where the operand is.
  Tensor da, db;
  if (v.wants(0)) {
    const Tensor b = v.in(1);
    da = ta ? matmul(b, dy, {tb, true, how}) : matmul(dy, b, {false, !tb, how});
  }
  if (v.wants(1)) {
    Tensor a = v.in(0), g = dy;
    // One b: one GEMM sums its gradient over all rows.
    if (!ta && v.in_shape(1).size() == 2 && a.ndim() > 2) {
      a = detail::as_rows(a);
      g = detail::as_rows(g);
    }
    db = tb ? matmul(g, a, {true, ta, how}) : matmul(a, g, {!ta, false, how});
  }
  return {da ? detail::sum_to(da, v.in_shape(0)) : da, db ? detail::sum_to(db, v.in_shape(1)) : db};
}
Tensor matmul(const Tensor& a, const Tensor& b, MatmulOptions o) {
  if (!o.trans_a && !o.trans_b)
    return emit1(shared<op::Matmul>(o.precision, [](MatmulPrecision p) { return new op::Matmul({.precision = p}); }),
                 {a, b});
  return emit1(make_ref<op::Matmul>(o), {a, b});
}

Layouts op::Linear::infer(Inputs in) const {
  const Tensor& x = in[0];
  const Shape y = check::linear(kName, x, in[1], in.size() > 2 ? &in[2] : nullptr);
  for (const Tensor& t : in.subspan(1)) check::same_dtype(kName, x, t);
  check::computes(kName, x);
  return {contiguous_like(x, y, unrounded && x.dtype() == DType::bf16 ? DType::f32 : x.dtype())};
}
Tensors op::Linear::vjp(const Vjp& v) const {
  const Tensor flat = detail::as_rows(v.grad().to(v.in_dtype(0)));
  Tensors r;
  r.emplace_back(v.wants(0) ? reshape(matmul(flat, v.in(1), {.precision = precision}), v.in_shape(0)) : Tensor());
  r.emplace_back(v.wants(1) ? matmul(flat, detail::as_rows(v.in(0)), {.trans_a = true, .precision = precision})
                            : Tensor());
  if (v.inputs() > 2) r.emplace_back(v.wants(2) ? sum(flat, {0}) : Tensor());
  return r;
}
namespace {
OpPtr linear_op() {
  return shared<op::Linear>(matmul_precision(), [](MatmulPrecision p) { return new op::Linear(p); });
}
}  // namespace
Tensor linear(const Tensor& x, const Tensor& weight) { return emit1(linear_op(), {x, weight}); }
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return emit1(linear_op(), {x, weight, bias});
}
Tensor detail::unrounded_linear(const Tensor& x, const Tensor& weight, MatmulPrecision p) {
  if (x.device().backend != Backend::cpu) return linear(x, weight);
  return emit1(make_ref<op::Linear>(p, x.dtype() == DType::bf16), {x, weight});
}
}  // namespace tg
