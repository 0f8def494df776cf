// LoRA against PyTorch (tests/data/lora.safetensors) and differences, and its cost.
#include <tapegrad/core/node.h>
#include <tapegrad/tapegrad.h>

#include "support/helpers.h"

using namespace tg;
namespace {
using nn::LoraDelta;
using nn::LoraLinear;

struct LoraOracle {
  SafetensorsFile file{TG_TEST_DATA "/lora.safetensors"};
  Json config = detail::own_json(file.metadata().at("config"));
  DType dtype;
  Params params;
  explicit LoraOracle(DType t) : dtype(t), params(Device(), 0, t) {}
  Tensor tensor(const char* name) const { return file.tensor(name).to(dtype); }
  Tensor at(const char* name, int64_t step) const {
    const Tensor all = tensor(name);
    return reshape(slice(all, 0, step, step + 1), {all.size(1), all.size(2), all.size(3)});
  }
  // The frozen layer with A and this B.
  LoraLinear layer(const Tensor& b) const {
    nn::Linear base;
    base.weight = tensor("weight").requires_grad_(), base.bias = tensor("bias").requires_grad_();
    LoraLinear l(base, params, {.rank = config.at("rank").get<int64_t>(), .alpha = config.at("alpha").get<double>()});
    params.assign({{"lora_a", tensor("a")}, {"lora_b", b}});
    return l;
  }
};

// A layer with a nonzero delta.
struct Example {
  Params base, params;
  LoraLinear layer;
  Example(int64_t in, int64_t out, nn::LoraOptions o, DType t = DType::f32, bool bias = true)
      : base(Device(), 1, t),
        params(Device(), 2, t == DType::bf16 ? DType::f32 : t),
        layer(nn::Linear(base, in, out, {.bias = bias, .init = Init::normal(1)}), params, o) {
    StateDict s = params.state();
    s.at("lora_b") = random({o.rank, out}, 3);
    params.assign(s);
  }
};
}  // namespace

TEST_CASE("LoRA: values, gradients and ten AdamW steps as PyTorch's") {
  for (const DType t : {DType::f64, DType::f32}) {
    const double limit = t == DType::f64 ? 1e-12 : 1e-5;
    CAPTURE(name_of(t));
    const LoraOracle o(t);
    const LoraLinear l = o.layer(o.tensor("b"));
    Tensor x = o.tensor("x");
    x.requires_grad_();
    const Tensor y = l.forward(x);
    CHECK(distance(y, o.tensor("y")) <= limit);
    const GradMap g = backward(sum(y * o.tensor("w")));
    CHECK(distance(g[x], o.tensor("grad.x")) <= limit);
    CHECK(distance(g[l.delta().a], o.tensor("grad.a")) <= limit);
    CHECK(distance(g[l.delta().b], o.tensor("grad.b")) <= limit);
    CHECK(g.size() == 3);  // none for the weight and the bias
    o.params.assign({{"lora_a", o.tensor("a")}, {"lora_b", zeros({3, 11}, t)}});
    const auto number = [&](const char* name) { return o.config.at(name).get<double>(); };
    AdamWConfig c{.lr = number("lr"), .beta1 = number("beta1"), .beta2 = number("beta2"), .eps = number("eps")};
    c.weight_decay = number("weight_decay");
    AdamW opt(o.params.trainable(), c);
    const auto losses = values<double>(o.file.tensor("losses"));
    for (int64_t step = 1; step <= 10; ++step) {
      const Tensor loss = mse_loss(l.forward(o.at("inputs", step - 1)), o.at("target", step - 1));
      CHECK(loss.item<double>() == doctest::Approx(losses[size_t(step) - 1]).epsilon(limit));
      opt.step(backward(loss));
      if (step > 2 && step < 10) continue;
      for (const char* which : {"a", "b"}) {
        const Tensor& now = which[0] == 'a' ? l.delta().a : l.delta().b;
        CHECK(norm_distance(now, o.file.tensor(fmt::format("step{}.{}", step, which))) <=
              (t == DType::f64 ? 1e-9 : 1e-4));
      }
    }
  }
}

