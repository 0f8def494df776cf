#include <fmt/ranges.h>
#include <tapegrad/core/check.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/shape_ops.h>

#include <tapegrad/ops/check.h>

namespace tg {
Layouts op::Reshape::infer(Inputs in) const {
  Layout l = in[0].layout().view_of(0);
  l.shape = to;
  l.strides = strides;
  return {l};
}
Tensors op::Reshape::vjp(const Vjp& v) const { return {reshape(v.grad(), v.in_shape(0))}; }
Layouts op::Transpose::infer(Inputs in) const {
  Layout l = in[0].layout().view_of(0);
  std::swap(l.shape[a], l.shape[b]);
  std::swap(l.strides[a], l.strides[b]);
  return {l};
}
Tensors op::Transpose::vjp(const Vjp& v) const { return {transpose(v.grad(), int64_t(a), int64_t(b))}; }
Layouts op::Slice::infer(Inputs in) const {
  Layout l = in[0].layout().view_of(0);
  l.offset += start * l.strides[dim];
  l.shape[dim] = stop - start;
  return {l};
}
Tensors op::Slice::vjp(const Vjp& v) const { return {emit1(make_ref<op::Pad>(dim, start, v.in_shape(0)), {v.grad()})}; }
Layouts op::Split::infer(Inputs in) const {
  Layouts r;
  int64_t at = 0;
  for (int64_t n : sizes) {
    Layout l = in[0].layout().view_of(0);
    l.offset += at * l.strides[dim];
    l.shape[dim] = n;
    r.emplace_back(l);
    at += n;
  }
  return r;
}
Tensors op::Split::vjp(const Vjp& v) const {
  std::vector<Tensor> parts;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (v.grad(i)) {
      parts.push_back(v.grad(i));
      continue;
    }
    Shape s = v.in_shape(0);  // no gradient for this output
    s[dim] = sizes[i];
    parts.push_back(zeros(s, v.in_dtype(0), v.device()));
  }
  return {concat(parts, int64_t(dim))};
}
Layouts op::Expand::infer(Inputs in) const {
  Layout l = in[0].layout().view_of(0);
  detail::checked_numel(kName, to);
  const Shape& from = l.shape;
  bool ok = from.size() <= to.size();
  for (size_t i = 0; ok && i < from.size(); ++i) ok = from[i] == 1 || from[i] == to[to.size() - from.size() + i];
  TG_CHECK(ok, shape, "[expand] {} cannot be repeated to {}. Aligned at the right, each size must be equal or 1.",
           in[0], to);
  l.strides = detail::broadcast_strides(l, to);
  l.shape = to;
  return {l};
}
Tensors op::Expand::vjp(const Vjp& v) const { return {detail::sum_to(v.grad(), v.in_shape(0))}; }
Layouts op::Pad::infer(Inputs in) const { return {contiguous_like(in[0], to)}; }
Tensors op::Pad::vjp(const Vjp& v) const { return {slice(v.grad(), int64_t(dim), start, start + v.in_shape(0)[dim])}; }
Layouts op::Concat::infer(Inputs in) const {
  Shape s = in[0].shape();
  for (size_t k = 1; k < in.size(); ++k) {
    check::same_dtype(kName, in[0], in[k]);
    Shape other = in[k].shape();
    bool ok = other.size() == s.size();
    for (size_t i = 0; ok && i < s.size(); ++i) ok = i == dim || s[i] == other[i];
    TG_CHECK(ok, shape, "[concat] input {} is {}, input 0 is {}. All sizes except that of dimension {} must be equal.",
             k, in[k], in[0], dim);
    s[dim] += other[dim];
  }
  return {contiguous_like(in[0], s)};
}
Tensors op::Concat::vjp(const Vjp& v) const {
  Tensors g;
  int64_t at = 0;
  for (size_t i = 0; i < v.inputs(); ++i) {
    const int64_t n = v.in_shape(i)[dim];
    g.emplace_back(v.wants(i) ? slice(v.grad(), int64_t(dim), at, at + n) : Tensor());
    at += n;
  }
  return g;
}

