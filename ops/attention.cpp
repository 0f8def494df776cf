#include <tapegrad/ops/attention.h>
#include <tapegrad/ops/check.h>

#include <cmath>

namespace tg {
namespace {
// x (B, NH, T, HS), stored in the order (B, T, NH, HS): what the projections around attention read without a copy.
Layout heads_last(const Tensor& x) {
  const Shape& s = x.shape();
  Layout l = Layout::contiguous(s, x.dtype(), x.device());
  l.strides = {s[2] * s[1] * s[3], s[3], s[1] * s[3], 1};
  return l;
}
// Rows of neighbouring elements; anything else would be gathered again for every block.
Tensor with_rows(const Tensor& x) {
  return !x || x.ndim() == 0 || x.shape().back() <= 1 || x.strides().back() == 1 ? x : x.contiguous();
}
}  // namespace

Layouts Attention::infer(Inputs in) const {
  const Tensor &q = in[0], &k = in[1], &v = in[2];
  for (const Tensor& x : in)
    TG_CHECK(x.ndim() == 4, shape, "[attention] got {}. q, k and v are (batch, heads, time, head size). Use reshape().",
             x);
  check::same_dtype(kName, q, k);
  check::same_dtype(kName, q, v);
  check::computes(kName, q);
  const Shape &s = q.shape(), &ks = k.shape();
  TG_CHECK(ks == v.shape(), shape, "[attention] k is {}, v is {}. Their shapes must be equal.", k, v);
  TG_CHECK(s[0] == ks[0] && s[3] == ks[3], shape,
           "[attention] q is {}, k and v are {}. Batch size (first) and head size (last) must be equal.", q, k);
  TG_CHECK(
      ks[1] > 0 ? s[1] % ks[1] == 0 : s[1] == 0, shape,
      "[attention] q is {}, k and v are {}: {} query heads do not share {} key heads evenly. The first number must be "
      "a multiple of the second.",
      q, k, s[1], ks[1]);
  TG_CHECK(ks[2] > 0, shape, "[attention] k and v are {}: there are no keys to attend to. Pass at least one.", k);
  TG_CHECK(
      !o.causal || s[2] <= ks[2], shape,
      "[attention] q is {}, k and v are {}: with the causal mask the first {} queries see no key. Pass at least as "
      "many keys as queries, or {{.causal = false}}.",
      q, k, s[2] - ks[2]);
  TG_CHECK(std::isfinite(o.scale), value, "[attention] scale is {}. It must be finite; 0 stands for 1 / sqrt({}).",
           o.scale, s[3]);
  const DType stat = q.dtype() == DType::f64 ? DType::f64 : DType::f32;
  return {heads_last(q), Layout::contiguous({s[0], s[1], s[2]}, stat, q.device())};
}
Tensors Attention::vjp(const Vjp& v) const {
  const Tensor in[] = {v.in(0), v.in(1), v.in(2), v.out(0), v.out(1), with_rows(v.grad())};
  Tensors r = emit(make<AttentionGrad>(o), in);
  for (size_t i = 0; i < 3; ++i)
    if (!v.wants(i)) r[i] = Tensor();
  return r;
}
Layouts AttentionGrad::infer(Inputs in) const { return {heads_last(in[0]), heads_last(in[1]), heads_last(in[2])}; }

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, AttentionOptions o) {
  return emit1(make<Attention>(o), {with_rows(q), with_rows(k), with_rows(v)});
}
}  // namespace tg