TEST_CASE("LoRA: at first nothing is added, and only B learns; then A does") {
  const Params params(Device(), 5);
  const Params base_params(Device(), 6);
  const nn::Linear base(base_params, 12, 9, {.bias = true, .init = Init::normal(1)});
  const Tensor x = random({4, 12}, 1), plain = base.forward(x);
  const auto weight = bits_of(base.weight), bias = bits_of(base.bias);
  const LoraLinear l(base, params, {.rank = 3, .alpha = 6});
  CHECK(params.numel() == 3 * (12 + 9));
  CHECK(l.delta().scale == 2);
  CHECK(params.all()[0].name == "lora_a");
  CHECK(bits_of(l.forward(x)) == bits_of(plain));
  AdamW opt(params.trainable(), {.lr = 1e-2, .weight_decay = 0});
  const auto step = [&] {
    const GradMap g = backward(mse_loss(l.forward(x), random({4, 9}, 2)));
    opt.step(g);
    return g;
  };
  const auto a0 = bits_of(l.delta().a), b0 = bits_of(l.delta().b);
  const GradMap first = step();
  for (const float v : values(first[l.delta().a])) CHECK(v == 0);
  CHECK(bits_of(l.delta().a) == a0);
  const auto b1 = bits_of(l.delta().b);
  CHECK(b1 != b0);
  step();
  CHECK(bits_of(l.delta().a) != a0);
  CHECK(bits_of(l.delta().b) != b1);
  CHECK(bits_of(base.weight) == weight);
  CHECK(bits_of(base.bias) == bias);
}

TEST_CASE("LoRA: A is N(0, 1 / rank), another one for each seed") {
  for (const int64_t rank : {4, 64}) {
    const Params params(Device(), 1), other(Device(), 2);
    const LoraDelta d(params, 500, 300, {.rank = rank});
    double sum = 0, squares = 0;
    const auto a = values<double>(d.a);
    for (const double v : a) sum += v, squares += v * v;
    const double n = double(a.size()), deviation = std::sqrt(squares / n) * std::sqrt(double(rank));
    CHECK(std::abs(deviation - 1) < 4 / std::sqrt(2 * n));  // four standard errors
    CHECK(std::abs(sum / n) * std::sqrt(double(rank)) < 4 / std::sqrt(n));
    CHECK(bits_of(LoraDelta(other, 500, 300, {.rank = rank}).a) != bits_of(d.a));
  }
}

TEST_CASE("LoRA: gradients equal central differences, without dropout and with fixed masks") {
  struct Sizes {
    int64_t in, out, rank;
  };
  for (const auto [in, out, rank] : {Sizes{5, 3, 2}, Sizes{1, 4, 1}, Sizes{7, 7, 7}})
    for (const double dropout : {0.0, 0.4}) {
      CAPTURE_ALL(in, dropout);
      Example e(in, out, {.rank = rank, .alpha = 3, .dropout = dropout}, DType::f64);
      const Tensor w = random<double>({2, 3, out}, 8);
      const auto loss = [&](const LoraDelta& d, const Tensor& x) {
        Rng rng{9};  // the same mask each time
        nn::Linear l = e.layer.linear();
        l.adapter = std::make_shared<nn::LoraAdapter>(nn::LoraAdapter{{{0, d}}});
        const Tensor y = l.forward(x, {}, &rng);
        return sum(y * y * w);
      };
      const Tensor x = random<double>({2, 3, in}, 7);
      const LoraDelta& d = e.layer.delta();
      CHECK(gradcheck([&](const Tensor& t) { return loss(d, t); }, x) <= 1e-7);
      const GradMap g = backward(loss(d, x));
      const auto with = [&](Tensor LoraDelta::*which) {
        return [&, which](const Tensor& t) {
          LoraDelta moved = d;
          moved.*which = t;
          return loss(moved, x);
        };
      };
      CHECK(gradcheck(with(&LoraDelta::a), d.a, g[d.a]) <= 1e-7);
      CHECK(gradcheck(with(&LoraDelta::b), d.b, g[d.b]) <= 1e-7);
    }
}

TEST_CASE("LoRA: dropout between A and B, kept values grow, none without a generator") {
  const Params params(Device(), 1, DType::f64);
  const LoraDelta d(params, 6, 7, {.rank = 5, .alpha = 10, .dropout = 0.5});
  params.assign({{"lora_a", random<double>({6, 5}, 1)}, {"lora_b", random<double>({5, 7}, 2)}});
  const Tensor x = random<double>({3, 6}, 3);
  Rng rng{4}, same{4};
  const Tensor h = dropout(matmul(x, d.a), 0.5, same);
  CHECK(distance(d.forward(x, &rng), matmul(h, d.b) * 2.0) <= 1e-14);
  CHECK(rng == same);
  CHECK(distance(d.forward(x), matmul(matmul(x, d.a), d.b) * 2.0) <= 1e-14);
  const LoraDelta never(Params(Device(), 1), 6, 4, {.rank = 4});
  never.forward(random({3, 6}, 3), &rng);
  CHECK(rng == same);
}

