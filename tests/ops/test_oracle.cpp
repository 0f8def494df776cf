// PyTorch's values are in tests/data/ops.safetensors.
#include <tapegrad/ops/ops.h>

#include <map>
#include <set>

#include "support/gpt_oracle.h"

using namespace tg;
namespace {
using Function = std::function<Tensors(Inputs, const Json&)>;
template <class T = int64_t> T at(const Json& a, const char* name) { return a.at(name).get<T>(); }
Dims dims_of(const Json& j) {
  const auto v = j.get<std::vector<int64_t>>();
  return Dims(v.begin(), v.end());
}
Tensor optional(Inputs x, size_t i) { return x.size() > i ? x[i] : Tensor(); }
Reduction reduction_of(const Json& a) {
  const auto name = at<std::string>(a, "reduction");
  return name == "mean" ? Reduction::mean : name == "sum" ? Reduction::sum : Reduction::none;
}

struct Functions {
  std::map<std::string, Function> all;

  void one(const std::string& name, std::function<Tensor(Inputs, const Json&)> f) {
    all[name] = [f = std::move(f)](Inputs x, const Json& a) { return Tensors{f(x, a)}; };
  }
  template <class... F> void unary(op::TypeList<F...>) {
    (one(F::kName, [](Inputs x, const Json&) { return emit1(stateless<op::Unary<F>>(), {x[0]}); }), ...);
  }
  template <class... F> void binary(op::TypeList<F...>) {
    (one(F::kName,
         [](Inputs x, const Json& a) {
           if (!a.contains("number")) return emit1(stateless<op::Binary<F>>(), {x[0], x[1]});
           return emit1(make_ref<op::BinaryScalar<F>>(at<double>(a, "number"), at<bool>(a, "left")), {x[0]});
         }),
     ...);
  }
  template <class... F> void compare(op::TypeList<F...>) {
    (one(F::kName,
         [](Inputs x, const Json& a) {
           const NoGradScope off;
           if (!a.contains("number")) return emit1(stateless<op::Compare<F>>(), {x[0], x[1]});
           return emit1(make_ref<op::CompareScalar<F>>(at<double>(a, "number")), {x[0]});
         }),
     ...);
  }
  template <class... F> void activations(op::TypeList<F...>) {
    (one(op::LinearActivation<F>::kName,
         [](Inputs x, const Json&) { return emit(make_ref<op::LinearActivation<F>>(MatmulPrecision::highest), x)[0]; }),
     ...);
  }
  void choices() {
    one("where", [](Inputs x, const Json&) { return where(x[0].to(DType::boolean), x[1], x[2]); });
    one("masked_fill",
        [](Inputs x, const Json& a) { return masked_fill(x[0], x[1].to(DType::boolean), at<double>(a, "value")); });
    one("clamp", [](Inputs x, const Json& a) {
      ClampOptions o;
      if (a.contains("min")) o.min = at<double>(a, "min");
      if (a.contains("max")) o.max = at<double>(a, "max");
      return clamp(x[0], o);
    });
    one("argmax", [](Inputs x, const Json& a) { return argmax(x[0], at(a, "dim")); });
    one("argsort", [](Inputs x, const Json& a) { return argsort(x[0], at(a, "dim"), {at<bool>(a, "descending")}); });
    all["sort"] = [](Inputs x, const Json& a) {
      const Sorted s = sort(x[0], at(a, "dim"), {at<bool>(a, "descending")});
      return Tensors{s.values, s.indices};
    };
    all["topk"] = [](Inputs x, const Json& a) {
      const TopK t = topk(x[0], at(a, "k"));
      return Tensors{t.values, t.indices};
    };
  }
  void reductions() {
    const auto add = [&](const char* name,
                         auto f) {  // empty "dims": all
      one(name, [f](Inputs x, const Json& a) {
        return a.at("dims").empty() ? f(x[0]) : f(x[0], dims_of(a["dims"]), ReduceOptions{at<bool>(a, "keepdim")});
      });
    };
    add("sum", [](auto&&... x) { return sum(x...); });
    add("mean", [](auto&&... x) { return mean(x...); });
    add("max", [](auto&&... x) { return max(x...); });
    add("min", [](auto&&... x) { return min(x...); });
    one("var", [](Inputs x, const Json& a) {
      if (a.at("dims").empty()) return var(x[0]);
      return var(x[0], dims_of(a["dims"]), {at<bool>(a, "keepdim"), at<double>(a, "correction")});
    });
    one("cumsum", [](Inputs x, const Json& a) { return cumsum(x[0], at(a, "dim")); });
    one("logsumexp",
        [](Inputs x, const Json& a) { return logsumexp(x[0], dims_of(a.at("dims")), {at<bool>(a, "keepdim")}); });
    all["scan"] = [](Inputs x, const Json& a) -> Tensors {
      if (x.size() == 2)
        return {scan([](Inputs p, Inputs q) { return Tensors{p[0] * q[0], q[0] * p[1] + q[1]}; }, x, at(a, "dim"))[1]};
      const bool product = at<std::string>(a, "name") == "cumprod";
      const auto f = [=](const Tensor& p, const Tensor& q) { return product ? p * q : maximum(p, q); };
      return {scan(f, x[0], at(a, "dim"))};
    };
    one("normalize", [](Inputs x, const Json& a) {
      const double p = at<double>(a, "p");
      return normalize(x[0], p == 0 ? INFINITY : p, at(a, "dim"), at<double>(a, "eps"));
    });
    one("linspace", [](Inputs x, const Json& a) {
      return x[0] * linspace(at<double>(a, "start"), at<double>(a, "stop"), x[0].size(-1), x[0].dtype());
    });
    one("sum_to", [](Inputs x, const Json& a) { return detail::sum_to(x[0], dims_of(a.at("shape"))); });
  }
  void shapes() {
    one("reshape", [](Inputs x, const Json& a) { return reshape(x[0], dims_of(a.at("shape"))); });
    one("transpose", [](Inputs x, const Json& a) { return transpose(x[0], at(a, "dim0"), at(a, "dim1")); });
    one("slice", [](Inputs x, const Json& a) {
      if (a.contains("step")) return slice(x[0], at(a, "dim"), at(a, "start"), at(a, "stop"), at(a, "step"));
      return slice(x[0], at(a, "dim"), at(a, "start"), at(a, "stop"));
    });
    one("flip", [](Inputs x, const Json& a) { return flip(x[0], dims_of(a.at("dims"))); });
    all["chunk"] = [](Inputs x, const Json& a) { return chunk(x[0], at(a, "parts"), at(a, "dim")); };
    all["unbind"] = [](Inputs x, const Json& a) { return unbind(x[0], at(a, "dim")); };
    all["split"] = [](Inputs x, const Json& a) { return split(x[0], dims_of(a.at("sizes")), at(a, "dim")); };
    one("expand", [](Inputs x, const Json& a) { return expand(x[0], dims_of(a.at("shape"))); });
    one("concat", [](Inputs x, const Json& a) { return concat(x, at(a, "dim")); });
    one("tril", [](Inputs x, const Json& a) { return tril(x[0], at(a, "diagonal")); });
    one("triu", [](Inputs x, const Json& a) { return triu(x[0], at(a, "diagonal")); });
    one("pad", [](Inputs x, const Json& a) {
      std::vector<Padding> widths;
      for (const auto& w : at<std::vector<std::vector<int64_t>>>(a, "widths")) widths.push_back({w.at(0), w.at(1)});
      return pad(x[0], widths, at<double>(a, "value"));
    });
    one("cast", [](Inputs x, const Json& a) {
      return x[0].to(a.at("dtype") == "bfloat16" ? DType::bf16 : DType::f32).to(x[0].dtype());
    });
  }
  void indexing() {
    one("gather", [](Inputs x, const Json& a) { return gather(x[0], at(a, "dim"), x[1]); });
    one("index_select", [](Inputs x, const Json& a) { return index_select(x[0], at(a, "dim"), x[1]); });
    one("scatter_add", [](Inputs x, const Json& a) { return scatter_add(x[0], at(a, "dim"), x[1], x[2]); });
    one("index_add", [](Inputs x, const Json& a) { return index_add(x[0], at(a, "dim"), x[1], x[2]); });
    one("embedding", [](Inputs x, const Json&) { return embedding(x[0], x[1]); });
  }
  void networks() {
    one("matmul", [](Inputs x, const Json& a) {
      return matmul(x[0], x[1], {at<bool>(a, "trans_a"), at<bool>(a, "trans_b")});
    });
    one("linear", [](Inputs x, const Json&) { return x.size() > 2 ? linear(x[0], x[1], x[2]) : linear(x[0], x[1]); });
    one("conv1d", [](Inputs x, const Json& a) {
      return conv1d(x[0], x[1], optional(x, 2),
                    {.stride = at(a, "stride"),
                     .padding = {at(a, "before"), at(a, "after")},
                     .dilation = at(a, "dilation"),
                     .groups = at(a, "groups"),
                     .causal = at<bool>(a, "causal")});
    });
    one("fragment_weights", [](Inputs x, const Json&) { return fragment_weights(x[0], x[1]); });
    one("index_matmul", [](Inputs x, const Json& a) { return index_matmul(x[0], x[1], x[2], at<bool>(a, "trans_b")); });
    one("lora", [](Inputs x, const Json&) { return lora(x[0], x[1], x[2], 0.75, optional(x, 3)); });
    one("softmax", [](Inputs x, const Json& a) { return softmax(x[0], at(a, "dim")); });
    one("log_softmax", [](Inputs x, const Json& a) { return log_softmax(x[0], at(a, "dim")); });
    one("layer_norm",
        [](Inputs x, const Json& a) { return layer_norm(x[0], optional(x, 1), optional(x, 2), at<double>(a, "eps")); });
    one("rms_norm", [](Inputs x, const Json& a) { return rms_norm(x[0], optional(x, 1), at<double>(a, "eps")); });
    const auto both = [](const AddedNorm& a) { return Tensors{a.sum, a.y}; };
    all["add_layer_norm"] = [=](Inputs x, const Json& a) {
      return both(add_layer_norm(x[0], x[1], optional(x, 2), optional(x, 3), at<double>(a, "eps")));
    };
    all["add_rms_norm"] = [=](Inputs x, const Json& a) {
      return both(add_rms_norm(x[0], x[1], optional(x, 2), at<double>(a, "eps")));
    };
    one("rope", [](Inputs x, const Json& a) {
      RopeOptions o{at<double>(a, "theta"), at(a, "start"), optional(x, 1)};
      if (a.contains("scaling")) o.scaling = rope_scaling_of(a.at("scaling"));
      if (a.contains("fraction")) o.scaling.fraction = at<double>(a, "fraction");
      if (a.contains("heads")) o.heads = at(a, "heads");
      return rope(x[0], o);
    });
    one("swiglu", [](Inputs x, const Json&) { return swiglu(x[0]); });
    one("attention", [](Inputs x, const Json& a) {
      AttentionOptions o{at<bool>(a, "causal"), at<double>(a, "scale"), optional(x, 3), optional(x, 4)};
      Rng rng;
      if (a.contains("dropout"))
        o.dropout = at<double>(a, "dropout"), rng = {at<uint64_t>(a, "seed"), at<uint64_t>(a, "offset")}, o.rng = &rng;
      return attention(x[0], x[1], x[2], o);
    });
    one("self_attention", [](Inputs x, const Json& a) {
      return self_attention(x[0], at(a, "kv_heads"), {at<bool>(a, "causal"), at<double>(a, "scale"), optional(x, 1)});
    });
    one("mse_loss", [](Inputs x, const Json& a) { return mse_loss(x[0], x[1], reduction_of(a)); });
    one("l1_loss", [](Inputs x, const Json& a) { return l1_loss(x[0], x[1], reduction_of(a)); });
    one("huber_loss",
        [](Inputs x, const Json& a) { return huber_loss(x[0], x[1], at<double>(a, "delta"), reduction_of(a)); });
    one("bce_with_logits", [](Inputs x, const Json& a) { return bce_with_logits(x[0], x[1], reduction_of(a)); });
    const auto loss_options = [](const Json& a) {
      CrossEntropyOptions o{.reduction = reduction_of(a)};
      if (a.contains("label_smoothing")) o.label_smoothing = at<double>(a, "label_smoothing");
      if (a.contains("ignore_index")) o.ignore_index = at(a, "ignore_index");
      return o;
    };
    one("cross_entropy", [=](Inputs x, const Json& a) { return cross_entropy(x[0], x[1], loss_options(a)); });
    one("linear_cross_entropy", [=](Inputs x, const Json& a) {
      return linear_cross_entropy(x[0], x[1], x[2], {loss_options(a), 3});
    });
  }
};
const std::map<std::string, Function>& functions() {
  static const auto all = [] {
    Functions f;
    f.unary(op::UnaryFns());
    f.binary(op::BinaryFns());
    f.compare(op::CompareFns());
    f.activations(op::ActivationFns());
    f.choices();
    f.reductions();
    f.shapes();
    f.indexing();
    f.networks();
    return f.all;
  }();
  return all;
}
std::string op_of(const std::string& key) { return key.substr(0, key.find('.')); }

void check_oracle(const SafetensorsFile& file, const std::string& key, const Json& attributes, DType t) {
  const auto read = [&](const std::string& name) {
    const Tensor x = file.tensor(key + name);
    return is_float(x.dtype()) ? x.to(t) : x;
  };
  // f64: two orders of summation. f32: exact inputs, a few roundings; "large": differences of numbers near 1000, spaced
  // 6e-5.
  const double tolerance = t == DType::f64 ? 1e-11 : key == "cross_entropy.large" ? 1e-4 : 1e-5;
  const auto check = [&](const Tensor& got, const std::string& name) {
    CAPTURE(key + name);
    CHECK(distance(got, file.tensor(key + name)) <= tolerance);
  };
  std::vector<Tensor> x;
  for (int i = 0; file.has(key + ".in" + std::to_string(i)); ++i) {
    x.push_back(read(".in" + std::to_string(i)));
    if (is_float(x.back().dtype())) x.back().requires_grad_();
  }
  const Tensors out = functions().at(op_of(key))(x, attributes);
  Tensor loss;
  for (size_t k = 0; k < out.size(); ++k) {
    check(out[k], ".out" + std::to_string(k));
    const std::string weight = k == 0 ? ".w" : ".w" + std::to_string(k);
    REQUIRE(file.has(key + weight) == is_float(file.tensor(key + ".out" + std::to_string(k)).dtype()));
    if (!file.has(key + weight)) continue;
    const Tensor part = sum(out[k] * read(weight));
    loss = loss ? loss + part : part;
  }
  CHECK_FALSE(file.has(key + ".out" + std::to_string(out.size())));
  if (!loss) return;
  const GradMap g = backward(loss);
  for (size_t i = 0; i < x.size(); ++i)
    if (is_float(x[i].dtype())) check(g[x[i]], ".grad" + std::to_string(i));
}
std::string no_case(std::string_view op) {
  return fmt::format(
      "the op '{}' has no case in tests/data/ops.safetensors. Add it to tests/data/make_fixtures.py, run "
      "that, and add a function for it to this file.",
      op);
}
}  // namespace

