// Values and gradients of every differentiable op against PyTorch's, in tests/data/ops.safetensors (make_fixtures.py
// wrote it and says what is in it).
#include <tapegrad/core/backend/registry.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/core/io/safetensors.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/ops.h>

#include <map>
#include <set>

#include "support/helpers.h"

using namespace tg;
namespace {
// The inputs of a case and its attributes -> outputs.
using Functions = std::map<std::string, std::function<Tensors(Inputs, const Json&)>>;

// Of the lists of pointwise functions: on tensors or, where there is a "number", on a tensor and that.
template <class... F> void add_unary(Functions& all, op::TypeList<F...>) {
  ((all[F::kName] = [](Inputs x, const Json&) { return Tensors{emit1(stateless<op::Unary<F>>(), {x[0]})}; }), ...);
}
template <class... F> void add_binary(Functions& all, op::TypeList<F...>) {
  ((all[F::kName] =
        [](Inputs x, const Json& a) {
          return Tensors{
              a.contains("number")
                  ? emit1(make_ref<op::BinaryScalar<F>>(a["number"].get<double>(), a.at("left").get<bool>()), {x[0]})
                  : emit1(stateless<op::Binary<F>>(), {x[0], x[1]})};
        }),
   ...);
}
template <class... F> void add_compare(Functions& all, op::TypeList<F...>) {
  ((all[F::kName] =
        [](Inputs x, const Json& a) {
          const NoGradScope off;
          return Tensors{a.contains("number") ? emit1(make_ref<op::CompareScalar<F>>(a["number"].get<double>()), {x[0]})
                                              : emit1(stateless<op::Compare<F>>(), {x[0], x[1]})};
        }),
   ...);
}
void add_choices(Functions& all) {
  all["where"] = [](Inputs x, const Json&) { return Tensors{where(x[0].to(DType::boolean), x[1], x[2])}; };
  all["masked_fill"] = [](Inputs x, const Json& a) {
    return Tensors{masked_fill(x[0], x[1].to(DType::boolean), a.at("value").get<double>())};
  };
  all["clamp"] = [](Inputs x, const Json& a) {
    ClampOptions o;
    if (a.contains("min")) o.min = a["min"].get<double>();
    if (a.contains("max")) o.max = a["max"].get<double>();
    return Tensors{clamp(x[0], o)};
  };
  all["argmax"] = [](Inputs x, const Json& a) { return Tensors{argmax(x[0], a.at("dim").get<int64_t>())}; };
  all["topk"] = [](Inputs x, const Json& a) {
    const TopK t = topk(x[0], a.at("k").get<int64_t>());
    return Tensors{t.values, t.indices};
  };
}
Dims dims_of(const Json& j) {
  const auto v = j.get<std::vector<int64_t>>();
  return Dims(v.begin(), v.end());
}
void add_reductions(Functions& all) {
  const auto add = [&](const char* name, auto f) {  // f of x and, but for all of them, dimensions and what to keep
    all[name] = [f](Inputs x, const Json& a) {
      return Tensors{a.at("dims").empty() ? f(x[0])
                                          : f(x[0], dims_of(a["dims"]), ReduceOptions{a.at("keepdim").get<bool>()})};
    };
  };
  add("sum", [](auto&&... x) { return sum(x...); });
  add("mean", [](auto&&... x) { return mean(x...); });
  add("max", [](auto&&... x) { return max(x...); });
  add("min", [](auto&&... x) { return min(x...); });
  all["var"] = [](Inputs x, const Json& a) {
    const bool whole = a.at("dims").empty();
    return Tensors{
        whole ? var(x[0])
              : var(x[0], dims_of(a["dims"]), {a.at("keepdim").get<bool>(), a.at("correction").get<double>()})};
  };
  all["cumsum"] = [](Inputs x, const Json& a) { return Tensors{cumsum(x[0], a.at("dim").get<int64_t>())}; };
  all["sum_to"] = [](Inputs x, const Json& a) { return Tensors{sum_to(x[0], dims_of(a.at("shape")))}; };
}
void add_shapes(Functions& all) {
  all["reshape"] = [](Inputs x, const Json& a) { return Tensors{reshape(x[0], dims_of(a.at("shape")))}; };
  all["transpose"] = [](Inputs x, const Json& a) {
    return Tensors{transpose(x[0], a.at("dim0").get<int64_t>(), a.at("dim1").get<int64_t>())};
  };
  all["slice"] = [](Inputs x, const Json& a) {
    return Tensors{slice(x[0], a.at("dim").get<int64_t>(), a.at("start").get<int64_t>(), a.at("stop").get<int64_t>())};
  };
  all["split"] = [](Inputs x, const Json& a) {
    return split(x[0], dims_of(a.at("sizes")), a.at("dim").get<int64_t>());
  };
  all["expand"] = [](Inputs x, const Json& a) { return Tensors{expand(x[0], dims_of(a.at("shape")))}; };
  all["concat"] = [](Inputs x, const Json& a) { return Tensors{concat(x, a.at("dim").get<int64_t>())}; };
  all["tril"] = [](Inputs x, const Json& a) { return Tensors{tril(x[0], a.at("diagonal").get<int64_t>())}; };
  all["triu"] = [](Inputs x, const Json& a) { return Tensors{triu(x[0], a.at("diagonal").get<int64_t>())}; };
  all["pad"] = [](Inputs x, const Json& a) {
    std::vector<Padding> widths;
    for (const auto& w : a.at("widths").get<std::vector<std::vector<int64_t>>>()) widths.push_back({w.at(0), w.at(1)});
    return Tensors{pad(x[0], widths, a.at("value").get<double>())};
  };
  all["cast"] = [](Inputs x, const Json& a) {
    return Tensors{x[0].to(a.at("dtype") == "bfloat16" ? DType::bf16 : DType::f32).to(x[0].dtype())};
  };
}
void add_indexing(Functions& all) {
  all["gather"] = [](Inputs x, const Json& a) { return Tensors{gather(x[0], a.at("dim").get<int64_t>(), x[1])}; };
  all["index_select"] = [](Inputs x, const Json& a) {
    return Tensors{index_select(x[0], a.at("dim").get<int64_t>(), x[1])};
  };
  all["scatter_add"] = [](Inputs x, const Json& a) {
    return Tensors{scatter_add(x[0], a.at("dim").get<int64_t>(), x[1], x[2])};
  };
  all["index_add"] = [](Inputs x, const Json& a) {
    return Tensors{index_add(x[0], a.at("dim").get<int64_t>(), x[1], x[2])};
  };
  all["embedding"] = [](Inputs x, const Json&) { return Tensors{embedding(x[0], x[1])}; };
}
Reduction reduction_of(const Json& a) {
  const auto name = a.at("reduction").get<std::string>();
  return name == "mean" ? Reduction::mean : name == "sum" ? Reduction::sum : Reduction::none;
}
void add_networks(Functions& all) {
  const auto optional = [](Inputs x, size_t i) { return x.size() > i ? x[i] : Tensor(); };
  all["matmul"] = [](Inputs x, const Json& a) {
    return Tensors{matmul(x[0], x[1], {a.at("trans_a").get<bool>(), a.at("trans_b").get<bool>()})};
  };
  all["linear"] = [](Inputs x, const Json&) {
    return Tensors{x.size() > 2 ? linear(x[0], x[1], x[2]) : linear(x[0], x[1])};
  };
  all["fragment_weights"] = [](Inputs x, const Json&) { return Tensors{fragment_weights(x[0], x[1])}; };
  all["index_matmul"] = [](Inputs x, const Json& a) {
    return Tensors{index_matmul(x[0], x[1], x[2], a.at("trans_b").get<bool>())};
  };
  [&]<class... F>(op::TypeList<F...>) {
    const auto add = [&](const char* name, OpPtr op) {
      all[name] = [op](Inputs x, const Json&) { return emit(op, x); };
    };
    (add(op::LinearActivation<F>::kName, make_ref<op::LinearActivation<F>>(MatmulPrecision::highest)), ...);
  }(op::ActivationFns{});
  all["lora"] = [](Inputs x, const Json&) {
    return Tensors{lora(x[0], x[1], x[2], 0.75, x.size() > 3 ? x[3] : Tensor())};
  };
  all["softmax"] = [](Inputs x, const Json& a) { return Tensors{softmax(x[0], a.at("dim").get<int64_t>())}; };
  all["log_softmax"] = [](Inputs x, const Json& a) { return Tensors{log_softmax(x[0], a.at("dim").get<int64_t>())}; };
  all["layer_norm"] = [=](Inputs x, const Json& a) {
    return Tensors{layer_norm(x[0], optional(x, 1), optional(x, 2), a.at("eps").get<double>())};
  };
  all["rms_norm"] = [=](Inputs x, const Json& a) {
    return Tensors{rms_norm(x[0], optional(x, 1), a.at("eps").get<double>())};
  };
  const auto both = [](const AddedNorm& a) { return Tensors{a.sum, a.y}; };
  all["add_layer_norm"] = [=](Inputs x, const Json& a) {
    return both(add_layer_norm(x[0], x[1], optional(x, 2), optional(x, 3), a.at("eps").get<double>()));
  };
  all["add_rms_norm"] = [=](Inputs x, const Json& a) {
    return both(add_rms_norm(x[0], x[1], optional(x, 2), a.at("eps").get<double>()));
  };
  all["rope"] = [=](Inputs x, const Json& a) {
    RopeOptions o{a.at("theta").get<double>(), a.at("start").get<int64_t>(), optional(x, 1)};
    if (a.contains("scaling")) {
      const Json& s = a.at("scaling");
      o.scaling = {.kind = RopeScalingKind::linear, .factor = s.at("factor").get<double>()};
      if (s.at("kind") == "llama3")
        o.scaling = {RopeScalingKind::llama3, s.at("factor").get<double>(), s.at("low_freq").get<double>(),
                     s.at("high_freq").get<double>(), s.at("original_context").get<int64_t>()};
    }
    if (a.contains("heads")) o.heads = a["heads"].get<int64_t>();
    return Tensors{rope(x[0], o)};
  };
  all["swiglu"] = [](Inputs x, const Json&) { return Tensors{swiglu(x[0])}; };
  all["attention"] = [=](Inputs x, const Json& a) {
    return Tensors{attention(
        x[0], x[1], x[2], {a.at("causal").get<bool>(), a.at("scale").get<double>(), optional(x, 3), optional(x, 4)})};
  };
  all["self_attention"] = [=](Inputs x, const Json& a) {
    const AttentionOptions o{a.at("causal").get<bool>(), a.at("scale").get<double>(), optional(x, 1)};
    return Tensors{self_attention(x[0], a.at("kv_heads").get<int64_t>(), o)};
  };
  all["mse_loss"] = [](Inputs x, const Json& a) { return Tensors{mse_loss(x[0], x[1], reduction_of(a))}; };
  all["bce_with_logits"] = [](Inputs x, const Json& a) {
    return Tensors{bce_with_logits(x[0], x[1], reduction_of(a))};
  };
  all["cross_entropy"] = [](Inputs x, const Json& a) {
    CrossEntropyOptions o;
    o.reduction = reduction_of(a);
    if (a.contains("ignore_index")) o.ignore_index = a["ignore_index"].get<int64_t>();
    o.label_smoothing = a.contains("label_smoothing") ? a["label_smoothing"].get<double>() : 0.0;
    return Tensors{cross_entropy(x[0], x[1], o)};
  };
}
const Functions& functions() {
  static const Functions all = [] {
    Functions f;
    add_unary(f, op::UnaryFns());
    add_binary(f, op::BinaryFns());
    add_compare(f, op::CompareFns());
    add_choices(f);
    add_reductions(f);
    add_shapes(f);
    add_indexing(f);
    add_networks(f);
    return f;
  }();
  return all;
}
std::string op_of(const std::string& key) { return key.substr(0, key.find('.')); }

void check_oracle(const SafetensorsFile& file, const std::string& key, const Json& attributes, DType t) {
  const auto read = [&](const std::string& name) {
    const Tensor x = file.tensor(key + name);
    return is_float(x.dtype()) ? x.to(t) : x;
  };
  // f64: two orders of one sum apart. f32: the inputs are exact, the results are rounded a few times; of "large" they
  // are differences of numbers near 1000, whose spacing is 6e-5.
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
    for (DType t : {DType::f64, DType::f32}) check_oracle(file, key, own_json(attributes), t);
  }
}
// A new one: add it to make_fixtures.py (pointwise functions are found there by themselves), run that, and add it
// above.
TEST_CASE("every differentiable op has values of PyTorch") {
  const SafetensorsFile file(TG_TEST_DATA "/ops.safetensors");
  std::set<std::string> names;
  for (auto& [key, attributes] : file.metadata())
    names.insert(op_of(key) + (own_json(attributes).contains("number") ? "_scalar" : ""));
  for (auto& [name, f] : functions()) CHECK_MESSAGE(names.contains(name), no_case(name));
  const std::set<std::string_view> without{
      "dropout",            // PyTorch draws another mask
      "switchback_linear",  // its values and gradients have a file of their own: test_switchback.cpp
      "switchback_mlp",     // the same layers, in one op
      "gelu_quantize_rowwise",
      "fp8_linear",    // has no gradient; its formats are in test_fp8.cpp
      "bf16_copy",     // a view of what cast makes: test_bf16_copy.cpp
      "own_gradient",  // a gradient that somebody writes: test_own_ops.cpp
      "checkpoint",    // runs the ops of its function again: test_checkpoint.cpp compares with running them once
  };
  for (const OpInfo& op : all_ops()) {
    // Values of a gradient op are gradients of its op.
    if (!(op.has_vjp || op.composes) || op.name.ends_with("_grad") || op.name.starts_with("test_")) continue;
    if (without.contains(op.name))
      CHECK_MESSAGE(!names.contains(std::string(op.name)),
                    "the op '" << op.name << "' has a case in tests/data/ops.safetensors: take it off this list.");
    else
      CHECK_MESSAGE(names.contains(std::string(op.name)), no_case(op.name));
  }
}
