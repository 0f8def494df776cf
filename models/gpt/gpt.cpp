#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/shape_ops.h>

#include <cmath>

namespace tg {
namespace {
nn::NormOptions norm_options(const GptConfig& c) { return {.kind = c.norm, .bias = c.bias, .eps = c.norm_eps}; }
constexpr int64_t kMost = INT32_MAX, kMostLayers = 1 << 16;  // beyond any memory, and products of two fit int64_t
}  // namespace

void GptConfig::validate() const {
  auto positive = [](std::string_view name, int64_t n, int64_t most = kMost) {
    TG_CHECK(n >= 1, value, "[gpt_config] {} is {}. It must be 1 or more.", name, n);
    TG_CHECK(n <= most, value, "[gpt_config] {} is {}. It must be at most {}.", name, n, most);
  };
  positive("vocab_size", vocab_size);
  positive("context", context);
  positive("layers", layers, kMostLayers);
  positive("heads", heads);
  positive("width", width);
  TG_CHECK(width % heads == 0, value,
           "[gpt_config] width {} is not a multiple of heads {}. Each head takes an equal part.", width, heads);
  TG_CHECK(ff_width >= 0 && ff_width <= kMost, value,
           "[gpt_config] ff_width is {}. It must be from 1 to {}, or 0 for 4 * width.", ff_width, kMost);
  TG_CHECK(dropout >= 0 && dropout < 1, value, "[gpt_config] dropout is {}. It must be in [0, 1).", dropout);
  TG_CHECK(norm_eps > 0 && std::isfinite(norm_eps), value,
           "[gpt_config] norm_eps is {}. It must be more than 0 and finite.", norm_eps);
  TG_CHECK(init_std >= 0 && std::isfinite(init_std), value,
           "[gpt_config] init_std is {}. It must be 0 or more and finite.", init_std);
}
GptConfig GptConfig::gpt2_small() {
  return {.vocab_size = 50257,
          .context = 1024,
          .layers = 12,
          .heads = 12,
          .width = 768,
          .activation = Activation::gelu_tanh,
          .bias = true,
          .dropout = 0.1};
}

Gpt::Block::Block(const Params& p, const GptConfig& c) : nn::Layer{p.scope()} {
  const nn::BlockOptions o{.heads = c.heads,
                           .ff_width = c.ff_width,
                           .activation = c.activation,
                           .bias = c.bias,
                           .dropout = c.dropout,
                           .init = Init::normal(c.init_std),
                           .init_proj = Init::normal(c.init_std / std::sqrt(2.0 * double(c.layers)))};
  ln_1 = nn::Norm(p.at("ln_1"), c.width, norm_options(c));
  attn = nn::SelfAttention(p.at("attn"), c.width, o);
  ln_2 = nn::Norm(p.at("ln_2"), c.width, norm_options(c));
  mlp = nn::Mlp(p.at("mlp"), c.width, o);
}
Tensor Gpt::Block::forward(Tensor x, const nn::LayerContext& c) const {
  InScope here = enter();
  x = x + attn.forward(ln_1.forward(x), c);
  return x + mlp.forward(ln_2.forward(x), c);
}

Gpt::Gpt(const Params& p, const GptConfig& c) : config_(c) {
  c.validate();
  InScope gpt("gpt");
  layer_ = {p.scope()};
  const Init init = Init::normal(c.init_std);
  wte_ = nn::Embedding(p.at("wte"), c.vocab_size, c.width, init);
  wpe_ = nn::Embedding(p.at("wpe"), c.context, c.width, init);
  for (int64_t i = 0; i < c.layers; ++i) blocks_.emplace_back(p.at("h").at(i), c);
  ln_f_ = nn::Norm(p.at("ln_f"), c.width, norm_options(c));
  if (!c.tied_head) {
    head_ = nn::Linear(p.at("lm_head"), c.width, c.vocab_size, {.init = init});
    return;
  }
  head_.scope = p.at("lm_head").scope();
  head_.weight = wte_.table;
}

Tensor Gpt::forward(const Tensor& tokens, ForwardOptions o) const {
  InScope here = layer_.enter();
  TG_CHECK(tokens && tokens.ndim() == 2 && is_index(tokens.dtype()), shape,
           "[gpt] tokens must be (B, T) of i32 or i64, got {}. Add a batch of 1 with reshape().", describe(tokens));
  const int64_t t = tokens.size(1), past = o.cache ? o.cache->length() : 0;
  TG_CHECK(tokens.size(0) >= 1 && t >= 1, shape,
           "[gpt] tokens are {}. There must be at least one sequence and one token.", tokens);
  TG_CHECK(past + t <= config_.context, shape,
           "[gpt] {} tokens after {} in the cache are {} positions, and the context is {}. Pass fewer tokens{}.", t,
           past, past + t, config_.context, past ? ", or clear() the cache" : "");
  KvCache grown;  // a copy of handles, so that a failure on the way leaves the caller's cache as it was
  if (o.cache) grown = *o.cache;
  nn::LayerContext context{.rng = o.rng, .cache = o.cache ? &grown : nullptr};

  Tensor x = wte_.forward(tokens) + slice(wpe_.table, 0, past, past + t);  // (B, T, C) + (T, C)
  x = nn::dropout_if(x, config_.dropout, o.rng);
  for (const Block& block : blocks_) {
    x = block.forward(std::move(x), context);
    ++context.layer;
  }
  if (o.last_only) x = slice(x, 1, t - 1, t);  // (B, 1, C)
  x = ln_f_.forward(x);
  x = head_.forward(x);  // (B, T, V)
  if (o.cache) *o.cache = std::move(grown);
  return x;
}

}  // namespace tg
