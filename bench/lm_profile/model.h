// Document 003's language model as it is written there, op by op: separate products for queries, keys and values, a
// mask that each layer makes, a matrix of scores, norms, gates and rotations out of plain ops. It is what the fused ops
// of Gpt (models/gpt) are measured against, and tested with: the same function of the same weights. Users:
// bench_lm_profile.
#pragma once
#include <tapegrad/models/gpt/gpt.h>

namespace tg::bench {

// Parameters: wte.weight (V, C), h.{i}.ln_1.weight (C), h.{i}.attn.{q,k,v,proj}.weight (C, C), h.{i}.ln_2.weight (C),
// h.{i}.mlp.{gate,up}.weight (F, C), h.{i}.mlp.proj.weight (C, F), ln_f.weight (C), lm_head.weight (V, C); f32. The
// cosines and sines of positions are no parameters.
class DocumentLm {
 public:
  enum class Scores { matrix, blocks };  // of attention: as the document has them, or never in memory: ops/attention.h
  // Of the form of arch("cs336-2.7b"); another is an Error.
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
  Tensor turned(const Tensor& x) const;
  GptConfig config_;
  Scores scores_;
  Tensor wte_, ln_f_, head_, cos_, sin_;  // cos, sin: (context, HS / 2)
  std::vector<Block> blocks_;
};

}  // namespace tg::bench
