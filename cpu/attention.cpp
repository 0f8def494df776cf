// Kernels of ops/attention.h: blocks of 64 queries by 128 keys, the products by cpu/gemm.h. A tile is one block of
// queries (forward), or all heads that share a key head (backward, so that nothing is added by two threads).
#include <tapegrad/cpu/exp.h>
#include <tapegrad/cpu/gemm.h>
#include <tapegrad/cpu/loop.h>
#include <tapegrad/cpu/one_query.h>
#include <tapegrad/cpu/sums.h>
#include <tapegrad/ops/attention.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace tg::cpu::TG_ISA_NS {
namespace {
constexpr int64_t kQueries = 64, kKeys = 128;

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
// Rows [first, first + n) in the type that products are computed in; 16-bit floats go through `scratch`.
template <class T>
MatView<compute_t<T>> rows_of(MatView<T> x, int64_t first, int64_t n, int64_t hs, compute_t<T>* scratch) {
  x = x.at(first, 0);
  if constexpr (std::is_same_v<T, compute_t<T>>) {
    return x;
  } else {
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < hs; ++j) scratch[i * hs + j] = x.p[i * x.row + j * x.col];
    return {scratch, hs, 1};
  }
}
template <class T> constexpr bool kWidens = !std::is_same_v<T, compute_t<T>>;

