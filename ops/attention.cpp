#include <tapegrad/core/cast.h>
#include <tapegrad/core/check.h>
#include <tapegrad/ops/attention.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/comparison.h>
#include <tapegrad/ops/composed.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/shape_ops.h>
#include <tapegrad/ops/softmax.h>

#include <cmath>
#include <limits>

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
// Of `products` products between each query and the keys that it sees.
OpWork work_of_pairs(const op::AttentionForm& o, OpWork w, const Buf& q, const Buf& k, double products) {
  const auto heads = double(q.size(0) * q.size(1)), from = double(q.size(2)), to = double(k.size(2));
  const double pairs = o.causal && !o.starts ? from * (to - from) + from * (from + 1) / 2 : from * to;
  w.multiply_adds = products * heads * pairs * double(q.size(3));
  return w;
}
}  // namespace

OpWork op::Attention::work(Bufs in, Bufs out) const { return work_of_pairs(o, Op::work(in, out), in[0], in[1], 2); }
OpWork op::AttentionGrad::work(Bufs in, Bufs out) const {  // the scores once more, and those of dy, dq, dk and dv
  return work_of_pairs(o, Op::work(in, out), in[0], in[1], 5);
}

Layouts op::Attention::infer(Inputs in) const {
  const Tensor &q = in[0], &k = in[1], &v = in[2];
  for (const Tensor& x : in.first(3))
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
      !o.causal || o.starts || s[2] <= ks[2], shape,
      "[attention] q is {}, k and v are {}: with the causal mask the first {} queries see no key. Pass at least as "
      "many keys as queries, or {{.causal = false}}.",
      q, k, s[2] - ks[2]);
  TG_CHECK(o.causal || !o.starts, value,
           "[attention] starts were given, and the mask is not causal. Without a mask the position of a query means "
           "nothing: leave starts out, or pass {{.causal = true}}.");
  for (size_t i = 3; i < in.size(); ++i) {
    check::index(kName, in[i]);
    TG_CHECK(in[i].shape() == Shape{s[0]}, shape,
             "[attention] {} is {}, and q is {}. It must be ({}): one number for each sequence.",
             i == 3 && o.lengths ? "lengths" : "starts", in[i], q, s[0]);
  }
  TG_CHECK(std::isfinite(o.scale), value, "[attention] scale is {}. It must be finite; 0 stands for 1 / sqrt({}).",
           o.scale, s[3]);
  const DType stat = q.dtype() == DType::f64 ? DType::f64 : DType::f32;
  return {heads_last(q), Layout::contiguous({s[0], s[1], s[2]}, stat, q.device())};
}
Tensors op::Attention::vjp(const Vjp& v) const {
  Tensors in{v.in(0), v.in(1), v.in(2), v.out(0), v.out(1), with_rows(v.grad())};
  for (size_t i = 3; i < v.inputs(); ++i) in.emplace_back(v.in(i));
  Tensors r = emit(make_ref<op::AttentionGrad>(o), Inputs(in.data(), in.size()));
  for (size_t i = 0; i < 3; ++i)
    if (!v.wants(i)) r[i] = Tensor();
  for (size_t i = 3; i < v.inputs(); ++i) r.emplace_back();
  return r;
}
Layouts op::AttentionGrad::infer(Inputs in) const { return {heads_last(in[0]), heads_last(in[1]), heads_last(in[2])}; }
namespace {
// Whether query i does not see key j: bool, (Tq, Tk) or (B, 1, 1, Tq, Tk), empty if all see all. `extra`: lengths and
// starts, as the form says.
Tensor hidden(const op::AttentionForm& o, int64_t tq, int64_t tk, Inputs extra, Device d) {
  const auto count = [d](int64_t n) { return arange(0, double(n), 1, DType::i64, d); };
  const auto each = [](const Tensor& x) { return reshape(x.to(DType::i64), {x.size(0), 1, 1, 1, 1}); };
  Tensor r;
  if (o.causal) {
    const Tensor i = reshape(count(tq), {tq, 1});
    r = gt(count(tk), o.starts ? i + each(extra[extra.size() - 1]) : i + double(tk - tq));
  }
  if (!o.lengths) return r;
  const Tensor padding = ge(count(tk), each(extra[0]));  // (B, 1, 1, 1, Tk)
  return r ? logical_or(r, padding) : padding;
}
}  // namespace
// q, k, v and dy alone: y and lse are functions of them. G query heads share a key head: (B, NHkv, G, T, HS).
Tensors op::AttentionGrad::compose(Inputs in) const {
  const Shape &s = in[0].shape(), &ks = in[1].shape();
  const int64_t heads = ks[1], group = heads ? s[1] / heads : 1, tq = s[2], tk = ks[2], hs = s[3];
  const double scale = o.scale != 0 ? o.scale : 1 / std::sqrt(double(std::max<int64_t>(1, hs)));
  const auto grouped = [&](const Tensor& x, int64_t g) {
    return reshape(widened(x), {s[0], heads, g, x.shape()[2], hs});
  };
  const Tensor q = grouped(in[0], group), k = grouped(in[1], 1), v = grouped(in[2], 1), dy = grouped(in[5], group);
  Tensor scores = matmul(q, k, {.trans_b = true}) * scale;  // (B, NHkv, G, Tq, Tk)
  const Tensor mask = hidden(o, tq, tk, in.subspan(6), scores.device());
  // Rows of -infinity alone have no softmax: where a row may see nothing, a finite number stands for it.
  if (mask) scores = masked_fill(scores, mask, o.lengths ? -1e30 : -std::numeric_limits<double>::infinity());
  Tensor p = softmax(scores);
  if (o.lengths) p = masked_fill(p, mask, 0);
  const Tensor dp = matmul(dy, v, {.trans_b = true});
  const Tensor ds = p * (dp - row_sum(dp * p)) * scale;
  const auto of_keys = [&](const Tensor& x) { return reshape(sum(x, {2}), ks).to(in[1].dtype()); };
  return {reshape(matmul(ds, k), s).to(in[0].dtype()), of_keys(matmul(ds, q, {.trans_a = true})),
          of_keys(matmul(p, dy, {.trans_a = true}))};
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
  Tensors in{with_rows(q), with_rows(k), with_rows(v)};
  for (const Tensor* extra : {&o.lengths, &o.starts})
    if (*extra) in.emplace_back(*extra);
  const op::AttentionForm form{o.causal, o.scale, bool(o.lengths), bool(o.starts)};
  return std::move(emit(make_ref<op::Attention>(form), Inputs(in.data(), in.size()))[0]);
}

Error attention_span_outside(std::string_view op, std::string_view what, int64_t value, int64_t position,
                             int64_t most) {
  return Error(Error::Kind::value,
               fmt::format("[{}] {} of sequence {} is {}, and there are {} keys. It must be from 0 to {}.", op, what,
                           position, value, most, most));
}
}  // namespace tg
