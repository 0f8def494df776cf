/// @file
/// Model: a handle to any model with a forward(), Gpt or user-defined: a plain struct without a base class. Trainer,
/// validation_loss(), generate(), compare(), plan_memory() and save_model() take it.
#pragma once
#include <tapegrad/core/profile/profile_range.h>
#include <tapegrad/models/config/config_json.h>
#include <tapegrad/models/data/batch.h>
#include <tapegrad/models/model/forward.h>
#include <tapegrad/models/nn/kv_cache.h>
#include <tapegrad/ops/loss.h>

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tg {

/// A type with forward(inputs, ForwardOptions) or forward(inputs), which returns logits: (B, T, V) of tokens (B, T), or
/// (B, classes).
template <class M>
concept ForwardModel = requires(const M& m, const Tensor& inputs, const ForwardOptions& o) {
  { m.forward(inputs, o) } -> std::convertible_to<Tensor>;
} || requires(const M& m, const Tensor& inputs) {
  { m.forward(inputs) } -> std::convertible_to<Tensor>;
};

/// Any model. Copies are handles to the same one. Optional members:
///
/// | member | is for |
/// |---|---|
/// | `static constexpr ForwardSupport kSupport` | the ForwardOptions that it supports |
/// | `Tensor loss(const Batch&, const ForwardOptions&) const` | a loss other than cross_entropy() of the logits (2) |
/// | `int64_t context() const` | the most positions: training on TokenData, generate() |
/// | `int64_t vocab_size() const` | messages about tokens outside of it |
/// | `KvCache make_cache(int64_t batch, int64_t capacity) const` | generate() with a cache (1) |
/// | `Device device() const` | generate() on another device than the CPU |
/// | `const Config& config() const`, with visit_fields() (config_json.h) | save_model(), load_model() |
/// | `std::vector<NamedLinear> linears()` | apply_lora(), replace_linears() |
///
/// (1) also needs context(), and cache and lengths in kSupport. (2) May have a third parameter, the Reduction of the
/// targets' losses; then it opens the phases of profiles.
class Model {
 public:
  /// Shares the tensors of `model`.
  template <ForwardModel M>
    requires(!std::same_as<M, Model>)
  Model(M model) {
    const auto own = std::make_shared<M>(std::move(model));
    const std::shared_ptr<const M> m = own;
    if constexpr (requires { ForwardSupport(M::kSupport); }) support_ = M::kSupport;
    if constexpr (requires { int64_t(m->context()); }) context_ = m->context();
    if constexpr (requires { int64_t(m->vocab_size()); }) vocab_size_ = m->vocab_size();
    if constexpr (requires { Device(m->device()); }) device_ = m->device();
    forward_ = [m](const Tensor& inputs, const ForwardOptions& o) -> Tensor {
      if constexpr (requires { m->forward(inputs, o); })
        return m->forward(inputs, o);
      else
        return m->forward(inputs);
    };
    if constexpr (requires(const Batch& batch, const ForwardOptions& o) { m->loss(batch, o, Reduction::none); })
      loss_ = [m](const Batch& batch, const ForwardOptions& o, Reduction r) { return m->loss(batch, o, r); };
    else if constexpr (requires(const Batch& batch, const ForwardOptions& o) { m->loss(batch, o); })
      loss_ = [m](const Batch& batch, const ForwardOptions& o, Reduction r) {
        const ProfileRange range(Phase::forward);
        return r == Reduction::mean ? m->loss(batch, o) : Tensor();
      };
    if constexpr (requires(int64_t n) { m->make_cache(n, n); })
      make_cache_ = [m](int64_t batch, int64_t capacity) { return m->make_cache(batch, capacity); };
    if constexpr (requires { to_json(m->config()); }) config_ = [m] { return to_json(m->config()); };
    if constexpr (requires { own->linears(); }) linears_ = [own] { return own->linears(); };
  }

  /// forward()'s logits. An Error for unsupported options.
  Tensor forward(const Tensor& inputs, const ForwardOptions& = {}) const;
  /// Batch's loss: the model's loss(), or cross_entropy() of logits (..., V) over targets (...) except
  /// Batch::kIgnoreIndex, also where the model's knows the mean alone.
  Tensor loss(const Batch&, const ForwardOptions& = {}, Reduction = Reduction::mean) const;

  ForwardSupport support() const { return support_; }
  int64_t context() const { return context_; }        ///< maximum positions; 0: unknown
  int64_t vocab_size() const { return vocab_size_; }  ///< token ids are below; 0: unknown
  /// A cache, or an Error without make_cache().
  KvCache make_cache(int64_t batch, int64_t capacity) const;
  Device device() const { return device_; }  ///< device of generate()'s tokens
  /// config() as JSON, or an Error without it.
  std::string config() const;
  /// An Error without linears().
  std::vector<NamedLinear> linears();

 private:
  void check(const ForwardOptions&) const;

  ForwardSupport support_;
  int64_t context_ = 0, vocab_size_ = 0;
  Device device_;
  // Empty if the model lacks the member.
  std::function<Tensor(const Tensor&, const ForwardOptions&)> forward_;
  std::function<Tensor(const Batch&, const ForwardOptions&, Reduction)> loss_;  // empty Tensor: cannot
  std::function<KvCache(int64_t batch, int64_t capacity)> make_cache_;
  std::function<std::string()> config_;
  std::function<std::vector<NamedLinear>()> linears_;
};

/// Makes a model from parameters.
using MakeModel = std::function<Model(const Params&)>;

}  // namespace tg
