// The small GPTs of tests/data (make_fixtures.py) under our names. The oracle keeps queries, keys and values apart, and
// gate and up of SwiGLU; ours are one concatenated weight.
#pragma once
#include <tapegrad/core/io/json.h>
#include <tapegrad/core/io/safetensors.h>
#include <tapegrad/models/gpt/gpt.h>

#include <string>
#include <vector>

namespace tg {

// Document 004's form, nanoGPT's, document 003's, that with grouped keys, that with a custom head size, normalized
// heads, biases and scaled frequencies, and GPT-2's.
inline const std::vector<std::string> kOracles{"gpt_doc004", "gpt_nano",  "gpt_doc003",
                                               "gpt_gqa",    "gpt_heads", "gpt_gpt2"};

// The largest relative error of logits and gradients in bf16 against f32. Normalized queries and keys make larger
// scores, whose rounding shows more: PyTorch's logits are 0.008 to 0.016 away, and then 0.02.
inline double bf16_bound(const GptConfig& c) { return c.qk_norm ? 4e-2 : 2e-2; }

// The settings of make_fixtures.py's scaled().
RopeScaling rope_scaling_of(const Json&);

struct Oracle {
  SafetensorsFile file;
  GptConfig config;

  explicit Oracle(const std::string& name);
  // All tensors "<kind>.<weight>" under our names.
  StateDict weights(const std::string& kind) const;
  Tensor batch(const std::string& which, int64_t step) const;  // (B, T) i64
  Gpt model(const Params&) const;                              // with the initial weights
};

}  // namespace tg
