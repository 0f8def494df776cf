// A small example of each layer of models/nn and of important ops.
#include <tapegrad/tapegrad.h>

#include <cmath>
#include <cstdio>
#include <vector>

namespace {
int failed = 0;

void check(bool good, const char* what) {
  if (!good) std::printf("snippets: %s\n", what), ++failed;
}
bool shape_is(const tg::Tensor& t, const tg::Shape& s) { return t.shape() == s; }
bool equal(const tg::Tensor& a, const tg::Tensor& b) { return tg::all(a == b).item<bool>(); }
bool close(const tg::Tensor& a, const tg::Tensor& b, double tolerance = 1e-5) {
  return tg::max(tg::abs(a - b)).item<float>() <= tolerance;
}
tg::Tensor normal(const tg::Shape& s) {
  tg::Rng rng{7};
  return tg::randn(s, rng);
}

void elements_and_shapes() {
  const tg::Tensor x = tg::tensor<float>({1, 2, 3, 4, 5, 6}, {2, 3}), row = tg::ones({3});
  check(shape_is(x + row, {2, 3}), "broadcasting");
  check(equal(tg::where(x > 3.0, x, 0.0), tg::masked_fill(x, x <= 3.0, 0)), "where and masked_fill");
  check(equal(tg::clamp(x, {.min = 2, .max = 5}), tg::minimum(tg::maximum(x, 2.0), 5.0)), "clamp");
  check(close(tg::log(tg::exp(x)), x), "log of exp");
  check(close(tg::rsqrt(x), 1.0 / tg::sqrt(x)), "rsqrt");

  check(equal(tg::reshape(x, {-1}), tg::flatten(x)), "reshape");
  check(equal(tg::transpose(tg::transpose(x)), x), "transpose is a view");
  const tg::Tensors parts = tg::split(x, {1, 2}, 1);  // (2, 1), (2, 2)
  check(equal(tg::concat({parts[0], parts[1]}, 1), x), "split and concat");
  check(equal(tg::slice(x, 1, 1, 3), parts[1]), "slice");
  check(shape_is(tg::stack({x, x}), {2, 2, 3}), "stack");
  check(shape_is(tg::pad(x, {{1, 0}, {2, 2}}), {3, 7}), "pad");
  check(shape_is(tg::expand(row, {4, 3}), {4, 3}), "expand");
  check(x.to(tg::DType::bf16).dtype() == tg::DType::bf16, "cast");
}

void reductions_and_indices() {
  const tg::Tensor x = tg::tensor<float>({3, 1, 2, 6, 5, 4}, {2, 3});
  check(shape_is(tg::sum(x, {-1}, {.keepdim = true}), {2, 1}), "sum of rows");
  check(close(tg::var(x, {1}, {.correction = 0}), tg::mean(x * x, {1}) - tg::mean(x, {1}) * tg::mean(x, {1})), "var");
  check(equal(tg::argmax(x, 1), tg::tensor<int64_t>({0, 0}, {2})), "argmax");
  const auto [values, indices] = tg::topk(x, 2);
  check(equal(tg::gather(x, 1, indices), values), "topk and gather");
  check(equal(tg::slice(tg::cumsum(x, 1), 1, 2, 3), tg::row_sum(x)), "the end of cumsum is the sum");
  check(equal(tg::slice(tg::sort(x, 1, {.descending = true}).values, 1, 0, 2), values), "sort");
  const auto product = [](const tg::Tensor& a, const tg::Tensor& b) { return a * b; };  // running products
  check(equal(tg::slice(tg::scan(product, x, 1), 1, 2, 3), tg::tensor<float>({6, 120}, {2, 1})), "scan");
  const tg::Tensor ids = tg::tensor<int64_t>({1, 0, 1}, {3});
  check(equal(tg::embedding(ids, x), tg::index_select(x, 0, ids)), "embedding");
  check(shape_is(tg::one_hot(ids, 4), {3, 4}), "one_hot");
  const tg::Tensor added = tg::scatter_add(tg::zeros({2, 3}), 0, tg::zeros({1, 3}, tg::DType::i64), tg::ones({1, 3}));
  check(tg::sum(added).item<float>() == 3, "scatter_add");
}

void products_and_norms() {
  const tg::Tensor x = normal({4, 8}), w = normal({6, 8}), bias = tg::ones({6});
  check(close(tg::linear(x, w, bias), tg::matmul(x, w, {.trans_b = true}) + bias), "linear and matmul");
  check(shape_is(tg::matmul(normal({5, 1, 4, 8}), normal({3, 8, 2})), {5, 3, 4, 2}), "a batch of products");
  check(shape_is(tg::lora(x, normal({8, 2}), normal({2, 6}), /*scale=*/2, tg::linear(x, w)), {4, 6}), "lora");
  const tg::Tensor sequence = normal({2, 8, 5}), taps = normal({8, 1, 3});  // depthwise, nothing read ahead
  check(shape_is(tg::conv1d(sequence, taps, {}, {.groups = 8, .causal = true}), {2, 8, 5}), "conv1d");
  check(close(tg::sum(tg::softmax(x), {-1}), tg::ones({4})), "softmax");
  check(close(tg::exp(tg::log_softmax(x)), tg::softmax(x)), "log_softmax");
  check(close(tg::mean(tg::layer_norm(x), {-1}), tg::zeros({4})), "layer_norm");
  check(close(tg::mean(tg::rms_norm(x) * tg::rms_norm(x), {-1}), tg::ones({4}), 1e-4), "rms_norm");
  const tg::AddedNorm added = tg::add_layer_norm(x, x);
  check(equal(added.sum, x + x), "add_layer_norm");
  check(shape_is(tg::swiglu(x), {4, 4}), "swiglu: the gate first");
  check(close(tg::gelu(x), x * 0.5 * (tg::erf(x / std::sqrt(2.0)) + 1.0)), "gelu");
}

void attention_and_losses() {
  const tg::Tensor q = normal({2, 4, 5, 8}), kv = normal({2, 2, 5, 8});  // two query heads per key head
  check(shape_is(tg::attention(q, kv, kv, {.causal = true}), {2, 4, 5, 8}), "causal attention");
  const tg::Tensor lengths = tg::tensor<int64_t>({5, 3}, {2});
  check(shape_is(tg::attention(q, kv, kv, {.kv_lengths = lengths}), {2, 4, 5, 8}), "padded attention");
  check(shape_is(tg::self_attention(normal({2, 5, 8, 8}), /*kv_heads=*/2), {2, 5, 4, 8}), "self_attention");
  check(equal(tg::slice(tg::rope(q), 2, 0, 1), tg::slice(q, 2, 0, 1)), "rope leaves position 0");

  const tg::Tensor logits = normal({3, 10}), targets = tg::tensor<int64_t>({1, 9, -100}, {3});
  check(tg::cross_entropy(logits, targets, {.ignore_index = -100}).item<float>() > 0, "cross_entropy");
  const tg::Tensor x = normal({3, 4}), head = normal({10, 4});
  check(close(tg::linear_cross_entropy(x, head, targets, {{.ignore_index = -100}}),
              tg::cross_entropy(tg::linear(x, head), targets, {.ignore_index = -100})),
        "linear_cross_entropy");
  check(tg::mse_loss(logits, logits).item<float>() == 0, "mse_loss");
  check(close(tg::bce_with_logits(tg::zeros({3}), tg::ones({3})), tg::full({}, std::log(2.0))), "bce_with_logits");
  tg::Rng rng{1};
  check(close(tg::mean(tg::dropout(tg::ones({10000}), 0.5, rng)), tg::ones({}), 0.1), "dropout keeps the mean");
}

void eight_bits() {
  const tg::Tensor x = normal({4, 32}), w = normal({8, 32}), y = tg::linear(x, w);
  const tg::Quantized q = tg::quantize_rowwise(x);  // i8, with an absmax per row
  check(close(tg::dequantize(q), x, 0.02), "quantize_rowwise");
  check(close(tg::int8_linear(q, tg::quantize_rowwise(w)), y, 0.5), "int8_linear");
  check(close(tg::fp8_linear(tg::quantize_fp8(x), tg::quantize_fp8(w)), y, 1.5), "fp8_linear");
  check(close(tg::switchback_linear(x, w), y, 0.5), "switchback_linear");
  const tg::Tensor wide = normal({4, 64});
  const tg::BlockWeight blocks = tg::quantize_nf4(normal({32, 64}));  // frozen, 4.5 bits per element
  check(equal(tg::block_linear(wide, blocks), tg::linear(wide, tg::dequantize(blocks, tg::DType::f32))),
        "block_linear");
  check(shape_is(tg::block_rows(blocks, tg::zeros({2, 5}, tg::DType::i64), tg::DType::bf16), {2, 5, 64}), "block_rows");
}

void gradients() {
  tg::Tensor x = tg::full({3}, 2.0).requires_grad_();
  check(equal(tg::backward(tg::sum(x * x))[x], tg::full({3}, 4.0)), "backward");
  const tg::Tensor g = tg::grad(tg::sum(x * x * x), {x}, {.create_graph = true})[0];
  check(equal(tg::grad(tg::sum(g), {x})[0], tg::full({3}, 12.0)), "a second derivative");
  check(equal(tg::grad({x * x}, {x}, {tg::ones({3})})[0], tg::full({3}, 4.0)), "of an output of any shape");
  const tg::Tensors y = tg::recompute([](tg::Inputs in, tg::Rng*) { return tg::Tensors{tg::gelu(in[0])}; }, {&x, 1});
  check(bool(tg::backward(tg::sum(y[0]))[x]), "recompute");
  tg::Tensor w = tg::ones({3}), m = tg::zeros({3}), v = tg::zeros({3});
  tg::adamw_step(w, m, v, tg::ones({3}), {.weight_decay = 0}, /*lr=*/0.1, /*t=*/1);
  check(close(w, tg::full({3}, 0.9)), "the first step of AdamW has the size of the learning rate");
}

void layers() {
  const tg::Params p(tg::Device::cpu(), /*seed=*/1);
  const tg::Tensor x = normal({2, 5, 16}), ids = tg::zeros({2, 5}, tg::DType::i64);  // (B, T, C), (B, T)
  tg::Rng rng{3};

  const tg::nn::Linear linear(p.at("linear"), 16, 8, {.bias = false, .init = tg::Init::normal(0.02)});
  check(shape_is(linear.forward(x), {2, 5, 8}), "nn::Linear");
  check(linear.forward(x, tg::DType::bf16).dtype() == tg::DType::bf16, "nn::Linear in bf16");
  tg::nn::Linear eight(p.at("eight"), 16, 8, {.kind = tg::LinearKind::switchback_vector_wise});
  const tg::Tensor before = eight.forward(x);
  const tg::NoGradScope off;
  eight.prepare_for_eval();  // quantizes the weight once
  check(equal(eight.forward(x), before), "nn::Linear in 8 bits");
  const tg::nn::Embedding table(p.at("table"), /*entries=*/10, /*width=*/16);
  check(shape_is(table.forward(ids), {2, 5, 16}), "nn::Embedding");
  const tg::nn::Norm norm(p.at("norm"), 16, {.kind = tg::NormKind::rms_norm});
  check(shape_is(norm.forward(x), {2, 5, 16}), "nn::Norm");
  check(equal(norm.add(x, x).sum, x + x), "nn::Norm::add");

  const tg::nn::BlockOptions block{
      .heads = 4, .kv_heads = 2, .positions = tg::Positions::rope, .causal = true, .dropout = 0.1};
  const tg::nn::SelfAttention attention(p.at("attention"), 16, block);
  check(shape_is(attention.forward(x, {.rng = &rng}), {2, 5, 16}), "nn::SelfAttention");
  tg::KvCache cache;  // a prompt of four tokens, then one more
  attention.forward(tg::slice(x, 1, 0, 4), {.cache = &cache});
  const tg::Tensor last = attention.forward(tg::slice(x, 1, 4, 5), {.cache = &cache, .position = 4});
  check(close(last, tg::slice(attention.forward(x), 1, 4, 5)), "KvCache");
  const tg::nn::Mlp mlp(p.at("mlp"), 16, {.ff_width = 32, .activation = tg::Activation::swiglu});
  check(shape_is(mlp.forward(x), {2, 5, 16}), "nn::Mlp");
  const tg::nn::FragmentedLinear fragmented(p.at("fragmented"), 16, 8, {.fragments = 4, .compressed = 2});
  check(shape_is(fragmented.forward(x, tg::nn::Selection::hard), {2, 5, 8}), "nn::FragmentedLinear");

  const tg::nn::LoraDelta delta(p.at("delta"), 16, 8, {.rank = 2});
  check(equal(delta.forward(x), tg::zeros({2, 5, 8})), "nn::LoraDelta starts at 0");
  tg::nn::LoraLinear lora(linear, p.at("lora"), {.rank = 2});
  const tg::Tensor apart = lora.forward(x);
  lora.merge();
  check(close(lora.forward(x), apart), "nn::LoraLinear");
}
}  // namespace

int main() {
  elements_and_shapes();
  reductions_and_indices();
  products_and_norms();
  attention_and_losses();
  eight_bits();
  gradients();
  layers();
  if (!failed) std::printf("snippets: all right\n");
  return failed != 0;
}
