#include <tapegrad/core/check.h>
#include <tapegrad/core/comm/collectives.h>
#include <tapegrad/core/half.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <functional>

// An all-reduce runs in rounds to keep buffers small:
// 1. all-to-all: rank r receives the operands of its shard from all ranks
// 2. rank r sums them in rank order
// 3. all-gather: rank r sends its sums to all (not for reduce_scatter)
namespace tg {
namespace {
template <class T> void add_in_order(std::span<const std::byte* const> parts, int64_t n, std::byte* sums) {
  const auto part = [&](size_t r) { return reinterpret_cast<const T*>(parts[r]); };
  using Sum = compute_t<T>;
  auto* const to = reinterpret_cast<Sum*>(sums);
  const T* const first = part(0);
  if (parts.size() == 1) {
    for (int64_t i = 0; i < n; ++i) to[i] = Sum(first[i]);
    return;
  }
  const T* const second = part(1);
  for (int64_t i = 0; i < n; ++i) to[i] = Sum(first[i]) + Sum(second[i]);
  for (size_t r = 2; r < parts.size(); ++r) {
    const T* const next = part(r);
    for (int64_t i = 0; i < n; ++i) to[i] += Sum(next[i]);
  }
}
void add_in_order(DType t, std::span<const std::byte* const> parts, int64_t n, std::byte* to) {
  if (t == DType::f64) return add_in_order<double>(parts, n, to);
  if (t == DType::f32) return add_in_order<float>(parts, n, to);
  if (t == DType::bf16) return add_in_order<bf16>(parts, n, to);
  add_in_order<int64_t>(parts, n, to);
}

struct Chunk {
  size_t tensor;
  int64_t first, n;
};
using Chunks = std::vector<Chunk>;
class ShardCursor {
 public:
  void add(const Chunk& s) {
    if (s.n > 0) all_.push_back(s), left_ += s.n;
  }
  int64_t left() const { return left_; }
  Chunks next(int64_t n) {
    Chunks r;
    for (n = std::min(n, left_), left_ -= n; n > 0;) {
      const Chunk& s = all_[at_];
      const int64_t some = std::min(n, s.n - done_);
      r.push_back({s.tensor, s.first + done_, some});
      n -= some, done_ += some;
      if (done_ == s.n) ++at_, done_ = 0;
    }
    return r;
  }

 private:
  Chunks all_;
  size_t at_ = 0;
  int64_t done_ = 0, left_ = 0;
};
template <class Wanted>
std::vector<ShardCursor> cursors_of(int ranks, std::span<const int64_t> lengths, const ShardOffsets& cuts,
                                    Wanted&& wanted) {
  std::vector<ShardCursor> cursors{size_t(ranks)};
  int64_t begin = 0;
  for (size_t i = 0; i < lengths.size(); begin += lengths[i++])
    for (int r = 0; r < ranks && wanted(i); ++r) {
      const Shard p = detail::shard_of(cuts, r, begin, lengths[i]);
      cursors[size_t(r)].add({i, p.first, p.n});
    }
  return cursors;
}
// Elements per rank of the next round, at most bytes_of_round(). 0: done.
int64_t elements_of_round(const std::vector<ShardCursor>& cursors, size_t size) {
  int64_t n = 0;
  for (const ShardCursor& r : cursors) n = std::max(n, r.left());
  return std::min(n, std::max<int64_t>(1, detail::bytes_of_round(int64_t(cursors.size())) / int64_t(size)));
}
std::vector<Chunks> chunks_of_round(std::vector<ShardCursor>& cursors, int64_t n) {
  std::vector<Chunks> parts;
  for (ShardCursor& r : cursors) parts.push_back(r.next(n));
  return parts;
}

// Long chunks are sent in place, short ones packed.
struct Segment {
  size_t first, last;  // chunk range
  size_t bytes;
  bool packed;
};
constexpr size_t kLong = 64 << 10;  // a longer message costs less than a copy
std::vector<Segment> segments_of(const Chunks& part, size_t size) {
  std::vector<Segment> all;
  for (size_t i = 0; i < part.size(); ++i) {
    const size_t bytes = size_t(part[i].n) * size;
    if (bytes < kLong && !all.empty() && all.back().packed)
      all.back().last = i + 1, all.back().bytes += bytes;
    else
      all.push_back({i, i + 1, bytes, bytes < kLong});
  }
  return all;
}
class MessageBatch {
 public:
  using AddressOf = std::function<std::byte*(const Chunk&)>;
  MessageBatch(Communicator& comm, const char* name) : comm_(comm), name_(name) {}
  // The other ranks in sending order.
  template <class F> void each_other(F&& f) const {
    const int n = comm_.size();
    for (int k = 1; k < n; ++k) f((comm_.rank() + k) % n);
  }
  template <class Ranks> void send(const Chunks& part, size_t size, const AddressOf& address_of, Ranks&& to) {
    for (const Segment& p : segments_of(part, size)) {
      std::byte* const data = p.packed ? memory(p.bytes) : address_of(part[p.first]);
      std::byte* q = data;
      for (size_t i = p.first; p.packed && i < p.last; q += size_t(part[i++].n) * size)
        std::memcpy(q, address_of(part[i]), size_t(part[i].n) * size);
      for (const int r : to) sent_.push_back({r, data, p.bytes});
    }
  }
  // Receives chunks; run() stores them at address_of().
  void receive(const Chunks& part, size_t size, const AddressOf& address_of, int from) {
    for (const Segment& p : segments_of(part, size)) {
      std::byte* data = p.packed ? memory(p.bytes) : address_of(part[p.first]);
      received_.push_back({from, data, p.bytes});
      for (size_t i = p.first; p.packed && i < p.last; data += size_t(part[i++].n) * size)
        unpacked_.push_back({data, address_of(part[i]), size_t(part[i].n) * size});
    }
  }
  // Receives chunks contiguously at `to`.
  void receive(const Chunks& part, size_t size, std::byte* to, int from) {
    for (const Segment& p : segments_of(part, size)) received_.push_back({from, to, p.bytes}), to += p.bytes;
  }
  void run() {
    comm_.exchange(name_, sent_, received_);
    for (const Copy& c : unpacked_) std::memcpy(c.to, c.from, c.bytes);
    sent_.clear(), received_.clear(), unpacked_.clear(), used_ = 0;
  }

