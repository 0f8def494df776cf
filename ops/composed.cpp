#include <tapegrad/core/backend/dry_run.h>
#include <tapegrad/core/check.h>
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

// Zeros where column j of row i has j > i + diagonal, or j < i + diagonal.
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
// For each t (..., n): the number of leading elements of the row of sums (..., C) that are <= t.
Tensor bisected(const Tensor& sums, const Tensor& t) {
  const int64_t classes = sums.size(-1);
  Tensor at = zeros(t.shape(), DType::i64, t.device());
  for (auto step = int64_t(std::bit_floor(uint64_t(classes))); step > 0; step /= 2) {
    const Tensor next = at + double(step), last = minimum(next, double(classes)) - 1.0;
    at = where(logical_and(le(next, double(classes)), le(gather(sums, -1, last), t)), next, at);
  }
  return at;
}
void check_mask(std::string_view op, const Tensor& x) {
  TG_CHECK(x.dtype() == DType::boolean, dtype, "[{}] {} is no mask. Masks are bool: compare first, as in ne(x, 0).", op,
           x);
}
}  // namespace

Tensor permute(const Tensor& x, const Dims& order) {
  const size_t n = x.ndim();
  std::vector<size_t> at;  // source dimension of each result dimension
  for (const int64_t d : order) at.push_back(normal_dim("permute", d, x.shape()));
  std::vector<size_t> sorted = at;
  std::ranges::sort(sorted);
  TG_CHECK(at.size() == n && std::ranges::adjacent_find(sorted) == sorted.end(), shape,
           "[permute] the order {} does not name each of the {} dimensions of {} once.", order, n, x);
  Tensor y = x;
  std::vector<size_t> now(n);  // source dimension of each dimension of y
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
  Shape s = x.shape();
  s.push_back(1);
  std::rotate(s.begin() + (dim < 0 ? dim + n : dim), s.end() - 1, s.end());
  return reshape(x, s);
}
Tensor squeeze(const Tensor& x, int64_t dim) {
  const size_t d = normal_dim("squeeze", dim, x.shape());
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
  const size_t a = normal_dim("flatten", first, x.shape()), b = normal_dim("flatten", last, x.shape());
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

Tensor tril(const Tensor& x, int64_t diagonal) { return triangle("tril", x, diagonal, true); }
Tensor triu(const Tensor& x, int64_t diagonal) { return triangle("triu", x, diagonal, false); }
Tensor pad(const Tensor& x, std::span<const Padding> widths, double value) {
  constexpr int64_t kMost = int64_t(1) << 60;  // a sum of three such sizes does not overflow
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
    checked_numel("pad", to);
    if (value == 0 && !std::signbit(value))
      y = emit1(make_ref<op::Pad>(d, before, to), {y});
    else
      y = concat({full(first, value, x.dtype(), x.device()), y, full(last, value, x.dtype(), x.device())}, int64_t(d));
  }
  return y;
}
Tensor index_add(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source) {
  const size_t d = normal_dim("index_add", dim, x.shape());
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
  Shape s = indices.shape();
  s.push_back(classes);
  const Tensor at = unsqueeze(indices, -1);
  return scatter_add(zeros(s, d, indices.device()), -1, at, ones(at.shape(), d, indices.device()));
}
Tensor accuracy(const Tensor& logits, const Tensor& targets, int64_t ignore_index) {
  const NoGradScope off;
  TG_CHECK(is_index(targets.dtype()), dtype, "[accuracy] the targets are {}. They must be i64 or i32.", targets);
  TG_CHECK(logits.ndim() == targets.ndim() + 1 &&
               std::equal(targets.shape().begin(), targets.shape().end(), logits.shape().begin()),
           shape,
           "[accuracy] the logits are {}, the targets {}. Logits have one more dimension, the classes, at the end.",
           logits, targets);
  const Tensor t = targets.to(DType::i64);
  const Tensor counts = ne(t, double(ignore_index));
  const Tensor hits = logical_and(eq(argmax(logits), t), counts);
  return sum(hits).to(DType::f32) / sum(counts).to(DType::f32);
}
Tensor multinomial(const Tensor& probabilities, int64_t n, bool replacement, Rng& rng) {
  const NoGradScope off;
  const NameScope here("multinomial");
  check::ndim_at_least("multinomial", probabilities, 1);
  check::computes("multinomial", probabilities);
  const int64_t classes = probabilities.size(-1);
  TG_CHECK(
      n >= 1 && classes >= 1 && (replacement || n <= classes), value,
      "[multinomial] {} draws {} replacement from {}. Draw 1 or more from at least 1 class; without replacement no "
      "more than there are classes.",
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
  // Where nothing was read, a bad row draws an invalid class, which gather() refuses.
  s.back() = classes;
  const Tensor all = expand(arange(0, double(classes), 1, DType::i64, p.device()), s);
  return gather(all, -1, where(good, drawn, double(classes)));
}
}  // namespace tg
