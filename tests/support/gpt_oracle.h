// The small GPTs of tests/data (make_fixtures.py) under tapegrad's names. The oracle separates q, k, v, and SwiGLU's
// gate and up, which tapegrad concatenates.
#pragma once
#include <tapegrad/core/io/json.h>
#include <tapegrad/core/io/safetensors.h>
#include <tapegrad/models/gpt/gpt.h>

#include <string>
#include <vector>

#include "support/tiny_gpt.h"

namespace tg {

// gpt_heads has a custom head size, normalized heads, biases and scaled frequencies; gpt_track3 the fields of the
// preset.
inline const std::vector<std::string> kOracles{"gpt_doc004", "gpt_nano",   "gpt_doc003", "gpt_gqa",
                                               "gpt_heads",  "gpt_track3", "gpt_gpt2"};

// Largest relative error of bf16 logits, and of gradients in norm, against f32. Normalized q and k make larger scores:
// PyTorch's logits are 0.008 to 0.016 away, and then 0.02.
inline double bf16_bound(const GptConfig& c) { return c.qk_norm ? 4e-2 : 2e-2; }

// Settings of make_fixtures.py's scaled().
RopeScaling rope_scaling_of(const Json&);

struct Oracle {
  SafetensorsFile file;
  GptConfig config;

  explicit Oracle(const std::string& name);
  StateDict weights(const std::string& kind) const;
  Tensor batch(const std::string& which, int64_t step) const;  // (B, T) i64
  Gpt model(const Params&) const;                              // has the initial weights
};

}  // namespace tg
