#include <tapegrad/autograd/recompute.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/bf16_copy.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/core/profile/profile_range.h>
#include <tapegrad/models/config/suggest.h>
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/model/model.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/indexing.h>
#include <tapegrad/ops/linear_cross_entropy.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/shape_ops.h>

#include <cmath>

namespace tg {
namespace {
nn::NormOptions norm_options(const GptConfig& c) {
  return {.kind = c.norm, .affine = c.norm_affine, .bias = c.bias, .eps = c.norm_eps};
}
struct Inits {
  Init table, linear, proj, head;
  explicit Inits(const GptConfig& c) {
    if (c.init == InitScheme::xavier) {
      table = Init::truncated_normal(1);
      linear = proj = Init::xavier();
    } else if (c.init == InitScheme::fan_in) {
      table = Init::normal(1);
      linear = proj = Init::fan_in(c.init_std);
    } else {
      table = linear = Init::normal(c.init_std);
      proj = Init::normal(c.init_std / std::sqrt(2.0 * double(c.layers)));
    }
    head = linear;
    if (c.zero_proj) proj = head = Init::constant(0);
  }
};
int64_t fragments_of(const GptConfig& c, std::string_view name) {
  return c.fragments > 0 && detail::glob_matches(c.fragmented, name) ? c.fragments : 0;
}
constexpr int64_t kMostSize = INT32_MAX;  // products of two fit int64_t
// A checkpoint's header, at most 100 MB: up to 90 tensors per layer of up to 170 bytes are 63 MB.
constexpr int64_t kMostLayers = 1 << 12;
constexpr int64_t kMostClasses = 1 << 16;  // config.json names each
}  // namespace

void GptConfig::validate() const {
  auto positive = [](std::string_view name, int64_t n, int64_t most = kMostSize) {
    TG_CHECK(n >= 1, value, "[gpt_config] {} is {}. It must be 1 or more.", name, n);
    TG_CHECK(n <= most, value, "[gpt_config] {} is {}. It must be at most {}.", name, n, most);
  };
  positive("vocab_size", vocab_size);
  positive("context", context);
  positive("layers", layers, kMostLayers);
  positive("heads", heads);
  positive("width", width);
  TG_CHECK(head_dim >= 0 && head_dim <= kMostSize, value,
           "[gpt_config] head_dim is {}. It must be from 1 to {}, or 0 for width / heads.", head_dim, kMostSize);
  TG_CHECK(
      head_dim > 0 || width % heads == 0, value,
      "[gpt_config] width {} is not a multiple of heads {}. Each head takes an equal part, unless head_dim is set.",
      width, heads);
  TG_CHECK(kv_heads >= 0, value, "[gpt_config] kv_heads is {}. It must be 1 or more, or 0 for heads.", kv_heads);
  TG_CHECK(kv_heads == 0 || heads % kv_heads == 0, value,
           "[gpt_config] kv_heads {} does not divide heads {}. Each head of keys serves the same number of heads of "
           "queries; 0 means heads.",
           kv_heads, heads);
  TG_CHECK(positions != Positions::rope || head_size() % 2 == 0, value,
           "[gpt_config] width {} over heads {} makes heads of size {}, which positions \"rope\" cannot rotate in "
           "pairs. The size must be even.",
           width, heads, head_size());
  TG_CHECK(rope_theta >= 1 && std::isfinite(rope_theta), value,
           "[gpt_config] rope_theta is {}. It must be 1 or more and finite.", rope_theta);
  rope_scaling.validate("gpt_config", "rope_");
  TG_CHECK(positions == Positions::rope || rope_scaling == RopeScaling(), value,
           "[gpt_config] rope_scaling is {} and positions are \"{}\". Only rope has frequencies to scale.",
           name_of(rope_scaling.kind), name_of(positions));
  TG_CHECK(!bias || !qkv_bias, value,
           "[gpt_config] bias and qkv_bias are both true. `bias` gives queries, keys and values one already: leave "
           "qkv_bias false.");
  TG_CHECK(ff_width >= 0 && ff_width <= kMostSize, value,
           "[gpt_config] ff_width is {}. It must be from 1 to {}, or 0 for 4 * width.", ff_width, kMostSize);
  TG_CHECK(dropout >= 0 && dropout < 1, value, "[gpt_config] dropout is {}. It must be in [0, 1).", dropout);
  for (const auto& [name, rate] :
       {std::pair{"attn_dropout", attn_dropout}, {"resid_dropout", resid_dropout}, {"embd_dropout", embd_dropout}})
    TG_CHECK((rate >= 0 && rate < 1) || rate == -1, value,
             "[gpt_config] {} is {}. It must be in [0, 1), or -1 for dropout.", name, rate);
  TG_CHECK(!head_bias || !classes, value,
           "[gpt_config] head_bias is true, and the head has {} classes (score), which has no bias. Leave it false.",
           classes);
  TG_CHECK(norm_eps > 0 && std::isfinite(norm_eps), value,
           "[gpt_config] norm_eps is {}. It must be more than 0 and finite.", norm_eps);
  TG_CHECK(fragments >= 0 && fragments <= kMostSize, value,
           "[gpt_config] fragments is {}. It must be from 1 to {}, or 0 for plain layers.", fragments, kMostSize);
  TG_CHECK(classes >= 0 && classes <= kMostClasses, value,
           "[gpt_config] classes is {}. It must be from 1 to {}, or 0 for a language model.", classes, kMostClasses);
  for (const auto& [name, x] : {std::pair{"init_std", init_std}, {"attn_scale", attn_scale}, {"logit_cap", logit_cap}})
    TG_CHECK(x >= 0 && std::isfinite(x), value, "[gpt_config] {} is {}. It must be 0 or more and finite.", name, x);
  TG_CHECK(!classes || logit_cap == 0, value,
           "[gpt_config] logit_cap is {}, and the head has {} classes (score). Leave it 0.", logit_cap, classes);
}

GptConfig GptConfig::with_sizes() const {
  GptConfig c = *this;
  c.head_dim = head_size();
  if (c.kv_heads == 0) c.kv_heads = heads;
  if (c.ff_width == 0) c.ff_width = 4 * width;
  return c;
}
GptConfig detail::gpt_config_from_json(std::string_view text, ConfigText source) {
  source.op = "gpt_config";
  return config_from_json<GptConfig>(text, source);
}

Gpt::Block::Block(const Params& p, const GptConfig& c, size_t path_of_gpt) : nn::Layer{p.scope()} {
  const Inits init(c);
  const auto fragments = [&](const Params& layer) {
    return fragments_of(c, std::string_view(layer.path()).substr(path_of_gpt));
  };
  const nn::BlockOptions o{.heads = c.heads,
                           .kv_heads = c.kv_heads,
                           .head_dim = c.head_dim,
                           .qkv_bias = c.qkv_bias,
                           .qk_norm = c.qk_norm,
                           .qk_norm_affine = c.qk_norm_affine,
                           .attn_scale = c.attn_scale,
                           .norm_eps = c.norm_eps,
                           .positions = c.positions,
                           .rope_theta = c.rope_theta,
                           .rope_scaling = c.rope_scaling,
                           .ff_width = c.ff_width,
                           .activation = c.activation,
                           .causal = true,
                           .bias = c.bias,
                           .dropout = c.dropout_of(c.resid_dropout),
                           .attn_dropout = c.dropout_of(c.attn_dropout),
                           .ff_dropout = c.ff_dropout,
                           .init = init.linear,
                           .init_proj = init.proj,
                           .fragments = fragments};
  ln_1 = nn::Norm(p.at("ln_1"), c.width, norm_options(c));
  attn = nn::SelfAttention(p.at("attn"), c.width, o);
  ln_2 = nn::Norm(p.at("ln_2"), c.width, norm_options(c));
  mlp = nn::Mlp(p.at("mlp"), c.width, o);
}
Gpt::Stream Gpt::Block::forward(Stream in, const nn::LayerContext& c) const {
  NameScope here = enter();
  AddedNorm h = ln_1.add(in.x, in.branch, c.compute);
  in = {};
  h = ln_2.add(h.sum, attn.forward(h.y, c), c.compute);
  return {h.sum, mlp.forward(h.y, c)};
}

Gpt::Gpt(const Params& p, const GptConfig& c) : config_(c) {
  c.validate();
  NameScope gpt("gpt");
  layer_ = {p.scope()};
  const Inits init(c);
  wte_ = nn::Embedding(p.at("wte"), c.vocab_size, c.width, init.table);
  if (c.positions == Positions::learned) wpe_ = nn::Embedding(p.at("wpe"), c.context, c.width, init.table);
  const size_t path_of_gpt = p.path().empty() ? 0 : p.path().size() + 1;  // layer names' offset
  if (c.embedding_norm) ln_emb_.emplace(p.at("ln_emb"), c.width, norm_options(c));
  for (int64_t i = 0; i < c.layers; ++i) blocks_.emplace_back(p.at("h").at(i), c, path_of_gpt);
  ln_f_ = nn::Norm(p.at("ln_f"), c.width, norm_options(c));
  if (const char* name = c.classes ? "score" : "lm_head"; c.classes || !c.tied_head) {
    head_ = nn::Linear(p.at(name), c.width, c.classes ? c.classes : c.vocab_size,
                       {.bias = c.head_bias, .init = init.head, .fragments = fragments_of(c, name)});
  } else {
    head_.scope = p.at("lm_head").scope();
    head_.weight = wte_.table, head_.blocks = wte_.blocks;
    if (c.head_bias) head_.bias = p.at("lm_head").get("bias", {c.vocab_size}, Init::constant(0));
  }
  if (c.fragments > 0) (void)Linears(*this).matching("gpt_config", {&c.fragmented, 1});
}

std::vector<NamedLinear> Gpt::linears() {
  std::vector<NamedLinear> r;
  const GptConfig c = config_.with_sizes();
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim, ff = c.ff_width;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    Block& b = blocks_[i];
    const auto name = [i](const char* module) { return fmt::format("h.{}.{}", i, module); };
    r.insert(r.end(), {{name("attn.qkv"), &b.attn.qkv},
                       {name("attn.proj"), &b.attn.proj},
                       {name("mlp.fc"), &b.mlp.fc},
                       {name("mlp.proj"), &b.mlp.proj}});
    if (c.positions == Positions::rope)
      r[r.size() - 4].parts = {{name("attn.q"), {0, q}}, {name("attn.k"), {q, kv}}, {name("attn.v"), {q + kv, kv}}};
    if (c.activation == Activation::swiglu)
      r[r.size() - 2].parts = {{name("mlp.gate"), {0, ff}}, {name("mlp.up"), {ff, ff}}};
  }
  if (c.classes || !c.tied_head) r.push_back({c.classes ? "score" : "lm_head", &head_, {}, c.classes > 0});
  return r;
}

