#include "ops/op_rows.h"

#include <tapegrad/tapegrad.h>

namespace tg::bench {
namespace {
using Run = std::function<void()>;
struct Rows : std::vector<OpRow> {
  Device device;
  explicit Rows(Device d) : device(d) {}
};

struct Kind {  // of tensors
  DType dtype;
  Device device;
};
struct Products {  // of matrices: the dtype of the operands, and how f32 is multiplied
  DType dtype;
  MatmulPrecision f32 = MatmulPrecision::f32;
  Products(DType d, MatmulPrecision p = MatmulPrecision::f32) : dtype(d), f32(p) {}
  std::string name() const { return f32 == MatmulPrecision::tf32 ? "tf32" : std::string(name_of(dtype)); }
};
Tensor input(const Shape& shape, Kind k) {
  Rng rng{1};
  return randn(shape, rng, 0, 1, DType::f32, k.device).to(k.dtype);
}
Tensor leaf(const Shape& shape, Kind k) { return input(shape, k).requires_grad_(); }
// The backward of y = f() again and again; its leaves are tracked.
Run backward_of(const std::function<Tensor()>& f) {
  const Tensor y = f(), dy = input(y.shape(), {y.dtype(), y.device()});
  return [=] { backward(y, dy, {.retain_graph = true}); };
}
std::string name(DType d) { return std::string(name_of(d)); }

// y (M, N) = x (M, K) w (N, K)^T; backward: dx and dw.
void add_linear(Rows& rows, int64_t m, int64_t n, int64_t k, Products p) {
  const Kind t{p.dtype, rows.device};
  rows.push_back({.id = {"linear", {m, n, k}, p.name()}, .flop = 2.0 * double(m * n * k), .make = [=]() -> Run {
                    return [x = input({m, k}, t), w = input({n, k}, t), p] {
                      const MatmulPrecisionScope products(p.f32);
                      linear(x, w);
                    };
                  }});
}
void add_linear_backward(Rows& rows, int64_t m, int64_t n, int64_t k, Products p) {
  const Kind t{p.dtype, rows.device};
  rows.push_back({.id = {"linear_backward", {m, n, k}, p.name()}, .flop = 4.0 * double(m * n * k), .make = [=] {
                    const MatmulPrecisionScope products(p.f32);
                    return backward_of([=] { return linear(leaf({m, k}, t), leaf({n, k}, t)); });
                  }});
}
void linear_rows(Rows& rows) {
  struct Case {
    int64_t m, n, k;
  };
  constexpr Case kNano{768, 512, 128}, kGpt2{1024, 3072, 768};
  for (auto [m, n, k] : {Case{768, 384, 128}, kNano, Case{768, 128, 512}, Case{768, 65, 128}, Case{1024, 1024, 1024},
                         Case{1024, 2304, 768}, kGpt2, Case{1024, 768, 3072}, Case{1024, 50257, 768}})
    add_linear(rows, m, n, k, DType::f32);
  for (auto [m, n, k] : {kNano, kGpt2}) {
    add_linear(rows, m, n, k, DType::f64);
    add_linear(rows, m, n, k, DType::bf16);
    for (const DType d : {DType::f32, DType::f64, DType::bf16}) add_linear_backward(rows, m, n, k, d);
  }
}

// Ops on rows (R, C) that read and write whole tensors; `forward` and `backward` count them.
void add_on_rows(Rows& rows, const std::string& op, int64_t r, int64_t c, DType d, double forward, double backward,
                 const std::function<Tensor(const Tensor& x)>& f) {
  const Kind t{d, rows.device};
  const double bytes = double(r * c) * double(size_of(d));
  rows.push_back({.id = {op, {r, c}, name(d)}, .bytes = forward * bytes, .make = [=]() -> Run {
                    return [x = input({r, c}, t), f] { f(x); };
                  }});
  rows.push_back({.id = {op + "_backward", {r, c}, name(d)}, .bytes = backward * bytes, .make = [=] {
                    return backward_of([=] { return f(leaf({r, c}, t)); });
                  }});
}
// x, r -> sum, y; (dy, gradient of the sum, sum) -> the gradient of x and r, with those of weight and bias.
void add_norm_rows(Rows& rows, const std::string& op, int64_t r, int64_t c, DType d,
                   const std::function<AddedNorm(const Tensor& x, const Tensor& r)>& f) {
  const Kind t{d, rows.device};
  const double bytes = 4 * double(r * c) * double(size_of(d));
  rows.push_back({.id = {op, {r, c}, name(d)}, .bytes = bytes, .make = [=]() -> Run {
                    return [x = input({r, c}, t), y = input({r, c}, t), f] { f(x, y); };
                  }});
  rows.push_back({.id = {op + "_backward", {r, c}, name(d)}, .bytes = bytes, .make = [=]() -> Run {
                    const AddedNorm a = f(leaf({r, c}, t), leaf({r, c}, t));
                    const std::vector<Tensor> of{a.sum, a.y}, given{input({r, c}, t), input({r, c}, t)};
                    return [=] { backward(of, given, {.retain_graph = true}); };
                  }});
}
void norm_rows(Rows& rows, int64_t r, int64_t c, DType d) {
  // x -> y; (dy, x) -> dx, with gradients of weight and bias
  const Kind t{d, rows.device};
  add_on_rows(rows, "layer_norm", r, c, d, 2, 3,
              [w = leaf({c}, t), b = leaf({c}, t)](const Tensor& x) { return layer_norm(x, w, b); });
  add_on_rows(rows, "rms_norm", r, c, d, 2, 3, [w = leaf({c}, t)](const Tensor& x) { return rms_norm(x, w); });
  add_norm_rows(
      rows, "add_layer_norm", r, c, d,
      [w = leaf({c}, t), b = leaf({c}, t)](const Tensor& x, const Tensor& y) { return add_layer_norm(x, y, w, b); });
  add_norm_rows(rows, "add_rms_norm", r, c, d,
                [w = leaf({c}, t)](const Tensor& x, const Tensor& y) { return add_rms_norm(x, y, w); });
}
void cross_entropy_rows(Rows& rows, int64_t r, int64_t c, DType d = DType::f32) {
  std::vector<int64_t> ids(static_cast<size_t>(r));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = int64_t(i) * 7919 % c;
  add_on_rows(rows, "cross_entropy", r, c, d, 1, 2,  // logits -> loss; logits -> dlogits
              [targets = tensor(ids, {r}, rows.device)](const Tensor& x) { return cross_entropy(x, targets); });
}
void pointwise_rows(Rows& rows, int64_t r, int64_t c, DType d) {
  const Kind t{d, rows.device};
  const double bytes = double(r * c) * double(size_of(d));
  rows.push_back({.id = {"add", {r, c}, name(d)}, .bytes = 3 * bytes, .make = [=]() -> Run {
                    return [x = input({r, c}, t), y = input({r, c}, t)] { add(x, y); };
                  }});
  add_on_rows(rows, "gelu", r, c, d, 2, 3, [](const Tensor& x) { return gelu(x); });
}

// Causal. A query and a key meet in T (T + 1) / 2 pairs: two products of HS forward, five backward, of which one is
// made again (Dao et al. 2022).
void attention_rows(Rows& rows, int64_t b, int64_t nh, int64_t t, int64_t hs, DType d) {
  const Shape shape{b, nh, t, hs};
  const Kind kind{d, rows.device};
  const double product = 2.0 * double(b * nh * hs) * 0.5 * double(t * (t + 1));
  rows.push_back({.id = {"attention", {b, nh, t, hs}, name(d)}, .flop = 2 * product, .make = [=]() -> Run {
                    return [q = input(shape, kind), k = input(shape, kind), v = input(shape, kind)] {
                      attention(q, k, v);
                    };
                  }});
  rows.push_back({.id = {"attention_backward", {b, nh, t, hs}, name(d)}, .flop = 5 * product, .make = [=] {
                    return backward_of(
                        [=] { return attention(leaf(shape, kind), leaf(shape, kind), leaf(shape, kind)); });
                  }});
}
// Reads the weights, two moments and the gradients, writes all but the gradients; of `tensors` of n elements each.
void adamw_rows(Rows& rows, int64_t n, int64_t tensors = 1) {
  const Kind t{DType::f32, rows.device};
  const std::vector<int64_t> shape = tensors == 1 ? std::vector{n} : std::vector{tensors, n};
  const double bytes = 7.0 * 4 * double(n) * double(tensors);
  rows.push_back({.id = {"adamw_step", shape, "f32"}, .bytes = bytes, .in_place = true, .make = [=]() -> Run {
                    std::vector<Tensor> w, m, v, g;
                    for (int64_t i = 0; i < tensors; ++i) {
                      w.push_back(input({n}, t)), g.push_back(input({n}, t));
                      m.push_back(zeros({n}, DType::f32, t.device)), v.push_back(zeros({n}, DType::f32, t.device));
                    }
                    return [=, step = int64_t(0)]() mutable {
                      adamw_step({.w = w, .m = m, .v = v, .grad = g}, {}, 1e-4, ++step);
                    };
                  }});
}

// A nano GPT (12 windows of 64, width 128) and layers of GPT-2 small.
void cpu_rows(Rows& rows) {
  linear_rows(rows);
  for (const DType d : {DType::f32, DType::bf16}) {
    norm_rows(rows, 768, 128, d);
    norm_rows(rows, 4096, 768, d);
  }
  for (const auto& [r, c] : {std::pair<int64_t, int64_t>{3072, 64}, {4096, 1024}})
    add_on_rows(rows, "softmax", r, c, DType::f32, 2, 3, [](const Tensor& x) { return softmax(x); });
  cross_entropy_rows(rows, 768, 256);
  cross_entropy_rows(rows, 1024, 50257);
  attention_rows(rows, 12, 4, 64, 32, DType::f32);
  for (const int64_t t : {64, 256, 1024}) attention_rows(rows, 1, 12, t, 64, DType::f32);
  attention_rows(rows, 1, 12, 1024, 64, DType::bf16);
  adamw_rows(rows, int64_t(1) << 20);
  adamw_rows(rows, int64_t(1) << 24);
  adamw_rows(rows, 1024, 148);  // as many tensors as 12 layers have
  for (const DType d : {DType::f32, DType::bf16}) {
    pointwise_rows(rows, 768, 512, d);
    pointwise_rows(rows, 4096, 3072, d);
  }
}
// 2048 tokens of a GPT of width 2560 with 32 heads, a hidden layer of 10 240 and a vocabulary of 10 000: the products
// of a layer forward, and backward (two each, in the other layouts); the same of width 768; and what lies between them.
void gpu_rows(Rows& rows) {
  for (const Products p : {Products(DType::bf16), Products(DType::f32, MatmulPrecision::tf32), Products(DType::f32)}) {
    for (const int64_t c : {768, 1024, 2560})
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{3 * c, c}, {c, c}, {8 * c, c}, {c, 4 * c}, {10000, c}}) {
        add_linear(rows, 2048, n, k, p);
        add_linear_backward(rows, 2048, n, k, p);
      }
    add_linear(rows, 8192, 8192, 8192, p);
  }
  for (const DType d : {DType::bf16, DType::f32}) {
    for (const int64_t c : {768, 2560}) {
      norm_rows(rows, 8192, c, d);
      pointwise_rows(rows, 8192, 4 * c, d);
      add_on_rows(rows, "swiglu", 8192, 8 * c, d, 1.5, 2.5, [](const Tensor& x) { return swiglu(x); });
    }
    add_on_rows(rows, "softmax", 8192, 4096, d, 2, 3, [](const Tensor& x) { return softmax(x); });
    cross_entropy_rows(rows, 2048, 10000, d);
    cross_entropy_rows(rows, 2048, 50257, d);
    attention_rows(rows, 4, 32, 512, 80, d);
    attention_rows(rows, 16, 12, 128, 64, d);
    attention_rows(rows, 1, 32, 2048, 128, d);
  }
  for (const int64_t n : {int64_t(1) << 18, int64_t(1) << 24, int64_t(1) << 28}) adamw_rows(rows, n);
  adamw_rows(rows, int64_t(1) << 16, 148);
}
}  // namespace

std::vector<OpRow> op_rows(Device device) {
  Rows rows(device);
  if (device == Device::cpu())
    cpu_rows(rows);
  else
    gpu_rows(rows);
  return rows;
}

}  // namespace tg::bench
