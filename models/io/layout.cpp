#include <tapegrad/core/check.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/models/io/layout.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/shape_ops.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace tg {
namespace {

// Collects the entries of a family.
struct Writer {
  const GptConfig& c;
  std::vector<Entry> list;

  void add(std::string ours, std::vector<Piece> pieces, int64_t columns = 0, bool transposed = false) {
    list.push_back({std::move(ours), std::move(pieces), columns, transposed});
  }
  int64_t kv_heads() const { return c.kv_heads ? c.kv_heads : c.heads; }
  int64_t q_rows() const { return c.heads * c.head_size(); }
  int64_t kv_rows() const { return kv_heads() * c.head_size(); }
  int64_t ff() const { return c.ff_width ? c.ff_width : 4 * c.width; }
};

void gpt2_layer(Writer& w, const std::string& at, const std::string& from) {
  const GptConfig& c = w.c;
  const auto norm = [&](const char* name) {
    if (c.norm_affine) w.add(at + name + ".weight", {{from + name + ".weight", c.width}});
    if (c.norm_affine && c.bias) w.add(at + name + ".bias", {{from + name + ".bias", c.width}});
  };
  const auto linear = [&](const char* ours, const char* theirs, int64_t out, int64_t in, bool bias) {
    w.add(fmt::format("{}{}.weight", at, ours), {{fmt::format("{}{}.weight", from, theirs), out}}, in, true);
    if (bias) w.add(fmt::format("{}{}.bias", at, ours), {{fmt::format("{}{}.bias", from, theirs), out}});
  };
  norm("ln_1");
  linear("attn.qkv", "attn.c_attn", 3 * c.width, c.width, c.bias || c.qkv_bias);
  linear("attn.proj", "attn.c_proj", c.width, c.width, c.bias);
  norm("ln_2");
  linear("mlp.fc", "mlp.c_fc", w.ff(), c.width, c.bias);
  linear("mlp.proj", "mlp.c_proj", c.width, w.ff(), c.bias);
}

void llama_layer(Writer& w, const std::string& at, const std::string& from) {
  const GptConfig& c = w.c;
  const auto norm = [&](const char* ours, const char* theirs) {
    if (c.norm_affine)
      w.add(fmt::format("{}{}.weight", at, ours), {{fmt::format("{}{}.weight", from, theirs), c.width}});
  };
  const auto linear = [&](const char* ours, const std::vector<Piece>& pieces, int64_t in, bool bias) {
    for (const char* part : {"weight", "bias"}) {
      std::vector<Piece> named = pieces;
      for (Piece& p : named) p.theirs = fmt::format("{}{}.{}", from, p.theirs, part);
      const bool is_bias = part[0] == 'b';
      if (!is_bias || bias) w.add(fmt::format("{}{}.{}", at, ours, part), std::move(named), is_bias ? 0 : in);
    }
  };
  norm("ln_1", "input_layernorm");
  linear("attn.qkv",
         {{"self_attn.q_proj", w.q_rows(), c.heads},
          {"self_attn.k_proj", w.kv_rows(), w.kv_heads()},
          {"self_attn.v_proj", w.kv_rows()}},
         c.width, c.bias || c.qkv_bias);
  for (const char* name : {"q_norm", "k_norm"})
    if (c.qk_norm)
      w.add(fmt::format("{}attn.{}.weight", at, name),
            {{fmt::format("{}self_attn.{}.weight", from, name), c.head_size(), 1}});
  linear("attn.proj", {{"self_attn.o_proj", c.width}}, w.q_rows(), c.bias);
  norm("ln_2", "post_attention_layernorm");
  linear("mlp.fc", {{"mlp.gate_proj", w.ff()}, {"mlp.up_proj", w.ff()}}, c.width, c.bias);
  linear("mlp.proj", {{"mlp.down_proj", c.width}}, w.ff(), c.bias);
}

std::vector<std::string> gpt2_mismatch(const GptConfig& c) {
  std::vector<std::string> all;
  if (c.norm != NormKind::layer_norm) all.push_back(fmt::format("norm is {}, not layer_norm", name_of(c.norm)));
  if (c.activation == Activation::swiglu) all.push_back("activation is swiglu, not gelu");
  if (c.kv_heads && c.kv_heads != c.heads)
    all.push_back(fmt::format("kv_heads is {}, not heads ({})", c.kv_heads, c.heads));
  if (c.head_size() * c.heads != c.width)
    all.push_back(fmt::format("head_dim is {}, not width / heads ({} / {})", c.head_dim, c.width, c.heads));
  if (c.qk_norm) all.push_back("qk_norm is true, not false");
  return all;
}
std::vector<std::string> llama_mismatch(const GptConfig& c) {
  std::vector<std::string> all;
  if (c.norm != NormKind::rms_norm) all.push_back(fmt::format("norm is {}, not rms_norm", name_of(c.norm)));
  if (c.activation != Activation::swiglu)
    all.push_back(fmt::format("activation is {}, not swiglu", name_of(c.activation)));
  if (c.qk_norm && (c.bias || c.qkv_bias))
    all.push_back(fmt::format("{} is true with qk_norm, not false", c.bias ? "bias" : "qkv_bias"));
  return all;
}
std::vector<std::string> mismatch(const GptConfig& c) {
  std::vector<std::string> all = c.positions == Positions::learned ? gpt2_mismatch(c) : llama_mismatch(c);
  if (c.fragments > 0) all.push_back(fmt::format("fragments is {}, not 0", c.fragments));
  return all;
}

// Modules of transformers and of llama.cpp; those of layers follow "transformer.h.0." or "model.layers.0.".
// clang-format off
constexpr std::pair<std::string_view, std::string_view> kGguf[] = {
    {"transformer.wte", "token_embd"}, {"model.embed_tokens", "token_embd"}, {"transformer.wpe", "position_embd"},
    {"transformer.ln_f", "output_norm"}, {"model.norm", "output_norm"}, {"lm_head", "output"}, {"ln_1", "attn_norm"},
    {"input_layernorm", "attn_norm"}, {"attn.c_attn", "attn_qkv"}, {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"}, {"self_attn.v_proj", "attn_v"}, {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"}, {"attn.c_proj", "attn_output"}, {"self_attn.o_proj", "attn_output"},
    {"ln_2", "ffn_norm"}, {"post_attention_layernorm", "ffn_norm"}, {"mlp.gate_proj", "ffn_gate"},
    {"mlp.c_fc", "ffn_up"}, {"mlp.up_proj", "ffn_up"}, {"mlp.c_proj", "ffn_down"}, {"mlp.down_proj", "ffn_down"}};
// clang-format on
// "model.layers.3.mlp.up_proj.weight" is "blk.3.ffn_up.weight".
std::string gguf_name(std::string_view theirs) {
  std::string block;
  for (const std::string_view layers : {"transformer.h.", "model.layers."}) {
    if (!theirs.starts_with(layers)) continue;
    theirs.remove_prefix(layers.size());
    const size_t end = theirs.find('.') + 1;
    block = fmt::format("blk.{}", theirs.substr(0, end));
    theirs.remove_prefix(end);
  }
  const size_t dot = theirs.rfind('.');
  const auto* const known = std::ranges::find(kGguf, theirs.substr(0, dot), [](const auto& k) { return k.first; });
  return fmt::format("{}{}{}", block, known->second, theirs.substr(dot));
}

// Adjacent pairs to halves, and back.
Tensor transposed(const Tensor& x, int64_t heads, bool to_halves) {
  const int64_t half = x.size(0) / heads / 2, columns = x.numel() / x.size(0);
  const int64_t a = to_halves ? half : 2;
  return reshape(transpose(reshape(x, {heads, a, 2 * half / a, columns}), 1, 2), x.shape());
}

}  // namespace