TEST_CASE("LoRA: any leading sizes, layouts and dtypes; lazy is eager bit for bit") {
  const std::vector<Shape> leading{{}, {1}, {5}, {0}, {2, 3}, {2, 1, 7}};
  for (const auto& [in, out, rank] : {std::array<int64_t, 3>{33, 17, 5}, {1, 1, 1}, {16, 65, 16}})
    for (const Shape& lead : leading) {
      CAPTURE_ALL(in, lead);
      Example e(in, out, {.rank = rank, .alpha = 2, .dropout = 0.25});
      const LoraDelta& d = e.layer.delta();
      Shape shape = lead, result = lead;
      shape.push_back(in);
      result.push_back(out);
      const Tensor x = random(shape, 3);
      const Tensor y = e.layer.forward(x);
      CHECK(y.shape() == result);
      const Tensor rows = reshape(x, {lead.product(), in});
      const Tensor w = e.layer.linear().weight + transpose(matmul(d.a, d.b), 0, 1) * (2.0 / double(rank));
      CHECK(distance(reshape(y, {lead.product(), out}), linear(rows, w, e.layer.linear().bias)) <= 1e-5);
      for (const Store how : kStores) CHECK(bits_of(e.layer.forward(stored(x, how))) == bits_of(y));
      Rng eager{4}, later{4};
      const auto expected = bits_of(d.forward(x, &eager));
      const auto before = engine_stats().kernels;
      const Tensor pending = under<LazyScope>([&] { return d.forward(x, &later); });
      CHECK(engine_stats().kernels == before);
      CHECK(!pending.materialized());
      CHECK(bits_of(pending) == expected);
      CHECK(later == eager);
    }
  Example bf16(32, 48, {.rank = 8}, DType::bf16);
  CHECK(bf16.layer.delta().a.dtype() == DType::f32);
  const Tensor x = random({9, 32}, 3);
  const Tensor y = bf16.layer.forward(x.to(DType::bf16));
  CHECK(y.dtype() == DType::bf16);
  nn::Linear exact = bf16.layer.linear();
  exact.weight = exact.weight.to(DType::f32), exact.bias = exact.bias.to(DType::f32);
  CHECK(distance(y, exact.forward(x)) <= 2e-2);
  CHECK(exact.forward(x, DType::bf16).dtype() == DType::bf16);
  CHECK(distance(exact.forward(x, DType::bf16), exact.forward(x)) <= 2e-2);
}

TEST_CASE("LoRA: merged, the layer is one product; unmerged, it is what it was bit for bit") {
  for (const DType t : {DType::f64, DType::f32, DType::bf16})
    for (bool lazy : {false, true}) {
      Mode mode(lazy);
      CAPTURE(name_of(t));
      Example e(24, 40, {.rank = 4}, t);
      const nn::Linear copy = e.layer.linear();  // the model's handle
      LoraLinear& l = e.layer;
      const Tensor x = random({6, 24}, 3).to(t);
      const auto weight = bits_of(copy.weight), adapted = bits_of(l.forward(x));
      const Tensor before = l.forward(x);
      CHECK(!l.merged());
      l.merge();
      CHECK(l.merged());
      CHECK(copy.weight.dtype() == t);
      CHECK(bits_of(copy.weight) != weight);
      const auto kernels = engine_stats().kernels;
      const Tensor merged = copy.forward(x);
      eval({merged});
      if (!lazy) CHECK(engine_stats().kernels == kernels + 1);
      const double limit = t == DType::f64 ? 1e-12 : t == DType::f32 ? 1e-5 : 2e-2;
      CHECK(row_distance(merged, before) <= limit);
      l.unmerge();
      CHECK(bits_of(copy.weight) == weight);
      CHECK(bits_of(copy.forward(x)) == adapted);
      l.merge();
      CHECK(bits_of(copy.forward(x)) == bits_of(merged));
    }
}

