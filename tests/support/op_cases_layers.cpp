// Cases of attention, gates, positions, convolutions, scans and losses.
#include <tapegrad/ops/ops.h>

#include <array>
#include <cmath>

#include "support/op_case_list.h"

namespace tg {
namespace {
struct LayerCases : OpCaseList {
  void convolutions() {
    const auto conv = [&](const char* variant, const Shape& x, const Shape& weight, Conv1dOptions o, bool bias = true) {
      std::vector<TensorInit> in{floats(x), floats(weight)};
      if (bias) in.push_back(floats({weight[0]}));
      one("conv1d", variant, in, [=](Inputs v) { return conv1d(v[0], v[1], bias ? v[2] : Tensor(), o); });
    };
    conv("plain", {r, 2, c + 3}, {3, 2, 3}, {}, false);
    conv("bias", {2, c, r + 1}, {c, c, 1}, {});
    conv("causal", {r, 2, c + 1}, {3, 2, 3}, {.dilation = 2, .causal = true});
    conv("stride", {2, 3, r + c + 3}, {2, 3, 4}, {.stride = 3, .padding = {1, 2}});
    conv("groups", {2, 2 * r, 7}, {4, r, 3}, {.stride = 2, .dilation = 2, .groups = 2});
    if (c > 0) conv("depthwise", {r, c, 5}, {c, 1, 3}, {.padding = {1, 1}, .groups = c});
    if (c > 0) conv("depthwise_causal", {r, c, 5}, {c, 1, 4}, {.groups = c, .causal = true}, false);
    if (c > 0) conv("multiplied", {2, c, 5}, {2 * c, 1, 2}, {.stride = 2, .groups = c});
  }
  void scans() {
    const auto product = [](const Tensor& a, const Tensor& b) { return a * b; };
    const auto largest = [](const Tensor& a, const Tensor& b) { return maximum(a, b); };
    // Each of the 2 log2(n) steps rounds.
    one("scan", "products", {floats({r, 2, c}, 0.5, 1.5)}, [=](Inputs x) { return scan(product, x[0], -1); }).bf16 =
        5e-2;
    one("scan", "products_first", {floats({r, 2 * c}, 0.5, 1.5)}, [=](Inputs x) {
      return scan(product, x[0], 0);
    }).bf16 = 5e-2;
    one("scan", "maxima", {floats({2, 2 * r, c})}, [=](Inputs x) { return scan(largest, x[0], 1); });
    no_grad("scan", "integers", {indices({r, c}, 9)}, [=](Inputs x) { return scan(largest, x[0], 1); });
    several("scan", "recurrence", {floats({2, r + 2, c}, 0, 1), floats({2, r + 2, c})}, [](Inputs x) {
      const auto f = [](Inputs p, Inputs q) { return Tensors{p[0] * q[0], q[0] * p[1] + q[1]}; };
      return scan(f, x, 1);
    });
    // Two or more elements: the exact gradient of one is 0, without a relative error.
    const std::vector<TensorInit> in{floats({2, r, c == 0 ? 0 : std::max<int64_t>(c, 2)})};
    for (const int p : {1, 2, 3})
      one("normalize", "p" + std::to_string(p), in, [=](Inputs x) { return normalize(x[0], p); });
    one("normalize", "largest", in, [](Inputs x) { return normalize(x[0], INFINITY); });
    one("normalize", "middle", {floats({2, 4, c})}, [](Inputs x) { return normalize(x[0], 2, 1); });
    one("normalize", "small", in, [](Inputs x) { return normalize(x[0], 2, -1, 100); });
  }
  void attentions() {
    const auto with = [](AttentionOptions o) { return [o](Inputs x) { return attention(x[0], x[1], x[2], o); }; };
    // At least two keys: with one, the exact gradients of q and k are 0, without a relative error.
    const auto kv = floats({2, 2, std::max<int64_t>(r, 2), c}), longer = floats({2, 2, r + 2, c});
    const auto q = floats({2, 4, r, c});
    one("attention", "causal", {floats({2, 2, r, c}), kv, kv}, with({.causal = true}));
    one("attention", "causal_groups_tail", {q, longer, longer}, with({.causal = true}));
    one("attention", "full_groups", {q, longer, longer}, with({}));
    one("attention", "full_fewer_keys", {floats({2, 2, r + 2, c}), kv, kv}, with({.scale = 0.3}));
    // Three sequences; one may be empty.
    const int64_t tk = r + 2;
    const auto q3 = floats({3, 2, r, c}), kv3 = floats({3, 1, tk, c});
    const auto three = [](Inputs x) { return concat(x, 0); };
    one("attention", "lengths", {q3, kv3, kv3, index(tk), index(0), index(tk - 1)},
        [=](Inputs x) { return attention(x[0], x[1], x[2], {.kv_lengths = three(x.subspan(3))}); });
    one("attention", "lengths_causal", {q3, kv3, kv3, index(tk), index(0), index(tk - 1)}, [=](Inputs x) {
      return attention(x[0], x[1], x[2], {.causal = true, .kv_lengths = three(x.subspan(3)).to(DType::i32)});
    });
    one("attention", "starts", {q3, kv3, kv3, index(0), index(2), index(1)}, [=](Inputs x) {
      return attention(x[0], x[1], x[2], {.causal = true, .query_starts = three(x.subspan(3)).to(DType::i32)});
    });
    one("attention", "lengths_starts",
        {q3, kv3, kv3, index(tk), index(2), index(1), index(tk), index(1), index(tk - 1)}, [=](Inputs x) {
          const AttentionOptions o{
              .causal = true, .scale = 0.5, .kv_lengths = three(x.subspan(3, 3)), .query_starts = three(x.subspan(6))};
          return attention(x[0], x[1], x[2], o);
        });
    const auto dropped = [=](AttentionOptions form, double p, Rng rng) {
      return [=](Inputs x) {
        AttentionOptions o = form;
        Rng at = rng;  // equal masks in all calls
        o.dropout = p, o.rng = &at;
        if (x.size() > 3) o.kv_lengths = three(x.subspan(3, 3)), o.query_starts = three(x.subspan(6));
        return attention(x[0], x[1], x[2], o);
      };
    };
    one("attention", "dropped", {q, longer, longer}, dropped({.causal = true}, 0.3, {7, 3}));
    one("attention", "dropped_full", {floats({2, 2, r + 2, c}), kv, kv},
        dropped({.scale = 0.3}, 0.6, {8, uint64_t(-3)}));
    one("attention", "dropped_lengths_starts",
        {q3, kv3, kv3, index(tk), index(2), index(tk), index(tk), index(1), index(tk - 1)},
        dropped({.causal = true}, 0.2, {9}));
    const auto none = floats({0, 2, std::max<int64_t>(r, 1), c}), headless = floats({2, 0, std::max<int64_t>(r, 1), c});
    one("attention", "no_batch", {none, none, none}, with({.causal = true}));
    one("attention", "no_heads", {headless, headless, headless}, with({.causal = true}));
    one("attention", "no_queries", {floats({2, 4, 0, c}), kv, kv}, with({.causal = true}));
    const int64_t t = std::max<int64_t>(r, 2);
    const auto self = [](int64_t heads, AttentionOptions o) {
      return [=](Inputs x) { return self_attention(x[0], heads, o); };
    };
    one("self_attention", "causal", {floats({2, t, 6, c})}, self(2, {.causal = true}));
    one("self_attention", "full_groups", {floats({2, t, 4, c})}, self(1, {.scale = 0.3}));
    one("self_attention", "lengths", {floats({3, t, 3, c}), index(t), index(0), index(t - 1)},
        [=](Inputs x) { return self_attention(x[0], 1, {.causal = true, .kv_lengths = three(x.subspan(1))}); });
    one("self_attention", "dropped", {floats({2, t, 4, c})}, [](Inputs x) {
      Rng rng{7};
      return self_attention(x[0], 1, {.causal = true, .dropout = 0.4, .rng = &rng});
    });
    one("self_attention", "no_batch", {floats({0, t, 3, c})}, self(1, {.causal = true}));
  }
  void gates_and_positions() {
    // Pairs: an even number of columns. Position 0 rotates nothing.
    const auto transposed = [](RopeOptions o) { return [o](Inputs x) { return rope(x[0], o); }; };
    one("rope", "plain", {floats({2, r, 2 * c})}, transposed({}));
    one("rope", "start", {floats({r, 2 * c})}, transposed({.theta = 100, .start = 1234567}));
    one("rope", "scaled", {floats({r, 2 * c})},
        transposed({.start = 30, .scaling = {RopeScalingKind::llama3, 8, 1, 4, 64}}));
    one("rope", "starts", {floats({3, 2, r, 2 * c}), index(5), index(0), index(1234567)},
        [](Inputs x) { return rope(x[0], {.theta = 100, .starts = concat(x.subspan(1), 0)}); });
    one("rope", "starts_i32", {floats({2, r, 3, 2 * c}), index(3), index(7)},
        [](Inputs x) { return rope(transpose(x[0], 1, 2), {.starts = concat(x.subspan(1), 0).to(DType::i32)}); });
    one("rope", "heads", {floats({2, r, 2, 2 * c})},
        [](Inputs x) { return rope(transpose(x[0], 1, 2), {.start = 3}); });
    one("rope", "some_heads", {floats({2, r, 3, 2 * c})}, transposed({.start = 3, .heads = 2}));
    one("rope", "all_heads", {floats({2, r, 2, 2 * c}), index(5), index(7)},
        [](Inputs x) { return rope(x[0], {.starts = concat(x.subspan(1), 0), .heads = 2}); });
    one("swiglu", "plain", {floats({2, r, 2 * c}, -4, 4)}, [](Inputs x) { return swiglu(x[0]); });
    one("swiglu", "vector", {floats({2 * c}, -4, 4)}, [](Inputs x) { return swiglu(x[0]); });
  }
  void fragments() {
    const double h = 1 / std::sqrt(double(c + 1));  // scores independent of c
    one("fragment_weights", "plain", {floats({2, r, 4 * c}), floats({4, c}, -h, h)},
        [](Inputs x) { return fragment_weights(x[0], x[1]); });
    if (c > 0)
      one("fragment_weights", "of_one", {floats({r, c}), floats({c, 1})},
          [](Inputs x) { return fragment_weights(x[0], x[1]); });
    const std::vector<TensorInit> rows{floats({2 * r, c}), floats({3, c, r + 2}), indices({2 * r}, 3)};
    one("index_matmul", "plain", rows, [](Inputs x) { return index_matmul(x[0], x[1], x[2]); });
    one("index_matmul", "i32", rows, [](Inputs x) { return index_matmul(x[0], x[1], x[2].to(DType::i32)); });
    one("index_matmul", "transposed", {floats({r, c}), floats({5, r + 2, c}), indices({r}, 5)},
        [](Inputs x) { return index_matmul(x[0], x[1], x[2], true); });
  }
  void losses() {
    for (Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
      if (r * c == 0 && reduction == Reduction::mean) continue;
      const char* variant = std::array{"mean", "sum", "none"}[size_t(reduction)];
      const std::vector<TensorInit> pair{floats({2, r, c}), floats({2, r, c})};
      one("mse_loss", variant, pair, [=](Inputs x) { return mse_loss(x[0], x[1], reduction); });
      one("bce_with_logits", variant, {floats({2, r, c}, -4, 4), floats({2, r, c}, 0, 1)},
          [=](Inputs x) { return bce_with_logits(x[0], x[1], reduction); });
      one("l1_loss", variant, pair, [=](Inputs x) { return l1_loss(x[0], x[1], reduction); });
      one("huber_loss", variant, pair, [=](Inputs x) { return huber_loss(x[0], x[1], 0.75, reduction); });
    }
    if (c == 0) return;
    const std::vector<TensorInit> in{floats({2, r, c}), indices({2, r}, c)};
    const auto loss = [&](const char* variant, CrossEntropyOptions o, bool narrow = false) {
      if (r == 0 && o.reduction == Reduction::mean) return;
      one("cross_entropy", variant, in,
          [=](Inputs x) { return cross_entropy(x[0], narrow ? x[1].to(DType::i32) : x[1], o); });
    };
    loss("mean", {});
    loss("mean_i32", {}, true);
    loss("sum", {Reduction::sum, {}, 0});
    loss("none", {Reduction::none, {}, 0});
    loss("smooth", {Reduction::mean, {}, 0.1});
    loss("ignore_sum", {Reduction::sum, 0, 0});
    if (r > 0)
      one("cross_entropy", "ignore_half", in, [](Inputs x) {
        const Tensor targets = concat({slice(x[1], 0, 0, 1) * 0.0 - 1.0, slice(x[1], 0, 1, 2)}, 0);
        return cross_entropy(x[0], targets, {Reduction::mean, -1, 0.1});
      });
    loss("ignore_smooth_none", {Reduction::none, 0, 0.2});
    if (c > 1 && r > 1) loss("ignore_mean", {Reduction::mean, 0, 0});  // one row could be all ignored: an Error
    head_losses();
  }
  void head_losses() {
    const auto head = [&](const char* variant, LinearCrossEntropyOptions o, bool frozen = false) {
      if (r == 0 && o.loss.reduction == Reduction::mean) return;
      std::vector<TensorInit> in{floats({2, r, 4}), floats({c, 4}), indices({2, r}, c)};
      in[1].differentiable = !frozen;
      one("linear_cross_entropy", variant, in, [=](Inputs x) { return linear_cross_entropy(x[0], x[1], x[2], o); });
    };
    head("mean", {});
    head("sum_by_rows", {{Reduction::sum, {}, 0}, 2});
    head("ignore_smooth_none", {{Reduction::none, 0, 0.2}, 1});
    head("frozen_mean", {{Reduction::mean, {}, 0.1}, 4}, true);
    head("frozen_ignore_sum", {{Reduction::sum, 0, 0}}, true);
    head("frozen_none", {{Reduction::none, 0, 0}, 1}, true);
    one("linear_cross_entropy", "strided", {floats({2, 4, r}), floats({4, c}), indices({r, 2}, c)}, [](Inputs x) {
      return linear_cross_entropy(transpose(x[0], 1, 2), transpose(x[1], 0, 1), transpose(x[2], 0, 1),
                                  {{Reduction::sum, {}, 0}, 3});
    });
  }
};
}  // namespace

void add_layer_cases(std::vector<OpCase>& list, const CaseSizes& s) {
  LayerCases c{{s.rows, s.cols}};
  c.convolutions();
  c.scans();
  c.attentions();
  c.gates_and_positions();
  c.fragments();
  c.losses();
  std::ranges::move(c.list, std::back_inserter(list));
}
}  // namespace tg
