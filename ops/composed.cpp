#include <tapegrad/core/backend/dry_run.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/core/engine/trace.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/comparison.h>
#include <tapegrad/ops/composed.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/indexing.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/shape_ops.h>
#include <tapegrad/ops/topk.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace tg {
namespace {
constexpr double kInf = std::numeric_limits<double>::infinity();

// Zeros where j > i + diagonal, or j < i + diagonal, in column j of row i.
Tensor triangle(std::string_view op, const Tensor& x, int64_t diagonal, bool lower) {
  check::ndim_at_least(op, x, 2);
  const int64_t rows = x.size(-2), columns = x.size(-1), first = std::clamp(diagonal, -rows, columns);
  const Tensor i = reshape(arange(double(first), double(first + rows), 1, DType::i64, x.device()), {rows, 1});
  const Tensor j = arange(0, double(columns), 1, DType::i64, x.device());
  return masked_fill(x, lower ? gt(j, i) : lt(j, i), 0);
}
// Uniform in [0, 1), multiples of 2^-48.
Tensor fine_uniform(const Shape& s, Rng& rng, Device d) {
  const Tensor high = rand(s, rng, 0, 1, DType::f64, d), low = rand(s, rng, 0, 1, DType::f64, d);
  return high + low * 0x1p-24;
}
// Number of leading elements <= t of a row of sums (..., C), for each t (..., n).
Tensor bisected(const Tensor& sums, const Tensor& t) {
  const int64_t classes = sums.size(-1);
  Tensor at = zeros(t.shape(), DType::i64, t.device());
  for (auto step = int64_t(std::bit_floor(uint64_t(classes))); step > 0; step /= 2) {
    const Tensor next = at + double(step), last = minimum(next, double(classes)) - 1.0;
    at = where(logical_and(le(next, double(classes)), le(gather(sums, -1, last), t)), next, at);
  }
  return at;
}
using Combine = std::function<Tensors(Inputs, Inputs)>;
Tensors combined(const Combine& f, const Tensors& a, const Tensors& b) {
  Tensors y = f({a.data(), a.size()}, {b.data(), b.size()});
  TG_CHECK(y.size() == b.size(), shape, "[scan] f returned {} tensor(s) for {}. It must return one for each.", y.size(),
           b.size());
  for (size_t i = 0; i < y.size(); ++i)
    TG_CHECK(y[i] && y[i].shape() == b[i].shape() && y[i].dtype() == b[i].dtype(), shape,
             "[scan] f returned {} for slices {}. It must keep their shape and dtype.", y[i], b[i]);
  return y;
}
Tensors scanned(const Combine& f, const Tensors& x, int64_t d) {
  const int64_t n = x[0].size(d);
  if (n < 2) return x;
  const auto take = [d](const Tensors& all, int64_t start, int64_t stop, int64_t step) {
    Tensors r;
    for (const Tensor& t : all) r.emplace_back(slice(t, d, start, stop, step));
    return r;
  };
  const Tensors odd = scanned(f, combined(f, take(x, 0, n - 1, 2), take(x, 1, n, 2)), d);
  Tensors y = take(x, 0, 1, 1), rest;  // y: the even places
  if (n > 2) rest = combined(f, take(odd, 0, (n - 1) / 2, 1), take(x, 2, n, 2));
  for (size_t i = 0; i < y.size(); ++i) {
    if (n > 2) y[i] = concat({y[i], rest[i]}, d);
    const Tensor pairs = flatten(stack({slice(y[i], d, 0, n / 2), odd[i]}, d + 1), d, d + 1);
    y[i] = n % 2 == 0 ? pairs : concat({pairs, slice(y[i], d, n / 2, n / 2 + 1)}, d);
  }
  return y;
}
void check_mask(std::string_view op, const Tensor& x) {
  TG_CHECK(x.dtype() == DType::boolean, dtype, "[{}] {} is no mask. Masks are bool: compare first, as in ne(x, 0).", op,
           x);
}
}  // namespace