struct Sizes {
  int64_t tq, tk, hs, group;  // group: query heads per key head
  bool causal;
  double scale;
  int64_t keys, start;  // of a sequence: its keys, the others are padding, and the position of its first query
  Sizes(const op::AttentionForm& o, const Buf& q, const Buf& k)
      : tq(q.size(2)),
        tk(k.size(2)),
        hs(q.size(3)),
        group(k.size(1) ? q.size(1) / k.size(1) : 1),
        causal(o.causal),
        scale(o.scale != 0 ? o.scale : 1 / std::sqrt(double(std::max<int64_t>(1, hs)))),
        keys(tk),
        start(tk - tq) {}
  // How many keys query i sees: at least one, unless there are none.
  int64_t seen(int64_t i) const { return causal ? std::min(keys, i + 1 + start) : keys; }
  // Of the n keys from k0 on, those that query i sees.
  int64_t seen_of(int64_t i, int64_t k0, int64_t n) const { return std::clamp<int64_t>(seen(i) - k0, 0, n); }
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

// Rows of scores are worked on in whole groups of lanes, up to kKeys: no slow ends of loops.
constexpr int64_t padded(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }
static_assert(padded(kKeys) == kKeys);

// The largest of a padded row, by an explicit vector type, since compilers do not vectorise conditions across the lanes
// of lane_max. NaN may be passed over: it comes back in the sum of exponentials.
template <class C> C row_max(const C* s, int64_t n) {
  typedef C Lanes __attribute__((vector_size(kLanes * sizeof(C))));
  Lanes most, x;
  std::memcpy(&most, s, sizeof most);
  for (int64_t j = kLanes; j < n; j += kLanes) {
    std::memcpy(&x, s + j, sizeof x);
    most = most < x ? x : most;
  }
  C lane[kLanes];
  std::memcpy(lane, &most, sizeof lane);
  return *std::max_element(lane, lane + kLanes);
}
// One step of the online softmax for a row of n raw scores, of which the first `seen` count: s becomes the
// exponentials, max and sum those of all scores so far. Returns what earlier sums are to be multiplied by.
template <class C> C softmax_step(C* s, int64_t seen, int64_t n, C scale, C& max, C& sum) {
  const int64_t end = padded(seen);
  C factor = 1;
  if (seen > 0) {
    for (int64_t j = 0; j < end; ++j) s[j] *= scale;
    std::fill(s + seen, s + end, s[0]);  // not -infinity: processors are slow where exponentials underflow
    const C next = std::max(max, row_max(s, end));
    factor = max < next ? (std::isinf(max) ? C(0) : math::exp(max - next)) : C(1);
    for (int64_t j = 0; j < end; ++j) s[j] = exp_to_zero(s[j] - next);
    std::fill(s + seen, s + end, C(0));
    sum = sum * factor + lane_sum<C>(end, [s](int64_t j) { return s[j]; });
    max = next;
  }
  if (end < n) std::fill(s + end, s + n, C(0));
  return factor;
}

// The only query of a head. y is (HS).
template <class T>
void forward_one(const Sizes& z, MatView<T> q, MatView<T> key, MatView<T> value, T* y, compute_t<T>& lse) {
  using C = compute_t<T>;
  const int64_t n = std::max<int64_t>(0, z.seen(0)), hs = z.hs;
  Scratch scratch(Scratch::need<C>(padded(n)) + 2 * Scratch::need<C>(hs));
  C *s = scratch.take<C>(padded(n)), *wide = scratch.take<C>(hs), *sums = scratch.take<C>(hs);
  for (int64_t i = 0; i < hs; ++i) wide[i] = q.p[i * q.col];
  one_query::scores(wide, key.p, key.row, n, hs, s);
  C max = -std::numeric_limits<C>::infinity(), sum = 0;
  softmax_step(s, n, padded(n), C(z.scale), max, sum);
  one_query::weigh(s, value.p, value.row, n, hs, sums);
  const C inverse = n > 0 ? C(1) / sum : C(0);
  for (int64_t i = 0; i < hs; ++i) y[i] = T(sums[i] * inverse);
  lse = max + math::log(sum);
}

template <class T> void forward_tile(const Sizes& z, Bufs in, Bufs out, int64_t b, int64_t h, int64_t q0) {
  using C = compute_t<T>;
  const int64_t nq = std::min(kQueries, z.tq - q0), hs = z.hs, end = z.seen(q0 + nq - 1), wide = kWidens<T> ? hs : 0;
  const MatView<T> key = head_of<T>(in[1], b, h / z.group), value = head_of<T>(in[2], b, h / z.group);
  const Strides& st = out[0].strides();
  T* to = out[0].data<T>() + b * st[0] + h * st[1] + q0 * st[2];
  C* lse = out[1].data<C>() + (b * out[0].size(1) + h) * z.tq + q0;
  if (z.tq == 1 && key.col == 1 && value.col == 1)
    return forward_one<T>(z, head_of<T>(in[0], b, h), key, value, to, *lse);
  const auto need = [](int64_t n) { return Scratch::need<C>(n); };
  Scratch scratch(need(nq * kKeys) + need(nq * hs) + 2 * need(nq) + need(nq * wide) + need(kKeys * wide));
  C *s = scratch.take<C>(nq * kKeys), *y = scratch.take<C>(nq * hs), *max = scratch.take<C>(nq),
    *sum = scratch.take<C>(nq);
  C *qs = scratch.take<C>(nq * wide), *ks = scratch.take<C>(kKeys * wide);
  std::fill(max, max + nq, -std::numeric_limits<C>::infinity());
  std::fill(sum, sum + nq, C(0));
  if (end <= 0) std::fill(y, y + nq * hs, C(0));
  const MatView<C> q = rows_of<T>(head_of<T>(in[0], b, h), q0, nq, hs, qs);
  for (int64_t k0 = 0; k0 < end; k0 += kKeys) {
    const int64_t nk = std::min(kKeys, end - k0);
    gemm_serial<C>(nq, nk, hs, q, rows_of<T>(key, k0, nk, hs, ks).transposed(), s, kKeys);
    for (int64_t i = 0; i < nq; ++i) {
      const C factor = softmax_step(s + i * kKeys, z.seen_of(q0 + i, k0, nk), nk, C(z.scale), max[i], sum[i]);
      for (int64_t j = 0; k0 > 0 && j < hs; ++j) y[i * hs + j] *= factor;
    }
    gemm_serial<C>(nq, hs, nk, {s, kKeys, 1}, rows_of<T>(value, k0, nk, hs, ks), y, hs, {.accumulate = k0 > 0});
  }
  for (int64_t i = 0; i < nq; ++i) {
    const C inverse = end > 0 ? C(1) / sum[i] : C(0);
    for (int64_t j = 0; j < hs; ++j) to[i * st[2] + j] = T(y[i * hs + j] * inverse);
    lse[i] = max[i] + math::log(sum[i]);
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

// Where the rows of one head's gradient are added up: the output itself, or wide scratch that finish() rounds.
template <class T> class Sums {
  using C = compute_t<T>;

 public:
  Sums(const Buf& out, int64_t b, int64_t h, C* scratch) : rows_(out.size(2)), hs_(out.size(3)), ld_(out.strides()[2]) {
    to_ = out.data<T>() + b * out.strides()[0] + h * out.strides()[1];
    if constexpr (kWidens<T>)
      sum_ = {scratch, hs_};
    else
      sum_ = {to_, ld_};
    for (int64_t i = 0; i < rows_; ++i) std::fill_n(sum_.p + i * sum_.ld, hs_, C(0));
  }
  Matrix<C> at(int64_t row) const { return sum_.at(row); }
  void finish() const {
    if constexpr (kWidens<T>)
      for (int64_t i = 0; i < rows_; ++i)
        for (int64_t j = 0; j < hs_; ++j) to_[i * ld_ + j] = T(sum_.p[i * sum_.ld + j]);
  }

 private:
  int64_t rows_, hs_, ld_;
  T* to_;
  Matrix<C> sum_;
};

// p: raw scores -> probabilities; dp: gradient of the probabilities -> that of the raw scores. With delta = dy . y of
// the row, dscore = p (dp - delta): what softmax's own sum contributes.
template <class C> void softmax_grad(C* p, C* dp, int64_t seen, int64_t n, C scale, C lse, C delta) {
  for (int64_t j = 0; j < padded(seen); ++j) {
    p[j] = exp_to_zero(p[j] * scale - lse);
    dp[j] = p[j] * (dp[j] - delta) * scale;
  }
  std::fill(p + seen, p + n, C(0));
  std::fill(dp + seen, dp + n, C(0));
}

template <class T> struct BackwardTile {  // key head g of batch b with all its query heads
  using C = compute_t<T>;
  const Sizes& z;
  Bufs in, out;
  int64_t b, g;
  int64_t hs = z.hs, wide = kWidens<T> ? z.hs : 0;
  Scratch scratch{2 * need(kQueries * kKeys) + need(z.tq) + 2 * need(kQueries * wide) + 2 * need(kKeys * wide) +
                  need(z.tq * wide) + 2 * need(z.tk * wide)};
  C *p = take(kQueries * kKeys), *dp = take(kQueries * kKeys), *delta = take(z.tq);
  C *qs = take(kQueries * wide), *dys = take(kQueries * wide), *ks = take(kKeys * wide), *vs = take(kKeys * wide);
  C *dqs = take(z.tq * wide), *dks = take(z.tk * wide), *dvs = take(z.tk * wide);

  static size_t need(int64_t n) { return Scratch::need<C>(n); }
  C* take(int64_t n) { return scratch.template take<C>(n); }

  void run() {
    const Sums<T> dk(out[1], b, g, dks), dv(out[2], b, g, dvs);
    for (int64_t h = g * z.group; h < (g + 1) * z.group; ++h) query_head(h, dk, dv);
    dk.finish();
    dv.finish();
  }
  void query_head(int64_t h, const Sums<T>& dk, const Sums<T>& dv) {
    const MatView<T> q = head_of<T>(in[0], b, h), y = head_of<T>(in[3], b, h), dy = head_of<T>(in[5], b, h);
    const C* lse = in[4].data<C>() + (b * in[0].size(1) + h) * z.tq;
    for (int64_t i = 0; i < z.tq; ++i) {
      const T *a = y.p + i * y.row, *c = dy.p + i * dy.row;
      if (dy.col == 1 && y.col == 1)
        delta[i] = lane_sum<C>(hs, [&](int64_t j) { return C(a[j]) * C(c[j]); });
      else
        delta[i] = lane_sum<C>(hs, [&](int64_t j) { return C(a[j * y.col]) * C(c[j * dy.col]); });
    }
    const Sums<T> dq(out[0], b, h, dqs);
    for (int64_t k0 = 0; k0 < z.keys; k0 += kKeys) {
      const int64_t nk = std::min(kKeys, z.keys - k0);
      const MatView<C> k = rows_of<T>(head_of<T>(in[1], b, g), k0, nk, hs, ks),
                       v = rows_of<T>(head_of<T>(in[2], b, g), k0, nk, hs, vs);
      for (int64_t q0 = 0; q0 < z.tq; q0 += kQueries) {
        const int64_t nq = std::min(kQueries, z.tq - q0), n = z.seen_of(q0 + nq - 1, k0, nk);
        if (n == 0) continue;
        const MatView<C> qb = rows_of<T>(q, q0, nq, hs, qs), dyb = rows_of<T>(dy, q0, nq, hs, dys);
        gemm_serial<C>(nq, n, hs, qb, k.transposed(), p, kKeys);
        gemm_serial<C>(nq, n, hs, dyb, v.transposed(), dp, kKeys);
        for (int64_t i = 0; i < nq; ++i)
          softmax_grad(p + i * kKeys, dp + i * kKeys, z.seen_of(q0 + i, k0, n), n, C(z.scale), lse[q0 + i],
                       delta[q0 + i]);
        const MatView<C> probability{p, kKeys, 1}, dscore{dp, kKeys, 1};
        add(n, nq, probability.transposed(), dyb, dv.at(k0));
        add(n, nq, dscore.transposed(), qb, dk.at(k0));
        add(nq, n, dscore, k, dq.at(q0));
      }
    }
    dq.finish();
  }
  void add(int64_t rows, int64_t depth, MatView<C> a, MatView<C> x, Matrix<C> to) const {
    gemm_serial<C>(rows, hs, depth, a, x, to.p, to.ld, {.accumulate = true});
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
