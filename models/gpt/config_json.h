/// @file
/// The configuration of a Gpt as JSON text, as it stands in the files of a model. The fields are those of GptConfig,
/// under the same names; enums are written by name. For checkpoints and the command line.
#pragma once
#include <tapegrad/models/gpt/gpt.h>

#include <string>
#include <string_view>

namespace tg {

/// An object with every field, two spaces of indentation.
std::string to_json(const GptConfig&);
struct ConfigText {
  std::string name = "the text";  ///< what messages call it
  bool every_field = false;       ///< a field that is not there is an Error, as in files; else it keeps its default
};
/// The inverse. An Error names an unknown key and the known one nearest to it, a key that comes twice, a value of the
/// wrong type or one that GptConfig::validate() refuses, and what is no JSON.
GptConfig gpt_config_from_json(std::string_view text, const ConfigText& = {});

inline void from_name(std::string_view name, NormKind& x) { x = norm_from_name(name); }
inline void from_name(std::string_view name, Activation& x) { x = activation_from_name(name); }
inline void from_name(std::string_view name, Positions& x) { x = positions_from_name(name); }
inline void from_name(std::string_view name, InitScheme& x) { x = init_from_name(name); }

/// f(name, field, help) for each field, in order: the one list, for reading, writing and flags.
template <class Config, class F> void visit_gpt_fields(Config& c, F&& f) {
  f("vocab_size", c.vocab_size, "token ids of the model, 0: those of the tokenizer");
  f("context", c.context, "tokens that the model sees at once");
  f("layers", c.layers, "transformer blocks");
  f("heads", c.heads, "attention heads; they divide the width");
  f("kv_heads", c.kv_heads, "heads of keys and values; they divide the heads, 0: as many");
  f("width", c.width, "size of the residual stream");
  f("ff_width", c.ff_width, "hidden size of the MLPs, 0: 4 * width");
  f("positions", c.positions, "learned or rope");
  f("rope_theta", c.rope_theta, "base of the angles of rope");
  f("norm", c.norm, "layer_norm or rms_norm");
  f("norm_affine", c.norm_affine, "norms scale, and shift with bias");
  f("activation", c.activation, "gelu, gelu_tanh, silu or swiglu");
  f("bias", c.bias, "biases in Linear layers and LayerNorm");
  f("tied_head", c.tied_head, "the head's weight is the token table");
  f("dropout", c.dropout, "part of the activations dropped in training");
  f("norm_eps", c.norm_eps, "added to the variance in norms");
  f("init", c.init, "gpt2 or xavier");
  f("init_std", c.init_std, "standard deviation of new weights of init gpt2");
}

}  // namespace tg
