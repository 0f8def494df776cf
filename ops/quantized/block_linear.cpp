#include <tapegrad/core/check.h>
#include <tapegrad/ops/check.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/quantized/block_linear.h>
#include <tapegrad/ops/quantized/inputs.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/shape_ops.h>

namespace tg {
namespace {
int64_t row_elements(std::string_view op, const Tensor& codes, BlockFormat f) {
  const detail::BlockLayout& l = detail::layout_of_block(f);
  TG_CHECK(codes.dtype() == DType::u8, dtype,
           "[{}] got codes {} of format {}. They must be u8: the bytes of the blocks.", op, codes, l.name);
  TG_CHECK(codes.ndim() == 2, shape, "[{}] got codes {} of format {}. They must be (rows, bytes of a row).", op, codes,
           l.name);
  TG_CHECK(codes.size(1) % l.bytes == 0, shape,
           "[{}] got codes {} of format {}: a row of {} bytes has no whole number of blocks of {} bytes, {} elements "
           "each. Check the format and the sizes.",
           op, codes, l.name, codes.size(1), l.bytes, l.elements);
  return codes.size(1) / l.bytes * l.elements;
}
Shape shape_of(std::string_view op, const detail::BlockFormats& formats, Inputs codes) {
  TG_CHECK(!formats.empty(), value, "[{}] the weight has no parts. It must have one or more.", op);
  const int64_t in = row_elements(op, codes[0], formats[0]);
  int64_t out = 0;
  for (size_t i = 0; i < formats.size(); ++i) {
    const int64_t n = row_elements(op, codes[i], formats[i]);
    TG_CHECK(
        n == in, shape,
        "[{}] part 0 of the weight, {} of format {}, has rows of {} elements, and part {}, {} of format {}, of {}. "
        "Parts are rows of one matrix: they must have equal lengths.",
        op, codes[0], detail::layout_of_block(formats[0]).name, in, i, codes[i],
        detail::layout_of_block(formats[i]).name, n);
    out += codes[i].size(0);
  }
  return {out, in};
}
void add_formats(StructuralHash& k, const detail::BlockFormats& formats) {
  for (const BlockFormat f : formats) k.add(int(f));
}
detail::BlockFormats formats_of(const BlockWeight& w) {
  detail::BlockFormats f;
  for (const auto& part : w.parts) f.push_back(part.format);
  return f;
}
std::vector<Tensor> with_parts(std::vector<Tensor> in, const BlockWeight& w) {
  for (const auto& part : w.parts) in.push_back(part.codes);
  return in;
}
Shape shape_of(const BlockWeight& w) { return shape_of("block_weight", formats_of(w), with_parts({}, w)); }
}  // namespace

int64_t BlockWeight::in() const { return shape_of(*this)[1]; }
int64_t BlockWeight::out() const { return shape_of(*this)[0]; }

Layouts op::QuantizeNf4::infer(Inputs in) const {
  const Tensor& w = in[0];
  const detail::BlockLayout& l = detail::layout_of_block(BlockFormat::nf4);
  detail::check_quantizable(kName, w);
  TG_CHECK(
      w.ndim() == 2 && w.size(1) % l.elements == 0, shape,
      "[quantize_nf4] got {}. It must be (out, in) with rows of whole blocks of {} elements: keep other weights as "
      "bf16.",
      w, l.elements);
  return {contiguous_like(w, {w.size(0), w.size(1) / l.elements * l.bytes}, DType::u8)};
}
Layouts op::BlockRows::infer(Inputs in) const {
  check::index(kName, in[0]);
  TG_CHECK(dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16, dtype,
           "[block_rows] cannot return {}. Use f64, f32 or bf16.", dtype);
  const Shape rows = in[0].shape().followed_by(shape_of(kName, formats, in.subspan(1))[1]);
  return {contiguous_like(in[0], rows, dtype)};
}
OpWork op::BlockRows::work(Bufs in, Bufs out) const {  // counts the gathered rows as if of part 0
  OpWork w = Op::work(in.first(1), out);
  w.read += in[0].numel() * in[1].size(1);
  return w;
}
void op::BlockRows::key(StructuralHash& k) const { k.add(int(dtype)), add_formats(k, formats); }

template <bool kGrad> Layouts op::BlockProduct<kGrad>::infer(Inputs in) const {
  const Tensor& x = in[0];
  check::ndim_at_least(kName, x, 1);
  check::computes(kName, x);
  const Shape w = shape_of(kName, formats, in.subspan(1));
  TG_CHECK(x.shape().back() == w[!kGrad], shape,
           "[{}] x is {}, weight is {}. x's last size ({}) must equal the {} of the weight ({}).", kName, x, w,
           x.shape().back(), kGrad ? "rows" : "columns", w[!kGrad]);
  if (in.size() > 1 + formats.size()) {
    const Tensor& bias = in.back();
    check::same_dtype(kName, x, bias);
    TG_CHECK(bias.shape() == Shape{w[0]}, shape,
             "[{}] bias is {}, weight is {}. The bias must have one element per row of the weight ({}).", kName, bias,
             w, w[0]);
  }
  const Shape y = x.shape().without_last().followed_by(w[kGrad]);
  return {contiguous_like(x, y, unrounded ? DType::f32 : x.dtype())};
}
template <bool kGrad> Mask op::BlockProduct<kGrad>::saves_in(Mask tracked) const {
  Mask m = 0;
  for (size_t i = 0; i < formats.size() && (tracked & 1); ++i) m |= mask_of(i + 1);
  return m;
}
template <bool kGrad> Tensors op::BlockProduct<kGrad>::vjp(const Vjp& v) const {
  Tensors r;
  for (size_t i = 0; i < v.inputs(); ++i) r.emplace_back();
  if (v.wants(0)) {
    std::vector<Tensor> in{unrounded ? v.grad().to(DType::bf16) : v.grad()};
    for (size_t i = 0; i < formats.size(); ++i) in.push_back(v.in(i + 1));
    r[0] = emit1(make_ref<BlockProduct<!kGrad>>(formats, precision), in);
  }
  if (const size_t bias = 1 + formats.size(); v.inputs() > bias && v.wants(bias))
    r[bias] = sum(detail::as_rows(v.grad()), {0});
  return r;
}
template <bool kGrad> void op::BlockProduct<kGrad>::key(StructuralHash& k) const {
  k.add(int(precision)), k.add(unrounded), add_formats(k, formats);
}
template struct op::BlockProduct<false>;
template struct op::BlockProduct<true>;

Tensor block_linear(const Tensor& x, const BlockWeight& weight, const Tensor& bias) {
  auto in = with_parts({x}, weight);
  if (bias) in.push_back(bias);
  return emit1(make_ref<op::BlockLinear>(formats_of(weight), matmul_precision()), in);
}
Tensor detail::unrounded_block_linear(const Tensor& x, const BlockWeight& w) {
  if (x.dtype() != DType::bf16 || x.device() != Device::cpu()) return block_linear(x, w);
  return emit1(make_ref<op::BlockLinear>(formats_of(w), matmul_precision(), true), with_parts({x}, w));
}
Tensor block_rows(const BlockWeight& weight, const Tensor& ids, DType dtype) {
  return emit1(make_ref<op::BlockRows>(formats_of(weight), dtype), with_parts({ids}, weight));
}
Tensor dequantize(const BlockWeight& weight, DType dtype) {
  const Device device = weight.parts.empty() ? Device::cpu() : weight.parts[0].codes.device();
  return block_rows(weight, arange(0, double(weight.out()), 1, DType::i64, device), dtype);
}
BlockWeight quantize_nf4(const Tensor& weight) {
  return {{{emit1(stateless<op::QuantizeNf4>(), {weight}), BlockFormat::nf4}}};
}
}  // namespace tg