Tensor permute(const Tensor& x, const Dims& order) {
  const size_t n = x.ndim();
  std::vector<size_t> at;  // source dimension of each dimension
  for (const int64_t d : order) at.push_back(check::dim("permute", x, d));
  std::vector<size_t> sorted = at;
  std::ranges::sort(sorted);
  TG_CHECK(at.size() == n && std::ranges::adjacent_find(sorted) == sorted.end(), shape,
           "[permute] the order {} does not name each of the {} dimensions of {} once.", order, n, x);
  Tensor y = x;
  std::vector<size_t> now(n);  // source dimension of each dimension
  for (size_t d = 0; d < n; ++d) now[d] = d;
  for (size_t d = 0; d < n; ++d) {
    const auto from = size_t(std::ranges::find(now, at[d]) - now.begin());
    if (from == d) continue;
    y = transpose(y, int64_t(d), int64_t(from));
    std::swap(now[d], now[from]);
  }
  return y;
}
Tensor unsqueeze(const Tensor& x, int64_t dim) {
  const auto n = int64_t(x.ndim()) + 1;
  TG_CHECK(dim >= -n && dim < n, shape, "[unsqueeze] dim is {}, and the result of {} has {} dimensions.", dim, x, n);
  Shape s = x.shape().followed_by(1);
  std::rotate(s.begin() + (dim < 0 ? dim + n : dim), s.end() - 1, s.end());
  return reshape(x, s);
}
Tensor squeeze(const Tensor& x, int64_t dim) {
  const size_t d = check::dim("squeeze", x, dim);
  TG_CHECK(x.shape()[d] == 1, shape,
           "[squeeze] dimension {} of {} has size {}. Only a dimension of size 1 can be removed.", dim, x,
           x.shape()[d]);
  Shape s;
  for (size_t i = 0; i < x.ndim(); ++i)
    if (i != d) s.push_back(x.shape()[i]);
  return reshape(x, s);
}
Tensor flatten(const Tensor& x, int64_t first, int64_t last) {
  if (x.ndim() == 0) return reshape(x, {1});
  const size_t a = check::dim("flatten", x, first), b = check::dim("flatten", x, last);
  TG_CHECK(a <= b, shape, "[flatten] first is {} and last {} of {}. The first dimension must come first.", first, last,
           x);
  Shape s;
  for (size_t i = 0; i < x.ndim(); ++i) {
    if (i > a && i <= b)
      s.back() *= x.shape()[i];
    else
      s.push_back(x.shape()[i]);
  }
  return reshape(x, s);
}
Tensor stack(Inputs in, int64_t dim) {
  TG_CHECK(!in.empty(), value, "[stack] there is no tensor. Pass at least one.");
  std::vector<Tensor> parts;
  for (const Tensor& x : in) {
    TG_CHECK(x.shape() == in[0].shape(), shape, "[stack] tensor 0 is {}, tensor {} is {}. Their shapes must be equal.",
             in[0], parts.size(), x);
    parts.push_back(unsqueeze(x, dim));
  }
  return concat(parts, dim);
}
Tensor repeat(const Tensor& x, const Dims& times) {
  TG_CHECK(times.size() == x.ndim() && std::ranges::all_of(times, [](int64_t n) { return n >= 0; }), shape,
           "[repeat] times is {} for {}. Give one number, 0 or more, for each dimension.", times, x);
  Tensor y = x;
  for (size_t d = 0; d < times.size(); ++d) {
    if (times[d] == 1) continue;
    Tensor before = unsqueeze(y, int64_t(d));  // (..., 1, n, ...)
    Shape s = before.shape();
    s[d] = times[d];
    y = flatten(expand(before, s), int64_t(d), int64_t(d) + 1);
  }
  return y;
}

