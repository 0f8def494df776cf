// Kernel of ops/training/collective.h. The tensors of a dtype are one long row, which goes round by round: it is
// packed, each rank gets its part of it from all ranks, adds them up in the order of the ranks, and the others get the
// sums. So they have the bits of the CPU's, whatever NCCL does: it moves bytes alone.
#include <tapegrad/cuda/device/multi_tensor.h>
#include <tapegrad/cuda/nccl/device_comm.h>
#include <tapegrad/ops/training/collective.h>

#include <algorithm>
#include <vector>

namespace tg::cuda {
namespace {
constexpr int kThreads = 256;

// n elements that are copied.
struct Piece {
  const void* from;
  void* to;
  int64_t n;
};
// Elements of the size of T.
template <class T, int kMost>
__global__ void __launch_bounds__(kThreads)
    copy_pieces(const __grid_constant__ Batch<Piece, kMost> batch, int64_t chunks) {
  constexpr int V = kVec<T>;
  for (int64_t c = blockIdx.x; c < chunks; c += gridDim.x) {
    const int k = batch.find(c);
    const Piece& p = batch.item[k];
    const int64_t begin = (c - batch.first[k]) * batch.chunk;  // a multiple of 16 bytes
    const int n = int(std::min(p.n - begin, batch.chunk));
    const T* from = static_cast<const T*>(p.from) + begin;
    T* to = static_cast<T*>(p.to) + begin;
    const int scalars = (reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) % 16 == 0 ? n / V * V : 0;
    for (int i = int(threadIdx.x) * V; i < scalars; i += kThreads * V) store16(to + i, load16(from + i));
    for (int i = scalars + int(threadIdx.x); i < n; i += kThreads) to[i] = from[i];
  }
}
void copy(const Context& c, const std::vector<Piece>& all, size_t element) {
  constexpr int kMany = 500;
  static_assert(sizeof(Batch<Piece, kMany>) + sizeof(int64_t) <= kMostParameters);
  const auto run = [&]<class T>() {
    for_batches<Piece, kMany>(all, [&]<int kMost>(const Batch<Piece, kMost>& b, size_t) {
      launch(c, copy_pieces<T, kMost>, blocks_for(c, b.chunks(), 1), kThreads, 0, b, b.chunks());
    });
  };
  element == 8   ? run.template operator()<uint64_t>()
  : element == 4 ? run.template operator()<uint32_t>()
                 : run.template operator()<uint16_t>();
}

// sums[i] = ((x0[i] + x1[i]) + x2[i]) + ... of the n elements of each rank, `stride` elements apart. Parts and sums
// begin at multiples of 16 bytes.
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_parts(int64_t n, int ranks, int64_t stride, const T* parts, compute_t<T>* sums) {
  constexpr int V = kVec<T>;
  for (GridLoop i((n + V - 1) / V); i; ++i) {
    const int64_t at = *i * V;
    if (at + V > n) {
#pragma unroll 1
      for (int64_t j = at; j < n; ++j) {
        compute_t<T> sum = widen(parts[j]);
#pragma unroll 1
        for (int r = 1; r < ranks; ++r) sum += widen(parts[r * stride + j]);
        sums[j] = sum;
      }
      continue;
    }
    Vec<compute_t<T>, V> sum;
    const auto first = load16(parts + at);
#pragma unroll
    for (int k = 0; k < V; ++k) sum.x[k] = widen(first.x[k]);
#pragma unroll 2
    for (int r = 1; r < ranks; ++r) {
      const auto next = load16(parts + r * stride + at);
#pragma unroll
      for (int k = 0; k < V; ++k) sum.x[k] += widen(next.x[k]);
    }
    store16(sums + at, sum);
  }
}

void add(const Context& c, DType t, int64_t n, int ranks, int64_t stride, const void* parts, void* to) {
  const auto run = [&]<class T>(T) {
    launch(c, add_parts<T>, blocks_for(c, (n + kVec<T> - 1) / kVec<T>, kThreads), kThreads, 0, n, ranks, stride,
           static_cast<const T*>(parts), static_cast<compute_t<T>*>(to));
  };
  if (n == 0) return;
  if (t == DType::f64) return run(double());
  if (t == DType::f32) return run(float());
  if (t == DType::bf16) return run(bf16());
  run(int64_t());
}

// Tensors of one dtype as one long row of elements.
class Row {
 public:
  void add(const RankSum& s) {
    if (s.n == 0) return;
    all_.push_back(s);
    ends_.push_back(size() + s.n);
  }
  int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  // f(tensor, its first element, how many, after how many of the n) for stretches of the elements [first, first + n).
  template <class F> void each(int64_t first, int64_t n, F&& f) const {
    auto i = size_t(std::ranges::upper_bound(ends_, first) - ends_.begin());
    for (int64_t done = 0; done < n; ++i) {
      const int64_t from = first + done - (ends_[i] - all_[i].n), some = std::min(n - done, all_[i].n - from);
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
    bool some = false;
    for (size_t r = 0; r < n_.size(); ++r) {
      first_[r] += n_[r], n_[r] = std::min(most_, end_[r] - first_[r]);
      some = some || n_[r] > 0;
    }
    return some;
  }
  int64_t n(int rank) const { return n_[size_t(rank)]; }
  std::vector<size_t> bytes(size_t element) const {
    std::vector<size_t> all;
    for (const int64_t n : n_) all.push_back(size_t(n) * element);
    return all;
  }
  // The elements of this round, from their tensors and to them.
  void pack(const Context& c, size_t element, std::byte* to) const {
    copy(c, pieces([&](const RankSum& s, size_t first, size_t at) {
           return Piece{static_cast<const std::byte*>(s.from) + first * element, to + at * element, 0};
         }),
         element);
  }
  void unpack(const Context& c, size_t element, const std::byte* from) const {
    copy(c, pieces([&](const RankSum& s, size_t first, size_t at) {
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
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::i64}) {
    Row row;
    for (size_t i = 0; i < in.size(); ++i)
      if (in[i].dtype() == dtype) row.add({first_element(in[i]), first_element(out[i]), in[i].numel(), dtype});
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
      add(c, dtype, now.n(rank), ranks, most, (comm ? received : packed).as<void>(), all + size_t(rank * most) * wide);
      if (comm) comm->all_gather(all, now.bytes(wide), size_t(most) * wide, stream, op.kName);
      now.unpack(c, wide, all);
    }
  }
}
TG_KERNEL(op::AllReduce, cuda, all_reduce);
}  // namespace
}  // namespace tg::cuda
