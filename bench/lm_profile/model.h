// Document 003's language model op by op as written there: separate q, k, v GEMMs, a mask per layer, a score matrix,
// and norms, gates and rotations from plain ops. It is the baseline and reference of Gpt's fused ops (models/gpt).
#pragma once
#include <tapegrad/models/gpt/gpt.h>

namespace tg::bench {

// Parameters, f32: wte.weight (V, C), h.{i}.ln_1.weight (C), h.{i}.attn.{q,k,v,proj}.weight (C, C), h.{i}.ln_2.weight
// (C), h.{i}.mlp.{gate,up}.weight (F, C), h.{i}.mlp.proj.weight (C, F), ln_f.weight (C), lm_head.weight (V, C). The cos
// and sin tables are no parameters.
class DocumentLm {
 public:
  // Attention with the document's score matrix, or in blocks without one (ops/attention.h).
  enum class Scores { matrix, blocks };
  // Throws unless the form is that of model_preset("cs336-2.7b").
  DocumentLm(const Params&, const GptConfig&, Scores = Scores::matrix);
  // tokens (B, T) i32 or i64 -> logits (B, T, V). Scopes have the document's names: "layer_3.attention_sublayer.rope
  // encoding".
  Tensor forward(const Tensor& tokens) const;

 private:
  struct Block {
    Tensor ln_1, q, k, v, proj, ln_2, gate, up, down;
  };
  Tensor norm(const Tensor& x, const Tensor& gain) const;
  Tensor attention(const Block&, const Tensor& x) const;
  Tensor weighted_values(const Tensor& q, const Tensor& k, const Tensor& v) const;
  Tensor rotated(const Tensor& x) const;
  GptConfig config_;
  Scores scores_;
  Tensor wte_, ln_f_, head_, cos_, sin_;  // cos, sin: (context, HS / 2)
  std::vector<Block> blocks_;
};

}  // namespace tg::bench
