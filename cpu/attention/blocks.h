// Attention's scratch, sizes, rows of heads, and GEMMs of blocks.
#pragma once
#include <tapegrad/cpu/attention/lanes.h>
#include <tapegrad/cpu/simd/loop.h>
#include <tapegrad/ops/attention.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

namespace tg::cpu::TG_ISA_NS::blocks {
inline constexpr int64_t kQueries = 128, kKeys = 128;
inline constexpr int64_t kStrip = 64;  // queries per pass into dk and dv
inline constexpr double kLog2E = 1.44269504088896340736, kLn2 = 0.69314718055994530942;

// Per-thread scratch. Aligned: the sum order of Eigen's smallest GEMMs depends on it.
class Scratch {
 public:
  explicit Scratch(size_t bytes) {
    if (lines().size() * sizeof(Line) < bytes) lines().resize(bytes / sizeof(Line) + 1);
  }
  template <class C> static size_t need(int64_t n) {
    return (size_t(n) * sizeof(C) + sizeof(Line) - 1) / sizeof(Line) * sizeof(Line);
  }
  template <class C> C* take(int64_t n) {
    auto* p = reinterpret_cast<C*>(lines().data() + used_);
    used_ += need<C>(n) / sizeof(Line);
    return p;
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  static std::vector<Line>& lines() {
    thread_local std::vector<Line> memory;
    return memory;
  }
  size_t used_ = 0;
};

template <class C> struct Matrix {  // (rows, cols), rows ld apart
  C* p;
  int64_t ld;
  Matrix at(int64_t row) const { return {p + row * ld, ld}; }
};
// One head of x (B, heads, T, HS).
template <class T> MatView<T> head_of(const Buf& x, int64_t b, int64_t h) {
  const Strides& s = x.strides();
  return {x.data<T>() + b * s[0] + h * s[1], s[2], s[3]};
}
// Rows [first, first + n) of hs elements in compute_t<T>, zero-padded to whole vectors: in place or in `scratch`.
// Distant rows share few L1 sets: copied unless `seldom` (read at most twice).
template <class T>
MatView<compute_t<T>> rows_of(MatView<T> x, int64_t first, int64_t n, int64_t hs, compute_t<T>* scratch,
                              bool seldom = false) {
  using C = compute_t<T>;
  x = x.at(first, 0);
  const int64_t ld = whole_vectors<C>(hs);
  if constexpr (std::is_same_v<T, C>)
    if (x.col == 1 && hs == ld && (seldom || x.row == ld)) return x;
  for (int64_t i = 0; i < n; ++i) {
    const T* const from = x.p + i * x.row;
    C* const to = scratch + i * ld;
    if (x.col == 1) {
      for (int64_t j = 0; j < hs; j += 64 / int64_t(sizeof(T))) __builtin_prefetch(from + 8 * x.row + j);
      for (int64_t j = 0; j < hs; ++j) to[j] = C(from[j]);
    } else {
      for (int64_t j = 0; j < hs; ++j) to[j] = C(from[j * x.col]);
    }
    std::fill(to + hs, to + ld, C(0));
  }
  return {scratch, ld, 1};
}
template <class T> inline constexpr bool kWidens = !std::is_same_v<T, compute_t<T>>;

struct Sizes {
  int64_t tq, tk, hs, group;
  bool causal;
  double scale;
  bool pairs;     // scores by GEMM on bf16 pairs
  int64_t depth;  // k of the score GEMM
  int64_t keys, start;
  int64_t heads;
  std::optional<tg::kernel::AttentionMask> mask;  // mask of dropout
  Sizes(const op::AttentionForm& o, const Buf& q, const Buf& k)
      : tq(q.size(2)),
        tk(k.size(2)),
        hs(q.size(3)),
        group(k.size(1) ? q.size(1) / k.size(1) : 1),
        causal(o.causal),
        scale(o.scale != 0 ? o.scale : 1 / std::sqrt(double(std::max<int64_t>(1, hs)))),
        pairs(q.dtype() == DType::bf16 && multiplies_pairs()),
        depth(pairs ? (hs + 1) / 2 : hs),
        keys(tk),
        start(tk - tq),
        heads(q.size(1)) {
    if (o.dropout > 0) mask.emplace(o.dropout, o.rng);
  }
  // Number of keys that query i sees; 0 without keys.
  int64_t seen(int64_t i) const { return causal ? std::min(keys, i + 1 + start) : keys; }
  // Number of these keys in [k0, k0 + n).
  int64_t seen_of(int64_t i, int64_t k0, int64_t n) const { return std::clamp<int64_t>(seen(i) - k0, 0, n); }
};
// Keys [k0, k0 + n), queries [q0, q0 + queries). The last query sees all n.
struct Block {
  const Sizes& z;
  int64_t q0, queries, k0, n;
  int64_t seen_first() const { return z.seen(q0) - k0; }  // < 0: some queries do not see key k0
  template <class C> lanes::Panel lanes(int64_t ld) const { return {ld, n, whole_vectors<C>(queries), seen_first()}; }
  // Query j sees keys i < seen_first() + j, so i + at <= j.
  Triangle triangle(Triangle::Of of, int64_t at) const { return seen_first() < n ? Triangle{of, at} : Triangle{}; }
};

// Whether the score GEMM reads keys at most twice. False on the baseline, whose sums may depend on alignment.
template <class C> bool reads_seldom(int64_t queries) { return kRowsAlone && queries <= 2 * kPanel<C>; }

// extra: lengths and starts, if any.
class Sequences {
 public:
  Sequences(const op::AttentionForm& o, Bufs in, Bufs extra, std::string_view op) : all_(o, in[0], in[1]) {
    const auto read = [&](const Buf& x, const char* what) {
      std::vector<int64_t> r = flat_indices(x);
      for (size_t b = 0; b < r.size(); ++b)
        if (r[b] < 0 || r[b] > all_.tk) throw tg::kernel::attention_span_outside(op, what, r[b], int64_t(b), all_.tk);
      return r;
    };
    if (o.kv_lengths) lengths_ = read(extra.front(), "lengths");
    if (o.query_starts) starts_ = read(extra.back(), "starts");
  }
  const Sizes& all() const { return all_; }
  Sizes operator[](int64_t b) const {
    Sizes z = all_;
    if (!lengths_.empty()) z.keys = lengths_[size_t(b)];
    if (!starts_.empty()) z.start = starts_[size_t(b)];
    return z;
  }

