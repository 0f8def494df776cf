#include <tapegrad/core/check.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/models/io/layout.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/shape_ops.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tg {
namespace {

// Collects the entries of a family, with the names of transformers or of llama.cpp.
struct Writer {
  const GptConfig& c;
  Family family;
  bool gguf;
  std::string at = {}, from = {};  // before our names, and theirs
  std::vector<Entry> list = {};

  void add(const char* ours, const std::vector<Piece>& pieces, int64_t columns, bool bias = false) {
    const bool transposed = family == Family::gpt2 && !gguf && !at.empty() && columns;
    list.push_back({at + ours + ".weight", pieces, columns, transposed});
    if (bias) list.push_back({at + ours + ".bias", pieces});
    for (Entry& e : std::span(list).last(bias ? 2 : 1))
      for (Piece& p : e.pieces) p.theirs = from + p.theirs + e.ours.substr(e.ours.rfind('.'));
  }
  void norm(const char* ours, const std::string& theirs) {
    if (c.norm_affine) add(ours, {{theirs, c.width}}, 0, family == Family::gpt2 && c.bias);
  }
  std::string named(const char* transformers, const char* llama_cpp) const { return gguf ? llama_cpp : transformers; }
  int64_t kv_heads() const { return c.kv_heads ? c.kv_heads : c.heads; }
  int64_t q_rows() const { return c.heads * c.head_size(); }
  int64_t kv_rows() const { return kv_heads() * c.head_size(); }
  int64_t ff() const { return c.ff_width ? c.ff_width : 4 * c.width; }
};

void gpt2_layer(Writer& w) {
  const GptConfig& c = w.c;
  w.norm("ln_1", w.named("ln_1", "attn_norm"));
  w.add("attn.qkv", {{w.named("attn.c_attn", "attn_qkv"), 3 * c.width}}, c.width, c.bias || c.qkv_bias);
  w.add("attn.proj", {{w.named("attn.c_proj", "attn_output"), c.width}}, c.width, c.bias);
  w.norm("ln_2", w.named("ln_2", "ffn_norm"));
  w.add("mlp.fc", {{w.named("mlp.c_fc", "ffn_up"), w.ff()}}, c.width, c.bias);
  w.add("mlp.proj", {{w.named("mlp.c_proj", "ffn_down"), c.width}}, w.ff(), c.bias);
}

void llama_layer(Writer& w) {
  const GptConfig& c = w.c;
  const bool same_pairs = w.gguf && w.family == Family::llama;  // llama.cpp's llama has our order
  w.norm("ln_1", w.named("input_layernorm", "attn_norm"));
  w.add("attn.qkv",
        {{w.named("self_attn.q_proj", "attn_q"), w.q_rows(), same_pairs ? 0 : c.heads},
         {w.named("self_attn.k_proj", "attn_k"), w.kv_rows(), same_pairs ? 0 : w.kv_heads()},
         {w.named("self_attn.v_proj", "attn_v"), w.kv_rows()}},
        c.width, c.bias || c.qkv_bias);
  if (c.qk_norm) {
    w.add("attn.q_norm", {{w.named("self_attn.q_norm", "attn_q_norm"), c.head_size(), 1}}, 0);
    w.add("attn.k_norm", {{w.named("self_attn.k_norm", "attn_k_norm"), c.head_size(), 1}}, 0);
  }
  w.add("attn.proj", {{w.named("self_attn.o_proj", "attn_output"), c.width}}, w.q_rows(), c.bias);
  w.norm("ln_2", w.named("post_attention_layernorm", "ffn_norm"));
  w.add("mlp.fc", {{w.named("mlp.gate_proj", "ffn_gate"), w.ff()}, {w.named("mlp.up_proj", "ffn_up"), w.ff()}}, c.width,
        c.bias);
  w.add("mlp.proj", {{w.named("mlp.down_proj", "ffn_down"), c.width}}, w.ff(), c.bias);
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

// Adjacent pairs to halves, and back.
Tensor transposed(const Tensor& x, int64_t heads, bool to_halves) {
  const int64_t half = x.size(0) / heads / 2, columns = x.numel() / x.size(0);
  const int64_t a = to_halves ? half : 2;
  return reshape(transpose(reshape(x, {heads, a, 2 * half / a, columns}), 1, 2), x.shape());
}

}  // namespace

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

std::vector<Entry> layout_of(Family family, const GptConfig& c, Names names) {
  TG_CHECK(family != Family::none, value, "[layout] there are no names of the family none. Ask family_of() first.");
  const bool gpt2 = family == Family::gpt2;
  Writer w{c, family, names == Names::llama_cpp};
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
  if (!c.tied_head) w.add("lm_head", {{w.named("lm_head", "output"), c.vocab_size}}, c.width);
  return std::move(w.list);
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

std::vector<TheirTensor> their_tensors(std::string_view op, Names names, const GptConfig& c, const Params& params) {
  const Family family = family_of(c);
  const StateDict state = params.state();
  const std::set<std::string> has = names_of(layout_of(family, c, names));
  for (const auto& [name, t] : state)
    TG_CHECK(has.contains(name), value,
             "[{}] '{}' {} is not a parameter of this Gpt. Pass only the parameters of the model.", op, name,
             t.shape());
  std::vector<TheirTensor> all;
  for (const Entry& e : layout_of(family, completed(c, family), names)) {
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
bool same_bits(const Tensor& x, const Tensor& y) {
  return x.shape() == y.shape() && x.dtype() == y.dtype() && visit_dtype(x.dtype(), [&]<class T>() {
           return std::memcmp(x.data<T>(), y.data<T>(), x.layout().bytes()) == 0;
         });
}

std::string non_finite_in(const Tensor& t) {
  return visit_dtype(t.dtype(), [&]<class T>() {
    const std::span<const T> all(t.data<T>(), size_t(t.numel()));
    const auto bad = std::ranges::find_if(all, [](T x) { return !std::isfinite(double(x)); });
    if (bad == all.end()) return std::string();
    const double x = std::isnan(double(*bad)) ? std::abs(double(*bad)) : double(*bad);  // never "-nan"
    return fmt::format("{} at {}", x, position_of(bad - all.begin(), t.shape()));
  });
}
void check_finite(std::string_view op, const std::string& name, const Tensor& made, std::string_view dtype) {
  const std::string bad = non_finite_in(made);
  TG_CHECK(bad.empty(), non_finite,
           "[{}] '{}' is {} in {}. It must be finite. Write bf16 or f32, or train with a lower learning rate.", op,
           name, bad, dtype);
}

}  // namespace tg