std::string_view name_of(Family f) {
  constexpr std::array<std::string_view, 5> kNames = {"none", "gpt2", "llama", "qwen2", "qwen3"};
  return kNames[size_t(f)];
}

Family family_of(const GptConfig& c) {
  if (!mismatch(c).empty()) return Family::none;
  if (c.positions == Positions::learned) return Family::gpt2;
  return c.qk_norm ? Family::qwen3 : c.qkv_bias ? Family::qwen2 : Family::llama;
}
std::string family_mismatch(const GptConfig& c) {
  const std::vector<std::string> all = mismatch(c);
  if (all.empty()) return "";
  return fmt::format("{}, as family \"{}\" would have", fmt::join(all, "; "),
                     c.positions == Positions::learned ? "gpt2"
                     : c.qk_norm                       ? "qwen3"
                                                       : "llama");
}

Shape Entry::shape() const {
  int64_t rows = 0;
  for (const Piece& p : pieces) rows += p.rows;
  return columns ? Shape{rows, columns} : Shape{rows};
}
Shape Entry::shape(const Piece& p) const {
  if (!columns) return {p.rows};
  return transposed ? Shape{columns, p.rows} : Shape{p.rows, columns};
}

std::vector<Entry> huggingface_layout(Family family, const GptConfig& c) {
  TG_CHECK(family != Family::none, value, "[layout] there are no names of the family none. Ask family_of() first.");
  const bool gpt2 = family == Family::gpt2;
  const std::string root = gpt2 ? "transformer." : "model.";
  Writer w{c, {}};
  w.add("wte.weight", {{root + (gpt2 ? "wte.weight" : "embed_tokens.weight"), c.vocab_size}}, c.width);
  if (gpt2) w.add("wpe.weight", {{root + "wpe.weight", c.context}}, c.width);
  for (int64_t i = 0; i < c.layers; ++i) {
    if (gpt2)
      gpt2_layer(w, fmt::format("h.{}.", i), fmt::format("{}h.{}.", root, i));
    else
      llama_layer(w, fmt::format("h.{}.", i), fmt::format("{}layers.{}.", root, i));
  }
  const std::string norm = root + (gpt2 ? "ln_f" : "norm");
  if (c.norm_affine) w.add("ln_f.weight", {{norm + ".weight", c.width}});
  if (c.norm_affine && gpt2 && c.bias) w.add("ln_f.bias", {{norm + ".bias", c.width}});
  if (!c.tied_head) w.add("lm_head.weight", {{"lm_head.weight", c.vocab_size}}, c.width);
  return std::move(w.list);
}

