#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/cast.h>
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

#include <array>
#include <limits>

namespace tg {
namespace {
// x (B, NH, T, HS), stored as (B, T, NH, HS): projections read it without a copy.
Layout heads_last(const Tensor& x) {
  const Shape& s = x.shape();
  Layout l = contiguous_like(x, s);
  l.strides = {s[2] * s[1] * s[3], s[3], s[1] * s[3], 1};
  return l;
}
// x with contiguous rows: otherwise every block would gather them again.
Tensor with_rows(const Tensor& x) {
  return !x || x.ndim() == 0 || x.shape().back() <= 1 || x.strides().back() == 1 ? x : x.contiguous();
}
// Checks all except heads. x begins with the batch.
void check_form(std::string_view op, const op::AttentionForm& o, const Tensor& x, Inputs extra) {
  TG_CHECK(o.causal || !o.query_starts, value,
           "[{}] starts were given, and the mask is not causal. Without a mask the position of a query has no effect: "
           "leave starts out, or pass {{.causal = true}}.",
           op);
  for (size_t i = 0; i < extra.size(); ++i) {
    check::index(op, extra[i]);
    TG_CHECK(extra[i].shape() == Shape{x.size(0)}, shape,
             "[{}] {} is {}, and q is {}. It must be ({}): one number for each sequence.", op,
             i == 0 && o.kv_lengths ? "lengths" : "starts", extra[i], x, x.size(0));
  }
  TG_CHECK(o.dropout >= 0 && o.dropout < 1, value, "[{}] dropout is {}. It must be in [0, 1).", op, o.dropout);
  TG_CHECK(std::isfinite(o.scale), value, "[{}] scale is {}. It must be finite; 0 means 1 / sqrt({}).", op, o.scale,
           x.size(3));
}
// Heads [first, first + n) of x: (B, n, T, HS).
Layout heads_of(const Layout& x, int64_t first, int64_t n) {
  Layout l = x;
  l.offset += first * x.strides[2];
  l.shape = {x.shape[0], n, x.shape[1], x.shape[3]};
  l.strides = {x.strides[0], x.strides[2], x.strides[1], x.strides[3]};
  return l;
}
Layout heads_of(const Layout& y) { return heads_of(y, 0, y.shape[2]); }
struct Parts {  // x (B, T, NH + 2 kv, HS)
  Layout q, k, v;
  Parts(const Layout& x, int64_t kv)
      : q(heads_of(x, 0, x.shape[2] - 2 * kv)),
        k(heads_of(x, x.shape[2] - 2 * kv, kv)),
        v(heads_of(x, x.shape[2] - kv, kv)) {}
};
// `op` starts an Error.
op::AttentionForm form_of(std::string_view op, const AttentionOptions& o) {
  TG_CHECK(
      !(o.dropout > 0) || o.rng, value,
      "[{}] dropout is {}, and there is no generator to draw the mask from. Pass {{.rng = &rng}}, or leave dropout "
      "at 0.",
      op, o.dropout);
  return {o.causal, o.scale, bool(o.kv_lengths), bool(o.query_starts), o.dropout, o.rng ? *o.rng : Rng()};
}
Tensors inputs_of(Tensors all, const AttentionOptions& o) {
  for (const Tensor* extra : {&o.kv_lengths, &o.query_starts})
    if (*extra) all.emplace_back(*extra);
  return all;
}
// y of (y, lse).
Tensor drawn(Tensors made, const AttentionOptions& o) {
  if (o.dropout > 0) o.rng->take(4 * uint64_t(made[1].size(0) * made[1].size(1)));
  return std::move(made[0]);
}
}  // namespace

double op::AttentionForm::multiply_adds(Bufs in, int64_t kv, double products) const {
  const Shape q = kv ? Parts(*in[0].layout, kv).q.shape : in[0].shape();
  const auto heads = double(q[0] * q[1]), from = double(q[2]), to = kv ? from : double(in[1].size(2));
  const double pairs = causal && !query_starts ? from * (to - from) + from * (from + 1) / 2 : from * to;
  return products * heads * pairs * double(q[3]);
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
  TG_CHECK(ks[1] > 0 ? s[1] % ks[1] == 0 : s[1] == 0, shape,
           "[attention] q is {}, k and v are {}: {} query heads cannot be divided evenly among {} key heads. The first "
           "number must be a multiple of the second.",
           q, k, s[1], ks[1]);
  TG_CHECK(ks[2] > 0, shape, "[attention] k and v are {}: there are no keys to attend to. Pass at least one.", k);
  TG_CHECK(!o.causal || o.query_starts || s[2] <= ks[2], shape,
           "[attention] q is {}, k and v are {}: with the causal mask the first {} queries see no key. Pass at least "
           "as many keys as queries, or {{.causal = false}}.",
           q, k, s[2] - ks[2]);
  check_form(kName, o, q, in.subspan(3));
  return {heads_last(q), contiguous_like(q, {s[0], s[1], s[2]}, detail::dtype_of_sums(q))};
}
Tensors op::Attention::vjp(const Vjp& v) const {
  Tensors in{v.in(0), v.in(1), v.in(2), v.out(0), v.out(1), with_rows(v.grad())};
  for (size_t i = 3; i < v.inputs(); ++i) in.emplace_back(v.in(i));
  Tensors r = emit(make_ref<op::AttentionGrad>(o), in);
  for (size_t i = 0; i < 3; ++i)
    if (!v.wants(i)) r[i] = Tensor();
  for (size_t i = 3; i < v.inputs(); ++i) r.emplace_back();
  return r;
}
Layouts op::AttentionGrad::infer(Inputs in) const { return {heads_last(in[0]), heads_last(in[1]), heads_last(in[2])}; }
namespace {
// Hidden keys: bool, (Tq, Tk) or (B, 1, 1, Tq, Tk); empty if each query sees all keys. `extra`: lengths and starts.
Tensor hidden(const op::AttentionForm& o, int64_t tq, int64_t tk, Inputs extra, Device d) {
  const auto count = [d](int64_t n) { return arange(0, double(n), 1, DType::i64, d); };
  const auto each = [](const Tensor& x) { return reshape(x.to(DType::i64), {x.size(0), 1, 1, 1, 1}); };
  Tensor r;
  if (o.causal) {
    const Tensor i = reshape(count(tq), {tq, 1});
    r = gt(count(tk), o.query_starts ? i + each(extra[extra.size() - 1]) : i + double(tk - tq));
  }
  if (!o.kv_lengths) return r;
  const Tensor padding = ge(count(tk), each(extra[0]));  // (B, 1, 1, 1, Tk)
  return r ? logical_or(r, padding) : padding;
}
// attention_kept(): equal scores, and the values are columns of the identity, so many that CUDA takes the head size.
Tensor kept(const op::AttentionForm& o, const Shape& s, Inputs extra, Device d) {
  constexpr int64_t kColumns = 256;
  Tensors parts;
  for (int64_t c = 0; c < s[3]; c += kColumns) {
    const int64_t n = std::min(kColumns, s[3] - c);
    const auto alike = [&](int64_t heads, int64_t rows) { return zeros({s[0], heads, rows, n}, DType::f32, d); };
    const Tensor columns = transpose(one_hot(arange(double(c), double(c + n), 1, DType::i64, d), s[3]));
    Tensors in{alike(s[1], s[2]), alike(1, s[3]), expand(columns, {s[0], 1, s[3], n})};
    for (const Tensor& x : extra) in.emplace_back(x);
    parts.emplace_back(gt(emit(make_ref<op::Attention>(o), in)[0], 0.0));
  }
  return concat(parts, 3);
}
}  // namespace
Tensor detail::attention_kept(const Shape& scores, const AttentionOptions& o, Device d) {
  const Tensors extra = inputs_of({}, o);
  return kept(form_of("attention", o), scores, extra, d);
}
namespace {
// G query heads share a key head: (B, NHkv, G, T, HS) of (B, NH, T, HS).
Tensor grouped(const Tensor& x, int64_t key_heads) {
  const Shape& s = x.shape();
  return reshape(widened(x), {s[0], key_heads, key_heads ? s[1] / key_heads : 1, s[2], s[3]});
}
double scale_of(const op::AttentionForm& o, const Tensor& q) {
  return o.scale != 0 ? o.scale : 1 / std::sqrt(double(std::max<int64_t>(1, q.shape().back())));
}
// softmax(scale q k^T) of grouped heads, (B, NHkv, G, Tq, Tk).
Tensor softmax_of(const op::AttentionForm& o, const Tensor& q, const Tensor& k, Inputs extra) {
  Tensor scores = matmul(q, k, {.trans_b = true}) * scale_of(o, q);
  const Tensor mask = hidden(o, q.size(3), k.size(3), extra, scores.device());
  // Rows that may see nothing get a finite number: -infinity alone has no softmax.
  if (mask) scores = masked_fill(scores, mask, o.kv_lengths ? -1e30 : -std::numeric_limits<double>::infinity());
  const Tensor p = softmax(scores);
  return o.kv_lengths ? masked_fill(p, mask, 0) : p;
}
// The mask of dropout for p of softmax_of().
Tensor factors_of(const op::AttentionForm& o, const Tensor& p, Inputs extra) {
  const Shape& s = p.shape();
  const Tensor m = kept(o, {s[0], s[1] * s[2], s[3], s[4]}, extra, p.device());
  return reshape(m.to(p.dtype()) / (1 - o.dropout), s);
}
}  // namespace
// y and lse are functions of q, k and v, so unused.
Tensors op::AttentionGrad::compose(Inputs in) const {
  const Shape &s = in[0].shape(), &ks = in[1].shape();
  const Tensor q = grouped(in[0], ks[1]), k = grouped(in[1], ks[1]), v = grouped(in[2], ks[1]),
               dy = grouped(in[5], ks[1]), p = softmax_of(o, q, k, in.subspan(6));
  Tensor dp = matmul(dy, v, {.trans_b = true}), weights = p;
  if (o.dropout > 0) {
    const Tensor factors = factors_of(o, p, in.subspan(6));
    dp = dp * factors, weights = p * factors;
  }
  const Tensor ds = p * (dp - row_sum(dp * p)) * scale_of(o, q);
  const auto of_keys = [&](const Tensor& x) { return reshape(sum(x, {2}), ks).to(in[1].dtype()); };
  return {reshape(matmul(ds, k), s).to(in[0].dtype()), of_keys(matmul(ds, q, {.trans_a = true})),
          of_keys(matmul(weights, dy, {.trans_a = true}))};
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
  const Tensors in = inputs_of({with_rows(q), with_rows(k), with_rows(v)}, o);
  const op::AttentionForm form = form_of(op::Attention::kName, o);
  return drawn(emit(make_ref<op::Attention>(form), in), o);
}

Tensor detail::attention_weights(const Tensor& q, const Tensor& k, const AttentionOptions& o) {
  const Tensors in = inputs_of({q, k, k}, o), extra = inputs_of({}, o);
  const op::AttentionForm form = form_of(op::Attention::kName, o);
  (void)op::Attention(form).infer(in);
  Tensor p = softmax_of(form, grouped(q, k.size(1)), grouped(k, k.size(1)), extra);
  if (form.dropout > 0) p = p * factors_of(form, p, extra), o.rng->take(4 * uint64_t(q.size(0) * q.size(1)));
  return reshape(p, {q.size(0), q.size(1), q.size(2), k.size(2)}).to(q.dtype());
}

Layouts op::SelfAttention::infer(Inputs in) const {
  const Tensor& x = in[0];
  TG_CHECK(x.ndim() == 4, shape, "[self_attention] got {}. x is (batch, time, heads, head size). Use reshape().", x);
  check::computes(kName, x);
  const int64_t heads = x.size(2) - 2 * kv_heads;
  TG_CHECK(kv_heads >= 1 && heads >= 1 && heads % kv_heads == 0, shape,
           "[self_attention] x is {}, and kv_heads is {}: {} heads of queries. They must be 1 or more, and a multiple "
           "of kv_heads, which must be 1 or more.",
           x, kv_heads, heads);
  TG_CHECK(x.size(1) > 0, shape, "[self_attention] x is {}: there are no keys to attend to. Pass at least one row.", x);
  check_form(kName, o, x, in.subspan(1));
  return {contiguous_like(x, {x.size(0), x.size(1), heads, x.size(3)}),
          contiguous_like(x, {x.size(0), heads, x.size(1)}, detail::dtype_of_sums(x))};
}
Tensors op::SelfAttention::vjp(const Vjp& v) const {
  Tensors in{v.in(0), v.out(0), v.out(1), with_rows(v.grad())};
  for (size_t i = 1; i < v.inputs(); ++i) in.emplace_back(v.in(i));
  Tensors r{emit(make_ref<op::SelfAttentionGrad>(o, kv_heads), in)[0]};
  for (size_t i = 1; i < v.inputs(); ++i) r.emplace_back();
  return r;
}
Tensors op::SelfAttentionGrad::compose(Inputs in) const {
  const auto in_heads = [](const Tensor& x) { return transpose(x, 1, 2); };
  const int64_t heads = in[0].size(2) - 2 * kv_heads;
  Tensors parts;
  for (const Tensor& x : split(in[0], {heads, kv_heads, kv_heads}, 2)) parts.emplace_back(in_heads(x));
  parts.emplace_back(in_heads(in[1])), parts.emplace_back(in[2]), parts.emplace_back(in_heads(in[3]));
  for (const Tensor& extra : in.subspan(4)) parts.emplace_back(extra);
  const Tensors d = op::AttentionGrad(o).compose(parts);
  return {concat({in_heads(d[0]), in_heads(d[1]), in_heads(d[2])}, 2)};
}
Tensor self_attention(const Tensor& x, int64_t kv_heads, const AttentionOptions& o) {
  const Tensors in = inputs_of({with_rows(x)}, o);
  const op::AttentionForm form = form_of(op::SelfAttention::kName, o);
  return drawn(emit(make_ref<op::SelfAttention>(form, kv_heads), in), o);
}

void kernel::by_parts(const op::SelfAttention& op, Bufs in, Bufs out, Context& c,
                      void (*attention)(const op::Attention&, Bufs, Bufs, Context&)) {
  const Parts x(*in[0].layout, op.kv_heads);
  const Layout y = heads_of(*out[0].layout);
  SmallVec<Buf, 5> from{{&x.q, in[0].bytes}, {&x.k, in[0].bytes}, {&x.v, in[0].bytes}};
  for (const Buf& extra : in.subspan(1)) from.emplace_back(extra);
  const std::array to{Buf{&y, out[0].bytes}, out[1]};
  attention(op::Attention(op.o), {from.data(), from.size()}, to, c);
}
void kernel::by_parts(const op::SelfAttentionGrad& op, Bufs in, Bufs out, Context& c,
                      void (*attention)(const op::AttentionGrad&, Bufs, Bufs, Context&)) {
  const Parts x(*in[0].layout, op.kv_heads), dx(*out[0].layout, op.kv_heads);
  const Layout y = heads_of(*in[1].layout), dy = heads_of(*in[3].layout);
  SmallVec<Buf, 8> from{{&x.q, in[0].bytes}, {&x.k, in[0].bytes}, {&x.v, in[0].bytes}, {&y, in[1].bytes}, in[2],
                        {&dy, in[3].bytes}};
  for (const Buf& extra : in.subspan(4)) from.emplace_back(extra);
  const std::array to{Buf{&dx.q, out[0].bytes}, Buf{&dx.k, out[0].bytes}, Buf{&dx.v, out[0].bytes}};
  attention(op::AttentionGrad(op.o), {from.data(), from.size()}, to, c);
}

Error kernel::attention_span_outside(std::string_view op, std::string_view what, int64_t value, int64_t position,
                                     int64_t most) {
  return Error(Error::Kind::value,
               fmt::format("[{}] {} of sequence {} is {}, and there are {} keys. It must be from 0 to {}.", op, what,
                           position, value, most, most));
}
}  // namespace tg
