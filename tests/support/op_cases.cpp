#include "support/op_case_list.h"

#include <tapegrad/ops/ops.h>

#include <cmath>

namespace tg {
namespace {
struct Cases : OpCaseList {
  // The first and the second operand keep off the kinks between them.
  template <class F> static TensorInit operand(const Shape& s, size_t i = 0) {
    constexpr op::Domain d = F::kDomain;
    return {s, d.lo, d.hi, false, true, d.cell, i == 0 ? 0.5 : 0.0};
  }
  template <class F> void unary(const F*) {
    one(F::kName, "plain", {operand<F>({r, c})}, [](Inputs x) { return emit1(stateless<op::Unary<F>>(), {x[0]}); });
  }
  template <class F> void binary(const F*) {
    const auto f = [](Inputs x) { return emit1(stateless<op::Binary<F>>(), {x[0], x[1]}); };
    const auto in = [](const Shape& x, const Shape& y) { return std::vector{operand<F>(x), operand<F>(y, 1)}; };
    one(F::kName, "same", in({r, c}, {r, c}), f);
    one(F::kName, "row", in({2, r, c}, {c}), f);
    one(F::kName, "column", in({r, 1}, {r, c}), f);
    one(F::kName, "outer", in({r, 1}, {1, c}), f);
    one(F::kName, "middle", in({2, 1, c}, {r, 1}), f);
    one(F::kName, "0-d", in({r, c}, {}), f);
    one(F::kName, "itself", {operand<F>({r, c})}, [f](Inputs x) { return f(std::vector{x[0], x[0]}); });
    const double s = F::kDomain.cell > 0 ? F::kDomain.cell : 1.5;  // a kink, or an ordinary number
    for (bool left : {false, true})
      one(F::kName, left ? "number_left" : "number", {operand<F>({r, c})},
          [=](Inputs x) { return emit1(make_ref<op::BinaryScalar<F>>(s, left), {x[0]}); });
  }
  template <class F> void comparison(const F*) {
    const auto f = [](Inputs x) { return emit1(stateless<op::Compare<F>>(), {x[0], x[1]}); };
    const auto compare = [&](const char* variant, const Shape& x, const Shape& y) {
      no_grad(F::kName, variant, {indices(x, 3), indices(y, 3)}, f);
    };
    compare("i64", {r, c}, {r, c});
    compare("row", {2, r, c}, {c});
    compare("outer", {r, 1}, {1, c});
    compare("0-d", {r, c}, {});
    const auto whole = [](const Tensor& x) { return x.to(DType::i32).to(x.dtype()); };
    no_grad(F::kName, "floats", {floats({r, c}), floats({c})}, [=](Inputs x) {
      return f(std::vector{whole(x[0]), whole(x[1])});
    });
    no_grad(F::kName, "number", {floats({r, c})},
            [=](Inputs x) { return emit1(make_ref<op::CompareScalar<F>>(1.0), {whole(x[0])}); });
    no_grad(F::kName, "i32_number", {indices({r, c}, 3)},
            [](Inputs x) { return emit1(make_ref<op::CompareScalar<F>>(1.0), {x[0].to(DType::i32)}); });
  }
  template <class... F> void unaries(op::TypeList<F...>) { (unary(static_cast<const F*>(nullptr)), ...); }
  template <class... F> void binaries(op::TypeList<F...>) { (binary(static_cast<const F*>(nullptr)), ...); }
  template <class... F> void comparisons(op::TypeList<F...>) { (comparison(static_cast<const F*>(nullptr)), ...); }
  void choices() {
    const auto choose = [&](const char* variant, const Shape& condition, const Shape& x, const Shape& y) {
      one("where", variant, {indices(condition, 2), floats(x), floats(y)},
          [](Inputs in) { return where(in[0].to(DType::boolean), in[1], in[2]); });
    };
    choose("same", {r, c}, {r, c}, {r, c});
    choose("condition_row", {c}, {2, r, c}, {r, c});
    choose("outer", {r, 1}, {1, c}, {});
    choose("middle", {2, 1, c}, {r, 1}, {c});
    const std::vector<TensorInit> masked{indices({r, c}, 2), floats({r, c})};
    one("where", "number", masked, [](Inputs in) { return where(in[0].to(DType::boolean), in[1], 0.5); });
    one("where", "number_left", masked, [](Inputs in) { return where(in[0].to(DType::boolean), 0.5, in[1]); });
    one("masked_fill", "same", masked, [](Inputs in) { return masked_fill(in[1], in[0].to(DType::boolean), 0.5); });
    one("masked_fill", "row", {indices({c}, 2), floats({2, r, c})},
        [](Inputs in) { return masked_fill(in[1], in[0].to(DType::boolean), -2); });
    const std::vector<TensorInit> x{{{r, c}, -3, 3, false, true, 1}};
    one("clamp", "both", x, [](Inputs in) { return clamp(in[0], {.min = -1, .max = 2}); });
    one("clamp", "min", x, [](Inputs in) { return clamp(in[0], {.min = 0}); });
    one("clamp", "max", x, [](Inputs in) { return clamp(in[0], {.max = 1}); });
  }
  void reductions() {
    const std::vector<TensorInit> in{floats({2, r, c})};
    one("sum", "all", in, [](Inputs x) { return sum(x[0]); });
    one("sum", "first", in, [](Inputs x) { return sum(x[0], {0}); });
    one("sum", "middle", in, [](Inputs x) { return sum(x[0], {1}); });
    one("sum", "last_keep", in, [](Inputs x) { return sum(x[0], {-1}, {.keepdim = true}); });
    one("sum", "outer", in, [](Inputs x) { return sum(x[0], {0, 2}); });
    one("sum", "none", in, [](Inputs x) { return sum(x[0], {}); });
    one("sum_to", "broadcast", in, [n = c](Inputs x) { return detail::sum_to(x[0], {1, n}); });
    one("cumsum", "last", in, [](Inputs x) { return cumsum(x[0], -1); });
    one("cumsum", "middle", in, [](Inputs x) { return cumsum(x[0], 1); });
    one("cumsum", "first", in, [](Inputs x) { return cumsum(x[0], 0); });
    no_grad("cumsum", "integers", {indices({r, c}, 9)}, [](Inputs x) { return cumsum(x[0], 1); });
    one("max", "none", in, [](Inputs x) { return max(x[0], {}); });
    one("min", "first", in, [](Inputs x) { return min(x[0], {0}); });
    one("var", "first", in, [](Inputs x) { return var(x[0], {0}); });
    if (r * c == 0) return;
    one("logsumexp", "all", in, [](Inputs x) { return logsumexp(x[0]); });
    one("logsumexp", "middle_keep", in, [](Inputs x) { return logsumexp(x[0], {1}, {.keepdim = true}); });
    one("logsumexp", "outer", in, [](Inputs x) { return logsumexp(x[0], {0, -1}); });
    one("max", "all", in, [](Inputs x) { return max(x[0]); });
    one("max", "last_keep", in, [](Inputs x) { return max(x[0], {-1}, {.keepdim = true}); });
    one("max", "outer", in, [](Inputs x) { return max(x[0], {0, 2}); });
    no_grad("max", "integers", {indices({2, r, c}, 9)}, [](Inputs x) { return max(x[0], {1}); });
    one("min", "all", in, [](Inputs x) { return min(x[0]); });
    one("min", "middle", in, [](Inputs x) { return min(x[0], {1}); });
    no_grad("min", "integers", {indices({2, r, c}, 9)}, [](Inputs x) { return min(x[0], {-1}); });
    one("var", "all", in, [](Inputs x) { return var(x[0]); });
    one("var", "outer", in, [](Inputs x) { return var(x[0], {0, 2}); });
    one("var", "middle_keep", in, [](Inputs x) { return var(x[0], {1}, {.keepdim = true, .correction = 0}); });
    if (c > 1) one("var", "last", in, [](Inputs x) { return var(x[0], {-1}); });
    one("mean", "all", in, [](Inputs x) { return mean(x[0]); });
    one("mean", "middle_keep", in, [](Inputs x) { return mean(x[0], {1}, {.keepdim = true}); });
  }
  void views() {
    const std::vector<TensorInit> in{floats({2, r, c})};
    one("reshape", "merge", in, [n = r, m = c](Inputs x) { return reshape(x[0], {2 * n, m}); });
    one("reshape", "of_transposed", in, [n = 2 * r * c](Inputs x) { return reshape(transpose(x[0], 0, 2), {n}); });
    one("reshape", "split", {floats({r, 2 * c})}, [n = r, m = c](Inputs x) { return reshape(x[0], {n, 2, m}); });
    one("transpose", "last", in, [](Inputs x) { return transpose(x[0]); });
    one("transpose", "outer", in, [](Inputs x) { return transpose(x[0], 0, 2); });
    one("transpose", "contiguous", in, [](Inputs x) { return transpose(x[0]).contiguous(); });
    one("slice", "front", in, [n = c](Inputs x) { return slice(x[0], 2, 0, n / 2); });
    one("slice", "back", in, [n = r](Inputs x) { return slice(x[0], 1, n / 2, n); });
    one("slice", "overlapping", in, [](Inputs x) { return slice(x[0], 0, 0, 1) + slice(x[0], 0, -1, 2); });
    one("expand", "column", {floats({r, 1})}, [n = r, m = c](Inputs x) { return expand(x[0], {2, n, m}); });
    one("concat", "first", {floats({r, c}), floats({2, c}), floats({r, c})}, [](Inputs x) { return concat(x, 0); });
    one("concat", "last", {floats({r, c}), floats({r, 3})}, [](Inputs x) { return concat(x, -1); });
    one("concat", "twice_the_same", {floats({r, c})}, [](Inputs x) { return concat({x[0], x[0]}, 1); });
    one("permute", "turn", in, [](Inputs x) { return permute(x[0], {2, 0, 1}); });
    one("permute", "reverse", in, [](Inputs x) { return permute(x[0], {-1, -2, -3}); });
    one("unsqueeze", "last", in, [](Inputs x) { return unsqueeze(x[0], -1); });
    one("squeeze", "middle", {floats({r, 1, c})}, [](Inputs x) { return squeeze(x[0], 1); });
    one("flatten", "all", in, [](Inputs x) { return flatten(x[0]); });
    one("flatten", "of_permuted", in, [](Inputs x) { return flatten(permute(x[0], {1, 2, 0}), 0, 1); });
    one("stack", "first", {floats({r, c}), floats({r, c})}, [](Inputs x) { return stack(x); });
    one("stack", "last", {floats({r, c}), floats({r, c})}, [](Inputs x) { return stack(x, -1); });
    one("repeat", "both", {floats({r, c})}, [](Inputs x) { return repeat(x[0], {2, 3}); });
    one("repeat", "none", {floats({r, c})}, [](Inputs x) { return repeat(x[0], {1, 0}); });
    one("tril", "plain", in, [](Inputs x) { return tril(x[0]); });
    one("tril", "above", {floats({r, c})}, [](Inputs x) { return tril(x[0], 1); });
    one("triu", "below", in, [](Inputs x) { return triu(x[0], -1); });
    one("pad", "zeros", in, [](Inputs x) { return pad(x[0], {{1, 0}, {0, 2}, {3, 1}}); });
    one("pad", "value", {floats({r, c})}, [](Inputs x) { return pad(x[0], {{0, 1}, {2, 0}}, 0.5); });
    one("flip", "last", in, [](Inputs x) { return flip(x[0], {-1}); });
    one("flip", "outer", in, [](Inputs x) { return flip(x[0], {0, 2}); });
    no_grad("flip", "integers", {indices({r, c}, 9)}, [](Inputs x) { return flip(x[0], {0}); });
    for (const int64_t step : {2, 3})
      one("slice", "step_" + std::to_string(step), in, [=, n = c](Inputs x) { return slice(x[0], 2, n / 3, n, step); });
    several("chunk", "last", {floats({r, 3 * c})}, [](Inputs x) { return chunk(x[0], 3, -1); });
    one("chunk", "one_part", {floats({4, c})}, [](Inputs x) { return chunk(x[0], 2, 0)[1]; });
    several("unbind", "first", in, [](Inputs x) { return unbind(x[0]); });
    one("unbind", "one_part", {floats({r, 3, c})}, [](Inputs x) { return unbind(x[0], 1)[2]; });
    list.emplace_back("split", "last", in, [n = c](Inputs x) { return split(x[0], {n / 2, n - n / 2}, -1); });
    one("split", "one_part", in, [n = r](Inputs x) { return split(x[0], {n / 2, n - n / 2}, 1)[1]; });
  }
  void products() {
    for (int k = 0; k < 4; ++k) {
      const MatmulOptions o{.trans_a = k % 2 == 1, .trans_b = k / 2 == 1};
      const std::string flags = std::string(o.trans_a ? "_ta" : "") + (o.trans_b ? "_tb" : "");
      const auto a = [&](Shape s) { return o.trans_a ? std::swap(s[s.size() - 2], s.back()), floats(s) : floats(s); };
      const auto b = [&](Shape s) { return o.trans_b ? std::swap(s[s.size() - 2], s.back()), floats(s) : floats(s); };
      const auto f = [o](Inputs x) { return matmul(x[0], x[1], o); };
      one("matmul", "2d" + flags, {a({r, c}), b({c, 4})}, f);
      one("matmul", "batched" + flags, {a({2, r, c}), b({2, c, 3})}, f);
      one("matmul", "broadcast" + flags, {a({2, 1, r, c}), b({3, c, 2})}, f);
      one("matmul", "shared_b" + flags, {a({2, r, c}), b({c, 3})}, f);
      one("matmul", "shared_a" + flags, {a({4, c}), b({2, c, r})}, f);
    }
    one("matmul", "itself", {floats({r, c})}, [](Inputs x) { return matmul(x[0], x[0], {.trans_b = true}); });
    const auto with_bias = [](Inputs x) { return linear(x[0], x[1], x[2]); };
    one("linear", "no_bias", {floats({2, r, c}), floats({4, c})}, [](Inputs x) { return linear(x[0], x[1]); });
    one("linear", "bias", {floats({2, r, c}), floats({4, c}), floats({4})}, with_bias);
    [&]<class... F>(op::TypeList<F...>) { (linear_activation<F>({2, r, c}, {4, c}), ...); }(op::ActivationFns{});
    for (const bool based : {false, true}) {
      std::vector<TensorInit> in{floats({2, r, c}), floats({c, 3}), floats({3, 4})};
      if (based) in.push_back(floats({2, r, 4}));
      one("lora", based ? "base" : "delta", in,
          [based](Inputs x) { return lora(x[0], x[1], x[2], 0.75, based ? x[3] : Tensor()); });
    }
    one("linear", "vector", {floats({c}), floats({r, c}), floats({r})}, with_bias);
  }
  template <class F> void linear_activation(const Shape& x, const Shape& weight) {
    const auto domain = [](Shape s) { return floats(std::move(s)); };
    for (const bool bias : {false, true}) {
      std::vector<TensorInit> in{domain(x), domain(weight)};
      if (bias) in.push_back(domain({weight[0]}));
      one(op::LinearActivation<F>::kName, bias ? "bias" : "no_bias", in,
          [](Inputs t) { return emit(make_ref<op::LinearActivation<F>>(MatmulPrecision::highest), t)[0]; });
    }
  }
  void rows() {
    one("softmax", "last", {floats({2, r, c})}, [](Inputs x) { return softmax(x[0]); });
    one("softmax", "middle", {floats({2, r, c})}, [](Inputs x) { return softmax(x[0], 1); });
    one("log_softmax", "last", {floats({2, r, c})}, [](Inputs x) { return log_softmax(x[0]); });
    one("log_softmax", "middle", {floats({2, r, c})}, [](Inputs x) { return log_softmax(x[0], 1); });
    one("softmax", "large", {floats({r, c}, 1000, 1004)}, [](Inputs x) { return softmax(x[0]); });
    if (c == 0) return;
    // eps is large: a small one magnifies rounding of one column, or of two nearly equal ones.
    const TensorInit x = floats({2, r, c}, 1, 3), w = floats({c}, 0.5), b = floats({c});
    one("layer_norm", "plain", {x}, [](Inputs in) { return layer_norm(in[0], {}, {}, 0.1); });
    one("layer_norm", "weight", {x, w}, [](Inputs in) { return layer_norm(in[0], in[1], {}, 0.1); });
    one("layer_norm", "bias", {x, w, b}, [](Inputs in) { return layer_norm(in[0], in[1], in[2], 0.1); });
    one("rms_norm", "plain", {x}, [](Inputs in) { return rms_norm(in[0], {}, 0.1); });
    one("rms_norm", "weight", {x, w}, [](Inputs in) { return rms_norm(in[0], in[1], 0.1); });
    const TensorInit more = floats({2, r, c}, 0);
    const auto both = [&](std::string op, const char* variant, std::vector<TensorInit> in, AddedNorm (*f)(Inputs)) {
      list.emplace_back(std::move(op), variant, std::move(in), [f](Inputs v) {
        const AddedNorm a = f(v);
        return Tensors{a.sum, a.y};
      });
    };
    both("add_layer_norm", "plain", {x, more}, [](Inputs v) { return add_layer_norm(v[0], v[1], {}, {}, 0.1); });
    both("add_layer_norm", "weight", {x, more, w}, [](Inputs v) { return add_layer_norm(v[0], v[1], v[2], {}, 0.1); });
    both("add_layer_norm", "bias", {x, more, w, b},
         [](Inputs v) { return add_layer_norm(v[0], v[1], v[2], v[3], 0.1); });
    both("add_rms_norm", "plain", {x, more}, [](Inputs v) { return add_rms_norm(v[0], v[1], {}, 0.1); });
    both("add_rms_norm", "weight", {x, more, w}, [](Inputs v) { return add_rms_norm(v[0], v[1], v[2], 0.1); });
    one("add_layer_norm", "y", {x, more, w, b}, [](Inputs v) { return add_layer_norm(v[0], v[1], v[2], v[3], 0.1).y; });
    one("add_rms_norm", "itself", {floats({2, r, c}, 0.5, 1.5), w},
        [](Inputs v) { return add_rms_norm(v[0], v[0], v[1], 0.1).y; });
  }
  void lookups() {
    const std::vector<TensorInit> in{indices({2, r}, 4), floats({4, c})};
    one("embedding", "i64", in, [](Inputs x) { return embedding(x[0], x[1]); });
    one("embedding", "i32", in, [](Inputs x) { return embedding(x[0].to(DType::i32), x[1]); });
    const auto sorted = [](int64_t dim, bool descending) {
      return [=](Inputs x) {
        const Sorted s = sort(x[0], dim, {descending});
        return Tensors{s.values, s.indices};
      };
    };
    several("sort", "last", {floats({2, r, c})}, sorted(-1, false));
    several("sort", "middle_descending", {floats({2, r + 2, c})}, sorted(1, true));
    several("sort", "integers", {indices({r, 4 * c}, 5)}, sorted(-1, true)).gradcheck = 0;
    no_grad("argsort", "first", {indices({r, c}, 3)}, [](Inputs x) { return argsort(x[0].to(DType::i32), 0); });
    no_grad("argsort", "ties", {indices({2, r, 2 * c}, 3), floats({})},
            [](Inputs x) { return argsort(x[0].to(x[1].dtype()), -1, {.descending = true}); });
    if (c == 0) return;
    one("embedding", "tied", in, [](Inputs x) {
      const Tensor y = embedding(x[0], x[1]);
      return matmul(y, transpose(x[1], 0, 1));
    });
    no_grad("argmax", "last", {floats({2, r, c})}, [](Inputs x) { return argmax(x[0], -1); });
    list.emplace_back("topk", "some", std::vector{floats({r, c})}, [k = (c + 1) / 2](Inputs x) {
      const TopK t = topk(x[0], k);
      return Tensors{t.values, t.indices};
    });
    if (r > 0) no_grad("argmax", "middle", {floats({2, r, c})}, [](Inputs x) { return argmax(x[0], 1); });
  }
  void indexing() {
    const TensorInit from = floats({2, 4, c});
    one("index_select", "middle", {from, indices({r}, 4)}, [](Inputs v) { return index_select(v[0], 1, v[1]); });
    one("index_select", "first", {floats({4, c}), indices({r}, 4)},
        [](Inputs v) { return index_select(v[0], 0, v[1].to(DType::i32)); });
    one("index_select", "last", {floats({r, 4}), indices({c}, 4)},
        [](Inputs v) { return index_select(v[0], -1, v[1]); });
    one("index_select", "twice", {from, indices({r}, 4), indices({r}, 4)},
        [](Inputs v) { return index_select(v[0], 1, v[1]) * index_select(v[0], 1, v[2]); });
    no_grad("index_select", "integers", {indices({r, 4}, 9), indices({c}, 4)},
            [](Inputs v) { return index_select(v[0], -1, v[1]); });
    one("gather", "middle", {from, indices({1, r, c}, 4)}, [](Inputs v) { return gather(v[0], 1, v[1]); });
    one("gather", "last", {floats({r, 4}), indices({r, c}, 4)},
        [](Inputs v) { return gather(v[0], -1, v[1].to(DType::i32)); });
    no_grad("gather", "integers", {indices({r, 4}, 9), indices({r, c}, 4)},
            [](Inputs v) { return gather(v[0], -1, v[1]); });
    const auto update = [&](const char* variant, size_t dim, std::vector<TensorInit> in) {
      no_grad("slice_update", variant, std::move(in), [dim](Inputs v) {
        return emit1(make_ref<op::SliceUpdate>(dim), {v[0].detach(), v[1].detach(), v[2]});
      });
    };
    update("rows", 1, {floats({3, r + 2, c}), floats({3, r, c}), indices({3}, 3)});
    update("last", 1, {floats({r, c + 1}), floats({r, c}), indices({r}, 2)});
    update("one_start", 0, {floats({r + 2, c}), floats({r, c}), indices({}, 3)});
    update("integers", 1, {indices({2, r + 2, c}, 9), indices({2, r, c}, 9), indices({2}, 3)});
    const auto add = [](int64_t dim) { return [dim](Inputs v) { return scatter_add(v[0], dim, v[1], v[2]); }; };
    one("scatter_add", "middle", {from, indices({1, r, c}, 4), floats({1, r, c})}, add(1));
    one("scatter_add", "last", {floats({r, 4}), indices({r, c}, 4), floats({r, c})}, add(-1));
    one("scatter_add", "line", {floats({4}), indices({c}, 4), floats({c})},
        [](Inputs v) { return scatter_add(v[0], 0, v[1].to(DType::i32), v[2]); });
    one("index_add", "first", {floats({4, c}), indices({r}, 4), floats({r, c})},
        [](Inputs v) { return index_add(v[0], 0, v[1], v[2]); });
    one("index_add", "last", {floats({r, 4}), indices({c}, 4), floats({r, c})},
        [](Inputs v) { return index_add(v[0], -1, v[1].to(DType::i32), v[2]); });
    no_grad("scatter_add", "integers", {indices({r, 4}, 9), indices({r, c}, 4), indices({r, c}, 9)}, add(-1));
  }
  void others() {
    one("dropout", "half", {floats({r, c})}, [](Inputs x) {
      Rng rng{7, 1};
      return dropout(x[0], 0.5, rng);
    });
    no_grad("square_sums", "three", {floats({r, c}), floats({c}), floats({})},
            [](Inputs x) { return detail::square_sums(x); });
    no_grad("norm_of_square_sums", "some", {floats({c})}, [](Inputs x) {
      return detail::norm_of_square_sums(x[0].to(DType::f64) * x[0].to(DType::f64), DType::f64);
    });
    several("reduce_scatter", "alone", {floats({r, c}), floats({c})}, [](Inputs x) {
      return reduce_scatter(x, {0, x[0].numel() + x[1].numel()}, Communicator::self());
    }).gradcheck = 0;
    several("all_gather_parts", "alone", {floats({r, c}), floats({c})}, [](Inputs x) {
      const std::vector<Tensor> w = {x[0].detach().contiguous(), x[1].detach().contiguous()};
      detail::all_gather_parts(w, {0, x[0].numel() + x[1].numel()}, Communicator::self());
      return Tensors{w[0], w[1]};
    }).gradcheck = 0;
    several("all_reduce", "alone", {floats({r, c}), floats({c})}, [](Inputs x) {
      return all_reduce(x, Communicator::self());
    }).gradcheck = 0;
    several("finish_sums", "two at once", {floats({r, c}), floats({c})}, [](Inputs x) {
      PendingSums a = start_all_reduce(x, Communicator::self()), b = start_all_reduce(x, Communicator::self());
      const Tensors y = b.finish();
      return Tensors{a.finish()[0], y[1]};
    }).gradcheck = 0;
    if (c > 0)
      for (const bool replacement : {false, true})
        no_grad("multinomial", replacement ? "replacement" : "without", {floats({2, r, c}, 0.25, 1)},
                [=, k = replacement ? 3 : (c + 1) / 2](Inputs x) {
                  Rng rng{7, 1};
                  return multinomial(x[0], k, replacement, rng);
                });
    no_grad("linspace", "plain", {floats({c})},
            [n = c](Inputs x) { return linspace(-1.5, 2, n, x[0].dtype(), x[0].device()); });
    no_grad("randint", "plain", {floats({r, c})}, [](Inputs x) {
      Rng rng{7, 1};
      return randint(x[0].shape(), rng, -3, 1 << 20, DType::i64, x[0].device());
    });
    no_grad("detach", "plain", {floats({r, c})}, [](Inputs x) { return x[0].detach(); });
  }
};
}  // namespace

std::vector<OpCase> op_cases(CaseSizes s) {
  Cases c{{s.rows, s.cols}};
  c.unaries(op::UnaryFns());
  c.binaries(op::BinaryFns());
  c.comparisons(op::CompareFns());
  c.choices();
  c.reductions();
  c.views();
  c.products();
  c.rows();
  c.lookups();
  c.indexing();
  add_layer_cases(c.list, s);
  add_code_cases(c.list, s);
  c.others();
  keep_chosen(c.list, s.rows == CaseSizes{}.rows && s.cols == CaseSizes{}.cols);
  return std::move(c.list);
}

std::vector<Tensor> make_inputs(const OpCase& c, DType t, uint64_t seed) {
  Rng rng{seed};
  std::vector<Tensor> r;
  for (const TensorInit& i : c.in) {
    std::vector<double> v(static_cast<size_t>(i.shape.product()));
    for (double& x : v) {
      x = i.lo + (i.hi - i.lo) * double(rng.uniform());
      if (i.cell > 0) {
        const double k = std::floor(x / i.cell), within = x / i.cell - k;
        x = (k + i.at + 0.4 * (within - 0.5)) * i.cell;
      }
      if (i.index) x = std::floor(x);
    }
    r.push_back(tensor<double>(v, i.shape).to(i.index ? DType::i64 : t));
  }
  return r;
}
}  // namespace tg