std::vector<Entry> gguf_layout(Family family, const GptConfig& c) {
  std::vector<Entry> all = huggingface_layout(family, c);
  for (Entry& e : all) {
    e.transposed = false;
    for (Piece& p : e.pieces) {
      p.theirs = gguf_name(p.theirs);
      if (family == Family::llama) p.pair_heads = 0;
    }
  }
  return all;
}

std::set<std::string> names_of(const std::vector<Entry>& layout) {
  std::set<std::string> all;
  for (const Entry& e : layout) all.insert(e.ours);
  return all;
}
GptConfig completed(GptConfig c, Family family) {
  c.norm_affine = true;
  if (family == Family::gpt2) c.bias = true, c.qkv_bias = false;
  return c;
}
float filling(const std::string& ours) { return ours.ends_with(".bias") ? 0.f : 1.f; }

Tensor rows_from(const Entry& e, const Piece& p, const Tensor& theirs) {
  const Tensor rows = e.transposed ? transpose(theirs) : theirs;
  return p.pair_heads ? transposed(rows, p.pair_heads, false) : rows;
}
Tensor rows_to(const Entry& e, const Piece& p, const Tensor& ours) {
  const Tensor rows = p.pair_heads ? transposed(ours, p.pair_heads, true) : ours;
  return e.transposed ? transpose(rows) : rows;
}

std::vector<TheirTensor> their_tensors(std::string_view op, std::vector<Entry> (*layout)(Family, const GptConfig&),
                                       const GptConfig& c, const Params& params) {
  const Family family = family_of(c);
  const StateDict state = params.state();
  const std::set<std::string> has = names_of(layout(family, c));
  for (const auto& [name, t] : state)
    TG_CHECK(has.contains(name), value,
             "[{}] '{}' {} is not a parameter of this Gpt. Pass only the parameters of the model.", op, name,
             t.shape());
  std::vector<TheirTensor> all;
  for (const Entry& e : layout(family, completed(c, family))) {
    const auto found = state.find(e.ours);
    TG_CHECK(found != state.end() || !has.contains(e.ours), value,
             "[{}] there is no '{}' {} among the parameters. Pass those of the model.", op, e.ours, e.shape());
    const Tensor ours = found == state.end() ? Tensor() : found->second;
    int64_t row = 0;
    for (const Piece& p : e.pieces) {
      all.push_back({p.theirs, e.shape(p), [=](DType dtype) {
                       NoGradScope off;
                       const Tensor rows =
                           ours ? slice(ours, 0, row, row + p.rows) : full({p.rows}, filling(e.ours), DType::f32);
                       return rows_to(e, p, rows.to(Device::cpu())).contiguous().to(dtype);
                     }});
      row += p.rows;
    }
  }
  return all;
}
void check_finite(std::string_view op, const std::string& name, const Tensor& made, std::string_view dtype) {
  const Tensor wide = made.to(DType::f32);
  const std::span<const float> all(wide.data<float>(), size_t(wide.numel()));
  const auto bad = std::ranges::find_if(all, [](float x) { return !std::isfinite(x); });
  TG_CHECK(bad == all.end(), non_finite,
           "[{}] '{}' is {} at {} in {}. A weight must be finite in the file. Write bf16 or f32, or train with a lower "
           "learning rate.",
           op, name, std::isnan(*bad) ? std::abs(*bad) : *bad, position_of(bad - all.begin(), made.shape()), dtype);
}

}  // namespace tg
