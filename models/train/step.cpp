#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/core/profile/profile_range.h>
#include <tapegrad/models/train/reduce.h>
#include <tapegrad/models/train/step.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/shape_ops.h>
#include <tapegrad/ops/training/collective.h>
#include <tapegrad/ops/training/optim_step.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tg {
namespace {
constexpr std::source_location kNoPlace{};  // a line of tapegrad would not help users

// (2) f64: loss and norm, the only host read of a step.
Tensor report_of(const StepGradients& g) {
  NoGradScope off;
  return concat({reshape(g.loss, {1}), reshape(g.norm.to(DType::f64), {1})});
}
TrainStep::Outcome read(const Tensor& report) {
  const auto x = report.to_vector<double>();
  return {x[0], x[1]};
}
}  // namespace

Tensor detail::training_loss(const Model& model, const TrainConfig& config, const Batch& batch, Rng& dropout) {
  const MatmulPrecisionScope precision(config.matmul_precision);
  std::optional<RecomputeScope> cheap;
  if (config.recompute == Recompute::cheap) cheap.emplace();
  return model.loss(batch,
                    {.rng = &dropout, .compute = config.dtype, .recompute = config.recompute == Recompute::block});
}
StepGradients detail::step_gradients(const Model& model, const Params& params, const TrainConfig& config,
                                     const MicroBatches& micro, std::span<Rng> dropout,
                                     const std::shared_ptr<Communicator>& comm, const Partition* partition) {
  size_t i = 0;
  const auto loss = [&](const Batch& batch) { return training_loss(model, config, batch, dropout[i++]); };
  Accumulated a;
  if (comm->size() > 1) {
    GradientReducer reducer(params.trainable(), comm, partition);
    a = accumulate(loss, micro, params.device(), kNoPlace, [&](uint64_t leaf, Tensor& g) { reducer.add(leaf, g); });
    a.grads = reducer.finish(a.grads);
    a.loss = all_reduce({&a.loss, 1}, comm)[0];
  } else {
    a = accumulate(loss, micro, params.device(), kNoPlace);
  }
  const NoGradScope off;
  const ProfileRange norm(Phase::optimizer);
  if (partition) return {a.loss, partition->norm(a.grads), std::move(a.grads)};
  std::vector<Tensor> all;
  for (const Parameter& p : params.trainable())
    if (const Tensor g = a.grads.native(p.tensor)) all.push_back(g);  // the optimiser names missing gradients
  return {a.loss, all.empty() ? zeros({}) : norm_in_parts(all), std::move(a.grads)};
}
StepOptions detail::step_options(const TrainConfig& config, const Tensor& norm) {
  const bool guards = config.compile && config.clip_norm == 0;  // skip_non_finite needs a norm
  return {.clip_norm = guards ? std::numeric_limits<double>::infinity() : config.clip_norm, .norm = norm};
}

bool TrainStep::Outcome::finite() const { return std::isfinite(loss) && std::isfinite(grad_norm); }

TrainStep::TrainStep(const Model& model, const Params& params, const TrainConfig& config,
                     std::shared_ptr<Communicator> comm)
    : model_(model),
      params_(params),
      config_(config),
      comm_(std::move(comm)),
      draws_(size_t(config.micro_batches_of_rank(comm_->size()))),
      optimizer_(detail::make_optimizer(config, params.trainable(), comm_)) {
  if (!config.compile) return;
  std::vector<Rng*> generators;
  for (Rng& r : draws_) generators.push_back(&r);
  compiled_ = compile([this](Inputs in) { return traced(in); }, {.generators = std::move(generators)}, kNoPlace);
}

MicroBatches TrainStep::begin(const MicroBatches& all) {
  const auto first = uint64_t(comm_->rank()) * draws_.size();
  for (uint64_t i = 0; i < draws_.size(); ++i) {
    draws_[i] = first + i == 0 ? dropout : dropout.split(first + i);
    draws_[i].offset = dropout.offset;
  }
  return comm_->size() > 1 ? all.shard(comm_->rank(), comm_->size()) : all;
}
void TrainStep::end_draws() {
  for (const Rng& r : draws_) dropout.offset = std::max(dropout.offset, r.offset);
  if (comm_->size() > 1) dropout.offset = uint64_t(comm_->max(int64_t(dropout.offset)));
}
StepGradients TrainStep::gradients(const MicroBatches& m) {
  const MicroBatches mine = begin(m);
  StepGradients g = detail::step_gradients(model_, params_, config_, mine, draws_, comm_, optimizer_->partition());
  end_draws();
  return g;
}

void TrainStep::search(const MicroBatches& m) {
  (void)detail::step_gradients(model_, params_, config_, begin(m), draws_, Communicator::self(), nullptr);
}

TrainStep::Outcome TrainStep::run(const MicroBatches& m, double lr) {
  optimizer_->set_lr(detail::optimizer_lr(config_, lr));
  if (compiled_) return run_compiled(m);
  const StepGradients g = gradients(m);
  const Outcome o = read(report_of(g));
  if (o.finite()) optimizer_->step(g.grads, detail::step_options(config_, g.norm));
  return o;
}

// Copies x to the device, if possible into `to`: a recorded step reads its inputs at fixed addresses.
void TrainStep::move_to_device(const Tensor& x, Tensor& to) const {
  const Device device = params_.device();
  const bool fits = to && to.device() != Device::cpu() && x.device() == Device::cpu() && to.shape() == x.shape() &&
                    to.dtype() == x.dtype() && to.layout().is_contiguous() && to.layout().offset == 0;
  if (!fits) {
    to = x.to(device);
    return;
  }
  const Tensor from = x.detach().contiguous();
  eval({from});
  const Layout& l = from.layout();
  detail::runtime_of(device).copy_from_host(device.index, to.value()->storage->data,
                                            from.value()->storage->data + size_t(l.offset) * size_of(l.dtype),
                                            l.bytes());
}
// Inputs: inputs and targets of each micro-batch, then the weights if there are several batches.
TrainStep::Outcome TrainStep::run_compiled(const MicroBatches& m) {
  const MicroBatches mine = begin(m);
  std::vector<Tensor> in;
  for (const Batch& b : mine.batches) in.push_back(b.inputs), in.push_back(b.targets);
  if (mine.weights) in.push_back(mine.weights);
  inputs_.resize(in.size());
  for (size_t k = 0; k < in.size(); ++k) move_to_device(in[k], inputs_[k]);
  const Outcome o = read((*compiled_)(inputs_)[0]);
  end_draws();
  if (!o.finite()) optimizer_->uncount_step();  // nothing else has changed
  return o;
}
std::vector<Tensor> TrainStep::traced(Inputs in) {
  MicroBatches m;
  for (size_t i = 0; i + 1 < in.size(); i += 2) m.batches.push_back({in[i], in[i + 1]});
  if (in.size() % 2) m.weights = in.back();
  const StepGradients g = detail::step_gradients(model_, params_, config_, m, draws_, comm_, optimizer_->partition());
  NoGradScope off;
  // A non-finite loss must also skip the update: 0 times it is NaN.
  optimizer_->step(g.grads, detail::step_options(config_, g.norm + (g.loss * 0.0).to(g.norm.dtype())));
  return {report_of(g)};
}

}  // namespace tg
