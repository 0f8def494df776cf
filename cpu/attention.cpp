// Kernels of ops/attention.h. Scores are computed as their transpose, K Q^T, by blocks of kKeys keys and panels of
// queries: of five products, only Q and dY have to be turned for them, and queries are the lanes of softmax. What no
// query sees is left out by the rows of a register tile. A tile of work is one block of queries (forward), or all heads
// that share a key head (backward, so that nothing is added by two threads).
#include <tapegrad/cpu/attention_lanes.h>
#include <tapegrad/cpu/loop.h>
#include <tapegrad/cpu/one_query.h>
#include <tapegrad/cpu/sums.h>
#include <tapegrad/ops/attention.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace tg::cpu::TG_ISA_NS {
namespace {
constexpr int64_t kQueries = 128, kKeys = 128;
constexpr int64_t kStrip = 64;  // queries whose products are added to dk and dv at once
constexpr double kLog2E = 1.44269504088896340736, kLn2 = 0.69314718055994530942;

// Memory of the calling thread, kept from tile to tile. Aligned, because Eigen's smallest products add in an order that
// depends on it.
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

template <class C> struct Matrix {  // rows x cols to write to, rows ld apart
  C* p;
  int64_t ld;
  MatView<C> view() const { return {p, ld, 1}; }
  Matrix at(int64_t row) const { return {p + row * ld, ld}; }
};
// One head of a (B, heads, T, HS) buffer: element (t, i).
template <class T> MatView<T> head_of(const Buf& x, int64_t b, int64_t h) {
  const Strides& s = x.strides();
  return {x.data<T>() + b * s[0] + h * s[1], s[2], s[3]};
}
// Rows [first, first + n) of hs elements, in the type that products are computed in and of whole vectors, zeros behind
// hs: where they lie, or in `scratch`. What is read more than once is copied if its rows are far apart, as few lines of
// the cache may hold them all.
template <class T>
MatView<compute_t<T>> rows_of(MatView<T> x, int64_t first, int64_t n, int64_t hs, compute_t<T>* scratch,
                              bool once = false) {
  using C = compute_t<T>;
  x = x.at(first, 0);
  const int64_t ld = whole_vectors<C>(hs);
  if constexpr (std::is_same_v<T, C>)
    if (x.col == 1 && hs == ld && (once || x.row == ld)) return x;
  for (int64_t i = 0; i < n; ++i) {
    const T* const from = x.p + i * x.row;
    C* const to = scratch + i * ld;
    if (x.col == 1)
      for (int64_t j = 0; j < hs; ++j) to[j] = C(from[j]);
    else
      for (int64_t j = 0; j < hs; ++j) to[j] = C(from[j * x.col]);
    std::fill(to + hs, to + ld, C(0));
  }
  return {scratch, ld, 1};
}
template <class T> constexpr bool kWidens = !std::is_same_v<T, compute_t<T>>;

struct Sizes {
  int64_t tq, tk, hs, group;  // group: query heads per key head
  bool causal;
  double scale;
  bool pairs;           // scores are products of pairs of bf16
  int64_t depth;        // their terms
  int64_t keys, start;  // of a sequence: its keys, the others are padding, and the position of its first query
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
        start(tk - tq) {}
  // How many keys query i sees: at least one, unless there are none.
  int64_t seen(int64_t i) const { return causal ? std::min(keys, i + 1 + start) : keys; }
  // Of the n keys from k0 on, those that query i sees.
  int64_t seen_of(int64_t i, int64_t k0, int64_t n) const { return std::clamp<int64_t>(seen(i) - k0, 0, n); }
};
// n keys from k0 on, and `queries` from q0 on, the last of which sees them all.
struct Block {
  const Sizes& z;
  int64_t q0, queries, k0, n;
  int64_t seen_first() const { return z.seen(q0) - k0; }  // negative if other queries do not see key k0 either
  template <class C> lanes::Panel lanes(int64_t ld) const { return {ld, n, whole_vectors<C>(queries), seen_first()}; }
  // Query j sees the keys i < seen_first() + j, so that i + at <= j.
  Triangle triangle(Triangle::Of of, int64_t at) const { return seen_first() < n ? Triangle{of, at} : Triangle{}; }
};

// The sizes of each sequence. extra: lengths and starts, as the form says.
class Sequences {
 public:
  Sequences(const op::AttentionForm& o, Bufs in, Bufs extra, std::string_view op) : all_(o, in[0], in[1]) {
    const auto read = [&](const Buf& x, const char* what) {
      std::vector<int64_t> r = flat_indices(x);
      for (size_t b = 0; b < r.size(); ++b)
        if (r[b] < 0 || r[b] > all_.tk) throw attention_span_outside(op, what, r[b], int64_t(b), all_.tk);
      return r;
    };
    if (o.lengths) lengths_ = read(extra.front(), "lengths");
    if (o.starts) starts_ = read(extra.back(), "starts");
  }
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

// Rows that scores are made of: those of rows_of(), or pairs of bf16 in the place of floats.
template <class T>
MatView<compute_t<T>> score_rows(const Sizes& z, MatView<T> x, int64_t first, int64_t n, compute_t<T>* scratch,
                                 bool once = false) {
  if constexpr (std::is_same_v<T, bf16>)
    if (z.pairs) {
      x = x.at(first, 0);
      const bool whole = x.col == 1 && z.hs % 2 == 0 && x.row % 2 == 0 && reinterpret_cast<uintptr_t>(x.p) % 4 == 0;
      if (whole && (once || x.row == z.hs)) return {reinterpret_cast<const float*>(x.p), x.row / 2, 1};
      auto* to = reinterpret_cast<bf16*>(scratch);
      for (int64_t i = 0; i < n; ++i, to += 2 * z.depth) {
        for (int64_t j = 0; j < z.hs; ++j) to[j] = x.p[i * x.row + j * x.col];
        std::fill(to + z.hs, to + 2 * z.depth, bf16());
      }
      return {scratch, z.depth, 1};
    }
  return rows_of<T>(x, first, n, z.hs, scratch, once);
}

// The only query of a head. y is (HS).
template <class T>
void forward_one(const Sizes& z, MatView<T> q, MatView<T> key, MatView<T> value, T* y, compute_t<T>& lse) {
  using C = compute_t<T>;
  const int64_t n = std::max<int64_t>(0, z.seen(0)), hs = z.hs, whole = (n + kLanes - 1) / kLanes * kLanes;
  Scratch scratch(Scratch::need<C>(whole) + 2 * Scratch::need<C>(hs));
  C *s = scratch.take<C>(whole), *wide = scratch.take<C>(hs), *sums = scratch.take<C>(hs);
  for (int64_t i = 0; i < hs; ++i) wide[i] = q.p[i * q.col];
  one_query::scores(wide, key.p, key.row, n, hs, s);
  C max = -std::numeric_limits<C>::infinity(), sum = 0;
  if (n > 0) {
    std::fill(s + n, s + whole, s[0]);  // no slow ends of loops
    for (int64_t j = 0; j < whole; ++j) s[j] *= C(z.scale);
    max = top_of<C>(whole, s);
    for (int64_t j = 0; j < whole; ++j) s[j] = exp_to_zero(s[j] - max);
    sum = lane_sum<C>(n, [s](int64_t j) { return s[j]; });
  }
  one_query::weigh(s, value.p, value.row, n, hs, sums);
  const C inverse = n > 0 ? C(1) / sum : C(0);
  for (int64_t i = 0; i < hs; ++i) y[i] = T(sums[i] * inverse);
  lse = max + math::log(sum);
}

// What scores are multiplied by for exponentials of base 2. It is never negative: queries change their sign instead.
template <class C> C score_scale(const Sizes& z) { return C(std::abs(z.scale) * kLog2E); }
// n rows of queries as columns of panels at `to`.
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
// s (keys, ld) = K X^T, for pairs that see each other and some more. x: a panel.
template <class C> void scores(const Block& b, MatView<C> key, const C* x, C* s, int64_t ld) {
  const Triangle seen = b.triangle(Triangle::columns, 1 - b.seen_first());
  const MatView<C> panel{x, kPanel<C>, 1};
  if constexpr (std::is_same_v<C, float>)
    if (b.z.pairs) return gemm_near_pairs(b.n, whole_vectors<C>(b.queries), b.z.depth, key, panel, s, ld, seen);
  gemm_near<C>(b.n, whole_vectors<C>(b.queries), b.z.depth, key, panel, s, ld, false, seen);
}
// Rows of y, one for each query, = or += P X; p holds the transpose, a row for each key.
template <class C> void add_to_queries(const Block& b, const C* p, int64_t ld, MatView<C> x, Matrix<C> y, bool add) {
  gemm_near<C>(b.queries, whole_vectors<C>(b.z.hs), b.n, {p, 1, ld}, x, y.p, y.ld, add,
               b.triangle(Triangle::to, b.seen_first()));
}
// Rows of y, one for each key, = or += P^T X.
template <class C> void add_to_keys(const Block& b, const C* p, int64_t ld, MatView<C> x, Matrix<C> y, bool add) {
  gemm_near<C>(b.n, whole_vectors<C>(b.z.hs), b.queries, {p, ld, 1}, x, y.p, y.ld, add,
               b.triangle(Triangle::from, 1 - b.seen_first()));
}

template <class T> void forward_tile(const Sizes& z, Bufs in, Bufs out, int64_t b, int64_t h, int64_t q0) {
  using C = compute_t<T>;
  constexpr int64_t P = kPanel<C>;
  const int64_t nq = std::min(kQueries, z.tq - q0), hs = z.hs, end = z.seen(q0 + nq - 1), ld = whole_vectors<C>(hs);
  const int64_t padded = (nq + P - 1) / P * P;
  const MatView<T> key = head_of<T>(in[1], b, h / z.group), value = head_of<T>(in[2], b, h / z.group);
  const MatView<T> query = head_of<T>(in[0], b, h);
  const Strides& st = out[0].strides();
  T* to = out[0].data<T>() + b * st[0] + h * st[1] + q0 * st[2];
  C* lse = out[1].data<C>() + (b * out[0].size(1) + h) * z.tq + q0;
  if (z.tq == 1 && key.col == 1 && value.col == 1) return forward_one<T>(z, query, key, value, to, *lse);
  const auto need = [](int64_t n) { return Scratch::need<C>(n); };
  Scratch scratch(need(kKeys * P) + need(padded * hs) + need(nq * ld) + 2 * need(padded) + need(P) +
                  2 * need(kKeys * ld));
  C *s = scratch.take<C>(kKeys * P), *qs = scratch.take<C>(padded * hs), *y = scratch.take<C>(nq * ld),
    *max = scratch.take<C>(padded), *sum = scratch.take<C>(padded), *factor = scratch.take<C>(P),
    *ks = scratch.take<C>(kKeys * ld), *vs = scratch.take<C>(kKeys * ld);
  std::fill(max, max + padded, -std::numeric_limits<C>::infinity());
  std::fill(sum, sum + padded, C(0));
  if (end <= 0) std::fill(y, y + nq * ld, C(0));
  turn<C>(z, true, nq, score_rows<T>(z, query, q0, nq, ks, true), qs);
  for (int64_t k0 = 0; k0 < end; k0 += kKeys) {
    const int64_t nk = std::min(kKeys, end - k0);
    const MatView<C> k = score_rows<T>(z, key, k0, nk, ks), v = rows_of<T>(value, k0, nk, hs, vs);
    for (int64_t i = 0; i < nq; i += P) {
      const int64_t queries = std::min(P, nq - i);
      const Block block{z, q0 + i, queries, k0, z.seen_of(q0 + i + queries - 1, k0, nk)};
      if (block.n == 0) continue;
      scores<C>(block, k, qs + i * z.depth, s, P);
      lanes::softmax_step<C>(block.lanes<C>(P), s, score_scale<C>(z), max + i, sum + i, factor);
      for (int64_t r = 0; k0 > 0 && r < queries; ++r)
        for (int64_t j = 0; factor[r] != 1 && j < ld; ++j) y[(i + r) * ld + j] *= factor[r];
      add_to_queries<C>(block, s, P, v, {y + i * ld, ld}, k0 > 0);
    }
  }
  for (int64_t i = 0; i < nq; ++i) lse[i] = C(double(max[i]) * kLn2 + double(math::log(sum[i])));
  for (int64_t i = 0; i < nq; ++i) {
    const C inverse = end > 0 ? C(1) / sum[i] : C(0);
    T* const row = to + i * st[2];
    const C* const from = y + i * ld;
    TG_SAME_INDEX
    for (int64_t j = 0; j < hs; ++j) row[j] = T(from[j] * inverse);
  }
}
void attention(const op::Attention& op, Bufs in, Bufs out, Context& c) {
  const Sequences sequences(op.o, in, in.subspan(3), c.op);
  const int64_t heads = in[0].size(1), blocks = (in[0].size(2) + kQueries - 1) / kQueries;
  visit_float(out[0].dtype(), [&]<class T>() {
    parallel_for(in[0].size(0) * heads * blocks, [&](int64_t t) {
      const int64_t b = t / blocks / heads;
      // The last blocks see the most keys: they go first.
      forward_tile<T>(sequences[b], in, out, b, t / blocks % heads, (blocks - 1 - t % blocks) * kQueries);
    });
  });
}

// Where the rows of one head's gradient are added up, whole vectors each: the output itself, or scratch that finish()
// copies, rounded. Rows begin with what is written first.
template <class T> class Sums {
  using C = compute_t<T>;

 public:
  Sums(const Buf& out, int64_t b, int64_t h, C* scratch)
      : rows_(out.size(2)),
        hs_(out.size(3)),
        ld_(out.strides()[2]),
        to_(out.data<T>() + b * out.strides()[0] + h * out.strides()[1]),
        sum_{scratch, whole_vectors<C>(hs_)} {
    if constexpr (!kWidens<T>)
      if (sum_.ld == hs_) sum_ = {to_, ld_};
  }
  Matrix<C> at(int64_t row) const { return sum_.at(row); }
  // Before n rows from `row` on get their next products, in order: whether these are added to what is there.
  bool begin(int64_t row, int64_t n) {
    const bool add = row < begun_;
    if (add) clear(row + n);
    begun_ = std::max(begun_, row + n);
    return add;
  }
  void finish() {
    clear(rows_);
    if constexpr (!kWidens<T>)
      if (sum_.p == to_) return;
    for (int64_t i = 0; i < rows_; ++i) {
      const C* const from = sum_.at(i).p;
      TG_SAME_INDEX
      for (int64_t j = 0; j < hs_; ++j) to_[i * ld_ + j] = T(from[j]);
    }
  }

 private:
  void clear(int64_t end) {
    for (; begun_ < end; ++begun_) std::fill_n(sum_.at(begun_).p, whole_vectors<C>(hs_), C(0));
  }
  int64_t rows_, hs_, ld_, begun_ = 0;
  T* to_;
  Matrix<C> sum_;
};

template <class T> struct BackwardTile {  // key head g of batch b with all its query heads
  using C = compute_t<T>;
  static constexpr int64_t P = kPanel<C>;
  static_assert(kStrip % P == 0 && kQueries % kStrip == 0);
  const Sizes& z;
  Bufs in, out;
  int64_t b, g;
  int64_t hs = z.hs, ld = whole_vectors<C>(hs), wide = kWidens<T> || ld != hs ? ld : 0;
  int64_t p_size = std::max(kStrip * kKeys, ld* kQueries);  // room for rows of y, before there are scores
  Scratch scratch{need(p_size) + need(kStrip * kKeys) + 3 * need(kQueries) + 2 * need(kQueries * hs) +
                  2 * need(kQueries * ld) + 3 * need(kKeys * ld) + need(z.tq * wide) + 2 * need(z.tk * wide)};
  C *p = take(p_size), *dp = take(kStrip * kKeys), *log_sum = take(kQueries), *log_rest = take(kQueries),
    *delta = take(kQueries);
  C *turned_q = take(kQueries * hs), *turned_dy = take(kQueries * hs);
  C *qs = take(kQueries * ld), *dys = take(kQueries * ld), *ks = take(kKeys * ld), *vs = take(kKeys * ld),
    *pairs = take(kKeys * ld);
  C *dqs = take(z.tq * wide), *dks = take(z.tk * wide), *dvs = take(z.tk * wide);

  static size_t need(int64_t n) { return Scratch::need<C>(n); }
  C* take(int64_t n) { return scratch.template take<C>(n); }

  void run() {
    Sums<T> dk(out[1], b, g, dks), dv(out[2], b, g, dvs);
    for (int64_t h = g * z.group; h < (g + 1) * z.group; ++h) query_head(h, dk, dv);
    dk.finish();
    dv.finish();
  }
  void query_head(int64_t h, Sums<T>& dk, Sums<T>& dv) {
    Sums<T> dq(out[0], b, h, dqs);
    for (int64_t q0 = 0; q0 < z.tq; q0 += kQueries) queries(h, q0, std::min(kQueries, z.tq - q0), dq, dk, dv);
    dq.finish();
  }
  // delta: of each query, dy . y.
  void dot_rows(int64_t nq, MatView<C> dy, MatView<C> y) const {
    constexpr int64_t L = kVector<C>;
    alignas(64) C parts[P * L], turned[L * P];
    for (int64_t i0 = 0; i0 < kQueries; i0 += P) {
      const int64_t n = std::clamp<int64_t>(nq - i0, 0, P);
      for (int64_t i = 0; i < n; ++i) {
        const C *const a = dy.at(i0 + i, 0).p, *const c = y.at(i0 + i, 0).p;
        Vector<C> sum = {};
        for (int64_t j = 0; j < ld; j += L) sum += load_vector(a + j) * load_vector(c + j);
        store_vector(parts + i * L, sum);
      }
      pack_panel<C>(L, n, {parts, 1, L}, turned);
      for (int64_t w = 0; w < P; w += L) {
        Vector<C> sum = {};
        for (int64_t j = 0; j < L; ++j) sum += load_vector(turned + j * P + w);
        store_vector(delta + i0 + w, sum);
      }
    }
  }
  void queries(int64_t h, int64_t q0, int64_t nq, Sums<T>& dq, Sums<T>& dk, Sums<T>& dv) {
    const MatView<C> q = rows_of<T>(head_of<T>(in[0], b, h), q0, nq, hs, qs),
                     dy = rows_of<T>(head_of<T>(in[5], b, h), q0, nq, hs, dys);
    const C* lse = in[4].data<C>() + (b * in[0].size(1) + h) * z.tq + q0;
    std::fill(log_sum, log_sum + kQueries, C(0));
    std::fill(log_rest, log_rest + kQueries, C(0));
    for (int64_t i = 0; i < nq; ++i) {
      const double l = double(lse[i]) * kLog2E;
      log_sum[i] = C(l);
      log_rest[i] = C(l - double(C(l)));
    }
    dot_rows(nq, dy, rows_of<T>(head_of<T>(in[3], b, h), q0, nq, hs, p, true));
    turn<C>(z, true, nq, z.pairs ? score_rows<T>(z, head_of<T>(in[0], b, h), q0, nq, p, true) : q, turned_q);
    turn<C>(z, false, nq, z.pairs ? score_rows<T>(z, head_of<T>(in[5], b, h), q0, nq, p, true) : dy, turned_dy);
    const int64_t end = z.seen(q0 + nq - 1);
    for (int64_t k0 = 0; k0 < end; k0 += kKeys) {
      const int64_t nk = std::min(kKeys, end - k0);
      const MatView<T> key = head_of<T>(in[1], b, g), value = head_of<T>(in[2], b, g);
      const MatView<C> k = rows_of<T>(key, k0, nk, hs, ks), v = score_rows<T>(z, value, k0, nk, vs),
                       pairs_of_k = z.pairs ? score_rows<T>(z, key, k0, nk, pairs) : k;
      for (int64_t i = 0; i < nq; i += kStrip) {
        const int64_t some = std::min(kStrip, nq - i);
        const Block strip{z, q0 + i, some, k0, z.seen_of(q0 + i + some - 1, k0, nk)};
        if (strip.n == 0) continue;
        for (int64_t j = 0; j < some; j += P) {
          const Block panel{z, q0 + i + j, std::min(P, some - j), k0, strip.n};
          scores<C>(panel, pairs_of_k, turned_q + (i + j) * z.depth, p + j, kStrip);
          scores<C>(panel, v, turned_dy + (i + j) * z.depth, dp + j, kStrip);
          lanes::softmax_grad<C>(panel.template lanes<C>(kStrip), p + j, dp + j, score_scale<C>(z), C(z.scale),
                                 log_sum + i + j, log_rest + i + j, delta + i + j);
        }
        add_to_keys<C>(strip, p, kStrip, dy.at(i, 0), dv.at(k0), dv.begin(k0, strip.n));
        add_to_keys<C>(strip, dp, kStrip, q.at(i, 0), dk.at(k0), dk.begin(k0, strip.n));
        add_to_queries<C>(strip, dp, kStrip, k, dq.at(q0 + i), k0 > 0);
      }
    }
    if (end > 0) dq.begin(q0, nq);
  }
};
void attention_grad(const op::AttentionGrad& op, Bufs in, Bufs out, Context& c) {
  const Sequences sequences(op.o, in, in.subspan(6), c.op);
  const int64_t heads = in[1].size(1);
  visit_float(out[0].dtype(), [&]<class T>() {
    parallel_for(in[1].size(0) * heads, [&](int64_t t) {
      const Sizes z = sequences[t / heads];
      BackwardTile<T>{z, in, out, t / heads, t % heads}.run();
    });
  });
}
void self_attention(const op::SelfAttention& op, Bufs in, Bufs out, Context& c) { by_parts(op, in, out, c, attention); }
void self_attention_grad(const op::SelfAttentionGrad& op, Bufs in, Bufs out, Context& c) {
  by_parts(op, in, out, c, attention_grad);
}
TG_STRIDED_KERNEL(op::Attention, cpu, attention);
TG_STRIDED_KERNEL(op::AttentionGrad, cpu, attention_grad);
TG_STRIDED_KERNEL(op::SelfAttention, cpu, self_attention);
TG_STRIDED_KERNEL(op::SelfAttentionGrad, cpu, self_attention_grad);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
