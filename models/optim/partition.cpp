#include <tapegrad/core/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/models/optim/partition.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/shape_ops.h>
#include <tapegrad/ops/training/collective.h>
#include <tapegrad/ops/training/optim_step.h>

#include <algorithm>

namespace tg {
namespace {
constexpr int64_t kStretch = op::SquareSums::kStretch;
int64_t stretches_of(int64_t n) { return (n + kStretch - 1) / kStretch; }

// Where the row may be cut.
std::vector<int64_t> boundaries(const std::vector<int64_t>& begin, const std::vector<bool>& whole) {
  std::vector<int64_t> r;
  for (size_t i = 0; i < whole.size(); ++i)
    for (int64_t at = begin[i]; at < begin[i + 1]; at += whole[i] ? begin[i + 1] - begin[i] : kStretch) r.push_back(at);
  r.push_back(begin.back());
  return r;
}
// Of those, the nearest to equal pieces.
RankCuts balanced(const std::vector<int64_t>& at, int ranks) {
  RankCuts cuts = {0};
  for (int r = 1; r < ranks; ++r) {
    const double want = double(at.back()) * r / ranks;
    const auto after = std::ranges::lower_bound(at, want, {}, [](int64_t x) { return double(x); });
    const bool nearer = after != at.begin() && want - double(*std::prev(after)) <= double(*after) - want;
    cuts.push_back(nearer ? *std::prev(after) : *after);
  }
  cuts.push_back(at.back());
  return cuts;
}
}  // namespace

Partition::Partition(std::vector<Parameter> parameters, const std::vector<bool>& whole,
                     std::shared_ptr<Communicator> comm)
    : parameters_(std::move(parameters)), comm_(std::move(comm)), begin_{0} {
  for (const Parameter& p : parameters_) begin_.push_back(begin_.back() + p.tensor.numel());
  cuts_ = balanced(boundaries(begin_, whole), comm_->size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    stretches_ += stretches_of(parameters_[i].tensor.numel());
    for (int r = 0; r < comm_->rank(); ++r) first_stretch_ += stretches_of(part(i, r).n);
  }
}

GradMap Partition::reduce(const GradMap& grads) const {
  std::vector<Tensor> all;
  for (const Parameter& p : parameters_) {
    all.push_back(grads.as_computed(p.tensor));
    TG_CHECK(
        all.back(), missing_gradient,
        "[partition] '{}' {} has no gradient: the loss does not depend on it. Ranks that share an optimiser need one "
        "for each parameter; freeze it with requires_grad_(false), or leave it out.",
        p.name, p.tensor.shape());
  }
  const Tensors sums = reduce_scatter(all, cuts_, comm_);
  GradMap r;
  for (size_t i = 0; i < parameters_.size(); ++i) r.map()[parameters_[i].tensor.id()] = sums[i];
  return r;
}
Tensor Partition::norm(const GradMap& reduced) const {
  const NoGradScope off;
  std::vector<Tensor> mine;
  bool wide = false;
  for (const Parameter& p : parameters_) {
    mine.push_back(reduced.as_computed(p.tensor));
    wide |= mine.back().dtype() == DType::f64;
  }
  const Tensor sums = square_sums(mine);
  const auto zeros_of = [&](int64_t n) { return zeros({n}, DType::f64, sums.device()); };
  const int64_t after = stretches_ - first_stretch_ - sums.numel();
  // The others add zeros: a sum of all ranks is the value of the one that has it.
  const Tensor mine_alone = concat({zeros_of(first_stretch_), sums, zeros_of(after)});
  return norm_of_square_sums(all_reduce({&mine_alone, 1}, comm_)[0], wide ? DType::f64 : DType::f32);
}
void Partition::gather_parameters() const {
  std::vector<Tensor> w;
  for (const Parameter& p : parameters_) w.push_back(p.tensor);
  all_gather_parts(w, cuts_, comm_);
}
Tensor Partition::gather_to_first(size_t i, const Tensor& owned) const {
  const Tensor& like = parameters_[i].tensor;
  const bool first = comm_->rank() == 0;
  const Tensor mine = owned.detach().to(Device::cpu()).contiguous();
  const Tensor whole = first ? zeros({like.numel()}, owned.dtype()) : Tensor();
  evaluate(first ? std::vector<Tensor>{mine, whole} : std::vector<Tensor>{mine});
  const auto bytes = [](const Tensor& t, int64_t at) {
    const int64_t size = int64_t(size_of(t.dtype()));
    return t.value()->storage->data + (t.layout().offset + at) * size;
  };
  std::vector<std::byte> passing;
  for (int r = 0; r < comm_->size(); ++r) {
    const OwnedPart p = part(i, r);
    const size_t n = size_t(p.n) * size_of(owned.dtype());
    if (n == 0) continue;
    passing.resize(n);
    if (r == comm_->rank()) std::copy_n(bytes(mine, 0), n, passing.data());
    comm_->broadcast(passing.data(), n, r);
    if (first) std::copy_n(passing.data(), n, bytes(whole, p.first));
  }
  return first ? reshape(whole, like.shape()) : whole;
}

}  // namespace tg
