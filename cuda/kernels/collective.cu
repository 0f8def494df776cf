// Tensors of a dtype form one row, reduced in rounds: each rank sums its part in rank order and sends the sums. The
// bits equal those of the CPU; NCCL moves bytes.
#include <tapegrad/cuda/device/kernel.h>
#include <tapegrad/cuda/device/rank_parts.h>
#include <tapegrad/cuda/nccl/device_comm.h>
#include <tapegrad/ops/training/collective.h>

#include <algorithm>
#include <vector>

namespace tg::cuda {
namespace {
class Row {
 public:
  void add(const ReduceBuffer& s) {
    all_.push_back(s);
    ends_.push_back(size() + s.n);
  }
  int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  // Calls f(tensor, its first element, count, offset from `first`) per segment.
  template <class F> void each(int64_t first, int64_t n, F&& f) const {
    auto i = size_t(std::ranges::upper_bound(ends_, first) - ends_.begin());
    for (int64_t done = 0; done < n; ++i) {
      const int64_t from = first + done - (ends_[i] - all_[i].n);
      const int64_t some = std::min(n - done, all_[i].n - from);
      f(all_[i], from, some, done);
      done += some;
    }
  }

 private:
  std::vector<ReduceBuffer> all_;
  std::vector<int64_t> ends_;
};
// Rank r owns elements [cuts[r], cuts[r + 1]), at most `most` per round, at r * most of its memory.
class Rounds {
 public:
  Rounds(const Row& row, const std::vector<int64_t>& cuts, int64_t most)
      : row_(row),
        most_(most),
        first_(cuts.begin(), cuts.end() - 1),
        end_(cuts.begin() + 1, cuts.end()),
        n_(end_.size()) {}
  bool next() {
    for (size_t r = 0; r < n_.size(); ++r) first_[r] += n_[r], n_[r] = std::min(most_, end_[r] - first_[r]);
    return std::ranges::any_of(n_, [](int64_t n) { return n > 0; });
  }
  int64_t n(int rank) const { return n_[size_t(rank)]; }
  std::vector<size_t> bytes(size_t element) const {
    std::vector<size_t> all;
    for (const int64_t n : n_) all.push_back(size_t(n) * element);
    return all;
  }
  template <class Ranks> void pack(const Context& c, size_t element, std::byte* to, Ranks&& wanted) const {
    copy_segments(
        c,
        segments(wanted,
                 [&](const ReduceBuffer& s, size_t first, size_t at) {
                   return Segment{static_cast<const std::byte*>(s.from) + first * element, to + at * element, 0};
                 }),
        element);
  }
  template <class Ranks> void unpack(const Context& c, size_t element, const std::byte* from, Ranks&& wanted) const {
    copy_segments(c,
                  segments(wanted,
                           [&](const ReduceBuffer& s, size_t first, size_t at) {
                             return Segment{from + at * element, static_cast<std::byte*>(s.to) + first * element, 0};
                           }),
                  element);
  }

 private:
  template <class Ranks, class F> std::vector<Segment> segments(Ranks&& wanted, F&& f) const {
    std::vector<Segment> all;
    for (size_t r = 0; r < n_.size(); ++r) {
      if (!wanted(int(r))) continue;
      row_.each(first_[r], n_[r], [&](const ReduceBuffer& s, int64_t first, int64_t n, int64_t done) {
        all.push_back(f(s, size_t(first), r * size_t(most_) + size_t(done)));
        all.back().n = n;
      });
    }
    return all;
  }
  const Row& row_;
  int64_t most_;
  std::vector<int64_t> first_, end_, n_;
};
bool all_ranks(int) { return true; }

struct Ranks {
  const Context& c;
  const char* op;
  int ranks, rank;
  nccl::DeviceComm* comm;  // null for a world of one
  size_t round;
  nccl::DeviceComm::Exchange exchange;
  Ranks(const Context& context, Communicator& all, const char* name)
      : c(context),
        op(name),
        ranks(all.size()),
        rank(all.rank()),
        comm(nccl::DeviceComm::of(all, context.device.index, name)),
        round(comm ? comm->round() : properties(context.device.index).l2_cache),
        exchange(comm, name) {}