 private:
  Sizes all_;
  std::vector<int64_t> lengths_, starts_;
};

template <class T>
MatView<compute_t<T>> score_rows(const Sizes& z, MatView<T> x, int64_t first, int64_t n, compute_t<T>* scratch,
                                 bool seldom = false) {
  if constexpr (std::is_same_v<T, bf16>)
    if (z.pairs) {
      x = x.at(first, 0);
      const bool whole = x.col == 1 && z.hs % 2 == 0 && x.row % 2 == 0 && reinterpret_cast<uintptr_t>(x.p) % 4 == 0;
      if (whole && (seldom || x.row == z.hs)) return {reinterpret_cast<const float*>(x.p), x.row / 2, 1};
      auto* to = reinterpret_cast<bf16*>(scratch);
      for (int64_t i = 0; i < n; ++i, to += 2 * z.depth) {
        for (int64_t j = 0; j < z.hs; ++j) to[j] = x.p[i * x.row + j * x.col];
        std::fill(to + z.hs, to + 2 * z.depth, bf16());
      }
      return {scratch, z.depth, 1};
    }
  return rows_of<T>(x, first, n, z.hs, scratch, seldom);
}

// Never negative: queries change sign instead.
template <class C> C score_scale(const Sizes& z) { return C(std::abs(z.scale) * kLog2E); }
template <class C> void turn(const Sizes& z, bool scaled, int64_t n, MatView<C> x, C* to) {
  for (int64_t i = 0; i < n; i += kPanel<C>) {
    C* const panel = to + i * z.depth;
    pack_panel<C>(z.depth, std::min(kPanel<C>, n - i), x.at(i, 0).transposed(), panel);
    for (int64_t j = 0; scaled && z.scale < 0 && j < z.depth * kPanel<C>; ++j)
      if (z.pairs)
        panel[j] = C(__builtin_bit_cast(float, __builtin_bit_cast(uint32_t, float(panel[j])) ^ 0x80008000u));
      else
        panel[j] = -panel[j];
  }
}
// s (keys, ld) = K X^T, x a panel (hs, kPanel). Masked entries are undefined.
template <class C> void scores(const Block& b, MatView<C> key, const C* x, C* s, int64_t ld) {
  const Triangle seen = b.triangle(Triangle::columns, 1 - b.seen_first());
  const MatView<C> panel{x, kPanel<C>, 1};
  if constexpr (std::is_same_v<C, float>)
    if (b.z.pairs) return gemm_in_cache_pairs(b.n, whole_vectors<C>(b.queries), b.z.depth, key, panel, s, ld, seen);
  gemm_in_cache<C>(b.n, whole_vectors<C>(b.queries), b.z.depth, key, panel, s, ld, false, seen);
}
// y (queries, hs) = or += P X; p is transposed, (keys, ld).
template <class C> void add_to_queries(const Block& b, const C* p, int64_t ld, MatView<C> x, Matrix<C> y, bool add) {
  gemm_in_cache<C>(b.queries, whole_vectors<C>(b.z.hs), b.n, {p, 1, ld}, x, y.p, y.ld, add,
                   b.triangle(Triangle::to, b.seen_first()));
}
// y (keys, hs) = or += P^T X.
template <class C> void add_to_keys(const Block& b, const C* p, int64_t ld, MatView<C> x, Matrix<C> y, bool add) {
  gemm_in_cache<C>(b.n, whole_vectors<C>(b.z.hs), b.queries, {p, ld, 1}, x, y.p, y.ld, add,
                   b.triangle(Triangle::from, 1 - b.seen_first()));
}
}  // namespace tg::cpu::TG_ISA_NS::blocks