TEST_CASE("values and gradients of PyTorch") {
  const SafetensorsFile file(TG_TEST_DATA "/ops.safetensors");
  for (auto& [key, attributes] : file.metadata()) {
    REQUIRE_MESSAGE(functions().contains(op_of(key)),
                    "the case '" << key << "' has no function in this file. Add one.");
    for (DType t : {DType::f64, DType::f32}) check_oracle(file, key, detail::own_json(attributes), t);
  }
}
// A new op needs a case in make_fixtures.py (which finds pointwise functions) and a function above.
TEST_CASE("every differentiable op has values of PyTorch") {
  const SafetensorsFile file(TG_TEST_DATA "/ops.safetensors");
  std::set<std::string> names;
  for (auto& [key, attributes] : file.metadata())
    names.insert(op_of(key) + (detail::own_json(attributes).contains("number") ? "_scalar" : ""));
  for (auto& [name, f] : functions()) CHECK_MESSAGE(names.contains(name), no_case(name));
  const std::set<std::string_view> without{
      "dropout",            // another mask
      "block_linear",       // test_blocks.cpp
      "switchback_linear",  // test_switchback.cpp
      "switchback_mlp",    "gelu_quantize_rowwise",
      "fp8_linear",    // no gradient: test_fp8.cpp
      "bf16_copy",     // test_bf16_copy.cpp
      "own_gradient",  // user-defined: test_own_ops.cpp
      "checkpoint",    // test_recompute_block.cpp
  };
  for (const OpInfo& op : detail::all_ops()) {
    if (!(op.has_vjp || op.composes) || op.name.ends_with("_grad") || op.name.starts_with("test_")) continue;
    if (without.contains(op.name))
      CHECK_MESSAGE(!names.contains(std::string(op.name)),
                    "the op '" << op.name << "' has a case in tests/data/ops.safetensors: take it off this list.");
    else
      CHECK_MESSAGE(names.contains(std::string(op.name)), no_case(op.name));
  }
}