void Gpt::check(const Tensor& tokens, const ForwardOptions& o) const {
  TG_CHECK(!tokens || is_index(tokens.dtype()), dtype,
           "[gpt] tokens must be i32 or i64, got {}. They are ids of a vocabulary; use .to(DType::i64).", tokens);
  TG_CHECK(tokens && tokens.ndim() == 2, shape,
           "[gpt] tokens must be (B, T) of i32 or i64, got {}. Add a batch of 1 with reshape().",
           detail::describe(tokens));
  const bool fixed = o.cache && o.cache->has_capacity();
  const int64_t t = tokens.size(1), past = o.cache && !fixed ? o.cache->length() : 0;
  TG_CHECK(tokens.size(0) >= 1 && t >= 1, shape,
           "[gpt] tokens are {}. There must be at least one sequence and one token.", tokens);
  TG_CHECK(past + t <= config_.context, shape,
           "[gpt] {} tokens after {} in the cache are {} positions, and the context is {}. Pass fewer tokens{}.", t,
           past, past + t, config_.context, past ? ", or clear() the cache" : "");
  if (fixed) {
    TG_CHECK(o.cache->capacity() <= config_.context, shape,
             "[gpt] the cache has a capacity of {} positions, and the context is {}. Make it by make_cache().",
             o.cache->capacity(), config_.context);
    TG_CHECK(o.cache->lengths().size(0) == tokens.size(0) && t <= o.cache->capacity(), shape,
             "[gpt] tokens are {}, and the cache was made for {} sequences of up to {} positions. Make one for this "
             "batch, or pass fewer tokens.",
             tokens, o.cache->lengths().size(0), o.cache->capacity());
  }
  if (o.lengths) {
    TG_CHECK(is_index(o.lengths.dtype()) && o.lengths.shape() == Shape{tokens.size(0)}, shape,
             "[gpt] lengths are {}, tokens are {}. They must be ({}) i32 or i64: one number for each sequence.",
             o.lengths, tokens, tokens.size(0));
    TG_CHECK(!o.cache || fixed, value,
             "[gpt] lengths and a cache that grows: its sequences have one length. Make the cache by make_cache().");
  }
  const DType own = wte_.out_dtype(), compute = o.compute.value_or(own);
  TG_CHECK(compute == own || (size_of(compute) < size_of(own) && (compute == DType::f32 || compute == DType::bf16)),
           dtype,
           "[gpt] compute is {} and the parameters are {}. It must be bf16 over f32 parameters, f32 or bf16 over f64 "
           "ones, or left unset for the dtype of the parameters.",
           compute, own);
  TG_CHECK(!(o.recompute && o.cache), value,
           "[gpt] recompute and a cache at once. Recomputing is for training, a cache for generation. Pass one of "
           "them.");
}