Tensor slice(const Tensor& x, int64_t dim, int64_t start, int64_t stop, int64_t step) {
  TG_CHECK(step >= 1, value, "[slice] step is {}. It must be 1 or more; flip() reverses.", step);
  Tensor part = slice(x, dim, start, stop);
  if (step == 1) return part;
  const size_t d = check::dim("slice", x, dim);
  const int64_t size = x.shape()[d], from = start < 0 ? start + size : start, some = part.shape()[d];
  const int64_t n = some / step + (some % step > 0);
  if (n <= 1) return slice(part, dim, 0, n);
  // A range of whole steps. Where x ends, it begins earlier, or zeros are appended.
  const int64_t whole = n * step, first = whole > size ? 0 : std::max<int64_t>(0, from + whole - size);
  Shape to = part.shape(), steps;
  to[d] = whole;
  part = whole > size ? emit1(make_ref<op::Pad>(d, 0, to), {part}) : slice(x, dim, from - first, from - first + whole);
  for (size_t i = 0; i < x.ndim(); ++i) {
    steps.push_back(i == d ? n : to[i]);
    if (i == d) steps.push_back(step);
  }
  return squeeze(slice(reshape(part, steps), int64_t(d) + 1, first, first + 1), int64_t(d) + 1);
}
Tensors chunk(const Tensor& x, int64_t n, int64_t dim) {
  const int64_t size = x.shape()[check::dim("chunk", x, dim)];
  TG_CHECK(n >= 1 && size % n == 0, value,
           "[chunk] dimension {} of {} has {} elements, which make no {} equal parts. The number of parts must be 1 or "
           "more and divide them; split() takes others.",
           dim, x, size, n);
  return split(x, std::vector<int64_t>(size_t(n), size / n), dim);
}
Tensors unbind(const Tensor& x, int64_t dim) {
  const int64_t n = x.shape()[check::dim("unbind", x, dim)];
  if (n == 0) return {};
  Tensors parts = chunk(x, n, dim);
  for (Tensor& t : parts) t = squeeze(t, dim);
  return parts;
}
Tensor flip(const Tensor& x, const Dims& dims) {
  std::vector<bool> done(x.ndim());
  Tensor y = x;
  for (const int64_t dim : dims) {
    const size_t d = check::dim("flip", x, dim);
    TG_CHECK(!done[d], value, "[flip] dimension {} is named twice in {}. Name each once.", dim, dims);
    done[d] = true;
    if (x.numel() > 0) y = index_select(y, dim, arange(double(x.shape()[d] - 1), -1, -1, DType::i64, x.device()));
  }
  return y;
}
Tensor scan(const std::function<Tensor(const Tensor&, const Tensor&)>& f, const Tensor& x, int64_t dim) {
  return scan([&f](Inputs a, Inputs b) { return Tensors{f(a[0], b[0])}; }, {x}, dim)[0];
}
Tensors scan(const Combine& f, Inputs x, int64_t dim) {
  TG_CHECK(!x.empty(), value, "[scan] there is no tensor. Pass at least one.");
  const size_t d = check::dim("scan", x[0], dim);
  Tensors all;
  for (const Tensor& t : x) {
    TG_CHECK(t.ndim() > d && t.shape()[d] == x[0].shape()[d], shape,
             "[scan] tensor 0 is {}, tensor {} is {}. Their sizes along dimension {} must be equal.", x[0], all.size(),
             t, d);
    all.emplace_back(t);
  }
  return scanned(f, all, int64_t(d));
}
Tensor normalize(const Tensor& x, double p, int64_t dim, double eps) {
  check::computes("normalize", x);
  check::dim("normalize", x, dim);
  TG_CHECK(p >= 1, value, "[normalize] p is {}. It must be 1 or more; 2 is usual.", p);
  TG_CHECK(eps > 0 && std::isfinite(eps), value, "[normalize] eps is {}. It must be positive and finite.", eps);
  if (x.numel() == 0) return x;
  const Tensor wide = widened(x);
  // Any constant scale gives the same result and gradient; this one brings powers and their sum near 1.
  const Dims along{dim};
  const Tensor y = wide / maximum(max(abs(wide.detach()), along, {.keepdim = true}), eps);
  const Tensor powers = p == 2 ? y * y : p == 1 || p == kInf ? abs(y) : pow(abs(y), p);
  const Tensor sums = p == kInf ? max(powers, along, {.keepdim = true}) : sum(powers, along, {.keepdim = true});
  const Tensor power = where(ge(sums, 1), sums, 1.0);  // sums below 1: the norm is less than eps
  const Tensor norm = p == 1 || p == kInf ? power : p == 2 ? sqrt(power) : pow(power, 1 / p);
  return (y / norm).to(x.dtype());
}