TEST_CASE("LoRA: the frozen layer computes no gradient, and keeps no input") {
  const int64_t rows = 64, width = 128, bytes = rows * width * 4;
  const Params a(Device(), 1), b(Device(), 2);
  const nn::Linear plain(a.at("plain"), width, width, {.bias = false}),
      base(a.at("base"), width, width, {.bias = false});
  const LoraLinear adapted(base, b, {.rank = 4});
  CHECK(!base.weight.requires_grad());
  Tensor x = random({rows, width}, 3);
  x.requires_grad_();
  // Bytes kept by forward except its result; x + 0 acts as a previous layer's output.
  const auto held = [&](const auto& layer) {
    const int64_t before = memory_stats().live;
    const Tensor y = layer(x + 0.f);
    return memory_stats().live - before - bytes;
  };
  nn::Linear frozen = base;
  frozen.adapter = nullptr;
  CHECK(held([&](const Tensor& t) { return frozen.forward(t); }) == 0);
  CHECK(held([&](const Tensor& t) { return plain.forward(t); }) == bytes);
  CHECK(held([&](const Tensor& t) { return adapted.forward(t); }) <= bytes + 2 * rows * 64);  // kept for A: x and x A
  const auto kernels = [&](const auto& layer) {
    const Tensor loss = sum(layer(x));
    const auto before = engine_stats().kernels;
    const GradMap g = backward(loss);
    return std::pair(engine_stats().kernels - before, g.size());
  };
  const auto [all, with_weight] = kernels([&](const Tensor& t) { return plain.forward(t); });
  const auto [fewer, without] = kernels([&](const Tensor& t) { return frozen.forward(t); });
  CHECK(fewer == all - 1);  // no product for the weight
  CHECK(with_weight == 2);
  CHECK(without == 1);
  const AdamW opt(b.trainable());
  CHECK(opt.state().size() == 4);
}

TEST_CASE("LoRA: what is refused, and how") {
  const Params p;
  const auto made = [](int64_t in, int64_t out, nn::LoraOptions o) { return LoraDelta(Params(), in, out, o); };
  CHECK_SAYS_OF(value, made(64, 128, {.rank = 0}), "[lora] rank is 0. It must be 1 or more.", "leave");
  CHECK_SAYS_OF(value, made(64, 128, {.rank = -3}), "[lora] rank is -3. It must be 1 or more.");
  CHECK_SAYS_OF(value, made(64, 128, {.rank = 65}),
                "[lora] rank is 65 for a layer from 64 to 128. It must be at most 64", "Choose a smaller rank");
  CHECK_SAYS_OF(value, made(9, 3, {.rank = 4}), "rank is 4 for a layer from 9 to 3. It must be at most 3");
  CHECK_NOTHROW(made(64, 128, {.rank = 64}));
  for (const double alpha : {0.0, -1.0, double(INFINITY), double(NAN)})
    CHECK_SAYS_OF(value, made(8, 8, {.alpha = alpha}),
                  fmt::format("[lora] alpha is {}. It must be above 0 and finite", alpha), "twice the rank");
  for (const double dropout : {-0.1, 1.0, double(NAN)})
    CHECK_SAYS_OF(value, made(8, 8, {.dropout = dropout}),
                  fmt::format("[lora] dropout is {}. It must be in [0, 1); 0 is none.", dropout));
  const LoraDelta d(p.at("own"), 8, 6, {.rank = 2});
  CHECK_SAYS_OF(shape, d.forward(random({3, 6}, 1)),
                "[lora] x is (3, 6) f32, and A 'own.lora_a' (8, 2) f32. The last size of x must be A's first, 8.");
  CHECK_SAYS_OF(shape, d.forward(Tensor()), "[lora] x is an empty tensor");
  LoraLinear l(nn::Linear(p.at("fc"), 8, 6), p.at("fc"), {.rank = 2});
  CHECK_SAYS_OF(state, l.unmerge(), "[lora] 'fc.weight' is not merged. There is nothing to undo. Call merge() first.");
  l.merge();
  CHECK_SAYS_OF(state, l.merge(),
                "[lora] 'fc.weight' is merged already. Merging twice would add the delta twice. Call unmerge() first.");
  LoraLinear shared = l;
  CHECK(shared.merged());
  shared.unmerge();
  CHECK(!l.merged());
  CHECK_SAYS_OF(state, LoraLinear(l.linear(), p.at("again"), {.rank = 2}),
                "[lora] the layer of 'fc.weight' has an adapter already, on rows 0 to 5, and rows 0 to 5 are given.");
}

