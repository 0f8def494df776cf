#include <tapegrad/core/check.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/io/gguf_read.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/rope.h>
#include <tapegrad/ops/shape_ops.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

namespace tg {
namespace {
using detail::GgufFile, detail::GgufTensor, detail::TensorMapping, detail::TensorSlice;

constexpr const char *kTable = "token_embd.weight", *kRopeFactors = "rope_freqs.weight";

// A file's keys of its architecture.
struct GgufKeys {
  const GgufFile& file;
  Family family = Family::none;

  explicit GgufKeys(const GgufFile& of) : file(of) {
    TG_CHECK(file.get<std::string>("general.type").value_or("model") != "adapter", value,
             "[gguf] {} is an adapter, and adapters are read as folders of PEFT. Pass the folder that `finetune` or "
             "PEFT wrote to --adapter.",
             file.path());
    const std::string arch = file.get<std::string>("general.architecture").value_or("");
    for (const Family f : {Family::gpt2, Family::llama, Family::qwen2, Family::qwen3})
      if (name_of(f) == arch) family = f;
    TG_CHECK(family != Family::none, value,
             "[gguf] {} has the architecture \"{}\", and gpt2, llama, qwen2 and qwen3 are read. Pass a model of one of "
             "them.",
             file.path(), arch);
  }
  std::string key(const char* name) const { return fmt::format("{}.{}", name_of(family), name); }
  template <class T> std::optional<T> get(const char* name) const { return file.get<T>(key(name)); }
  int64_t need(const char* name) const {
    const auto x = get<int64_t>(name);
    TG_CHECK(x, value, "[gguf] {} has no '{}'. Download it anew.", file.path(), key(name));
    return *x;
  }
  void expect(bool fits, const char* name, std::string_view is, std::string_view rule) const {
    TG_CHECK(fits, value, "[gguf] {}: '{}' is {}, and a Gpt has {}. Pass a model without it.", file.path(), key(name),
             is, rule);
  }
  bool has(const std::string& tensor) const { return file.tensors().contains(tensor); }
};

// llama.cpp has the factors of frequencies alone. All published models have low_freq 1 and high_freq 4.
RopeScaling llama3_scaling(const GgufFile& file, double theta, int64_t pairs) {
  const GgufTensor& t = file.tensors().at(kRopeFactors);
  const bool fits = pairs > 0 && t.shape == Shape{pairs} && t.dtype == DType::f32;
  std::vector<float> f(fits ? size_t(pairs) : 0);
  if (fits) file.read(kRopeFactors, std::as_writable_bytes(std::span(f)));
  RopeScaling s{.kind = RopeScalingKind::llama3, .factor = fits ? std::ranges::max(f) : 0};
  s.low_freq = 1, s.high_freq = 4, s.original_context = 8192;
  if (fits && std::ranges::all_of(f, [](float x) { return x == 1; })) return {};
  for (int64_t i = std::ssize(f); i-- > 0;)
    if (const double x = double(f[size_t(i)]); x > 1.0001 && x < 0.9999 * s.factor) {
      const double kept = (1 / x - 1 / s.factor) / (1 - 1 / s.factor);
      const double turns = 2 * std::numbers::pi * std::pow(theta, double(i) / double(pairs)) * (1 + 3 * kept);
      s.original_context = int64_t(std::clamp(std::round(turns), 1., 1e15));
    }
  bool same = fits && s.factor > 1 && std::isfinite(s.factor);
  for (int64_t i = 0; same && i < pairs; ++i) {
    const double made = kernel::rope_frequency(theta, {}, i, pairs) / kernel::rope_frequency(theta, s, i, pairs);
    same = std::abs(made / double(f[size_t(i)]) - 1) < 1e-5;
  }
  TG_CHECK(same, value,
           "[gguf] {}: {} is none of llama3's with low_freq 1 and high_freq 4. Pass the folder of Hugging Face.",
           file.path(), kRopeFactors);
  return s;
}

void read_rope(const GgufKeys& k, GptConfig& c) {
  c.positions = Positions::rope, c.norm = NormKind::rms_norm, c.activation = Activation::swiglu;
  c.head_dim = k.get<int64_t>("attention.key_length").value_or(0);
  const int64_t size = c.head_dim ? c.head_dim : c.width / std::max<int64_t>(c.heads, 1);
  for (const char* name : {"attention.value_length", "rope.dimension_count"})
    if (const auto n = k.get<int64_t>(name))
      k.expect(*n == size, name, std::to_string(*n), fmt::format("heads of {}", size));
  const auto kv = k.file.values().find(k.key("attention.head_count_kv"));
  if (kv != k.file.values().end() && kv->second.is_array()) {
    const Json& all = kv->second;
    const bool equal =
        !all.empty() && all[0].is_number_unsigned() && std::ranges::count(all, all[0]) == std::ssize(all);
    k.expect(equal, "attention.head_count_kv", detail::text_of(all), "as many in all layers");
    c.kv_heads = all[0].get<int64_t>();
  } else {
    c.kv_heads = k.get<int64_t>("attention.head_count_kv").value_or(0);
  }
  c.rope_theta = k.get<double>("rope.freq_base").value_or(10000);
  const std::string scaling = k.get<std::string>("rope.scaling.type").value_or("linear");
  const double factor = k.get<double>("rope.scaling.factor").value_or(k.get<double>("rope.scale_linear").value_or(0));
  k.expect(scaling == "linear" || scaling == "none", "rope.scaling.type", scaling, "none, linear or that of llama3");
  if (k.family == Family::llama && k.has(kRopeFactors))
    c.rope_scaling = llama3_scaling(k.file, c.rope_theta, size / 2);
  else if (scaling == "linear" && factor != 0 && factor != 1)
    c.rope_scaling = {.kind = RopeScalingKind::linear, .factor = factor};
  c.qk_norm = k.family == Family::qwen3, c.qkv_bias = k.family == Family::qwen2;
  c.bias = k.family == Family::llama && k.has("blk.0.attn_output.bias");
}

}  // namespace

GptConfig detail::gguf_config(const GgufFile& file) {
  return in_file(file.path(), [&] {
    const GgufKeys k(file);
    const bool gpt2 = k.family == Family::gpt2;
    GptConfig c{.context = k.need("context_length"),
                .layers = k.need("block_count"),
                .heads = k.need("attention.head_count"),
                .width = k.need("embedding_length"),
                .ff_width = k.need("feed_forward_length")};
    TG_CHECK(k.has(kTable), value, "[gguf] {} has no tensor '{}'. Download it anew.", file.path(), kTable);
    TG_CHECK(c.layers <= std::ssize(file.tensors()), value,
             "[gguf] {}: '{}' is {}, and it has {} tensors. Download it anew.", file.path(), k.key("block_count"),
             c.layers, file.tensors().size());
    c.vocab_size = file.tensors().at(kTable).shape[0];
    c.norm_eps =
        k.get<double>(gpt2 ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon").value_or(c.norm_eps);
    c.tied_head = !k.has("output.weight");
    if (gpt2)
      c.activation = Activation::gelu_tanh, c.bias = true;
    else
      read_rope(k, c);
    const int64_t experts = k.get<int64_t>("expert_count").value_or(0);
    k.expect(experts <= 0, "expert_count", std::to_string(experts), "no mixture of experts");
    const int64_t window = k.get<int64_t>("attention.sliding_window").value_or(0);
    k.expect(window == 0 || window >= c.context, "attention.sliding_window", std::to_string(window), "full attention");
    k.expect(!file.values().contains(k.key("attention.scale")), "attention.scale", "set", "1 / sqrt(head size)");
    c.validate();
    return c;
  });
}

detail::GgufWeights::GgufWeights(const std::string& path, const GptConfig& c) : file_(path) {
  std::set<std::string> known;
  const Family family = family_of(c);
  for (TensorMapping& e : layout_of(family, c, NamingScheme::llama_cpp)) {
    for (const TensorSlice& p : e.pieces) {
      const auto found = file_.tensors().find(p.theirs);
      TG_CHECK(found != file_.tensors().end(), value,
               "[gguf] {} has no tensor '{}' of {}, which its keys imply. Download it anew.", path, p.theirs,
               e.shape(p));
      const GgufTensor& t = found->second;
      TG_CHECK(t.shape == e.shape(p), shape, "[gguf] '{}' is {} in {}, and its keys imply {}. Download it anew.",
               p.theirs, t.shape, path, e.shape(p));
      TG_CHECK(e.columns || !t.format, value,
               "[gguf] '{}' is {} in {}, and vectors are f32, f16 or bf16. Download it anew.", p.theirs, t.type(),
               path);
      known.insert(p.theirs);
    }
    const std::string ours = e.ours;
    entries_.emplace(ours, std::move(e));
  }
  for (const auto& [name, t] : file_.tensors())
    TG_CHECK(known.contains(name) || name.ends_with(".attn_rot_embd.weight") ||
                 (name == kRopeFactors && family == Family::llama),
             value, "[gguf] '{}' {} in {} is not in the {} that its keys describe. Download it anew.", name, t.shape,
             path, name_of(family));
}

std::map<std::string, Shape> detail::GgufWeights::shapes() const {
  std::map<std::string, Shape> all;
  for (const auto& [ours, e] : entries_) all[ours] = e.shape();
  return all;
}

// A tensor of the file with rows in our order: values, or the bytes of blocks (rows, bytes of a row).
Tensor detail::GgufWeights::piece(const TensorSlice& p) const {
  const NoGradScope off;
  const GgufTensor& t = file_.tensors().at(p.theirs);
  Tensor all = empty(Layout::contiguous(t.format ? Shape{p.rows, int64_t(t.bytes) / p.rows} : t.shape, t.dtype));
  if (!running_dry())
    visit_dtype(t.dtype, [&]<class T>() {
      file_.read(p.theirs, std::as_writable_bytes(std::span(all.mutable_data<T>(), size_t(all.numel()))));
    });
  return from_half_split(all, p.pair_heads).contiguous();
}

Tensor detail::GgufWeights::read(const std::string& ours, DType dtype) const {
  const NoGradScope off;
  std::vector<Tensor> all;
  for (const TensorSlice& p : entries_.at(ours).pieces) {
    const auto format = file_.tensors().at(p.theirs).format;
    all.push_back(format ? dequantize({{{piece(p), *format}}}, dtype) : piece(p).to(dtype));
  }
  return all.size() == 1 ? all[0] : concat(all);
}

std::optional<BlockWeight> detail::GgufWeights::blocks(const std::string& ours) const {
  BlockWeight all;
  for (const TensorSlice& p : entries_.at(ours).pieces) {
    const auto format = file_.tensors().at(p.theirs).format;
    if (!format) return {};
    all.parts.push_back({piece(p), *format});
  }
  return all;
}

}  // namespace tg