namespace {
// Strides that read `from` in row-major order as `to`: runs of evenly stepping dimensions can be split anew.
bool view_strides(const Layout& from, const Shape& to, Strides& out) {
  out = Layout::contiguous(to, from.dtype).strides;
  if (from.is_contiguous() || from.numel() == 0) return true;
  size_t t = to.size();
  // Elements of the run, stride of its last dimension.
  int64_t run = 1, step = 0;
  for (size_t d = from.shape.size(); d-- > 0;) {
    if (from.shape[d] == 1) continue;
    if (run == 1) step = from.strides[d];
    run *= from.shape[d];
    size_t next = d;  // next dimension to the left that is not 1
    while (next > 0 && from.shape[next - 1] == 1) --next;
    if (next > 0 && from.strides[next - 1] == from.strides[d] * from.shape[d]) continue;
    int64_t done = 1;
    while (t > 0 && (done < run || to[t - 1] == 1)) {
      --t;
      out[t] = step * done;
      done *= to[t];
    }
    if (done != run) return false;
    run = 1;
  }
  return true;
}
}  // namespace

Tensor reshape(const Tensor& x, const Shape& to) {
  Shape s = to;
  int64_t free = -1;
  for (size_t i = 0; i < s.size() && free < 0; ++i)
    if (s[i] == -1) free = int64_t(i);
  if (free >= 0) s[size_t(free)] = 1;
  const bool negative = std::any_of(s.begin(), s.end(), [](int64_t d) { return d < 0; });
  const int64_t known = negative ? 0 : detail::checked_numel("reshape", s);
  if (free >= 0) s[size_t(free)] = -1;
  if (free >= 0 && known > 0 && x.numel() % known == 0) s[size_t(free)] = x.numel() / known;
  TG_CHECK(
      std::all_of(s.begin(), s.end(), [](int64_t d) { return d >= 0; }) &&
          detail::checked_numel("reshape", s) == x.numel(),
      shape,
      "[reshape] {} has {} elements and does not fit {}. The numbers of elements must be equal; one size may be -1.", x,
      x.numel(), to);
  if (s == x.shape()) return x;
  Strides strides;
  if (view_strides(x.layout(), s, strides)) return emit1(make_ref<op::Reshape>(s, strides), {x});
  return emit1(make_ref<op::Reshape>(s, Layout::contiguous(s, x.dtype()).strides), {x.contiguous()});
}
Tensor detail::as_rows(const Tensor& x) { return reshape(x, {x.shape().without_last().product(), x.shape().back()}); }
Tensor transpose(const Tensor& x, int64_t a, int64_t b) {
  check::ndim_at_least("transpose", x, 2);
  return emit1(make_ref<op::Transpose>(check::dim("transpose", x, a), check::dim("transpose", x, b)), {x});
}
Tensor slice(const Tensor& x, int64_t dim, int64_t start, int64_t stop) {
  const size_t d = check::dim("slice", x, dim);
  const int64_t n = x.shape()[d], from = start < 0 ? start + n : start, to = std::min(n, stop < 0 ? stop + n : stop);
  TG_CHECK(0 <= from && from <= to, shape,
           "[slice] [{}, {}) of dimension {} is outside of {}. start must be in [0, {}] and not after stop.", start,
           stop, dim, x, n);
  return emit1(make_ref<op::Slice>(d, from, to), {x});
}
Tensors split(const Tensor& x, std::span<const int64_t> sizes, int64_t dim) {
  const size_t d = check::dim("split", x, dim);
  int64_t left = x.shape()[d];
  bool ok = !sizes.empty();
  for (int64_t n : sizes) {
    ok = ok && n >= 0 && n <= left;
    if (ok) left -= n;
  }
  TG_CHECK(
      ok && left == 0, shape,
      "[split] the sizes ({}) do not sum to dimension {} of {}, which has {} elements. Their sum must be equal to it.",
      fmt::join(sizes, ", "), dim, x, x.shape()[d]);
  return emit(make_ref<op::Split>(d, sizes), {&x, 1});
}
Tensor expand(const Tensor& x, const Shape& to) { return x.shape() == to ? x : emit1(make_ref<op::Expand>(to), {x}); }
Tensor concat(Inputs x, int64_t dim) {
  TG_CHECK(!x.empty(), value, "[concat] got no tensors. Pass at least one.");
  return std::move(emit(make_ref<op::Concat>(check::dim("concat", x[0], dim)), x)[0]);
}
}  // namespace tg
