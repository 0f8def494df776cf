/// @file
/// Model: a handle to any model with a forward(), Gpt or user-defined: a plain struct without a base class. Trainer,
/// evaluate(), generate(), compare(), plan_memory() and save_model() take it.
#pragma once
#include <tapegrad/models/config/config_json.h>
#include <tapegrad/models/data/batch.h>
#include <tapegrad/models/model/forward.h>
#include <tapegrad/models/nn/kv_cache.h>

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
/// | `Tensor loss(const Batch&, const ForwardOptions&) const` | a loss other than cross_entropy() of the logits |
/// | `int64_t context() const` | the most positions: training on TokenData, generate() |
/// | `int64_t vocab_size() const` | messages about tokens outside of it |
/// | `KvCache make_cache(int64_t batch, int64_t capacity) const` | generate() with a cache (1) |
/// | `Device device() const` | generate() on another device than the CPU |
/// | `const Config& config() const`, with visit_fields() (config_json.h) | save_model(), load_model() |
/// | `std::vector<NamedLinear> linears()` | apply_lora(), replace_linears() |
///
/// (1) also needs context(), and cache and lengths in kSupport.
class Model {
 public:
  /// Copies `model`, which shares its tensors.
  template <ForwardModel M>
    requires(!std::same_as<M, Model>)
  Model(M model) : own_(std::make_shared<Of<M>>(std::move(model))) {}

  /// The logits of forward(), with last_only only the last position's. An Error for an option that the model does not
  /// support.
  Tensor forward(const Tensor& inputs, const ForwardOptions& = {}) const;
  /// The scalar loss of a batch: the model's loss(), or the mean of cross_entropy() of logits (..., V) over targets
  /// (...) other than Batch::kIgnoreIndex.
  Tensor loss(const Batch&, const ForwardOptions& = {}) const;

  /// Options that it supports.
  ForwardSupport support() const { return own_->support(); }
  int64_t context() const { return own_->context(); }        ///< the most positions; 0: no known limit
  int64_t vocab_size() const { return own_->vocab_size(); }  ///< token ids are below it; 0: unknown
  /// A cache for `batch` sequences of up to `capacity` positions. An Error without make_cache().
  KvCache make_cache(int64_t batch, int64_t capacity) const { return own_->make_cache(batch, capacity); }
  Device device() const { return own_->device(); }  ///< of the tokens in generate()
  /// The configuration as a JSON object. An Error without config().
  std::string config() const { return own_->config(); }
  /// The Linear layers. An Error without linears().
  std::vector<NamedLinear> linears() { return own_->linears(); }

 private:
  struct Any {
    virtual ~Any() = default;
    virtual Tensor forward(const Tensor&, const ForwardOptions&) const = 0;
    virtual Tensor loss(const Batch&, const ForwardOptions&) const = 0;
    virtual ForwardSupport support() const = 0;
    virtual int64_t context() const = 0;
    virtual int64_t vocab_size() const = 0;
    virtual KvCache make_cache(int64_t batch, int64_t capacity) const = 0;
    virtual Device device() const = 0;
    virtual std::string config() const = 0;
    virtual std::vector<NamedLinear> linears() = 0;
  };
  [[noreturn]] static void misses(std::string_view member, std::string_view use);
  static Tensor own_loss(const std::function<Tensor()>& loss);
  static Tensor loss_of(const std::function<Tensor()>& logits, const Tensor& targets);
  void check(const ForwardOptions&) const;

  template <class M> struct Of final : Any {
    M model;
    explicit Of(M m) : model(std::move(m)) {}
    Tensor forward(const Tensor& inputs, const ForwardOptions& o) const override {
      if constexpr (requires { model.forward(inputs, o); })
        return model.forward(inputs, o);
      else
        return model.forward(inputs);
    }
    Tensor loss(const Batch& batch, const ForwardOptions& o) const override {
      if constexpr (requires { model.loss(batch, o); })
        return own_loss([&] { return model.loss(batch, o); });
      else
        return loss_of([&] { return forward(batch.inputs, o); }, batch.targets);
    }
    ForwardSupport support() const override {
      if constexpr (requires { ForwardSupport(M::kSupport); })
        return M::kSupport;
      else
        return {};
    }
    int64_t context() const override {
      if constexpr (requires { int64_t(model.context()); })
        return model.context();
      else
        return 0;
    }
    int64_t vocab_size() const override {
      if constexpr (requires { int64_t(model.vocab_size()); })
        return model.vocab_size();
      else
        return 0;
    }
    KvCache make_cache(int64_t batch, int64_t capacity) const override {
      if constexpr (requires { model.make_cache(batch, capacity); })
        return model.make_cache(batch, capacity);
      else
        misses("make_cache()", "generate() with a cache");
    }
    Device device() const override {
      if constexpr (requires { Device(model.device()); })
        return model.device();
      else
        return {};
    }
    std::string config() const override {
      if constexpr (requires { to_json(model.config()); })
        return to_json(model.config());
      else
        misses("config(), with visit_fields()", "save_model()");
    }
    std::vector<NamedLinear> linears() override {
      if constexpr (requires { model.linears(); })
        return model.linears();
      else
        misses("linears()", "apply_lora()");
    }
  };
  std::shared_ptr<Any> own_;
};

/// Makes a model from parameters.
using MakeModel = std::function<Model(const Params&)>;

}  // namespace tg