Tensor Gpt::attention_weights(const Tensor& tokens, int64_t block, ForwardOptions o) const {
  TG_CHECK(block >= 0 && block < config_.layers && !o.cache, value,
           "[gpt] attention_weights() of block {}{}. There are {}, counted from 0. Pass one, without a cache.", block,
           o.cache ? " with a cache" : "", config_.layers);
  o.rng = nullptr;
  return run(tokens, std::move(o), false, block);
}
Tensor Gpt::run(const Tensor& tokens, ForwardOptions o, bool with_head, int64_t weights_of) const {
  NameScope here = layer_.enter();
  check(tokens, o);
  const bool one_row = with_head && config_.classes > 0;
  TG_CHECK(!one_row || !(o.cache || o.last_only), value,
           "[gpt] {} is for generation, and the head has {} classes (score). Generate with a language model.",
           o.cache ? "a cache" : "last_only", config_.classes);
  const auto alone = o.cache ? o.cache->use() : detail::OneUser::Use();
  const bool fixed = o.cache && o.cache->has_capacity();
  const int64_t b = tokens.size(0), t = tokens.size(1), past = o.cache && !fixed ? o.cache->length() : 0;
  if (o.lengths) {
    const NameScope lengths("lengths");  // gather() throws for one outside of [0, T]
    o.lengths = gather(arange(0, double(t + 1), 1, DType::i64, tokens.device()), 0, o.lengths);
  }
  // Copied handles: failures leave the caller's cache unchanged.
  KvCache grown;
  if (o.cache) grown = *o.cache;
  nn::LayerContext context{.rng = o.rng,
                           .cache = o.cache ? &grown : nullptr,
                           .layer = 0,
                           .position = past,
                           .compute = o.compute,
                           .adapters = o.adapters};

  Tensor x = wte_.forward(tokens);  // (B, T, C)
  if (wpe_.table && fixed) {
    const Tensor next = arange(0, double(t), 1, DType::i64, x.device());
    x = x + wpe_.forward(reshape(grown.lengths(), {b, 1}) + next);  // + (B, T, C)
  } else if (wpe_.table) {
    x = x + slice(wpe_.table, 0, past, past + t);  // + (T, C)
  }
  if (ln_emb_) x = ln_emb_->forward(x);
  x = nn::dropout_if(x, config_.dropout_of(config_.embd_dropout), o.rng);
  Stream s{std::move(x), {}};
  for (const Block& block : blocks_) {
    if (context.layer == weights_of) return block.attn.weights(block.ln_1.add(s.x, s.branch, o.compute).y, context);
    if (o.recompute) {
      const auto again = [block, context](Inputs in, Rng* rng) {
        nn::LayerContext c = context;
        c.rng = rng;
        NameScope inside = block.enter();
        const Stream made = block.forward({in[0], {}}, c);
        return Tensors{made.x + made.branch.to(made.x.dtype())};  // save one tensor, not two
      };
      s = {recompute(again, {&s.x, 1}, o.rng)[0], {}};
    } else {
      s = block.forward(std::move(s), context);
    }
    ++context.layer;
  }
  if (o.last_only || one_row) {
    const int64_t c = config_.width;
    Tensor last;  // (B, 1, C)
    if (o.lengths && t > 1) last = expand(reshape(o.lengths - 1.0, {b, 1, 1}), {b, 1, c});
    for (Tensor* part : {&s.x, &s.branch})
      if (*part) *part = last ? gather(*part, 1, last) : slice(*part, 1, t - 1, t);  // (B, 1, C)
  }
  x = ln_f_.add(s.x, s.branch, o.compute).y;
  s = {};
  const DType compute = o.compute.value_or(wte_.out_dtype());
  x = with_head ? head_.forward(x, compute, o.rng, o.adapters, true) : x.to(compute);  // (B, T, V) or (B, T, C)
  if (with_head && config_.logit_cap > 0)
    x = op::unary<op::Isru>(widened(x) * (1 / config_.logit_cap)) * config_.logit_cap;
  if (one_row) x = reshape(x, {b, config_.classes});
  if (o.cache && !fixed) *o.cache = std::move(grown);
  if (o.cache) o.lengths ? o.cache->advance(o.lengths) : o.cache->advance(t);  // no effect on a growing cache
  return x;
}