  // Elements per round, a multiple of 16 bytes.
  int64_t most(const ShardOffsets& cuts, size_t size) const {
    const auto vec = int64_t(16 / size);
    int64_t part = 0;
    for (size_t r = 0; r + 1 < cuts.size(); ++r) part = std::max(part, cuts[r + 1] - cuts[r]);
    return std::min((part + vec - 1) / vec * vec, std::max(vec, int64_t(round / size) / (ranks * vec) * vec));
  }
  // Cuts of a row with a subset of the tensors of `cuts`.
  ShardOffsets cuts_of(const ShardOffsets& cuts, Bufs all, bool (*in)(const Buf&, size_t), size_t which) const {
    ShardOffsets r(cuts.size());
    int64_t begin = 0;
    for (const Buf& x : all) {
      if (in(x, which))
        for (size_t k = 0; k < cuts.size(); ++k) r[k] += std::clamp(cuts[k] - begin, int64_t(0), x.numel());
      begin += x.numel();
    }
    return r;
  }
  // Calls done(round, sums) per round; rank r's sums begin at r * most.
  template <class F> void sum(const Row& row, const ShardOffsets& cuts, DType dtype, F&& done) const {
    const size_t size = size_of(dtype), wide = size_of(tg::detail::reduced_dtype(op, dtype));
    const int64_t n = most(cuts, size);
    const size_t elements = size_t(ranks * n);
    const Scratch packed(c, elements * size), received(c, elements * size), sums(c, elements * wide);
    std::byte* const all = sums.as<std::byte>();
    for (Rounds now(row, cuts, n); now.next();) {
      now.pack(c, size, packed.as<std::byte>(), all_ranks);
      if (comm)
        comm->all_to_all(packed.as<std::byte>(), received.as<std::byte>(), now.bytes(size), size_t(n) * size, op);
      add_parts(c, dtype, now.n(rank), ranks, n, (comm ? received : packed).as<void>(), all + size_t(rank * n) * wide);
      done(now, all, size_t(n) * wide);
    }
  }
};
constexpr DType kSummed[] = {DType::f64, DType::f32, DType::bf16, DType::i64};
bool has_dtype(const Buf& x, size_t dtype) { return x.dtype() == DType(dtype); }
bool has_size(const Buf& x, size_t size) { return size_of(x.dtype()) == size; }

void all_reduce(const op::AllReduce& op, Bufs in, Bufs out, Context& c) {
  Ranks ranks(c, *op.comm, op.kName);
  for (const DType dtype : kSummed) {
    Row row;
    for (size_t i = 0; i < in.size(); ++i)
      if (in[i].dtype() == dtype) row.add({first_element(in[i]), first_element(out[i]), in[i].numel(), dtype});
    if (row.size() == 0) continue;
    const size_t wide = size_of(tg::detail::reduced_dtype(op.kName, dtype));
    const auto vec = int64_t(16 / size_of(dtype));
    const int64_t part = (row.size() + ranks.ranks * vec - 1) / (ranks.ranks * vec) * vec;
    ShardOffsets cuts;
    for (int64_t r = 0; r <= ranks.ranks; ++r) cuts.push_back(std::min(r * part, row.size()));
    ranks.sum(row, cuts, dtype, [&](const Rounds& now, std::byte* sums, size_t stride) {
      if (ranks.comm) ranks.comm->all_gather(sums, now.bytes(wide), stride, op.kName);
      now.unpack(c, wide, sums, all_ranks);
    });
  }
  ranks.exchange.go_on(out.back().bytes);
}
void reduce_scatter(const op::ReduceScatter& op, Bufs in, Bufs out, Context& c) {
  Ranks ranks(c, *op.comm, op.kName);
  for (const DType dtype : kSummed) {
    const size_t wide = size_of(tg::detail::reduced_dtype(op.kName, dtype));
    Row row;
    int64_t begin = 0;
    for (size_t i = 0; i < in.size(); begin += in[i++].numel()) {
      if (in[i].dtype() != dtype) continue;
      const Shard own = tg::detail::shard_of(op.cuts, ranks.rank, begin, in[i].numel());
      const auto to = reinterpret_cast<uintptr_t>(first_element(out[i])) - size_t(own.first) * wide;
      row.add({first_element(in[i]), reinterpret_cast<void*>(to), in[i].numel(), dtype});
    }
    if (row.size() == 0) continue;
    ranks.sum(row, ranks.cuts_of(op.cuts, in, has_dtype, size_t(dtype)), dtype,
              [&](const Rounds& now, std::byte* sums, size_t) {
                now.unpack(c, wide, sums, [&](int r) { return r == ranks.rank; });
              });
  }
  ranks.exchange.go_on(out.back().bytes);
}
void finish_sums(const op::FinishSums& op, Bufs in, Bufs out, Context& c) {
  if (auto* const comm = nccl::DeviceComm::of(*op.comm, c.device.index, op.kName)) comm->finish(in.back().bytes);
  for (size_t i = 0; i < out.size(); ++i)
    if (out[i].bytes != in[i].bytes) copy_contiguous(c, in[i], first_element(out[i]));
}
void all_gather_parts(const op::AllGatherParts& op, Bufs in, Bufs out, Context& c) {
  const Ranks ranks(c, *op.comm, op.kName);
  const Bufs w = out.first(in.size() - op.copied.size());
  for (size_t i = 0; i < w.size(); ++i)
    if (in[i].bytes != w[i].bytes) copy_contiguous(c, in[i], first_element(w[i]));
  for (const size_t size : {size_t(8), size_t(4), size_t(2)}) {
    Row row;
    for (const Buf& x : w)
      if (has_size(x, size)) row.add({first_element(x), first_element(x), x.numel(), x.dtype()});
    if (row.size() == 0 || !ranks.comm) continue;
    const ShardOffsets cuts = ranks.cuts_of(op.cuts, w, has_size, size);
    const int64_t n = ranks.most(cuts, size);
    const Scratch passing(c, size_t(ranks.ranks * n) * size);
    auto* const all = passing.as<std::byte>();
    for (Rounds now(row, cuts, n); now.next();) {
      now.pack(c, size, all, [&](int r) { return r == ranks.rank; });
      ranks.comm->all_gather(all, now.bytes(size), size_t(n) * size, op.kName);
      now.unpack(c, size, all, [&](int r) { return r != ranks.rank; });
    }
  }
  std::vector<Segment> copies;
  for (size_t k = 0; k < op.copied.size(); ++k)
    copies.push_back({first_element(w[op.copied[k]]), first_element(out[w.size() + k]), w[op.copied[k]].numel()});
  round_segments(c, copies);
}
TG_KERNEL(op::AllReduce, cuda, all_reduce);
TG_KERNEL(op::ReduceScatter, cuda, reduce_scatter);
TG_KERNEL(op::FinishSums, cuda, finish_sums);
TG_STRIDED_KERNEL(op::AllGatherParts, cuda, all_gather_parts);
}  // namespace
}  // namespace tg::cuda
