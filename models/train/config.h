/// @file
/// TrainConfig: the settings of a training run, except model and data; visit_train_fields() lists them once.
#pragma once
#include <tapegrad/core/dtype.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/models/data/dataset.h>
#include <tapegrad/models/nn/layers.h>
#include <tapegrad/models/optim/muon.h>
#include <tapegrad/models/optim/schedule.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace tg {

/// Recomputed activations: `none`; `cheap`, the outputs of cheap ops (RecomputeScope); `block`, all of each block
/// except its inputs (ForwardOptions::recompute).
enum class Recompute { none, cheap, block };
/// The optimiser of a run: AdamW, Sgd, or Muon (AdamW for all but hidden matrices).
enum class OptimizerKind { adamw, sgd, muon };
/// Names of values.
/// @{
template <> inline constexpr EnumNames<3> kEnumNames<SampleOrder>{"order", {"random", "epochs", "sequential"}};
template <> inline constexpr EnumNames<3> kEnumNames<Recompute>{"recompute", {"none", "cheap", "block"}};
template <> inline constexpr EnumNames<3> kEnumNames<OptimizerKind>{"optimizer", {"adamw", "sgd", "muon"}};
template <> inline constexpr EnumNames<2> kEnumNames<MuonScale>{"muon_scale", {"original", "rms"}};
template <>
inline constexpr EnumNames<3> kEnumNames<MatmulPrecision>{"matmul_precision", {"highest", "high", "medium"}};
/// @}
/// Sets a compute dtype, f32 or bf16; throws for any other name.
void from_name(std::string_view, DType&);

/// The settings of a training run.
struct TrainConfig {
  int64_t batch = 12;                       ///< windows in a micro-batch
  int64_t window = 0;                       ///< tokens per window, at most the model's context; 0: that
  SampleOrder order = SampleOrder::random;  ///< order of TokenData's windows
  int64_t accumulate = 1;                   ///< micro-batches per update, weighted by tokens, of all ranks
  int64_t max_steps = 2000;
  double lr = 1e-3;                              ///< learning rate after `warmup` steps
  double min_lr = 1e-4;                          ///< cosine: final rate in [0, lr]; unused if constant
  ScheduleKind schedule = ScheduleKind::cosine;  ///< shape after warm-up; cosine ends at max_steps
  int64_t warmup = 100;                          ///< steps of linear warm-up; a shorter run ends inside it
  int64_t hold = 0;                              ///< cosine: steps at lr after the warm-up
  double cooldown = 0.2;                         ///< wsd: last part of the steps, in (0, 1]
  OptimizerKind optimizer = OptimizerKind::adamw;
  double beta1 = 0.9, beta2 = 0.99, eps = 1e-8;  ///< AdamW's, also under Muon
  DType moments = DType::f32;                    ///< dtype of AdamW's moments: f32 or bf16
  double weight_decay = 0.1;                     ///< matrices only, unless decay_all
  bool decay_all = false;                        ///< AdamW's biases and norms decay too
  std::string lr_groups = "";                    ///< ParameterGroup::lr: "pattern=rate,..."
  bool split_weights = false;                    ///< AdamW, bf16: Linear weights become split (Params::split())
  double momentum = 0.95;                        ///< Sgd and Muon
  bool nesterov = true;                          ///< Sgd and Muon: the step looks ahead
  double muon_lr = 0.02;                         ///< Muon: hidden matrices' rate after `warmup`; others use lr
  MuonScale muon_scale = MuonScale::original;
  double muon_weight_decay = -1;                           ///< Muon: of the hidden matrices; -1: weight_decay
  int64_t muon_steps = 5;                                  ///< Muon: Newton-Schulz iterations
  std::string muon_coefficients = "3.4445,-4.775,2.0315";  ///< Muon: NewtonSchulz
  DType muon_dtype = DType::bf16;  ///< Muon: Newton-Schulz iterations, f32 or bf16, or f64 over f64
  double clip_norm = 1;            ///< maximum global gradient norm; 0 means no clipping
  int64_t eval_every = 250;        ///< steps between validations; 0: only after the last step
  int64_t checkpoint_every = -1;   ///< steps between saves; 0: only the last, -1: every validation
  double val_fraction = 0.1;       ///< last fraction of the data, kept for validation
  /// Dtype of forward, f32 or bf16 (ForwardOptions::compute); unset: that of the parameters.
  std::optional<DType> dtype = {};
  MatmulPrecision matmul_precision = MatmulPrecision::highest;  ///< f32 GEMMs, backward and validation included
  Recompute recompute = Recompute::none;
  /// GEMMs of Linear layers except lm_head (with_linears). `plain` changes nothing.
  LinearKind linear = LinearKind::plain;
  bool shard_optimizer = false;  ///< ranks shard the optimiser state (Partition)
  bool compile = false;          ///< steps run as one compiled function: same bits, faster
  uint64_t seed = 1;             ///< weights, windows, dropout: separate streams

