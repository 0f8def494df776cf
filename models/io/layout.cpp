#include <tapegrad/core/check.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/models/io/layout.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/shape_ops.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

namespace tg {
namespace {

// Entries of a family, named as in transformers or llama.cpp.
struct Writer {
  GptConfig c;  // with_sizes()
  Family family;
  bool gguf;
  std::string at = {}, from = {};  // prefixes of our names, other names
  detail::TensorMappings list = {};

  void add(const char* ours, const std::vector<detail::TensorSlice>& pieces, int64_t columns, bool bias = false) {
    const bool transposed = family == Family::gpt2 && !gguf && !at.empty() && columns;
    list.push_back({at + ours + ".weight", pieces, columns, transposed});
    if (bias) list.push_back({at + ours + ".bias", pieces});
    for (detail::TensorMapping& e : std::span(list).last(bias ? 2 : 1))
      for (detail::TensorSlice& p : e.pieces) p.theirs = from + p.theirs + e.ours.substr(e.ours.rfind('.'));
  }
  void norm(const char* ours, const std::string& theirs) {
    if (c.norm_affine) add(ours, {{theirs, c.width}}, 0, family == Family::gpt2 && c.bias);
  }
  std::string named(const char* transformers, const char* llama_cpp) const { return gguf ? llama_cpp : transformers; }
};

void gpt2_layer(Writer& w) {
  const GptConfig& c = w.c;
  w.norm("ln_1", w.named("ln_1", "attn_norm"));
  w.add("attn.qkv", {{w.named("attn.c_attn", "attn_qkv"), 3 * c.width}}, c.width, c.bias || c.qkv_bias);
  w.add("attn.proj", {{w.named("attn.c_proj", "attn_output"), c.width}}, c.width, c.bias);
  w.norm("ln_2", w.named("ln_2", "ffn_norm"));
  w.add("mlp.fc", {{w.named("mlp.c_fc", "ffn_up"), c.ff_width}}, c.width, c.bias);
  w.add("mlp.proj", {{w.named("mlp.c_proj", "ffn_down"), c.width}}, c.ff_width, c.bias);
}

void llama_layer(Writer& w) {
  const GptConfig& c = w.c;
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  const bool same_pairs = w.gguf && w.family == Family::llama;  // llama.cpp's llama has our order
  w.norm("ln_1", w.named("input_layernorm", "attn_norm"));
  w.add("attn.qkv",
        {{w.named("self_attn.q_proj", "attn_q"), q, same_pairs ? 0 : c.heads},
         {w.named("self_attn.k_proj", "attn_k"), kv, same_pairs ? 0 : c.kv_heads},
         {w.named("self_attn.v_proj", "attn_v"), kv}},
        c.width, c.bias || c.qkv_bias);
  if (c.qk_norm) {
    w.add("attn.q_norm", {{w.named("self_attn.q_norm", "attn_q_norm"), c.head_dim, 1}}, 0);
    w.add("attn.k_norm", {{w.named("self_attn.k_norm", "attn_k_norm"), c.head_dim, 1}}, 0);
  }
  w.add("attn.proj", {{w.named("self_attn.o_proj", "attn_output"), c.width}}, q, c.bias);
  w.norm("ln_2", w.named("post_attention_layernorm", "ffn_norm"));
  w.add("mlp.fc", {{w.named("mlp.gate_proj", "ffn_gate"), c.ff_width}, {w.named("mlp.up_proj", "ffn_up"), c.ff_width}},
        c.width, c.bias);
  w.add("mlp.proj", {{w.named("mlp.down_proj", "ffn_down"), c.width}}, c.ff_width, c.bias);
}

std::vector<std::string> mismatch(const GptConfig& c) {
  std::vector<std::string> all;
  const auto expect = [&](bool fits, const std::string& otherwise) {
    if (!fits) all.push_back(otherwise);
  };
  const bool gpt2 = c.positions == Positions::learned;
  const NormKind norm = gpt2 ? NormKind::layer_norm : NormKind::rms_norm;
  expect(c.norm == norm, fmt::format("norm is {}, not {}", name_of(c.norm), name_of(norm)));
  if (gpt2) {
    expect(c.activation != Activation::swiglu && c.activation != Activation::relu2,
           fmt::format("activation is {}, not gelu", name_of(c.activation)));
    expect(!c.kv_heads || c.kv_heads == c.heads, fmt::format("kv_heads is {}, not heads ({})", c.kv_heads, c.heads));
    expect(c.head_size() * c.heads == c.width,
           fmt::format("head_dim is {}, not width / heads ({} / {})", c.head_dim, c.width, c.heads));
    expect(!c.qk_norm, "qk_norm is true, not false");
  } else {
    expect(c.activation == Activation::swiglu, fmt::format("activation is {}, not swiglu", name_of(c.activation)));
    expect(!c.qk_norm || !(c.bias || c.qkv_bias),
           fmt::format("{} is true with qk_norm, not false", c.bias ? "bias" : "qkv_bias"));
  }
  expect(!c.head_bias, "head_bias is true, not false");
  expect(c.rope_scaling.fraction == 1, fmt::format("rope_fraction is {}, not 1", c.rope_scaling.fraction));
  expect(c.qk_norm_affine, "qk_norm_affine is false, not true");
  expect(c.attn_scale == 0, fmt::format("attn_scale is {}, not 0", c.attn_scale));
  expect(!c.embedding_norm, "embedding_norm is true, not false");
  expect(c.logit_cap == 0, fmt::format("logit_cap is {}, not 0", c.logit_cap));
  expect(c.fragments <= 0, fmt::format("fragments is {}, not 0", c.fragments));
  return all;
}

// Converts adjacent pairs to halves, or back.
Tensor exchanged(const Tensor& x, int64_t heads, bool to_halves) {
  const int64_t half = x.size(0) / heads / 2, columns = x.numel() / x.size(0);
  const int64_t a = to_halves ? half : 2;
  return reshape(transpose(reshape(x, {heads, a, 2 * half / a, columns}), 1, 2), x.shape());
}

}  // namespace

Family detail::family_of(const GptConfig& c) {
  if (!mismatch(c).empty()) return Family::none;
  if (c.positions == Positions::learned) return Family::gpt2;
  return c.qk_norm ? Family::qwen3 : c.qkv_bias ? Family::qwen2 : Family::llama;
}
std::string detail::family_mismatch(const GptConfig& c) {
  const std::vector<std::string> all = mismatch(c);
  if (all.empty()) return "";
  return fmt::format("{}, as family \"{}\" would have", fmt::join(all, "; "),
                     c.positions == Positions::learned ? "gpt2"
                     : c.qk_norm                       ? "qwen3"
                                                       : "llama");
}

Shape detail::TensorMapping::shape() const {
  int64_t rows = 0;
  for (const TensorSlice& p : pieces) rows += p.rows;
  return columns ? Shape{rows, columns} : Shape{rows};
}
Shape detail::TensorMapping::shape(const TensorSlice& p) const {
  if (!columns) return {p.rows};
  return transposed ? Shape{columns, p.rows} : Shape{p.rows, columns};
}

detail::TensorMappings detail::layout_of(Family family, const GptConfig& c, NamingScheme names) {
  TG_CHECK(family != Family::none, value, "[layout] there are no names of the family none. Ask family_of() first.");
  const bool gpt2 = family == Family::gpt2;
  Writer w{c.with_sizes(), family, names == NamingScheme::llama_cpp};
  const std::string root = w.named(gpt2 ? "transformer." : "model.", "");
  w.from = root;
  w.add("wte", {{w.named(gpt2 ? "wte" : "embed_tokens", "token_embd"), c.vocab_size}}, c.width);
  if (gpt2) w.add("wpe", {{w.named("wpe", "position_embd"), c.context}}, c.width);
  for (int64_t i = 0; i < c.layers; ++i) {
    w.at = fmt::format("h.{}.", i), w.from = fmt::format("{}{}.{}.", root, w.named(gpt2 ? "h" : "layers", "blk"), i);
    gpt2 ? gpt2_layer(w) : llama_layer(w);
  }
  w.at = "", w.from = root;
  w.norm("ln_f", w.named(gpt2 ? "ln_f" : "norm", "output_norm"));
  w.from = "";
  if (c.classes) w.add("score", {{"score", c.classes}}, c.width);
  if (!c.classes && !c.tied_head) w.add("lm_head", {{w.named("lm_head", "output"), c.vocab_size}}, c.width);
  return std::move(w.list);
}

detail::TensorMappings detail::whole_layout_of(Family family, GptConfig c, NamingScheme names) {
  std::set<std::string> has;
  for (const TensorMapping& e : layout_of(family, c, names)) has.insert(e.ours);
  c.norm_affine = true;
  if (family == Family::gpt2) c.bias = true, c.qkv_bias = false;
  TensorMappings all = layout_of(family, c, names);
  for (TensorMapping& e : all)
    if (!has.contains(e.ours)) e.filling = e.ours.ends_with(".bias") ? 0.f : 1.f;
  return all;
}

Tensor detail::from_half_split(const Tensor& theirs, int64_t pair_heads, bool transposed) {
  const Tensor rows = transposed ? transpose(theirs) : theirs;
  return pair_heads ? exchanged(rows, pair_heads, false) : rows;
}
Tensor detail::to_half_split(const Tensor& ours, int64_t pair_heads, bool transposed) {
  const Tensor rows = pair_heads ? exchanged(ours, pair_heads, true) : ours;
  return transposed ? transpose(rows) : rows;
}

std::vector<detail::ExportTensor> detail::their_tensors(std::string_view op, NamingScheme names, const GptConfig& c,
                                                        const Params& params) {
  StateDict rest = params.state();
  std::vector<ExportTensor> all;
  for (const TensorMapping& e : whole_layout_of(family_of(c), c, names)) {
    Tensor ours;
    if (!e.filling) {
      TG_CHECK(rest.contains(e.ours), value, "[{}] there is no '{}' {} among the parameters. Pass those of the model.",
               op, e.ours, e.shape());
      ours = rest.extract(e.ours).mapped();
    }
    int64_t row = 0;
    for (const TensorSlice& p : e.pieces) {
      all.push_back({p.theirs, e.shape(p), [=](DType dtype) {
                       NoGradScope off;
                       const Tensor rows =
                           ours ? slice(ours, 0, row, row + p.rows) : full({p.rows}, *e.filling, DType::f32);
                       return to_half_split(rows.to(Device::cpu()), p.pair_heads, e.transposed).contiguous().to(dtype);
                     }});
      row += p.rows;
    }
  }
  TG_CHECK(rest.empty(), value, "[{}] '{}' {} is not a parameter of this Gpt. Pass only the parameters of the model.",
           op, rest.begin()->first, rest.begin()->second.shape());
  return all;
}
bool detail::same_bits(const Tensor& x, const Tensor& y) {
  return x.shape() == y.shape() && x.dtype() == y.dtype() && visit_dtype(x.dtype(), [&]<class T>() {
           return std::memcmp(x.data<T>(), y.data<T>(), x.layout().bytes()) == 0;
         });
}

void detail::check_finite(std::string_view op, std::string_view what, const Tensor& t, std::string_view rest) {
  visit_dtype(t.dtype(), [&]<class T>() {
    const std::span<const T> all(t.data<T>(), size_t(t.numel()));
    const auto bad = std::ranges::find_if(all, [](T x) { return !std::isfinite(double(x)); });
    TG_CHECK(bad == all.end(), non_finite, "[{}] {} is {} at {}{}", op, what,
             std::isnan(double(*bad)) ? std::abs(double(*bad)) : double(*bad),  // never "-nan"
             position_of(bad - all.begin(), t.shape()), rest);
  });
}

}  // namespace tg
