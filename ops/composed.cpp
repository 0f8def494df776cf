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
#include <vector>

namespace tg {
namespace {
void check_mask(std::string_view op, const Tensor& x) {
  TG_CHECK(x.dtype() == DType::boolean, dtype, "[{}] {} is no mask. Masks are bool: compare first, as in ne(x, 0).", op,
           x);
}
}  // namespace

Tensor permute(const Tensor& x, const Dims& order) {
  const size_t n = x.ndim();
  std::vector<size_t> at;  // of each dimension of the result, in x
  for (const int64_t d : order) at.push_back(normal_dim("permute", d, x.shape()));
  std::vector<size_t> sorted = at;
  std::ranges::sort(sorted);
  TG_CHECK(at.size() == n && std::ranges::adjacent_find(sorted) == sorted.end(), shape,
           "[permute] the order {} does not name each of the {} dimensions of {} once.", order, n, x);
  Tensor y = x;
  std::vector<size_t> now(n);  // where each dimension of y was in x
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
  TG_CHECK(x.shape()[d] == 1, shape, "[squeeze] dimension {} of {} has size {}. Only a size of 1 can be left out.", dim,
           x, x.shape()[d]);
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
  return gt(sum(mask.to(DType::i64)), 0);
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
  return sum(hits.to(DType::f32)) / sum(counts.to(DType::f32));
}
}  // namespace tg