  void validate() const;  ///< an Error names the first wrong field and its range
  /// Tokens per window for this context. Throws if `window` is larger.
  int64_t window_in(int64_t context) const;
  /// accumulate / ranks. Throws if that is not a whole number.
  int64_t micro_batches_of_rank(int64_t ranks) const;
  /// Whether this step validates. Steps count from 1; the last one always does.
  bool evaluates_after(int64_t step) const;
  /// Whether this step saves. Steps count from 1; the last one always does. For callers: Trainer writes nothing.
  bool saves_after(int64_t step) const;
};

namespace detail {
/// A run's optimiser, sharded if c.shard_optimizer.
std::unique_ptr<Optimizer> make_optimizer(const TrainConfig&, std::vector<Parameter>,
                                          const std::shared_ptr<Communicator>& = Communicator::self());
/// Optimizer::set_lr()'s argument at schedule rate `lr`: for Muon the hidden matrices' rate.
double optimizer_lr(const TrainConfig&, double lr);

/// Calls f(name, field, help) per field.
template <class Config, class F> void visit_train_fields(Config& c, F&& f) {
  f("batch", c.batch, "windows in a micro-batch");
  f("window", c.window, "tokens of a window, 0: the model's context");
  f("order", c.order,
    "of windows to train on: random positions, epochs (each window once before any comes again), or sequential");
  f("accumulate", c.accumulate, "micro-batches in a step, for one update of batch * accumulate windows");
  f("max_steps", c.max_steps, "steps of training");
  f("lr", c.lr, "learning rate after warm-up");
  f("min_lr", c.min_lr, "learning rate at the end of the cosine or line; by default a tenth of lr");
  f("schedule", c.schedule, "after the warm-up: cosine, constant, or wsd (constant, then a line down to min_lr)");
  f("warmup", c.warmup, "steps of linear warm-up");
  f("hold", c.hold, "of cosine: steps at lr after the warm-up");
  f("cooldown", c.cooldown, "of wsd: last part of the steps, where the rate falls");
  f("optimizer", c.optimizer, "adamw, sgd, or muon (hidden matrices by Muon, the rest by AdamW)");
  f("beta1", c.beta1, "AdamW: decay of the first moment");
  f("beta2", c.beta2, "AdamW: decay of the second moment");
  f("eps", c.eps, "AdamW: added to the root of the second moment");
  f("moments", c.moments, "AdamW: dtype of both moments: f32, or bf16 (rounded stochastically)");
  f("weight_decay", c.weight_decay, "decay of the matrices");
  f("decay_all", c.decay_all, "AdamW: biases and norms decay too");
  f("lr_groups", c.lr_groups,
    "rates of parameters by pattern, such as wte.weight=0.3,*.bias=0.01; others have lr or muon_lr");
  f("split_weights", c.split_weights, "AdamW, dtype bf16: weights of Linear layers as bf16 and 16 low bits, no copies");
  f("momentum", c.momentum, "SGD and Muon: fraction of the buffer that is kept");
  f("nesterov", c.nesterov, "SGD and Muon: whether the step looks ahead");
  f("muon_lr", c.muon_lr, "Muon: learning rate of the hidden matrices after warm-up");
  f("muon_scale", c.muon_scale, "Muon: original, or rms (updates as large as AdamW's: muon_lr as lr)");
  f("muon_weight_decay", c.muon_weight_decay, "Muon: decay of the hidden matrices, -1: weight_decay");
  f("muon_steps", c.muon_steps, "Muon: Newton-Schulz iterations");
  f("muon_coefficients", c.muon_coefficients, "Muon: a,b,c of x = a x + (b x x^T + c (x x^T)^2) x");
  f("muon_dtype", c.muon_dtype, "Muon: of the Newton-Schulz iterations: bf16 or f32");
  f("clip_norm", c.clip_norm, "largest norm of the gradient, 0: no limit");
  f("eval_every", c.eval_every, "steps between validations, 0: only at the end");
  f("checkpoint_every", c.checkpoint_every, "steps between saves, 0: only at the end, -1: with each validation");
  f("val_fraction", c.val_fraction, "last part of the data, kept for validation");
  f("dtype", c.dtype, "of the computation: f32, or bf16 over f32 parameters");
  f("matmul_precision", c.matmul_precision, "of f32 matrix products: highest, high or medium");
  f("recompute", c.recompute,
    "of activations, for less memory: none, cheap (norms, activations, dropout), or block (all of each block)");
  f("linear", c.linear,
    "products of the blocks: plain; switchback, switchback-vector-wise or switchback-memory-efficient by 8-bit "
    "integers; fp8 or fp8-e4m3 (gradients too) by 8-bit floats");
  f("shard_optimizer", c.shard_optimizer, "ranks shard the moments, 1/N each, for less memory: the same model");
  f("compile", c.compile, "run steps as one compiled function: the same model in less time");
  f("seed", c.seed, "of weights, data order and dropout");
}
}  // namespace detail

}  // namespace tg