Tensor tril(const Tensor& x, int64_t diagonal) { return triangle("tril", x, diagonal, true); }
Tensor triu(const Tensor& x, int64_t diagonal) { return triangle("triu", x, diagonal, false); }
Tensor pad(const Tensor& x, std::span<const Padding> widths, double value) {
  constexpr int64_t kMost = int64_t(1) << 60;  // three such sizes do not overflow
  const auto valid = [](const Padding& p) {
    return p.before >= 0 && p.after >= 0 && std::max(p.before, p.after) < kMost;
  };
  TG_CHECK(widths.size() == x.ndim(), shape, "[pad] there are {} paddings for {}. Give one for each dimension.",
           widths.size(), x);
  for (const Padding& p : widths)
    TG_CHECK(valid(p), value,
             "[pad] a padding of {} is ({}, {}). Both numbers must be 0 or more; slice() makes a tensor smaller.", x,
             p.before, p.after);
  check::representable("pad", value, x.dtype());
  Tensor y = x;
  for (size_t d = 0; d < widths.size(); ++d) {
    const auto [before, after] = widths[d];
    if (before == 0 && after == 0) continue;
    Shape to = y.shape(), first = to, last = to;
    to[d] += before + after, first[d] = before, last[d] = after;
    detail::checked_numel("pad", to);
    if (value == 0 && !std::signbit(value))
      y = emit1(make_ref<op::Pad>(d, before, to), {y});
    else
      y = concat({full(first, value, x.dtype(), x.device()), y, full(last, value, x.dtype(), x.device())}, int64_t(d));
  }
  return y;
}
Tensor index_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  const size_t d = check::dim("index_add", x, dim);
  check::index("index_add", index);
  TG_CHECK(index.ndim() == 1, shape, "[index_add] index is {}. It must have one dimension: one index per slice.",
           index);
  Shape wanted = x.shape(), along = x.shape();
  std::ranges::fill(along, 1);
  wanted[d] = along[d] = index.size(0);
  TG_CHECK(source.shape() == wanted, shape,
           "[index_add] source is {}, x is {}, index is {}. source must have x's shape with the size of index along "
           "dimension {}: {}.",
           source, x, index, d, wanted);
  return scatter_add(x, int64_t(d), expand(reshape(index, along), wanted), source);
}

Tensor isnan(const Tensor& x) {
  check::computes("isnan", x);
  return ne(x, x);
}
Tensor isinf(const Tensor& x) {
  check::computes("isinf", x);
  return eq(abs(x.detach()), kInf);
}
Tensor isfinite(const Tensor& x) {
  check::computes("isfinite", x);
  return lt(abs(x.detach()), kInf);
}

