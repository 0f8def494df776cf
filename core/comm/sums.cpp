#include <tapegrad/core/check.h>
#include <tapegrad/core/comm/sums.h>
#include <tapegrad/core/half.h>

#include <cstddef>
#include <cstring>

namespace tg {
namespace {
template <class T> void add_in_order(const T* parts, int ranks, int64_t n, compute_t<T>* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = compute_t<T>(parts[i]);
  for (int r = 1; r < ranks; ++r)
    for (int64_t i = 0; i < n; ++i) to[i] += compute_t<T>(parts[r * n + i]);
}
void add_in_order(DType t, const std::byte* parts, int ranks, int64_t n, std::byte* to) {
  const auto add = [&]<class T>(T) {
    add_in_order(reinterpret_cast<const T*>(parts), ranks, n, reinterpret_cast<compute_t<T>*>(to));
  };
  if (t == DType::f64) return add(double());
  if (t == DType::f32) return add(float());
  if (t == DType::bf16) return add(bf16());
  add(int64_t());
}

// Elements of a tensor of a list, and the ranks' stretches of them, in their order.
struct Stretch {
  size_t tensor;
  int64_t first, n;
};
// What a rank has of a list, passed over from its start.
class Row {
 public:
  void add(const Stretch& s) {
    if (s.n > 0) all_.push_back(s), left_ += s.n;
  }
  int64_t left() const { return left_; }
  // f(stretch) for the next n elements, or what is left.
  template <class F> void next(int64_t n, F&& f) {
    for (n = std::min(n, left_), left_ -= n; n > 0;) {
      const Stretch& s = all_[at_];
      const int64_t some = std::min(n, s.n - done_);
      f(Stretch{s.tensor, s.first + done_, some});
      n -= some, done_ += some;
      if (done_ == s.n) ++at_, done_ = 0;
    }
  }

 private:
  std::vector<Stretch> all_;
  size_t at_ = 0;
  int64_t done_ = 0, left_ = 0;
};
// What each rank has of the tensors of these lengths that are `wanted`.
template <class Wanted>
std::vector<Row> rows_of(int ranks, std::span<const int64_t> lengths, const RankCuts& cuts, Wanted&& wanted) {
  std::vector<Row> rows{size_t(ranks)};
  int64_t begin = 0;
  for (size_t i = 0; i < lengths.size(); begin += lengths[i++])
    for (int r = 0; r < ranks && wanted(i); ++r) {
      const OwnedPart p = owned_part(cuts, r, begin, lengths[i]);
      rows[size_t(r)].add({i, p.first, p.n});
    }
  return rows;
}
// Elements of a rank's part of the next round: those of the one that has most, in bounds. 0: all is done.
int64_t part_of_round(const std::vector<Row>& rows, size_t size) {
  int64_t n = 0;
  for (const Row& r : rows) n = std::max(n, r.left());
  return std::min(n, std::max<int64_t>(1, rank_part_bytes(int64_t(rows.size())) / int64_t(size)));
}
const std::byte* at(const void* p, int64_t i, size_t size) {
  return static_cast<const std::byte*>(p) + size_t(i) * size;
}
std::byte* at(void* p, int64_t i, size_t size) { return static_cast<std::byte*>(p) + size_t(i) * size; }

// A round of sums: each rank gets the sum of its next n elements.
class SumRound {
 public:
  SumRound(Communicator& comm, std::span<const RankSum> all, DType dtype)
      : comm_(comm), all_(all), dtype_(dtype), size_(size_of(dtype)) {}
  const std::vector<std::byte>& run(std::vector<Row>& rows, int64_t n) {
    const size_t part = size_t(n) * size_;
    out_.resize(rows.size() * part), in_.resize(out_.size());
    for (size_t r = 0; r < rows.size(); ++r) {
      std::byte* p = out_.data() + r * part;
      rows[r].next(n, [&](const Stretch& s) {
        std::memcpy(p, at(all_[s.tensor].from, s.first, size_), size_t(s.n) * size_);
        p += size_t(s.n) * size_;
      });
      std::fill(p, out_.data() + (r + 1) * part, std::byte(0));
    }
    comm_.all_to_all(out_.data(), in_.data(), part);
    sums_.resize(size_t(n) * size_of(rank_sum_dtype("all_reduce", dtype_)));
    add_in_order(dtype_, in_.data(), int(rows.size()), n, sums_.data());
    return sums_;
  }

