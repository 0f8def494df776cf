// The small GPTs of tests/data (make_fixtures.py): their configurations and tensors under our names. The oracle keeps
// queries, keys and values apart, and gate and up of SwiGLU; ours are one weight, one after the other.
#pragma once
#include <tapegrad/core/safetensors.h>
#include <tapegrad/models/gpt/gpt.h>

#include <string>
#include <vector>

namespace tg {

// Document 004's form, nanoGPT's, document 003's, the same with grouped keys, and GPT-2's.
inline const std::vector<std::string> kOracles{"gpt_doc004", "gpt_nano", "gpt_doc003", "gpt_gqa", "gpt_gpt2"};

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
