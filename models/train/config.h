/// @file
/// TrainConfig: what a training run is, apart from the model and the data. It is a plain struct with one list of its
/// fields, from which JSON, flags and help are made. Trainer and run_config.h use it.
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
#include <string_view>

namespace tg {

/// Which activations backward recomputes instead of keeping: `none`; `cheap`, the outputs of cheap ops
/// (RecomputeScope); `block`, all of each block but its inputs (ForwardOptions::recompute).
enum class Recompute { none, cheap, block };
/// "none", "cheap" or "block".
std::string_view name_of(Recompute);
/// The optimiser of a run: AdamW, Sgd, or Muon (with AdamW for what is no hidden matrix).
enum class OptimizerKind { adamw, sgd, muon };
/// "random" or "epochs".
std::string_view name_of(SampleOrder);
/// "adamw", "sgd" or "muon".
std::string_view name_of(OptimizerKind);
/// "original" or "rms".
std::string_view name_of(MuonScale);
/// Sets the value with this name; an Error lists the names.
/// @{
void from_name(std::string_view, MatmulPrecision&);
void from_name(std::string_view, SampleOrder&);
void from_name(std::string_view, Recompute&);
void from_name(std::string_view, OptimizerKind&);
void from_name(std::string_view, MuonScale&);
void from_name(std::string_view, ScheduleKind&);
/// @}
/// Sets a dtype that a run can compute in, f32 or bf16; an Error for any other name.
void from_name(std::string_view, DType&);

/// The settings of a training run.
struct TrainConfig {
  int64_t batch = 12;                       ///< windows in a micro-batch
  int64_t window = 0;                       ///< tokens of a window, at most the model's context; 0: the context
  SampleOrder order = SampleOrder::random;  ///< of the windows that Trainer takes from TokenData
  /// Micro-batches in a step, whose gradients make one update, weighted by tokens; several ranks share them.
  int64_t accumulate = 1;
  int64_t max_steps = 2000;
  double lr = 1e-3;      ///< learning rate after `warmup` steps
  double min_lr = 1e-4;  ///< learning rate at the end of the cosine, in [0, lr]; a constant schedule ignores it
  ScheduleKind schedule = ScheduleKind::cosine;  ///< after the warm-up: cosine down to min_lr at max_steps, or constant
  int64_t warmup = 100;                          ///< steps of linear warm-up; a shorter run ends inside it
  OptimizerKind optimizer = OptimizerKind::adamw;
  double beta1 = 0.9, beta2 = 0.99, eps = 1e-8;  ///< AdamW's, also beside Muon
  double weight_decay = 0.1;                     ///< of matrices only
  double momentum = 0.95;                        ///< Sgd and Muon
  bool nesterov = true;                          ///< Sgd and Muon: the step looks ahead
  double muon_lr = 0.02;  ///< Muon: rate of the hidden matrices after `warmup` steps; lr is that of the others
  MuonScale muon_scale = MuonScale::original;
  DType muon_dtype = DType::bf16;  ///< Muon: of the Newton-Schulz iterations, f32 or bf16
  double clip_norm = 1;            ///< largest norm of all gradients together; 0 means no clipping
  int64_t eval_every = 250;        ///< steps between validations; 0 means only after the last step
  int64_t checkpoint_every = -1;   ///< steps between saves; 0 means only after the last step, -1 with each validation
  double val_fraction = 0.1;       ///< part of the data, at its end, that is kept for validation
  /// What forward computes in, f32 or bf16 (ForwardOptions::compute); unset means the dtype of the parameters.
  std::optional<DType> dtype = {};
  MatmulPrecision matmul_precision = MatmulPrecision::highest;  ///< of f32 products, in gradients and validation too
  Recompute recompute = Recompute::none;
  /// How the products of the model's Linear layers are computed, but for one called lm_head: Trainer tells its model
  /// (replace_linears). `plain` leaves the model as it is.
  LinearKind linear = LinearKind::plain;
  /// Ranks keep the optimiser's state of their part of the parameters alone (Partition). One rank has it all.
  bool shard_optimizer = false;
  bool compile = false;  ///< steps run as one compiled function: the same bits in less time
  uint64_t seed = 1;     ///< of the weights, the windows and dropout, each with a stream of its own

  void validate() const;  ///< throws an Error that names the first wrong field and its range
  /// The tokens of a window for a model of this context. An Error if `window` is more.
  int64_t window_in(int64_t context) const;
  /// How many of the micro-batches of a step each of so many ranks makes. An Error if they cannot share them equally.
  int64_t micro_batches_of_rank(int64_t ranks) const;
  /// Whether a validation follows this step. Steps count from 1; the last one always has one.
  bool evaluates_after(int64_t step) const;
  /// Whether a save follows this step. Steps count from 1; the last one always has one. It is for callers: Trainer
  /// writes nothing.
  bool saves_after(int64_t step) const;
};

/// The optimiser of a run for these parameters, sharded over the ranks if the config says so.
std::unique_ptr<Optimizer> make_optimizer(const TrainConfig&, std::vector<Parameter>,
                                          const std::shared_ptr<Communicator>& = Communicator::self());
/// What Optimizer::set_lr() takes where the schedule is at `lr`: that of Muon is the rate of the hidden matrices.
double optimizer_lr(const TrainConfig&, double lr);

/// Calls f(name, field, help) for each field, in order.
template <class Config, class F> void visit_train_fields(Config& c, F&& f) {
  f("batch", c.batch, "windows in a micro-batch");
  f("window", c.window, "tokens of a window, 0: the model's context");
  f("order", c.order, "of windows to train on: random positions, or epochs (each window once before any comes again)");
  f("accumulate", c.accumulate, "micro-batches in a step, for one update of batch * accumulate windows");
  f("max_steps", c.max_steps, "steps of training");
  f("lr", c.lr, "learning rate after warm-up");
  f("min_lr", c.min_lr, "learning rate at the end of the cosine");
  f("schedule", c.schedule, "after the warm-up: cosine, or constant");
  f("warmup", c.warmup, "steps of linear warm-up");
  f("optimizer", c.optimizer, "adamw, sgd, or muon (hidden matrices by Muon, the rest by AdamW)");
  f("beta1", c.beta1, "AdamW: decay of the first moment");
  f("beta2", c.beta2, "AdamW: decay of the second moment");
  f("eps", c.eps, "AdamW: added to the root of the second moment");
  f("weight_decay", c.weight_decay, "decay of the matrices");
  f("momentum", c.momentum, "SGD and Muon: part of the buffer that stays");
  f("nesterov", c.nesterov, "SGD and Muon: whether the step looks ahead");
  f("muon_lr", c.muon_lr, "Muon: learning rate of the hidden matrices after warm-up");
  f("muon_scale", c.muon_scale, "Muon: original, or rms (updates as large as AdamW's: muon_lr as lr)");
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
    "integers; "
    "fp8 or fp8-e4m3 (gradients too) by 8-bit floats");
  f("shard_optimizer", c.shard_optimizer, "ranks share the moments out, 1/N each, for less memory: the same model");
  f("compile", c.compile, "run steps as one compiled function: the same model in less time");
  f("seed", c.seed, "of weights, data order and dropout");
}

}  // namespace tg
