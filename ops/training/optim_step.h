/// @file
/// Optimiser steps on tensors: the norm of all gradients, and a step of Adam (Kingma & Ba 2015), AdamW (Loshchilov &
/// Hutter 2019) or SGD with momentum (Sutskever et al., 2013) for all tensors in one pass. models/optim adds groups,
/// schedules and state.
#pragma once
#include <tapegrad/core/op.h>

#include <deque>
#include <optional>
#include <span>
#include <vector>

namespace tg {
namespace op {

/// (any number of tensors) -> sums of squares of their segments, (number of segments) f64.
struct SquareSums : OpOf<SquareSums> {
  static constexpr auto kName = "square_sums";
  static constexpr int64_t kSegment = 1 << 14;  ///< elements; the last may be shorter
  Layouts infer(Inputs) const override;
};
/// ((n) f64) -> the square root of their sum.
struct NormOfSquareSums : OpOf<NormOfSquareSums> {
  static constexpr auto kName = "norm_of_square_sums";
  DType dtype;
  explicit NormOfSquareSums(DType t) : dtype(t) {}
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override { k.add(int(dtype)); }
};
}  // namespace op

/// Form and time of weight decay.
enum class WeightDecay {
  before,  ///< w *= 1 - lr weight_decay, then the step: AdamW, PyTorch
  after,   ///< the step, then w *= 1 - lr weight_decay
  l2       ///< gradient += weight_decay w: Adam with L2 penalty
};
/// Where eps is added.
enum class EpsPlacement {
  /// m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps): algorithm 1 of Adam's paper, and PyTorch
  corrected,
  /// sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps): the end of section 2 of Adam's paper
  uncorrected
};
/// Hyperparameters of an AdamW step.
struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  WeightDecay decay = WeightDecay::before;
  EpsPlacement eps_placement = EpsPlacement::corrected;
  /// A step whose norm is not finite changes no tensor. Needs the norm; a max_norm of infinity clips nothing.
  bool skip_non_finite = false;
  uint64_t seed = 0;  ///< seed of bf16 moments' rounding
};
/// Per-tensor values of an AdamW step. Unset ones default to the options.
struct AdamWOverrides {
  double lr_scale = 1;  ///< factor of the learning rate, also for decay
  std::optional<double> weight_decay = {}, beta1 = {}, beta2 = {};
  std::optional<uint64_t> stream = {};  ///< random stream; default: the index
};
/// Hyperparameters of an SGD step.
struct SgdOptions {
  double momentum = 0;           ///< 0: there are no buffers
  double dampening = 0;          ///< share of g left out after step 1
  double weight_decay = 0;       ///< weight_decay w is added to the gradient
  bool nesterov = false;         ///< needs momentum above 0 and dampening 0
  bool skip_non_finite = false;  ///< see AdamWOptions
};
/// Per-tensor values of an SGD step. Unset ones default to the options.
struct SgdOverrides {
  double lr_scale = 1;  ///< factor of the learning rate
  std::optional<double> weight_decay = {};
};
/// Learning rate and number of the last step, shared by an optimiser and its ops. Replays of compiled functions read
/// the rate and count the step.
struct OptimizerClock : Counted<OptimizerClock> {
  double lr;
  int64_t t;
  OptimizerClock(double rate, int64_t steps) : lr(rate), t(steps) {}
};
namespace op {

/// Attributes of a step of many tensors. Keys omit learning rate and step number, which change every step.
template <class Options, class Overrides> struct StepAttributes {
  Options o;
  std::vector<Overrides> each;   ///< overrides per tensor, all set
  std::vector<uint32_t> copied;  ///< indices of tensors with a copy, in order
  /// Per tensor, the first element of w in the step; empty: all of w.
  std::vector<int64_t> first;
  double lr, max_norm;
  int64_t t;
  Ref<OptimizerClock> count;         ///< may be null
  bool counts = true;                ///< a replay counts a step
  std::vector<uint32_t> split = {};  ///< indices of split weights, in order
  size_t tensors() const { return each.size(); }
  /// Attributes of the next step, by `count`.
  StepAttributes next() const {
    StepAttributes a = *this;
    a.lr = count->lr, a.t = counts ? ++count->t : count->t;
    return a;
  }
  /// Reverts the count of next().
  void undo() const {
    if (count && counts) count->t = t - 1;
  }
};
/// An op that steps tensors in place.
template <class Self, class StepAttributes> struct StepOp : OpOf<Self>, StepAttributes {
  explicit StepOp(StepAttributes a) : StepAttributes(std::move(a)) {}
  OpPtr for_next_step(const Rng&) const override { return make_ref<Self>(this->next()); }
  void undo_step() const override { this->undo(); }
  OpWork work(Bufs in, Bufs out) const override {  // copies are not read
    OpWork w = Op::work(in, out);
    for (const uint32_t i : this->copied) w.read -= in[i].numel() * int64_t(sizeof(bf16));
    return w;
  }
  Traits traits() const override { return {.updates_in_place = true, .dynamic_attributes = true}; }
};

/// Buffers of an op with StepAttributes::first: weights, low bits and copies restricted to the updated parts. Weights
/// are read from the output, already copied there.
class StepParts {
 public:
  using Places = std::span<const uint32_t>;
  StepParts(std::span<const int64_t> first, Places copied, Places split, Bufs in, Bufs out);
  StepParts(const StepParts&) = delete;
  Bufs in() const { return in_; }
  Bufs out() const { return out_; }

