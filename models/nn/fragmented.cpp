#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/bf16_copy.h>
#include <tapegrad/models/nn/fragmented.h>
#include <tapegrad/ops/comparison.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/fragments.h>
#include <tapegrad/ops/indexing.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/shape_ops.h>
#include <tapegrad/ops/topk.h>

#include <cmath>

namespace tg::nn {
namespace {
constexpr int64_t kCompression = 32;
}  // namespace

void FragmentedOptions::validate(int64_t in) const {
  TG_CHECK(in >= 1, value, "[fragmented_linear] in is {}. It must be 1 or more.", in);
  TG_CHECK(fragments >= 1, value, "[fragmented_linear] fragments is {}. It must be 1 or more.", fragments);
  TG_CHECK(in % fragments == 0, value,
           "[fragmented_linear] in {} cannot be split into {} equal fragments. It must be a multiple of their number.",
           in, fragments);
  TG_CHECK(compressed >= 0, value, "[fragmented_linear] compressed is {}. It must be 1 or more, or 0 for in / {}.",
           compressed, kCompression);
  TG_CHECK(compressed > 0 || in >= kCompression, value,
           "[fragmented_linear] the compressed size is 0: in is {}, and the default is in / {}. Set `compressed` to 1 "
           "or more.",
           in, kCompression);
}

FragmentedLinear::FragmentedLinear(const Params& p, int64_t in, int64_t out, FragmentedOptions o) : Layer{p.scope()} {
  NameScope here = enter();
  o.validate(in);
  const int64_t f = o.fragments, d = in / f, c = o.compressed ? o.compressed : in / kCompression;
  const Init of_fragment = Init::normal(1 / std::sqrt(double(d)));
  selector = p.get("selector", {f, d}, of_fragment);
  experts = p.get("experts", {f, d, out}, of_fragment);
  compressor = p.get("compressor", {c, in}, Init::uniform(1 / std::sqrt(double(in))));
  expander = p.get("expander", {out, c}, Init::uniform(1 / std::sqrt(double(c))));
  if (!o.bias) return;
  expert_bias = p.get("expert_bias", {out}, Init::constant(0));
  compressed_bias = p.get("compressed_bias", {out}, Init::constant(0));
}

Tensor FragmentedLinear::forward(const Tensor& x, Selection how, std::optional<DType> compute) const {
  NameScope here = enter();
  const auto cast = [compute](const Tensor& t) { return compute ? detail::cast_parameter(t, *compute) : t; };
  const int64_t f = selector.size(0), d = selector.size(1), in = f * d, out = experts.size(2);
  TG_CHECK(x && x.ndim() >= 1 && x.shape().back() == in, shape,
           "[fragmented_linear] x is {}. Its last size must be {}: {} fragments of {}.", detail::describe(x), in, f, d);
  Shape y_shape = x.shape();
  y_shape.back() = out;
  const int64_t rows = Shape(x.shape().begin(), x.shape().end() - 1).product();
  const Tensor flat = reshape(compute ? x.to(*compute) : x, {rows, in}), parts = reshape(flat, {rows, f, d});
  const Tensor p = fragment_weights(flat, cast(selector));  // (rows, F)
  Tensor y, rest;                                           // (rows, out), (rows, F, D)
  if (how == Selection::soft) {
    const Tensor weighted = parts * reshape(p, {rows, f, 1});
    y = matmul(reshape(weighted, {rows, in}), reshape(cast(experts), {in, out}));
    rest = parts - weighted;
  } else {
    const Tensor k = argmax(p, -1);  // (rows)
    const Tensor selected = gather(parts, 1, expand(reshape(k, {rows, 1, 1}), {rows, 1, d}));
    y = index_matmul(reshape(selected, {rows, d}), cast(experts), k);
    const Tensor is_selected = reshape(k, {rows, 1}) == arange(0, double(f), 1, DType::i64, x.device());
    rest = masked_fill(parts, reshape(is_selected, {rows, f, 1}), 0);
  }
  const Tensor narrow = linear(reshape(rest, {rows, in}), cast(compressor));
  const Tensor expanded =
      compressed_bias ? linear(narrow, cast(expander), cast(compressed_bias)) : linear(narrow, cast(expander));
  y = y + expanded;
  return reshape(expert_bias ? y + cast(expert_bias) : y, y_shape);
}

}  // namespace tg::nn
