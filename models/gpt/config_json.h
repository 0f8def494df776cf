/// @file
/// The configuration of a Gpt as JSON text, with the field names of GptConfig. Enums are written by name.
#pragma once
#include <tapegrad/models/config/config_json.h>
#include <tapegrad/models/gpt/gpt.h>

#include <string_view>

namespace tg {

/// Reads a configuration. Throws an Error for text that is not JSON, an unknown key (it suggests the nearest), a
/// duplicate key, a wrong type, or what GptConfig::validate() refuses.
GptConfig gpt_config_from_json(std::string_view text, const ConfigText& = {});

/// Calls f(name, field, help) for each field, in order.
template <class Config, class F> void visit_gpt_fields(Config& c, F&& f) {
  f("vocab_size", c.vocab_size, "token ids of the model, 0: those of the tokenizer");
  f("context", c.context, "tokens that the model sees at once");
  f("layers", c.layers, "transformer blocks");
  f("heads", c.heads, "attention heads; they divide the width");
  f("kv_heads", c.kv_heads, "heads of keys and values; they divide the heads, 0: equal to heads");
  f("width", c.width, "size of the residual stream");
  f("ff_width", c.ff_width, "hidden size of the MLPs, 0: 4 * width");
  f("positions", c.positions, "learned or rope");
  f("rope_theta", c.rope_theta, "base of the angles of rope");
  f("norm", c.norm, "layer_norm or rms_norm");
  f("norm_affine", c.norm_affine, "norms scale, and shift with bias");
  f("activation", c.activation, "gelu, gelu_tanh, silu, swiglu or relu");
  f("bias", c.bias, "biases in Linear layers and LayerNorm");
  f("tied_head", c.tied_head, "the head's weight is the token table");
  f("dropout", c.dropout, "part of the activations dropped in training");
  f("norm_eps", c.norm_eps, "added to the variance in norms");
  f("init", c.init, "gpt2 or xavier");
  f("init_std", c.init_std, "standard deviation of new weights of init gpt2");
  f("head_dim", c.head_dim, "size of a head, 0: width / heads");
  f("qkv_bias", c.qkv_bias, "biases of queries, keys and values alone");
  f("qk_norm", c.qk_norm, "RMSNorm of each head of queries and keys");
  f("rope_scaling", c.rope_scaling.kind, "none, linear or llama3: frequencies for a longer context");
  f("rope_factor", c.rope_scaling.factor, "by which rope_scaling divides frequencies");
  f("rope_low_freq", c.rope_scaling.low_freq,
    "of llama3: frequencies with more waves in the original context are kept in part");
  f("rope_high_freq", c.rope_scaling.high_freq,
    "of llama3: frequencies with more waves in the original context are kept");
  f("rope_original_context", c.rope_scaling.original_context, "of llama3: context of the training without scaling");
  f("fragments", c.fragments, "of each fragmented layer, 0: no layer is fragmented");
  f("fragmented", c.fragmented, "pattern of the Linear layers that are fragmented");
}

/// For config_json.h.
template <class F> void visit_fields(GptConfig& c, F&& f) { visit_gpt_fields(c, f); }

}  // namespace tg