Tensor logical_not(const Tensor& mask) {
  check_mask("logical_not", mask);
  return eq(mask, zeros({}, DType::boolean, mask.device()));
}
Tensor logical_and(const Tensor& a, const Tensor& b) {
  check_mask("logical_and", a), check_mask("logical_and", b);
  return where(a, b, zeros({}, DType::boolean, a.device()));
}
Tensor logical_or(const Tensor& a, const Tensor& b) {
  check_mask("logical_or", a), check_mask("logical_or", b);
  return where(a, ones({}, DType::boolean, a.device()), b);
}
Tensor any(const Tensor& mask) {
  check_mask("any", mask);
  return gt(sum(mask), 0);
}
Tensor all(const Tensor& mask) { return logical_not(any(logical_not(mask))); }
Tensor one_hot(const Tensor& indices, int64_t classes, DType d) {
  TG_CHECK(is_index(indices.dtype()), dtype, "[one_hot] the indices are {}. They must be i64 or i32.", indices);
  TG_CHECK(classes >= 0, value, "[one_hot] classes is {}. It must be 0 or more.", classes);
  const Shape s = indices.shape().followed_by(classes);
  const Tensor at = unsqueeze(indices, -1);
  return scatter_add(zeros(s, d, indices.device()), -1, at, ones(at.shape(), d, indices.device()));
}
Tensor accuracy(const Tensor& logits, const Tensor& targets, std::optional<int64_t> ignore_index) {
  const NoGradScope off;
  TG_CHECK(is_index(targets.dtype()), dtype, "[accuracy] the targets are {}. They must be i64 or i32.", targets);
  TG_CHECK(logits.ndim() == targets.ndim() + 1 &&
               std::equal(targets.shape().begin(), targets.shape().end(), logits.shape().begin()),
           shape,
           "[accuracy] the logits are {}, the targets {}. Logits have one more dimension, the classes, at the end.",
           logits, targets);
  const Tensor t = targets.to(DType::i64);
  const Tensor counts = ignore_index ? detail::differs_from(t, *ignore_index) : eq(t, t);
  const Tensor hits = logical_and(eq(argmax(logits, -1), t), counts);
  return sum(hits).to(DType::f32) / sum(counts).to(DType::f32);
}
Tensor multinomial(const Tensor& probabilities, int64_t n, bool replacement, Rng& rng) {
  const NoGradScope off;
  const NameScope here("multinomial");
  check::ndim_at_least("multinomial", probabilities, 1);
  check::computes("multinomial", probabilities);
  const int64_t classes = probabilities.size(-1);
  TG_CHECK(n >= 1 && classes >= 1 && (replacement || n <= classes), value,
           "[multinomial] {} draws {} replacement from {}. Draw 1 or more from at least 1 class; without replacement "
           "no more than there are classes.",
           n, replacement ? "with" : "without", probabilities);
  const Tensor p = probabilities.to(DType::f64), sums = cumsum(p, -1), total = slice(sums, -1, classes - 1, classes);
  Tensor good = logical_and(eq(sum(ge(p, 0), {-1}, {.keepdim = true}), double(classes)),
                            logical_and(gt(total, 0), lt(total, kInf)));  // (..., 1)
  Shape s = p.shape();
  Tensor drawn;
  if (replacement || n == 1) {
    s.back() = n;
    drawn = bisected(sums, fine_uniform(s, rng, p.device()) * total);
  } else {
    const TopK first = topk(p / total / -log1p(-0x1p-49 - fine_uniform(s, rng, p.device())), n);
    drawn = first.indices;
    good = logical_and(good, gt(slice(first.values, -1, n - 1, n), 0));
  }
  if (p.device() == Device::cpu() && !detail::tracing() && !detail::running_dry()) {
    const auto rows = good.to_vector<uint8_t>();
    const auto bad = std::ranges::find(rows, 0) - rows.begin();
    TG_CHECK(size_t(bad) == rows.size(), value,
             "[multinomial] row {} of {} has a negative or infinite number, NaN, or fewer than {} positive one(s). "
             "Probabilities must be finite and 0 or more, and each draw needs a positive one.",
             bad, probabilities, replacement ? 1 : n);
  }
  // A bad row draws an invalid class, which gather() refuses.
  s.back() = classes;
  const Tensor all = expand(arange(0, double(classes), 1, DType::i64, p.device()), s);
  return gather(all, -1, where(good, drawn, double(classes)));
}
Tensor linspace(double start, double stop, int64_t n, DType t, Device device) {
  TG_CHECK(n >= 0 && std::isfinite(start) && std::isfinite(stop) && std::isfinite(stop - start), value,
           "[linspace] {} numbers from {} to {}. Their number must be 0 or more, and the bounds and their distance "
           "finite.",
           n, start, stop);
  TG_CHECK(is_float(t) && t != DType::f16, dtype, "[linspace] cannot compute {} values. Use f64, f32 or bf16.", t);
  const double last = double(n) - 1, step = n > 1 ? (stop - start) / last : 0;
  const Tensor i = arange(0, double(n), 1, DType::f64, device);
  return where(le(i, last / 2), i * step + start, stop - (last - i) * step).to(t);  // exact at both ends
}
Tensor randint(const Shape& s, Rng& rng, int64_t low, int64_t high, DType t, Device device) {
  constexpr int64_t kFar = int64_t(1) << 53, kRange = int64_t(1) << 48;
  TG_CHECK(is_index(t), dtype, "[randint] cannot draw {} values. Use i64 or i32.", t);
  TG_CHECK(low < high && low >= -kFar && high <= kFar && high - low <= kRange, value,
           "[randint] from {} to {}. low must be less than high, by at most 2^48, and both in [-2^53, 2^53].", low,
           high);
  check::representable("randint", double(low), t);
  check::representable("randint", double(high - 1), t);
  return (floor(fine_uniform(s, rng, device) * double(high - low)).to(DType::i64) + double(low)).to(t);
}
}  // namespace tg