TEST_CASE("LoRA: adapters on disjoint rows of one layer run as one") {
  for (const DType t : {DType::f64, DType::f32})
    for (const double dropout : {0.0, 0.4}) {
      CAPTURE_ALL(name_of(t), dropout);
      const Params base(Device(), 1, t), params(Device(), 2, t);
      const nn::Linear plain(base, 5, 9, {.init = Init::normal(1)});
      // Given out of order, with a gap of one row before and one between them.
      LoraLinear high(plain, params.at("high"), {.rank = 3, .alpha = 3, .dropout = dropout}, {5, 4});
      const LoraLinear low(high.linear(), params.at("low"), {.rank = 2, .alpha = 5, .dropout = dropout, .rslora = true},
                           {1, 3});
      CHECK(low.delta().scale == 5 / std::sqrt(2.0));
      StateDict s = params.state();
      for (auto& [name, x] : s) x = random(x.shape(), uint64_t(name.size()), -1, 1).to(t);
      params.assign(s);
      const Tensor x = random({2, 3, 5}, 7).to(t);
      const Tensor y = low.forward(x);
      const auto delta = [&](const LoraLinear& l, const Tensor& in) {
        return matmul(matmul(in, l.delta().a), l.delta().b) * l.delta().scale;
      };
      Tensor wanted = linear(x, plain.weight, plain.bias);
      const auto add = [&](const LoraLinear& l) {
        wanted = wanted + pad(delta(l, x), {{0, 0}, {0, 0}, {l.row(), 9 - l.row() - l.delta().b.size(1)}});
      };
      add(low), add(high);
      CHECK(distance(y, wanted) <= (t == DType::f64 ? 1e-14 : 1e-6));
      CHECK(bits_of(high.forward(x)) == bits_of(y));
      const Tensor weight = plain.weight.detach() * 1;
      high.merge();  // merges all adapters of the layer
      CHECK(low.merged());
      CHECK(distance(low.forward(x), y) <= (t == DType::f64 ? 1e-14 : 1e-6));
      for (const int64_t row : {0, 4})
        CHECK(bits_of(slice(plain.weight, 0, row, row + 1)) == bits_of(slice(weight, 0, row, row + 1)));
      CHECK_SAYS(LoraLinear(low.linear(), params.at("more"), {.rank = 1, .dropout = dropout}, {0, 1}), "is merged.");
      high.unmerge();
      CHECK(bits_of(plain.weight) == bits_of(weight));
      CHECK(bits_of(low.forward(x)) == bits_of(y));
      if (t == DType::f32) continue;
      const Tensor w = random<double>({2, 3, 9}, 8);
      const auto loss = [&](const Tensor& in) {
        Rng rng{9};
        const Tensor z = low.forward(in, {}, &rng);
        return sum(z * z * w);
      };
      CHECK(gradcheck(loss, x) <= 1e-7);
      const GradMap g = backward(loss(x));
      for (const Parameter& p : params.all()) {
        const StateDict before = params.state();
        const auto of = [&](const Tensor& moved) {
          StateDict all = before;
          all.at(p.name) = moved;
          params.assign(all);
          return loss(x);
        };
        CHECK_MESSAGE(gradcheck(of, p.tensor.detach() * 1, g[p.tensor]) <= 1e-7, p.name);
        params.assign(before);
      }
      const auto refused = [&](nn::LoraOptions o, nn::LoraRows rows, const char* says) {
        CHECK_SAYS(LoraLinear(low.linear(), params.at("x"), o, rows), says);
      };
      refused({.rank = 1, .dropout = dropout}, {3, 2}, "has an adapter already, on rows 1 to 3, and rows 3 to 4");
      refused({.rank = 1, .dropout = 0.1}, {4, 1}, "They run as one. Give both the same dropout.");
      refused({.rank = 1, .dropout = dropout}, {9, 1},
              "rows from 9 on, 1 of them, are given for 'weight', which has 9.");
      refused({.rank = 1, .dropout = dropout}, {-1, 1}, "They must be within the weight.");
      refused({.rank = 2, .dropout = dropout}, {4, 1}, "rank is 2 for a layer from 5 to 1.");
    }
}