 private:
  struct Copy {
    const std::byte* from;
    std::byte* to;
    size_t bytes;
  };
  std::byte* memory(size_t bytes) {
    if (used_ == blocks_.size()) blocks_.emplace_back();
    std::vector<std::byte>& b = blocks_[used_++];
    if (b.size() < bytes) b.resize(bytes);
    return b.data();
  }
  Communicator& comm_;
  const char* name_;
  std::vector<Communicator::Message> sent_, received_;
  std::vector<Copy> unpacked_;
  std::vector<std::vector<std::byte>> blocks_;
  size_t used_ = 0;
};

std::byte* at(const void* p, int64_t i, size_t size) {  // read only
  return const_cast<std::byte*>(static_cast<const std::byte*>(p)) + i * int64_t(size);
}

// One round: exchanges operands, then reduces this rank's chunks at `to`.
class ReduceRound {
 public:
  ReduceRound(Communicator& comm, const char* name, std::span<const ReduceBuffer> all, DType dtype)
      : comm_(comm), messages_(comm, name), all_(all), dtype_(dtype), size_(size_of(dtype)) {}
  MessageBatch& messages() { return messages_; }
  void run(const std::vector<Chunks>& parts, const MessageBatch::AddressOf& to) {
    const auto from = [&](const Chunk& s) { return at(all_[s.tensor].from, s.first, size_); };
    const auto me = size_t(comm_.rank());
    size_t bytes = 0;
    for (const Chunk& s : parts[me]) bytes += size_t(s.n) * size_;
    const size_t stride = (bytes + 63) / 64 * 64;
    if (received_.size() < parts.size() * stride) received_.resize(parts.size() * stride);
    messages_.each_other([&](int r) {
      messages_.send(parts[size_t(r)], size_, from, std::array{r});
      messages_.receive(parts[me], size_, received_.data() + size_t(r) * stride, r);
    });
    messages_.run();
    std::vector<const std::byte*> sources(parts.size());
    size_t done = 0;
    for (const Chunk& s : parts[me]) {
      for (size_t r = 0; r < parts.size(); ++r) sources[r] = r == me ? from(s) : received_.data() + r * stride + done;
      add_in_order(dtype_, sources, s.n, to(s));
      done += size_t(s.n) * size_;
    }
  }

