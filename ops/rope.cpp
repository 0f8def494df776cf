#include <tapegrad/core/check.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/rope.h>

#include <cmath>

namespace tg {
void RopeScaling::validate(std::string_view op, std::string_view prefix) const {
  const auto positive = [&](std::string_view name, double x) {
    TG_CHECK(x > 0 && std::isfinite(x), value, "[{}] {}{} is {}. It must be finite and more than 0.", op, prefix, name,
             x);
  };
  positive("factor", factor), positive("low_freq", low_freq), positive("high_freq", high_freq);
  TG_CHECK(original_context >= 0, value, "[{}] {}original_context is {}. It must be 1 or more, or 0 without llama3.",
           op, prefix, original_context);
  TG_CHECK(fraction > 0 && fraction <= 1, value, "[{}] {}fraction is {}. It must be in (0, 1].", op, prefix, fraction);
  const RopeScaling unset, plain{.kind = kind, .factor = factor, .fraction = fraction};
  const bool llama3 = kind == RopeScalingKind::llama3;
  TG_CHECK(kind != RopeScalingKind::none || factor == unset.factor, value,
           "[{}] {}factor is {}, and there is no scaling. Choose linear or llama3, or leave it 1.", op, prefix, factor);
  TG_CHECK(llama3 || plain == *this, value,
           "[{}] {}low_freq is {}, {}high_freq is {}, {}original_context is {}. Only scaling llama3 uses them. Leave "
           "them {}, {} and 0.",
           op, prefix, low_freq, prefix, high_freq, prefix, original_context, unset.low_freq, unset.high_freq);
  TG_CHECK(!llama3 || (high_freq > low_freq && original_context >= 1), value,
           "[{}] {}low_freq is {}, {}high_freq is {}, {}original_context is {}. For scaling llama3 the second must be "
           "more than the first, and the context 1 or more.",
           op, prefix, low_freq, prefix, high_freq, prefix, original_context);
}
namespace {
// Heads [first, end) of x: (..., H, T, HS).
Layout some_heads(const Layout& x, int64_t first, int64_t end) {
  Layout l = x;
  const size_t h = x.shape.size() - 2;
  l.offset += first * x.strides[h];
  l.shape[h] = end - first;
  std::swap(l.shape[h], l.shape[h - 1]), std::swap(l.strides[h], l.strides[h - 1]);
  return l;
}
}  // namespace
Layout op::Rope::rotated(const Layout& x) const { return heads > 0 ? some_heads(x, 0, heads) : x; }
Layout op::Rope::kept(const Layout& x) const {
  Layout none = x;
  none.shape.back() = 0;
  return heads > 0 ? some_heads(x, heads, x.shape[x.shape.size() - 2]) : none;
}
Layouts op::Rope::infer(Inputs in) const {
  const Tensor& x = in[0];
  check::ndim_at_least(kName, x, heads > 0 ? 3 : 2);
  TG_CHECK(
      heads >= 0 && (heads == 0 || heads <= x.size(-2)), value,
      "[rope] heads is {}, and x is {}. It must be from 1 to {}, the second to last size, or 0 if x is (..., T, HS).",
      heads, x, x.size(-2));
  check::computes(kName, x);
  TG_CHECK(x.shape().back() % 2 == 0, shape,
           "[rope] {} has rows of {} elements. They are rotated in pairs: the last size must be even.", x,
           x.shape().back());
  TG_CHECK(theta >= 1 && std::isfinite(theta), value, "[rope] theta is {}. It must be finite and 1 or more.", theta);
  scaling.validate(kName);
  const int64_t t = x.size(heads > 0 ? -3 : -2);
  TG_CHECK(start >= 0 && start <= kRopeEnd && t <= kRopeEnd - start, value,
           "[rope] {} rows from position {} on, of {}. Positions must be in [0, {}).", t, start, x, kRopeEnd);
  if (starts) {
    check::ndim_at_least(kName, x, heads > 0 ? 4 : 3);
    check::index(kName, in[1]);
    TG_CHECK(in[1].shape() == Shape{x.shape()[0]}, shape,
             "[rope] starts are {}, x is {}. They must be ({}): one number for each sequence.", in[1], x, x.shape()[0]);
    TG_CHECK(start == 0, value, "[rope] start is {}, and starts were given. Pass one of them.", start);
  }
  return {contiguous_like(x)};
}
Tensors op::Rope::vjp(const Vjp& v) const {
  const OpPtr back = make_ref<op::Rope>(theta, scaling, start, !inverse, starts, heads);
  if (starts) return {emit1(back, {v.grad(), v.in(1)}), Tensor()};
  return {emit1(back, {v.grad()})};
}
Tensor rope(const Tensor& x, const RopeOptions& o) {
  const OpPtr op = make_ref<op::Rope>(o.theta, o.scaling, o.start, false, bool(o.starts), o.heads);
  return o.starts ? emit1(op, {x, o.starts}) : emit1(op, {x});
}

Error kernel::rope_outside(std::string_view op, int64_t start, int64_t position, int64_t rows) {
  return Error(Error::Kind::value, fmt::format("[{}] {} rows of sequence {} from position {} on. Positions must be in "
                                               "[0, {}).",
                                               op, rows, position, start, op::kRopeEnd));
}
}  // namespace tg
