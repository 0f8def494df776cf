#include "support/gpt_oracle.h"

#include <tapegrad/ops/shape_ops.h>

#include <algorithm>

namespace tg {

RopeScaling rope_scaling_of(const Json& j) {
  RopeScaling s{.factor = j.at("factor").get<double>()};
  from_name(j.at("kind").get<std::string>(), s.kind);
  if (s.kind == RopeScalingKind::linear) return s;
  s.low_freq = j.at("low_freq").get<double>(), s.high_freq = j.at("high_freq").get<double>();
  s.original_context = j.at("original_context").get<int64_t>();
  return s;
}
Oracle::Oracle(const std::string& name) : file(TG_TEST_DATA "/" + name + ".safetensors") {
  const Json c = detail::own_json(file.metadata().at("config"));
  const auto activation = c.at("activation").get<std::string>();
  const auto integer = [&](const char* key) { return c.contains(key) ? c.at(key).get<int64_t>() : 0; };
  const auto flag = [&](const char* key, bool otherwise = false) {
    return c.contains(key) ? c.at(key).get<bool>() : otherwise;
  };
  const auto number = [&](const char* key, double otherwise = 0) {
    return c.contains(key) ? c.at(key).get<double>() : otherwise;
  };
  config = {.vocab_size = c.at("vocab").get<int64_t>(),
            .context = c.at("context").get<int64_t>(),
            .layers = c.at("blocks").get<int64_t>(),
            .heads = c.at("heads").get<int64_t>(),
            .kv_heads = integer("kv_heads"),
            .head_dim = integer("head_dim"),
            .width = c.at("width").get<int64_t>(),
            .ff_width = integer("hidden"),
            .rope_theta = number("rope_theta", 1),
            .bias = c.at("linear_bias").get<bool>(),
            .qkv_bias = flag("qkv_bias"),
            .qk_norm = flag("qk_norm"),
            .qk_norm_affine = flag("qk_norm_affine", true),
            .attn_scale = number("attn_scale"),
            .embedding_norm = flag("embedding_norm"),
            .logit_cap = number("logit_cap"),
            .tied_head = c.at("tied_head").get<bool>(),
            .head_bias = flag("head_bias"),
            .norm_eps = c.at("norm_eps").get<double>()};
  from_name(c.at("positions").get<std::string>(), config.positions);
  from_name(c.at("norm").get<std::string>(), config.norm);
  from_name(activation == "gelu_exact" ? "gelu" : activation, config.activation);
  config.rope_scaling.fraction = number("rope_fraction", 1);
  if (c.contains("rope_scaling")) config.rope_scaling = rope_scaling_of(c.at("rope_scaling"));
}
StateDict Oracle::weights(const std::string& kind) const {
  StateDict r;
  for (const std::string& full : file.names()) {
    if (!full.starts_with(kind + ".")) continue;
    const std::string name = full.substr(kind.size() + 1);
    const auto joined = [&](const std::vector<std::string>& parts, const std::string& whole) {
      const size_t at = name.find(parts[0]);
      if (at == name.npos)
        return std::any_of(parts.begin(), parts.end(), [&](auto& p) { return name.find(p) != name.npos; });
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
Tensor Oracle::batch(const std::string& which, int64_t step) const {
  const Tensor all = file.tensor(which);
  return reshape(slice(all, 0, step, step + 1), {all.size(1), all.size(2)});
}
Gpt Oracle::model(const Params& params) const {
  params.load(weights("init"));
  Gpt m(params, config);
  params.check_all_used();
  return m;
}

}  // namespace tg
