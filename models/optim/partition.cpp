#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/models/optim/partition.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/shape_ops.h>
#include <tapegrad/ops/training/optim_step.h>

#include <algorithm>

namespace tg {
namespace {
constexpr int64_t kSegment = op::SquareSums::kSegment;
constexpr int64_t kBucket = (25 << 20) / 4, kSegmentsOfRank = 4;  // elements per bucket; minimum chunks per rank in it
int64_t segments_of(int64_t n) { return (n + kSegment - 1) / kSegment; }

ShardOffsets balanced(const std::vector<int64_t>& at, int ranks) {
  ShardOffsets cuts = {0};
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

std::vector<GradientBucket> detail::gradient_buckets(std::span<const Parameter> parameters, int ranks) {
  const int64_t least = std::max(kBucket, ranks * kSegmentsOfRank * kSegment);
  std::vector<GradientBucket> all;
  int64_t n = least;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (n >= least) all.push_back({i, i}), n = 0;
    all.back().last = i + 1;
    n += parameters[i].tensor.numel();
  }
  return all;
}

Partition::Partition(std::vector<Parameter> parameters, std::vector<bool> whole, std::shared_ptr<Communicator> comm)
    : parameters_(std::move(parameters)),
      whole_(std::move(whole)),
      comm_(std::move(comm)),
      buckets_(detail::gradient_buckets(parameters_, comm_->size())) {
  for (const GradientBucket& b : buckets_) {
    std::vector<int64_t> places;
    int64_t at = 0;
    for (size_t i = b.first; i < b.last; ++i) {
      const int64_t n = parameters_[i].tensor.numel();
      for (int64_t k = 0; k < n; k += whole_[i] ? n : kSegment) places.push_back(at + k);
      bucket_of_.push_back(cuts_.size()), begin_.push_back(at);
      at += n;
    }
    places.push_back(at);
    cuts_.push_back(balanced(places, comm_->size()));
    Segments& s = segments_.emplace_back();
    for (size_t i = b.first; i < b.last; ++i)
      for (int r = 0; r < comm_->size(); ++r)
        (r < comm_->rank() ? s.before : r > comm_->rank() ? s.after : s.mine) += segments_of(part(i, r).n);
  }
}
Shard Partition::part(size_t i, int rank) const {
  return detail::shard_of(cuts_[bucket_of_[i]], rank, begin_[i], parameters_[i].tensor.numel());
}

PendingSums Partition::start_reduce(size_t bucket, Inputs grads) const {
  return start_reduce_scatter(grads, cuts_[bucket], comm_);
}
Tensor Partition::norm(const GradMap& sums) const {
  const NoGradScope off;
  std::vector<Tensor> owned;
  bool wide = false;
  for (const Parameter& p : parameters_) {
    owned.push_back(sums.native(p.tensor));
    wide |= owned.back().dtype() == DType::f64;
  }
  const Tensor squares = detail::square_sums(owned);
  // This rank's square sums in the row of all; else zeros.
  std::vector<Tensor> row;
  int64_t done = 0;
  const auto add_zeros = [&](int64_t n) {
    if (n > 0) row.push_back(zeros({n}, DType::f64, squares.device()));
  };
  for (const auto& [before, mine, after] : segments_) {
    add_zeros(before);
    if (mine > 0) row.push_back(slice(squares, 0, done, done + mine));
    add_zeros(after);
    done += mine;
  }
  const Tensor all = row.empty() ? squares : concat(row);
  // Other ranks add zeros: exactly the owner's values.
  return detail::norm_of_square_sums(all_reduce({&all, 1}, comm_)[0], wide ? DType::f64 : DType::f32);
}
void Partition::gather_parameters() const {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    std::vector<Tensor> w, low;
    ShardOffsets cuts(cuts_[b].size());  // cuts of low bits
    for (size_t i = buckets_[b].first; i < buckets_[b].last; ++i) {
      w.push_back(parameters_[i].tensor);
      if (!parameters_[i].low) continue;
      low.push_back(parameters_[i].low);
      for (size_t r = 0; r < cuts.size(); ++r)
        cuts[r] += std::clamp<int64_t>(cuts_[b][r] - begin_[i], 0, low.back().numel());
    }
    detail::all_gather_parts(w, cuts_[b], comm_);
    if (!low.empty()) detail::all_gather_parts(low, cuts, comm_);
  }
}
Tensor Partition::gather_to_first(size_t i, const Tensor& owned) const {
  const Tensor& like = parameters_[i].tensor;
  const bool first = comm_->rank() == 0;
  const Tensor mine = owned.detach().to(Device::cpu()).contiguous();
  const Tensor whole = first ? zeros({like.numel()}, owned.dtype()) : Tensor();
  eval(first ? std::vector<Tensor>{mine, whole} : std::vector<Tensor>{mine});
  const auto bytes = [](const Tensor& t, int64_t at) {
    const int64_t size = int64_t(size_of(t.dtype()));
    return t.value()->storage->data + (t.layout().offset + at) * size;
  };
  std::vector<std::byte> passing;
  for (int r = 0; r < comm_->size(); ++r) {
    const Shard p = part(i, r);
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