 private:
  std::vector<Buf> in_, out_;
  std::deque<Layout> layouts_;
};
/// Attributes of an AdamW step.
using AdamWAttributes = StepAttributes<AdamWOptions, AdamWOverrides>;
/// Adds the attributes to a key.
inline void add_key(StructuralHash& k, const AdamWAttributes& a) {
  k.add(a.o.eps), k.add(a.max_norm), k.add(int(a.o.decay)), k.add(int(a.o.eps_placement)), k.add(a.o.skip_non_finite);
  for (const uint32_t i : a.copied) k.add(uint64_t(i));
  for (const uint32_t i : a.split) k.add(~uint64_t(i));
  for (const int64_t i : a.first) k.add(uint64_t(i));
  for (const AdamWOverrides& x : a.each) {
    k.add(x.lr_scale), k.add(*x.weight_decay), k.add(*x.beta1), k.add(*x.beta2);
    if (x.stream) k.add(a.o.seed), k.add(*x.stream);
  }
}
/// For n tensors: (w_0 ... w_n-1, m_0 ..., v_0 ..., low_0 ..., copy_0 ..., grad_0 ...[, norm]) -> (w_0 ..., m_0 ...,
/// v_0 ..., low_0 ..., copy_0 ...). low: of split weights. copy: write-only cast_parameter() copies, of those that have
/// one. With `first`, the step updates a part of each w and low; the rest stays, and that of a copy is undefined.
struct AdamWStep : StepOp<AdamWStep, AdamWAttributes> {
  static constexpr auto kName = "adamw_step";
  using StepOp::StepOp;
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override { add_key(k, *this); }
};
/// One tensor, whose gradient is a GEMM that is not stored: (w, m, v, a, b[, norm]) -> (w, m, v), as AdamWStep with the
/// gradient a^T b in w's shape.
struct AdamWProductStep : StepOp<AdamWProductStep, AdamWAttributes> {
  static constexpr auto kName = "adamw_product_step";
  using StepOp::StepOp;
  Layouts infer(Inputs) const override;
  double multiply_adds(Bufs in, Bufs out) const override;
  void key(StructuralHash& k) const override { add_key(k, *this); }
};
/// For n tensors, with momentum: (w_0 ... w_n-1, b_0 ..., copy_0 ..., grad_0 ...[, norm]) -> (w_0 ..., b_0 ..., copy_0
/// ...), with copies as for AdamWStep. Without momentum there are no b.
struct SgdStep : StepOp<SgdStep, StepAttributes<SgdOptions, SgdOverrides>> {
  static constexpr auto kName = "sgd_step";
  using StepOp::StepOp;
  size_t updated() const { return o.momentum > 0 ? 2 : 1; }  ///< updated tensors of an entry
  Layouts infer(Inputs) const override;
  void key(StructuralHash& k) const override {
    k.add(o.momentum), k.add(o.dampening), k.add(o.nesterov), k.add(max_norm), k.add(o.skip_non_finite);
    for (const uint32_t i : copied) k.add(uint64_t(i));
    for (const int64_t i : first) k.add(uint64_t(i));
    for (const SgdOverrides& x : each) k.add(x.lr_scale), k.add(*x.weight_decay);
  }
};
}  // namespace op

/// norm_of_square_sums(square_sums(grads)): f64 if a tensor is f64, else f32.
Tensor global_norm(Inputs grads);