 private:
  Communicator& comm_;
  std::span<const RankSum> all_;
  DType dtype_;
  size_t size_;
  std::vector<std::byte> out_, in_, sums_;
};
constexpr DType kSummed[] = {DType::f64, DType::f32, DType::bf16, DType::i64};
std::vector<int64_t> lengths_of(const auto& all) {
  std::vector<int64_t> r;
  for (const auto& x : all) r.push_back(x.n);
  return r;
}
}  // namespace

DType rank_sum_dtype(std::string_view op, DType t) {
  TG_CHECK(t == DType::f64 || t == DType::f32 || t == DType::bf16 || t == DType::i64, dtype,
           "[{}] cannot add up {} over ranks. It must be f64, f32, bf16 or i64.", op, name_of(t));
  return t == DType::bf16 ? DType::f32 : t;
}
void sum_over_ranks(Communicator& comm, std::span<const RankSum> all) {
  const auto ranks = size_t(comm.size());
  std::vector<std::byte> gathered;
  for (const DType dtype : kSummed) {
    std::vector<RankSum> same;
    int64_t n = 0;
    for (const RankSum& s : all)
      if (s.dtype == dtype) same.push_back(s), n += s.n;
    RankCuts cuts;
    for (size_t r = 0; r <= ranks; ++r) cuts.push_back(n * int64_t(r) / int64_t(ranks));
    const auto lengths = lengths_of(same);
    auto from = rows_of(comm.size(), lengths, cuts, [](size_t) { return true; }), to = from;
    const size_t wide = size_of(rank_sum_dtype("all_reduce", dtype));
    SumRound round(comm, same, dtype);
    while (const int64_t part = part_of_round(from, size_of(dtype))) {
      const std::vector<std::byte>& sums = round.run(from, part);
      gathered.resize(ranks * sums.size());
      comm.all_gather(sums.data(), gathered.data(), sums.size());
      for (size_t r = 0; r < ranks; ++r) {
        const std::byte* q = gathered.data() + r * sums.size();
        to[r].next(part, [&](const Stretch& s) {
          std::memcpy(at(same[s.tensor].to, s.first, wide), q, size_t(s.n) * wide);
          q += size_t(s.n) * wide;
        });
      }
    }
  }
}

OwnedPart owned_part(const RankCuts& cuts, int rank, int64_t begin, int64_t n) {
  const int64_t first = std::clamp(cuts[size_t(rank)] - begin, int64_t(0), n),
                last = std::clamp(cuts[size_t(rank) + 1] - begin, int64_t(0), n);
  return {first, last - first};
}
void sum_to_owners(Communicator& comm, std::span<const RankSum> all, const RankCuts& cuts) {
  const auto lengths = lengths_of(all);
  std::vector<int64_t> begin = {0};
  for (const int64_t n : lengths) begin.push_back(begin.back() + n);
  for (const DType dtype : kSummed) {
    auto from = rows_of(comm.size(), lengths, cuts, [&](size_t i) { return all[i].dtype == dtype; });
    Row mine = from[size_t(comm.rank())];
    const size_t wide = size_of(rank_sum_dtype("reduce_scatter", dtype));
    SumRound round(comm, all, dtype);
    while (const int64_t part = part_of_round(from, size_of(dtype))) {
      const std::byte* q = round.run(from, part).data();
      mine.next(part, [&](const Stretch& s) {
        const OwnedPart own = owned_part(cuts, comm.rank(), begin[s.tensor], all[s.tensor].n);
        std::memcpy(at(all[s.tensor].to, s.first - own.first, wide), q, size_t(s.n) * wide);
        q += size_t(s.n) * wide;
      });
    }
  }
}
void gather_from_owners(Communicator& comm, std::span<const RankTensor> all, const RankCuts& cuts) {
  std::vector<std::byte> mine, gathered;
  for (const size_t size : {size_t(8), size_t(4), size_t(2), size_t(1)}) {
    auto rows = rows_of(comm.size(), lengths_of(all), cuts, [&](size_t i) { return all[i].size == size; });
    Row own = rows[size_t(comm.rank())];
    while (const int64_t part = part_of_round(rows, size)) {
      mine.resize(size_t(part) * size), gathered.resize(rows.size() * mine.size());
      std::byte* p = mine.data();
      own.next(part, [&](const Stretch& s) {
        std::memcpy(p, at(all[s.tensor].data, s.first, size), size_t(s.n) * size);
        p += size_t(s.n) * size;
      });
      comm.all_gather(mine.data(), gathered.data(), mine.size());
      for (size_t r = 0; r < rows.size(); ++r) {
        const std::byte* q = gathered.data() + r * mine.size();
        rows[r].next(part, [&](const Stretch& s) {
          if (int(r) != comm.rank()) std::memcpy(at(all[s.tensor].data, s.first, size), q, size_t(s.n) * size);
          q += size_t(s.n) * size;
        });
      }
    }
  }
}
}  // namespace tg
