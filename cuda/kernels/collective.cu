// Kernel of ops/training/collective.h. The tensors of a dtype are one long row, which goes round by round: it is
// packed, each rank gets its part of it from all ranks, adds them up in the order of the ranks, and the others get the
// sums. So they have the bits of the CPU's, whatever NCCL does: it moves bytes alone.
#include <tapegrad/cuda/device/kernel.h>
#include <tapegrad/cuda/device/rank_parts.h>
#include <tapegrad/cuda/nccl/device_comm.h>
#include <tapegrad/ops/training/collective.h>

#include <algorithm>
#include <deque>
#include <vector>

namespace tg::cuda {
namespace {
// Tensors of one dtype as one long row of elements.
class Row {
 public:
  void add(const RankSum& s) {
    all_.push_back(s);
    ends_.push_back(size() + s.n);
  }
  int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  // f(tensor, its first element, how many, after how many of the n) for stretches of the elements [first, first + n).
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
  std::vector<RankSum> all_;
  std::vector<int64_t> ends_;
};
// A row of which rank r has the elements [cuts[r], cuts[r + 1]), round by round: of each rank the next ones, at most
// `most`. In memory of a round, those of rank r begin at element r * most.
class Rounds {
 public:
  Rounds(const Row& row, const std::vector<int64_t>& cuts, int64_t most)
      : row_(row),
        most_(most),
        first_(cuts.begin(), cuts.end() - 1),
        end_(cuts.begin() + 1, cuts.end()),
        n_(end_.size()) {}
  // False: there is nothing left.
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
  // The elements of this round, from their tensors and to them.
  void pack(const Context& c, size_t element, std::byte* to) const {
    copy_pieces(c, pieces([&](const RankSum& s, size_t first, size_t at) {
                  return Piece{static_cast<const std::byte*>(s.from) + first * element, to + at * element, 0};
                }),
                element);
  }
  void unpack(const Context& c, size_t element, const std::byte* from) const {
    copy_pieces(c, pieces([&](const RankSum& s, size_t first, size_t at) {
                  return Piece{from + at * element, static_cast<std::byte*>(s.to) + first * element, 0};
                }),
                element);
  }

 private:
  template <class F> std::vector<Piece> pieces(F&& f) const {
    std::vector<Piece> all;
    for (size_t r = 0; r < n_.size(); ++r)
      row_.each(first_[r], n_[r], [&](const RankSum& s, int64_t first, int64_t n, int64_t done) {
        all.push_back(f(s, size_t(first), r * size_t(most_) + size_t(done)));
        all.back().n = n;
      });
    return all;
  }
  const Row& row_;
  int64_t most_;
  std::vector<int64_t> first_, end_, n_;  // of each rank
};

void all_reduce(const op::AllReduce& op, Bufs in, Bufs out, Context& c) {
  const int ranks = op.comm->size(), rank = op.comm->rank();
  nccl::DeviceComm* const comm = nccl::DeviceComm::of(*op.comm, c.device.index, op.kName);
  const cudaStream_t stream = stream_of(c.device.index);
  const size_t round = comm ? comm->round() : properties(c.device.index).l2_cache;
  const nccl::DeviceComm::Waiting waiting(comm, stream, op.kName);
  std::deque<Contiguous> dense;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::i64}) {
    Row row;
    for (size_t i = 0; i < in.size(); ++i)
      if (in[i].dtype() == dtype)
        row.add({dense.emplace_back(c, in[i]).data(), first_element(out[i]), in[i].numel(), dtype});
    if (row.size() == 0) continue;
    const size_t size = size_of(dtype), wide = size_of(rank_sum_dtype(op.kName, dtype));
    const auto vec = int64_t(16 / size);  // parts begin at multiples of 16 bytes
    const int64_t part = (row.size() + ranks * vec - 1) / (ranks * vec) * vec;
    const int64_t most = std::min(part, std::max(vec, int64_t(round / size) / (ranks * vec) * vec));
    std::vector<int64_t> cuts;
    for (int64_t r = 0; r <= ranks; ++r) cuts.push_back(std::min(r * part, row.size()));
    const size_t elements = size_t(ranks * most);
    const Scratch packed(c, elements * size), received(c, elements * size), sums(c, elements * wide);
    std::byte* const all = sums.as<std::byte>();
    for (Rounds now(row, cuts, most); now.next();) {
      now.pack(c, size, packed.as<std::byte>());
      if (comm)
        comm->all_to_all(packed.as<std::byte>(), received.as<std::byte>(), now.bytes(size), size_t(most) * size, stream,
                         op.kName);
      add_parts(c, dtype, now.n(rank), ranks, most, (comm ? received : packed).as<void>(),
                all + size_t(rank * most) * wide);
      if (comm) comm->all_gather(all, now.bytes(wide), size_t(most) * wide, stream, op.kName);
      now.unpack(c, wide, all);
    }
  }
}
TG_STRIDED_KERNEL(op::AllReduce, cuda, all_reduce);
}  // namespace
}  // namespace tg::cuda