 private:
  Communicator& comm_;
  MessageBatch messages_;
  std::span<const ReduceBuffer> all_;
  DType dtype_;
  size_t size_;
  std::vector<std::byte> received_;
};
void gather(Communicator& comm, MessageBatch& messages, const std::vector<Chunks>& parts, size_t size,
            const MessageBatch::AddressOf& address_of) {
  if (comm.size() == 1) return;
  std::vector<int> others;
  messages.each_other([&](int r) { others.push_back(r); });
  messages.send(parts[size_t(comm.rank())], size, address_of, others);
  for (const int r : others) messages.receive(parts[size_t(r)], size, address_of, r);
  messages.run();
}
constexpr auto kAllReduce = "all_reduce", kReduceScatter = "reduce_scatter";
constexpr DType kSummed[] = {DType::f64, DType::f32, DType::bf16, DType::i64};
std::vector<int64_t> lengths_of(const auto& all) {
  std::vector<int64_t> r;
  for (const auto& x : all) r.push_back(x.n);
  return r;
}
}  // namespace

DType detail::reduced_dtype(std::string_view op, DType t) {
  TG_CHECK(t == DType::f64 || t == DType::f32 || t == DType::bf16 || t == DType::i64, dtype,
           "[{}] cannot sum {} over ranks. The dtype must be f64, f32, bf16 or i64.", op, name_of(t));
  return t == DType::bf16 ? DType::f32 : t;
}
void all_reduce(Communicator& comm, std::span<const ReduceBuffer> all) {
  const auto ranks = size_t(comm.size());
  for (const DType dtype : kSummed) {
    std::vector<ReduceBuffer> same;
    int64_t n = 0;
    for (const ReduceBuffer& s : all)
      if (s.dtype == dtype) same.push_back(s), n += s.n;
    ShardOffsets cuts;
    for (size_t r = 0; r <= ranks; ++r) cuts.push_back(n * int64_t(r) / int64_t(ranks));
    auto cursors = cursors_of(comm.size(), lengths_of(same), cuts, [](size_t) { return true; });
    const size_t wide = size_of(detail::reduced_dtype(kAllReduce, dtype));
    const MessageBatch::AddressOf to = [&](const Chunk& s) { return at(same[s.tensor].to, s.first, wide); };
    ReduceRound round(comm, kAllReduce, same, dtype);
    while (const int64_t part = elements_of_round(cursors, size_of(dtype))) {
      const auto parts = chunks_of_round(cursors, part);
      round.run(parts, to);
      gather(comm, round.messages(), parts, wide, to);
    }
  }
}

Shard detail::shard_of(const ShardOffsets& cuts, int rank, int64_t begin, int64_t n) {
  const int64_t first = std::clamp(cuts[size_t(rank)] - begin, int64_t(0), n),
                last = std::clamp(cuts[size_t(rank) + 1] - begin, int64_t(0), n);
  return {first, last - first};
}
void reduce_scatter(Communicator& comm, std::span<const ReduceBuffer> all, const ShardOffsets& cuts) {
  const auto lengths = lengths_of(all);
  std::vector<int64_t> begin = {0};
  for (const int64_t n : lengths) begin.push_back(begin.back() + n);
  for (const DType dtype : kSummed) {
    auto cursors = cursors_of(comm.size(), lengths, cuts, [&](size_t i) { return all[i].dtype == dtype; });
    const size_t wide = size_of(detail::reduced_dtype(kReduceScatter, dtype));
    const MessageBatch::AddressOf to = [&](const Chunk& s) {
      const Shard own = detail::shard_of(cuts, comm.rank(), begin[s.tensor], all[s.tensor].n);
      return at(all[s.tensor].to, s.first - own.first, wide);
    };
    ReduceRound round(comm, kReduceScatter, all, dtype);
    while (const int64_t part = elements_of_round(cursors, size_of(dtype)))
      round.run(chunks_of_round(cursors, part), to);
  }
}
void all_gather(Communicator& comm, std::span<const ShardedTensor> all, const ShardOffsets& cuts) {
  MessageBatch messages(comm, "all_gather_parts");
  for (const size_t size : {size_t(8), size_t(4), size_t(2), size_t(1)}) {
    auto cursors = cursors_of(comm.size(), lengths_of(all), cuts, [&](size_t i) { return all[i].size == size; });
    while (const int64_t part = elements_of_round(cursors, size))
      gather(comm, messages, chunks_of_round(cursors, part), size,
             [&](const Chunk& s) { return at(all[s.tensor].data, s.first, size); });
  }
}
}  // namespace tg
