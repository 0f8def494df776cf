#include "ops/op_rows.h"

#include <tapegrad/core/engine/bf16_copy.h>
#include <tapegrad/tapegrad.h>

namespace tg::bench {
namespace {
using Run = std::function<void()>;
struct Rows : std::vector<OpRow> {
  Device device;
  explicit Rows(Device d) : device(d) {}
};

struct Kind {
  DType dtype;
  Device device;
};
struct Products {  // operand dtype, and the precision of f32
  DType dtype;
  MatmulPrecision f32 = MatmulPrecision::highest;
  Products(DType d, MatmulPrecision p = MatmulPrecision::highest) : dtype(d), f32(p) {}
  std::string name() const { return f32 == MatmulPrecision::high ? "tf32" : std::string(name_of(dtype)); }
};
Tensor input(const Shape& shape, Kind k) {
  Rng rng{1};
  return randn(shape, rng, 0, 1, DType::f32, k.device).to(k.dtype);
}
Tensor leaf(const Shape& shape, Kind k) { return input(shape, k).requires_grad_(); }

struct Work {  // one of flop, bytes
  double flop = 0, bytes = 0;
  OpRow::Moves moves = OpRow::Moves::to_another;
};
// f of inputs of these shapes; `shape` and the products name the row.
struct OpCase {
  std::string op;
  std::vector<int64_t> shape;
  Products products;
  std::vector<Shape> inputs;
  std::function<Tensors(Inputs)> f;
};
void add_row(Rows& rows, const OpCase& c, const std::string& op, Work work, std::function<Run()> make) {
  rows.push_back({{op, c.shape, c.products.name()}, work.flop, work.bytes, work.moves, std::move(make)});
}
void add_forward(Rows& rows, const OpCase& c, Work work) {
  const Kind t{c.products.dtype, rows.device};
  add_row(rows, c, c.op, work, [=]() -> Run {
    std::vector<Tensor> x;
    for (const Shape& s : c.inputs) x.push_back(input(s, t));
    return [=] {
      const MatmulPrecisionScope products(c.products.f32);
      c.f(x);
    };
  });
}
// Repeats the backward of one graph; its leaves are the inputs and the tensors that f captures.
void add_backward(Rows& rows, const OpCase& c, Work work) {
  const Kind t{c.products.dtype, rows.device};
  add_row(rows, c, c.op + "_backward", work, [=]() -> Run {
    const MatmulPrecisionScope products(c.products.f32);
    std::vector<Tensor> x, dy;
    for (const Shape& s : c.inputs) x.push_back(leaf(s, t));
    const Tensors made = c.f(x);
    const std::vector<Tensor> y(made.begin(), made.end());
    for (const Tensor& of : y) dy.push_back(input(of.shape(), {of.dtype(), of.device()}));
    return [=] { backward(y, dy, {.retain_graph = true}); };
  });
}

// y (M, N) = x (M, K) w (N, K)^T; backward: dx and dw.
struct Linear {
  int64_t m, n, k;
  OpCase with(Products p) const {
    return {"linear", {m, n, k}, p, {{m, k}, {n, k}}, [](Inputs x) { return Tensors{linear(x[0], x[1])}; }};
  }
  double flop() const { return 2.0 * double(m * n * k); }
};
void add_linear(Rows& rows, Linear l, Products p) { add_forward(rows, l.with(p), {.flop = l.flop()}); }
void add_linear_backward(Rows& rows, Linear l, Products p) { add_backward(rows, l.with(p), {.flop = 2 * l.flop()}); }
void linear_rows(Rows& rows) {
  constexpr Linear kNano{768, 512, 128}, kGpt2{1024, 3072, 768};
  for (const Linear l : {Linear{768, 384, 128}, kNano, Linear{768, 128, 512}, Linear{768, 65, 128},
                         Linear{1024, 2304, 768}, kGpt2, Linear{1024, 768, 3072}, Linear{1024, 50257, 768}})
    add_linear(rows, l, DType::f32);
  add_linear_backward(rows, {768, 128, 512}, DType::f32);
  for (const DType d : {DType::f32, DType::f64}) {
    for (const Linear l : {Linear{1024, 1024, 1024}, Linear{2048, 768, 768}, Linear{2048, 3072, 768},
                           Linear{2048, 768, 3072}, Linear{2048, 10000, 768}, Linear{256, 768, 768},
                           Linear{256, 3072, 768}, Linear{256, 768, 3072}, Linear{256, 50257, 768}})
      add_linear(rows, l, d);
    for (const Linear l : {Linear{256, 768, 768}, Linear{256, 768, 3072}, Linear{2048, 3072, 768}})
      add_linear_backward(rows, l, d);
  }
  for (const Linear l : {kNano, kGpt2}) {
    add_linear(rows, l, DType::f64);
    add_linear(rows, l, DType::bf16);
    for (const DType d : {DType::f32, DType::f64, DType::bf16}) add_linear_backward(rows, l, d);
  }
}

// One to sixteen rows, bound by reading the matrix: (N, K) for linear, (K, N) for matmul.
void few_rows(Rows& rows, DType d, int64_t side) {
  const double bytes = double(side * side) * double(size_of(d));
  for (const int64_t m : {1, 2, 4, 8, 16}) {
    const Work work{.bytes = bytes, .moves = OpRow::Moves::reads};
    add_forward(rows, Linear{m, side, side}.with(d), work);
    add_forward(
        rows,
        {"matmul", {m, side, side}, d, {{m, side}, {side, side}}, [](Inputs x) { return Tensors{matmul(x[0], x[1])}; }},
        work);
  }
}
// Q4_0 and Q4_K, next to the plain weight.
void block_linear_rows(Rows& rows) {
  constexpr int64_t kOut = 6144, kIn = 2048;
  for (const DType d : {DType::f32, DType::bf16})
    for (const int64_t m : {1, 8, 512}) {
      const Linear l{m, kOut, kIn};
      add_linear(rows, l, d);
      for (const BlockFormat f : {BlockFormat::q4_0, BlockFormat::q4_k}) {
        const detail::BlockLayout& b = detail::layout_of_block(f);
        const Shape shape{kOut, kIn / b.elements * b.bytes};
        const Kind t{d, rows.device};
        const auto make = [=]() -> Run {
          const std::vector<uint8_t> all(size_t(shape.product()), 0x2b);  // finite scales
          const BlockWeight w{{{tensor<uint8_t>(all, shape).to(t.device), f}}};
          return [=, x = input({m, kIn}, t)] { block_linear(x, w); };
        };
        rows.push_back(
            {{fmt::format("block_linear_{}", b.name), {m, kOut, kIn}, std::string(name_of(d))}, l.flop(), 0, {}, make});
      }
    }
}
// y (M, N), f32, of int8 values (M, K) and (N, K).
void add_int8_linear(Rows& rows, Linear l) {
  const Kind t{DType::f32, rows.device};
  const auto make = [=]() -> Run {
    const Quantized x = quantize_rowwise(input({l.m, l.k}, t)), w = quantize_rowwise(input({l.n, l.k}, t));
    return [=] { int8_linear(x, w); };
  };
  rows.push_back({{"int8_linear", {l.m, l.n, l.k}, "i8"}, l.flop(), 0, {}, make});
}
void int8_rows(Rows& rows) {
  for (const Linear l : {Linear{768, 512, 128}, Linear{1024, 3072, 768}, Linear{2048, 4096, 1024},
                         Linear{4096, 1024, 4096}, Linear{8192, 1024, 1024}, Linear{1, 4096, 4096}})
    add_int8_linear(rows, l);
}
// Quantizes (R, C). Inputs read twice count once.
void quantize_rows(Rows& rows, int64_t r, int64_t c, DType d) {
  const auto add = [&](const std::string& op, int codes, const std::function<Tensors(Inputs)>& f) {
    add_forward(rows, {op, {r, c}, d, {{r, c}}, f}, {.bytes = double(r * c) * (double(size_of(d)) + codes)});
  };
  add("quantize_rowwise", 1, [](Inputs x) { return Tensors{quantize_rowwise(x[0]).values}; });
  add("quantize_global", 1, [](Inputs x) { return Tensors{quantize_global(x[0]).values}; });
  add("quantize_columnwise_transpose", 1, [](Inputs x) { return Tensors{quantize_columnwise_transpose(x[0]).values}; });
  add("quantize_global_transpose", 1, [](Inputs x) { return Tensors{quantize_global_transpose(x[0]).values}; });
  add("quantize_both_ways", 2, [](Inputs x) { return Tensors{quantize_rows_and_columns(x[0]).rows.values}; });
}

// Ops on `inputs` tensors (R, C), memory-bound; `forward` and `backward` count tensors moved. 0: no row.
void add_on_rows(Rows& rows, const std::string& op, int64_t r, int64_t c, DType d, double forward, double backward,
                 size_t inputs, const std::function<Tensors(Inputs)>& f) {
  const double bytes = double(r * c) * double(size_of(d));
  const OpCase of{op, {r, c}, d, std::vector<Shape>(inputs, Shape{r, c}), f};
  add_forward(rows, of, {.bytes = forward * bytes});
  if (backward > 0) add_backward(rows, of, {.bytes = backward * bytes});
}
void norm_rows(Rows& rows, int64_t r, int64_t c, DType d) {
  const Kind t{d, rows.device};
  const Tensor w = leaf({c}, t), b = leaf({c}, t);
  // x -> y; (dy, x) -> dx, gradients of weight and bias
  add_on_rows(rows, "layer_norm", r, c, d, 2, 3, 1, [=](Inputs x) { return Tensors{layer_norm(x[0], w, b)}; });
  add_on_rows(rows, "rms_norm", r, c, d, 2, 3, 1, [=](Inputs x) { return Tensors{rms_norm(x[0], w)}; });
  // x, r -> sum, y; (dy, gradient of the sum, sum) -> gradient of x and r, gradients of weight and bias
  const auto both = [](const AddedNorm& a) { return Tensors{a.sum, a.y}; };
  add_on_rows(rows, "add_layer_norm", r, c, d, 4, 4, 2,
              [=](Inputs x) { return both(add_layer_norm(x[0], x[1], w, b)); });
  add_on_rows(rows, "add_rms_norm", r, c, d, 4, 4, 2, [=](Inputs x) { return both(add_rms_norm(x[0], x[1], w)); });
}
void swiglu_rows(Rows& rows, int64_t r, int64_t c, DType d) {
  add_on_rows(rows, "swiglu", r, c, d, 1.5, 2.5, 1, [](Inputs x) { return Tensors{swiglu(x[0])}; });
}
void softmax_rows(Rows& rows, int64_t r, int64_t c, DType d) {
  add_on_rows(rows, "softmax", r, c, d, 2, 3, 1, [](Inputs x) { return Tensors{softmax(x[0])}; });
}
Tensor scattered_ids(int64_t n, int64_t below, Device device) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(i * 7919 % below);
  return tensor(ids, {n}, device);
}
void cross_entropy_rows(Rows& rows, int64_t r, int64_t c, DType d = DType::f32) {
  const Tensor targets = scattered_ids(r, c, rows.device);
  add_on_rows(rows, "cross_entropy", r, c, d, 1, 2, 1,  // logits -> loss; logits -> dlogits
              [=](Inputs x) { return Tensors{cross_entropy(x[0], targets)}; });
}
// A head over a frozen weight (V, C), forward and backward together, a fraction of the rows ignored; and by two ops.
void head_rows(Rows& rows, int64_t r, int64_t classes, int64_t c, DType d) {
  for (const bool chunked : {true, false})
    for (const int ignored : {0, 80}) {
      const auto make = [=]() -> Run {
        const Kind t{d, Device::cpu()};
        const Tensor x = leaf({r, c}, t), w = input({classes, c}, t), ids = scattered_ids(r, classes, Device::cpu());
        const Tensor part = arange(0, double(r), 1, DType::i64) * 100.0;
        const Tensor targets = where(ge(part, double(r * ignored)), ids, -100.0);
        const CrossEntropyOptions o{.ignore_index = -100};
        return [=] {
          backward(chunked ? linear_cross_entropy(x, w, targets, {o}) : cross_entropy(linear(x, w), targets, o));
        };
      };
      const std::string name = chunked ? "linear_cross_entropy_step" : "linear_then_cross_entropy_step";
      rows.push_back({{name, {r, classes, c, ignored}, std::string(name_of(d))},
                      4.0 * double(r * classes * c) * (chunked ? 1 - ignored / 100.0 : 1),
                      0,
                      {},
                      make});
    }
}
void pointwise_rows(Rows& rows, int64_t r, int64_t c, DType d) {
  add_on_rows(rows, "add", r, c, d, 3, 0, 2, [](Inputs x) { return Tensors{x[0] + x[1]}; });
  add_on_rows(rows, "gelu", r, c, d, 2, 3, 1, [](Inputs x) { return Tensors{gelu(x[0])}; });
}
// Casts between f32 and bf16: 6 bytes per element.
void moving_rows(Rows& rows, int64_t r, int64_t c, DType d) {
  const DType other = d == DType::f32 ? DType::bf16 : DType::f32;
  add_on_rows(rows, "cast", r, c, d, 6.0 / double(size_of(d)), 0, 1, [=](Inputs x) { return Tensors{x[0].to(other)}; });
  if (d == DType::f32)  // 12 bytes per element, there and back
    add_on_rows(rows, "cast_f16", r, c, d, 3, 0, 1,
                [](Inputs x) { return Tensors{x[0].to(DType::f16).to(DType::f32)}; });
  add_on_rows(rows, "dropout", r, c, d, 2, 0, 1, [](Inputs x) {
    Rng rng{1};
    return Tensors{dropout(x[0], 0.1, rng)};
  });
}
void sum_rows(Rows& rows, int64_t r, int64_t c, DType d) {
  add_forward(rows, {"sum_of_rows", {r, c}, d, {{r, c}}, [](Inputs x) { return Tensors{sum(x[0], {0})}; }},
              {.bytes = double(r * c) * double(size_of(d)), .moves = OpRow::Moves::reads});
}
// `tokens` rows of a table (V, C); backward fills a table.
void embedding_rows(Rows& rows, int64_t tokens, int64_t v, int64_t c, DType d) {
  const Tensor at = scattered_ids(tokens, v, rows.device);
  const OpCase of{"embedding", {tokens, v, c}, d, {{v, c}}, [=](Inputs x) { return Tensors{embedding(at, x[0])}; }};
  const double row = double(c) * double(size_of(d));
  add_forward(rows, of, {.bytes = 2 * double(tokens) * row});
  add_backward(rows, of, {.bytes = double(tokens + v) * row});
}
void global_norm_row(Rows& rows, int64_t n, DType d) {
  add_forward(rows, {"global_norm", {n}, d, {{n}}, [](Inputs x) { return Tensors{global_norm(x)}; }},
              {.bytes = double(n) * double(size_of(d)), .moves = OpRow::Moves::reads});
}

// Causal, over the last Tq (0: all) of T positions: Tq T - Tq (Tq - 1) / 2 query-key pairs. Two GEMMs over HS forward,
// five backward, one of them recomputed (Dao et al., 2022).
void attention_rows(Rows& rows, int64_t b, int64_t nh, int64_t t, int64_t hs, DType d, int64_t tq = 0,
                    double dropout = 0) {
  if (tq == 0) tq = t;
  const double product = 2.0 * double(b * nh * hs) * double(tq * t - tq * (tq - 1) / 2);
  const Shape q{b, nh, tq, hs}, k{b, nh, t, hs};
  const OpCase c{dropout > 0 ? "attention_dropout"
                 : tq == t   ? "attention"
                             : "attention_of_last",
                 tq == t ? std::vector{b, nh, t, hs} : std::vector{b, nh, tq, t, hs},
                 d,
                 {q, k, k},
                 [dropout](Inputs x) {
                   Rng rng{1};
                   return Tensors{attention(x[0], x[1], x[2], {.causal = true, .dropout = dropout, .rng = &rng})};
                 }};
  add_forward(rows, c, {.flop = 2 * product});
  add_backward(rows, c, {.flop = 5 * product});
}
// attention on strided heads of one qkv projection.
void self_attention_rows(Rows& rows, int64_t b, int64_t nh, int64_t t, int64_t hs) {
  const double product = 2.0 * double(b * nh * hs) * 0.5 * double(t * (t + 1));
  const OpCase c{"self_attention", {b, nh, t, hs}, DType::f32, {{b, t, 3 * nh, hs}}, [nh](Inputs x) {
                   return Tensors{self_attention(x[0], nh, {.causal = true})};
                 }};
  add_forward(rows, c, {.flop = 2 * product});
  add_backward(rows, c, {.flop = 5 * product});
}
constexpr auto kInPlace = OpRow::Moves::in_place;
// Reads weights, two moments and gradients, writes all but the gradients; `tensors` tensors of n elements. `copies`:
// also writes bf16 weights.
void adamw_rows(Rows& rows, int64_t n, int64_t tensors = 1, bool copies = false, DType moments = DType::f32) {
  const Kind t{DType::f32, rows.device};
  const std::vector<int64_t> shape = tensors == 1 ? std::vector{n} : std::vector{tensors, n};
  const bool narrow = moments == DType::bf16;
  const double bytes = ((narrow ? 20.0 : 28.0) + (copies ? 2 : 0)) * double(n) * double(tensors);
  const auto make = [=]() -> Run {
    std::vector<Tensor> w, m, v, g;
    for (int64_t i = 0; i < tensors; ++i) {
      w.push_back(input({n}, t)), g.push_back(input({n}, t));
      m.push_back(zeros({n}, moments, t.device)), v.push_back(zeros({n}, moments, t.device));
      if (copies) (void)detail::cast_parameter(w.back(), DType::bf16);
    }
    return [=, step = int64_t(0)]() mutable { adamw_step({.w = w, .m = m, .v = v, .grad = g}, {}, 1e-4, ++step); };
  };
  const char* const name = narrow ? "adamw_step_bf16_moments" : copies ? "adamw_step_bf16_copies" : "adamw_step";
  rows.push_back({{name, shape, "f32"}, 0, bytes, kInPlace, make});
}

// adamw on one matrix, with an unstored gradient of R terms.
void adamw_product_rows(Rows& rows, int64_t side, int64_t terms) {
  const Kind t{DType::f32, rows.device};
  const double bytes = 6.0 * 4 * double(side * side);
  const auto make = [=]() -> Run {
    const Tensor w = input({side, side}, t), m = zeros({side, side}, DType::f32, t.device),
                 v = zeros({side, side}, DType::f32, t.device);
    const GradientProduct g{input({terms, side}, t), input({terms, side}, t)};
    return [=, step = int64_t(0)]() mutable { detail::adamw_product_step(w, m, v, g, {}, 1e-4, ++step); };
  };
  rows.push_back({{"adamw_product_step", {terms, side, side}, "f32"}, 0, bytes, kInPlace, make});
}

constexpr int64_t kManyParameters = 100'000'000;  // the size of GPT-2 small
// A nano GPT (12 windows of 64, width 128) and layers of GPT-2 small.
void cpu_rows(Rows& rows) {
  linear_rows(rows);
  for (const DType d : {DType::f32, DType::bf16})
    for (const int64_t side : {4096, 8192}) few_rows(rows, d, side);
  few_rows(rows, DType::f64, 4096);
  int8_rows(rows);
  block_linear_rows(rows);
  for (const DType d : {DType::f32, DType::bf16}) {
    norm_rows(rows, 768, 128, d);
    norm_rows(rows, 4096, 768, d);
    for (const int64_t r : {1024, 4096}) quantize_rows(rows, r, 4096, d);
  }
  for (const DType d : {DType::f32, DType::bf16}) {
    softmax_rows(rows, 3072, 64, d);
    softmax_rows(rows, 4096, 1024, d);
    cross_entropy_rows(rows, 768, 256, d);
    cross_entropy_rows(rows, 1024, 50257, d);
    for (const int64_t classes : {50257, 151936}) head_rows(rows, 512, classes, classes == 50257 ? 768 : 1024, d);
  }
  attention_rows(rows, 12, 4, 64, 32, DType::f32);
  attention_rows(rows, 8, 12, 128, 64, DType::f32);
  for (const int64_t t : {64, 256, 1024, 4096}) attention_rows(rows, 1, 12, t, 64, DType::f32);
  for (const int64_t hs : {32, 80, 128}) attention_rows(rows, 1, 12, 1024, hs, DType::f32);
  for (const int64_t t : {64, 1024}) attention_rows(rows, 1, 12, t, 64, DType::bf16);
  attention_rows(rows, 1, 1, 1024, 64, DType::f32);
  for (const int64_t tq : {1, 4}) attention_rows(rows, 1, 12, 1024, 64, DType::f32, tq);
  for (const DType d : {DType::f32, DType::bf16}) attention_rows(rows, 1, 12, 1024, 64, d, 0, 0.1);
  self_attention_rows(rows, 12, 4, 64, 32);
  self_attention_rows(rows, 4, 12, 64, 64);
  self_attention_rows(rows, 1, 12, 1024, 64);
  adamw_rows(rows, int64_t(1) << 20);
  adamw_rows(rows, int64_t(1) << 24);
  for (const bool copies : {false, true}) adamw_rows(rows, kManyParameters, 1, copies);
  global_norm_row(rows, kManyParameters, DType::f32);
  for (const int64_t terms : {1, 8, 16, 64}) adamw_product_rows(rows, 4096, terms);
  adamw_rows(rows, int64_t(1) << 24, 1, false, DType::bf16);
  adamw_rows(rows, 1024, 148);  // the number of tensors in 12 layers
  for (const DType d : {DType::f32, DType::bf16}) {
    pointwise_rows(rows, 768, 512, d);
    pointwise_rows(rows, 4096, 3072, d);
    sum_rows(rows, 256, 3072, d);
    sum_rows(rows, 4096, 3072, d);
    embedding_rows(rows, 1024, 50257, 768, d);
    for (const auto& [r, c] : {std::pair<int64_t, int64_t>{768, 1024}, {4096, 4096}}) {
      swiglu_rows(rows, r, c, d);
      moving_rows(rows, r, c, d);
    }
    global_norm_row(rows, int64_t(1) << 24, d);
  }
}
// 2048 tokens of document 003's 2.7B model, and of width 768: GEMMs forward and backward, and the ops between.
void gpu_rows(Rows& rows) {
  for (const Products p : {Products(DType::bf16), Products(DType::f32, MatmulPrecision::high), Products(DType::f32)}) {
    for (const int64_t c : {768, 1024, 2560})
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{3 * c, c}, {c, c}, {8 * c, c}, {c, 4 * c}, {10000, c}}) {
        add_linear(rows, {2048, n, k}, p);
        add_linear_backward(rows, {2048, n, k}, p);
      }
    add_linear(rows, {8192, 8192, 8192}, p);
  }
  for (const DType d : {DType::f32, DType::bf16})
    for (const int64_t side : {4096, 8192}) few_rows(rows, d, side);
  for (const int64_t terms : {1, 8, 16, 64}) adamw_product_rows(rows, 8192, terms);
  for (const DType d : {DType::bf16, DType::f32}) {
    for (const int64_t c : {768, 2560}) {
      norm_rows(rows, 8192, c, d);
      pointwise_rows(rows, 8192, 4 * c, d);
      swiglu_rows(rows, 8192, 8 * c, d);
    }
    softmax_rows(rows, 8192, 4096, d);
    cross_entropy_rows(rows, 2048, 10000, d);
    cross_entropy_rows(rows, 2048, 50257, d);
    attention_rows(rows, 4, 32, 512, 80, d);
    attention_rows(rows, 16, 12, 128, 64, d);
    attention_rows(rows, 1, 32, 2048, 128, d);
    attention_rows(rows, 16, 12, 128, 64, d, 0, 0.1);
  }
  for (const int64_t n : {int64_t(1) << 18, int64_t(1) << 24, int64_t(1) << 28}) adamw_rows(rows, n);
  adamw_rows(rows, int64_t(1) << 28, 1, false, DType::bf16);
  adamw_rows(rows, int64_t(1) << 16, 148);
}
}  // namespace

std::vector<OpRow> op_rows(Device device) {
  Rows rows(device);
  device == Device::cpu() ? cpu_rows(rows) : gpu_rows(rows);
  return rows;
}

}  // namespace tg::bench