/// Tensors of an AdamW step: lists of one length, in one order.
struct AdamWTensors {
  Inputs w, m, v, grad;
  std::span<const AdamWOverrides> each = {};  ///< empty: values of the options
  /// Per tensor, the first element of the part of w to update. m, v and grad are then (n) for n elements, in row-major
  /// order. Empty: all of w. cast_parameter() copies are then undefined outside the parts, until all_gather_parts().
  std::span<const int64_t> first = {};
  /// Per tensor, SplitTensor::low of a split weight, contiguous, else empty; or no list.
  Inputs low = {};
};
/// Step number t, from 1, of every tensor. With g = grad, by default
/// @verbatim
/// w *= 1 - lr weight_decay;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
/// w -= lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
/// @endverbatim
/// Other forms: see WeightDecay and EpsPlacement; with weight_decay 0 all three decays are equal.
///
/// w, m and v, and the weight's bf16 cast_parameter() copy, get their new values, in place if no other handle has the
/// old ones. The four tensors of an entry have one shape and dtype (f64 or f32); all are on one device. Gradient or
/// moments of an f32 weight may be bf16, rounded stochastically by seed, stream, t and position. An f32 weight may be
/// split: w is then bf16, contiguous. With norm (0-d f32 or f64, read by the kernel), g = grad min(1, max_norm / (norm
/// + 1e-6)).
///
/// One op, not recorded. An Error, with nothing changed, if a w, m or v was computed on the tape or comes twice, or if
/// a number is out of range. A compiled function needs `count`, else an Error.
void adamw_step(const AdamWTensors&, const AdamWOptions&, double lr, int64_t t, const Tensor& norm = {},
                double max_norm = 0, Ref<OptimizerClock> count = {});
/// adamw_step() of a single tensor.
inline void adamw_step(const Tensor& w, const Tensor& m, const Tensor& v, const Tensor& grad, const AdamWOptions& o,
                       double lr, int64_t t, const Tensor& norm = {}, double max_norm = 0) {
  adamw_step({.w = {&w, 1}, .m = {&m, 1}, .v = {&v, 1}, .grad = {&grad, 1}}, o, lr, t, norm, max_norm);
}

/// An f32 tensor, split: its bits are 2^16 high + int16(low).
struct SplitTensor {
  Tensor high;  ///< bf16, nearest with ties away from 0
  Tensor low;   ///< u16
};
namespace detail {
/// Sums of squares of segments of 2^14 elements of each tensor, in row-major order: (number of segments) f64. At least
/// one tensor; any shapes; f64, f32, bf16. No gradient.
Tensor square_sums(Inputs);
/// The norm from square_sums(), (n) f64: the square root of their sum in order, 0-d of this dtype, f64 or f32.
Tensor norm_of_square_sums(const Tensor& sums, DType);
/// Splits an f32 tensor on its device, by the host; NaNs become quiet ones. An Error names the first finite element
/// whose nearest bf16 is not, from 0x1.ffp127 on; adamw_step() keeps weights below.
SplitTensor split_weight(const Tensor&);
/// The f32 of split_weight(), on the host.
Tensor join_weight(const SplitTensor&);
}  // namespace detail

/// A gradient a^T b in the shape of the weight, with a (R, rows), b (R, columns).
struct GradientProduct {
  Tensor a, b;
};
namespace detail {
/// adamw_step() of a single tensor with grad = a^T b, which the kernel computes tile by tile and never stores. a and b
/// have w's dtype, and rows times columns are w's elements, in row-major order. If another op of the optimiser's step
/// counts, pass counts = false and call this one after it.
void adamw_product_step(const Tensor& w, const Tensor& m, const Tensor& v, const GradientProduct& grad,
                        const AdamWOptions&, double lr, int64_t t, const AdamWOverrides& = {}, const Tensor& norm = {},
                        double max_norm = 0, Ref<OptimizerClock> count = {}, bool counts = true);
}  // namespace detail

/// Tensors of an SGD step: lists of one length, in one order.
struct SgdTensors {
  Inputs w, grad;
  Inputs momentum = {};                     ///< buffers; empty without momentum
  std::span<const SgdOverrides> each = {};  ///< empty: values of the options
  std::span<const int64_t> first = {};      ///< see AdamWTensors
};
/// Step number t, from 1, of every tensor, as torch.optim.SGD: with g = grad + weight_decay w and buffer b
/// @verbatim
/// b = g in step 1, momentum b + (1 - dampening) g later;  g = nesterov ? g + momentum b : b;  w -= lr lr_scale g
/// @endverbatim
/// Without momentum, w -= lr lr_scale g. Tensors, dtypes, norm, max_norm, `count` and Errors: see adamw_step(). If
/// another op of the optimiser's step counts, pass counts = false.
void sgd_step(const SgdTensors&, const SgdOptions&, double lr, int64_t t, const Tensor& norm = {}, double max_norm = 0,
              Ref<OptimizerClock> count = {}, bool counts = true);

}  // namespace tg
