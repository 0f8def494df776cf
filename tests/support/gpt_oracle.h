// The small GPTs of tests/data (make_fixtures.py): their configurations and tensors under our names. The oracle keeps
// queries, keys and values apart, and gate and up of SwiGLU; ours are one weight, one after the other.
#pragma once
#include "support/files.h"
#include "support/helpers.h"

#include <tapegrad/core/safetensors.h>
#include <tapegrad/models/gpt/gpt.h>

#include <nlohmann/json.hpp>

namespace tg {

// Document 004's form, nanoGPT's, document 003's, the same with grouped keys, and GPT-2's.
inline const std::vector<std::string> kOracles{"gpt_doc004", "gpt_nano", "gpt_doc003", "gpt_gqa", "gpt_gpt2"};

struct Oracle {
  SafetensorsFile file;
  GptConfig config;

  explicit Oracle(const std::string& name) : file(TG_TEST_DATA "/" + name + ".safetensors") {
    const auto c = nlohmann::json::parse(file.metadata().at("config"));
    const std::string activation = c.at("activation");
    config = {.vocab_size = c.at("vocab"),
              .context = c.at("context"),
              .layers = c.at("blocks"),
              .heads = c.at("heads"),
              .kv_heads = c.value("kv_heads", 0),
              .width = c.at("width"),
              .ff_width = c.value("hidden", 0),
              .positions = positions_from_name(c.at("positions").get<std::string>()),
              .rope_theta = c.value("rope_theta", 1.0),
              .norm = norm_from_name(c.at("norm").get<std::string>()),
              .activation = activation_from_name(activation == "gelu_exact" ? "gelu" : activation),
              .bias = c.at("linear_bias"),
              .tied_head = c.at("tied_head"),
              .norm_eps = c.at("norm_eps")};
  }
  // All tensors "<kind>.<weight>" under our names.
  StateDict weights(const std::string& kind) const {
    StateDict r;
    for (const std::string& full : file.names()) {
      if (!full.starts_with(kind + ".")) continue;
      const std::string name = full.substr(kind.size() + 1);
      const auto joined = [&](const std::vector<std::string>& parts, const std::string& whole) {
        const size_t at = name.find(parts[0]);
        if (at == name.npos) return std::any_of(parts.begin(), parts.end(), [&](auto& p) { return has(name, p); });
        std::vector<Tensor> t;
        const std::string before = name.substr(0, at), after = name.substr(at + parts[0].size());
        for (auto& p : parts) t.push_back(file.tensor(kind + "." + before + p + after));
        r[before + whole + after] = concat(t, 0);
        return true;
      };
      if (joined({".attn.q.", ".attn.k.", ".attn.v."}, ".attn.qkv.") || joined({".mlp.gate.", ".mlp.up."}, ".mlp.fc."))
        continue;
      r[name] = file.tensor(full);
    }
    return r;
  }
  Tensor batch(const std::string& which, int64_t step) const {  // (B, T) i64
    const Tensor all = file.tensor(which);
    return reshape(slice(all, 0, step, step + 1), {all.size(1), all.size(2)});
  }
  Gpt model(const Params& params) const {  // with the initial weights
    params.load(weights("init"));
    Gpt m(params, config);
    params.check_all_used();
    return m;
  }
};

}  // namespace tg