Tensor Gpt::loss(const Batch& batch, const ForwardOptions& o, Reduction reduction) const {
  const CrossEntropyOptions how{.reduction = reduction, .ignore_index = Batch::kIgnoreIndex};
  const bool whole = !plain_head() || head_.bias || config_.classes || config_.logit_cap > 0;
  Tensor x;
  {
    const ProfileRange range(Phase::forward);
    x = run(batch.inputs, o, whole);
  }
  const ProfileRange range(Phase::loss);
  if (whole) return cross_entropy(std::exchange(x, {}), batch.targets, how);  // frees the logits
  const NameScope here = layer_.enter(), in_head = head_.enter();
  std::optional<RecomputeScope> again;
  if (o.recompute) again.emplace();
  if (head_.blocks) return linear_cross_entropy(x, *head_.blocks, batch.targets, {how});
  return linear_cross_entropy(x, detail::cast_parameter(head_.weight, x.dtype()), batch.targets, {how});
}

std::pair<Params, Gpt> Gpt::crop_context(const Params& own, int64_t context) const {
  TG_CHECK(context >= 1 && context <= config_.context, value,
           "[gpt] a crop to {} positions. It must be from 1 to {}, the context.", context, config_.context);
  Gpt copy = *this;
  for (const NamedLinear& l : copy.linears())
    TG_CHECK(!l.layer->adapter, state, "[gpt] a crop of a model with an adapter on {}. Crop it before apply_lora().",
             l.name);
  StateDict tensors = own.state();
  for (auto& [name, t] : tensors) t = (name == "wpe.weight" ? slice(t, 0, 0, context) : t).contiguous();
  const Params params(own.device(), 0, own.dtype());
  params.load(std::move(tensors));
  copy.config_.context = context;
  return {params, Gpt(params, copy.config_)};
}
KvCache Gpt::make_cache(int64_t batch, int64_t capacity, std::optional<DType> compute) const {
  TG_CHECK(capacity >= 0 && capacity <= config_.context, value,
           "[gpt] a cache of {} positions. It must be from 1 to {}, the context, or 0 for the context.", capacity,
           config_.context);
  return KvCache::with_capacity({.layers = config_.layers,
                                 .batch = batch,
                                 .kv_heads = config_.with_sizes().kv_heads,
                                 .capacity = capacity ? capacity : config_.context,
                                 .head_size = config_.head_size(),
                                 .dtype = compute.value_or(wte_.out_dtype()),
                                 .device = device()});
}

}  // namespace tg
