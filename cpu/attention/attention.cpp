// Flash attention (Dao et al., 2022) with base-2 exponentials; c = |scale| log2(e). q, y, dy: (b, h, tq, d); k, v:
// (b, h / group, tk, d); lse: (b, h, tq); the code calls d hs. For each block of keys:
// forward:  s = K Q^T; top = max(max, max over keys of c s); s = 2^(c s - top); factor = 2^(max - top); max = top;
//           sum = factor sum + sum over keys of s; y = factor y + s^T V
//           last: y = y / sum; lse = max ln(2) + ln(sum)
// Dropout multiplies s after its sum, dp before delta, and p after dp by the mask.
// backward: delta = sum over d of dy y; p = 2^(c K Q^T - lse log2(e)); dp = V dY^T; dp = scale p (dp - delta);
//           dv += p dY; dk += dp Q; dq += dp^T K
// s, p and dp are (keys, queries): queries are the lanes of softmax. A task is a block of queries (forward), or a range
// of keys of a key head with all its query heads (backward: no row has two writers).
#include <tapegrad/cpu/attention/blocks.h>
#include <tapegrad/cpu/attention/few_queries.h>
#include <tapegrad/cpu/simd/lanes.h>
#include <tapegrad/cpu/simd/rows.h>
#include <tapegrad/cpu/simd/sums.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace tg::cpu::TG_ISA_NS {
namespace {
using namespace blocks;

// Rows of few queries: of one head, or of some query heads of a key head. Gemm splits longer chains.
constexpr int64_t kLongestChain = 384;
bool are_few(const Sizes& z) { return kRowsAlone && z.tq > 0 && z.tq <= few::kRows && z.depth <= kLongestChain; }

// f(R, terms) for `rows` <= few::kRows.
template <class F> void with_rows(int64_t rows, F&& f) {
  if (rows == 1) return f(std::integral_constant<int, 1>());
  if (rows == 2) return f(std::integral_constant<int, 2>());
  f(std::integral_constant<int, int(few::kRows)>());
}
// Scores s (R, kKeys) of n keys from k0 on; q: rows of few_rows().
template <int R, class T>
void few_scores(const Sizes& z, MatView<T> key, int64_t k0, int64_t n, const compute_t<T>* q, compute_t<T>* ks,
                compute_t<T>* s) {
  using C = compute_t<T>;
  const int64_t step = few::padded<C>(z.hs);
  if constexpr (std::is_same_v<T, bf16>)
    if (z.pairs) return few::scores<few::PairTerms, R>(q, step, score_rows<T>(z, key, k0, n, ks, true), n, z.depth, s);
  if (key.col == 1)
    few::scores<few::Terms<T>, R>(q, step, key.at(k0, 0), n, z.hs, s);
  else
    few::scores<few::Terms<C>, R>(q, step, rows_of<T>(key, k0, n, z.hs, ks, true), n, z.hs, s);
}
template <int R, class T>
void few_weigh(const Sizes& z, MatView<T> value, int64_t k0, int64_t n, const compute_t<T>* s,
               const compute_t<T>* factor, compute_t<T>* vs, compute_t<T>* y, int64_t ld) {
  if (value.col == 1)
    few::weigh<R>(s, value.at(k0, 0), n, z.hs, factor, k0 > 0, y, ld);
  else
    few::weigh<R>(s, rows_of<T>(value, k0, n, z.hs, vs, true), n, z.hs, factor, k0 > 0, y, ld);
}
// A row of hs elements for few_scores(), in whole words, zero-padded.
template <class T> void few_row(const Sizes& z, bool negative, const T* x, int64_t col, compute_t<T>* to) {
  using C = compute_t<T>;
  std::fill_n(to, few::padded<C>(z.hs), C(0));
  for (int64_t j = 0; j < z.hs; ++j) {
    const C e = negative ? -C(x[j * col]) : C(x[j * col]);
    if (z.pairs)
      reinterpret_cast<T*>(to)[j] = T(e);
    else
      to[j] = e;
  }
}

// Query heads [h, h + heads) of a key head: heads tq <= few::kRows.
template <class T> void forward_few(const Sizes& z, Bufs in, Bufs out, int64_t b, int64_t h, int64_t heads) {
  using C = compute_t<T>;
  const int64_t rows = heads * z.tq, hs = z.hs, ld = whole_vectors<C>(hs), step = few::padded<C>(hs);
  const MatView<T> key = head_of<T>(in[1], b, h / z.group), value = head_of<T>(in[2], b, h / z.group);
  const auto need = [](int64_t n) { return Scratch::need<C>(n); };
  Scratch scratch(need(few::kRows * kKeys) + need(few::kRows * step) + need(few::kRows * ld) + need(kKeys * ld));
  C *const s = scratch.take<C>(few::kRows * kKeys), *const q = scratch.take<C>(few::kRows * step),
           *const y = scratch.take<C>(few::kRows * ld), *const copies = scratch.take<C>(kKeys * ld);
  C max[few::kRows], sum[few::kRows] = {}, factor[few::kRows];
  std::fill_n(max, few::kRows, -std::numeric_limits<C>::infinity());
  std::fill_n(y, few::kRows * ld, C(0));
  for (int64_t r = 0; r < few::kRows; ++r) {
    const int64_t some = std::min(r, rows - 1);
    const MatView<T> from = head_of<T>(in[0], b, h + some / z.tq).at(some % z.tq, 0);
    few_row<T>(z, z.scale < 0, from.p, from.col, q + r * step);
  }
  const int64_t end = z.seen(z.tq - 1);
  for (int64_t k0 = 0; k0 < end; k0 += kKeys) {
    const int64_t n = std::min(kKeys, end - k0);
    with_rows(rows, [&]<int R>(std::integral_constant<int, R>) {
      few_scores<R, T>(z, key, k0, n, q, copies, s);
      for (int64_t r = 0; r < R; ++r) {
        C* const row = s + r * kKeys;
        const int64_t i = r % z.tq, seen = r < rows ? z.seen_of(i, k0, n) : 0;
        factor[r] = seen > 0 ? few::softmax_step(seen, score_scale<C>(z), row, max[r], sum[r]) : C(1);
        if (z.mask) few::drop(*z.mask, b * z.heads + h + r / z.tq, z.start + i, k0, seen, row);
        std::fill(row + seen, row + n, C(0));
      }
      few_weigh<R, T>(z, value, k0, n, s, factor, copies, y, ld);
    });
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t head = h + r / z.tq, i = r % z.tq;
    const Strides& st = out[0].strides();
    T* const to = out[0].data<T>() + b * st[0] + head * st[1] + i * st[2];
    const C inverse = z.seen(i) > 0 ? C(1) / sum[r] : C(0);
    for (int64_t j = 0; j < hs; ++j) to[j] = T(y[r * ld + j] * inverse);
    out[1].data<C>()[(b * z.heads + head) * z.tq + i] = C(double(max[r]) * kLn2 + double(math::log(sum[r])));
  }
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
  const auto need = [](int64_t n) { return Scratch::need<C>(n); };
  const int64_t masks = z.mask ? kKeys * P : 0;
  Scratch scratch(need(masks) + need(kKeys * P) + need(padded * hs) + need(nq * ld) + 2 * need(padded) + need(P) +
                  2 * need(kKeys * ld));
  C *s = scratch.take<C>(kKeys * P), *qs = scratch.take<C>(padded * hs), *sums = scratch.take<C>(nq * ld),
    *max = scratch.take<C>(padded), *sum = scratch.take<C>(padded), *factor = scratch.take<C>(P),
    *ks = scratch.take<C>(kKeys * ld), *vs = scratch.take<C>(kKeys * ld), *mask = scratch.take<C>(masks);
  std::fill(max, max + padded, -std::numeric_limits<C>::infinity());
  std::fill(sum, sum + padded, C(0));
  Matrix<C> y{sums, ld};
  if constexpr (kRowsAlone && !kWidens<T>)
    if (hs == ld) y = {to, st[2]};
  for (int64_t i = 0; end <= 0 && i < nq; ++i) std::fill_n(y.at(i).p, hs, C(0));
  turn<C>(z, true, nq, score_rows<T>(z, query, q0, nq, ks, true), qs);
  for (int64_t k0 = 0; k0 < end; k0 += kKeys) {
    const int64_t nk = std::min(kKeys, end - k0);
    const MatView<C> k = score_rows<T>(z, key, k0, nk, ks, reads_seldom<C>(nq)), v = rows_of<T>(value, k0, nk, hs, vs);
    for (int64_t i = 0; i < nq; i += P) {
      const int64_t queries = std::min(P, nq - i);
      const Block block{z, q0 + i, queries, k0, z.seen_of(q0 + i + queries - 1, k0, nk)};
      if (block.n == 0) continue;
      scores<C>(block, k, qs + i * z.depth, s, P);
      lanes::softmax_step<C>(block.lanes<C>(P), s, score_scale<C>(z), max + i, sum + i, factor);
      if (z.mask) {
        lanes::draw_mask<C>(block.lanes<C>(P), *z.mask, b * z.heads + h, z.start + q0 + i, k0, mask);
        lanes::apply_mask<C>(block.lanes<C>(P), mask, P, s);
      }
      for (int64_t r = 0; k0 > 0 && r < queries; ++r)
        for (int64_t j = 0; factor[r] != 1 && j < ld; ++j) y.at(i + r).p[j] *= factor[r];
      add_to_queries<C>(block, s, P, v, y.at(i), k0 > 0);
    }
  }
  for (int64_t i = 0; i < nq; ++i) lse[i] = C(double(max[i]) * kLn2 + double(math::log(sum[i])));
  for (int64_t i = 0; i < nq; ++i) {
    const C inverse = end > 0 ? C(1) / sum[i] : C(0);
    T* const row = to + i * st[2];
    const C* const from = y.at(i).p;
    TG_SAME_INDEX
    for (int64_t j = 0; j < hs; ++j) row[j] = T(from[j] * inverse);
  }
}
void attention(const op::Attention& op, Bufs in, Bufs out, Context& c) {
  const Sequences sequences(op.o, in, in.subspan(3), c.op);
  const int64_t heads = in[0].size(1), blocks = (in[0].size(2) + kQueries - 1) / kQueries;
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    if (const Sizes& z = sequences.all(); are_few(z)) {
      const int64_t together = std::max<int64_t>(1, std::min(few::kRows / z.tq, z.group)),
                    parts = ceil_div(z.group, together), tasks = in[1].size(1) * parts;
      return parallel_for(in[0].size(0) * tasks, [&](int64_t t) {
        const int64_t b = t / tasks, g = t % tasks / parts, first = t % parts * together;
        forward_few<T>(sequences[b], in, out, b, g * z.group + first, std::min(together, z.group - first));
      });
    }
    parallel_for(in[0].size(0) * heads * blocks, [&](int64_t t) {
      const int64_t b = t / blocks / heads;
      // The last blocks see the most keys: they run first.
      forward_tile<T>(sequences[b], in, out, b, t / blocks % heads, (blocks - 1 - t % blocks) * kQueries);
    });
  });
}

// Gradient rows of one head, in whole vectors: the output's, or scratch that finish() rounds. The first write does not
// read.
template <class T> class Sums {
  using C = compute_t<T>;

 public:
  Sums(const Buf& out, int64_t b, int64_t h, C* scratch, int64_t begin, int64_t end)
      : first_(begin),
        end_(end),
        begun_(begin),
        hs_(out.size(3)),
        ld_(out.strides()[2]),
        to_(out.data<T>() + b * out.strides()[0] + h * out.strides()[1]),
        sum_{scratch, whole_vectors<C>(hs_)} {
    if constexpr (!kWidens<T>)
      if (sum_.ld == hs_) sum_ = {to_, ld_};
  }
  Matrix<C> at(int64_t row) const { return sum_.at(row); }
  // True if the next GEMM into n rows from `row` on accumulates. Rows come in order.
  bool begin(int64_t row, int64_t n) {
    const bool add = row < begun_;
    if (add) clear(row + n);
    begun_ = std::max(begun_, row + n);
    return add;
  }
  void finish() {
    clear(end_);
    if constexpr (!kWidens<T>)
      if (sum_.p == to_) return;
    for (int64_t i = first_; i < end_; ++i) {
      const C* const from = sum_.at(i).p;
      TG_SAME_INDEX
      for (int64_t j = 0; j < hs_; ++j) to_[i * ld_ + j] = T(from[j]);
    }
  }

 private:
  void clear(int64_t end) {
    for (; begun_ < end; ++begun_) std::fill_n(sum_.at(begun_).p, whole_vectors<C>(hs_), C(0));
  }
  int64_t first_, end_, begun_, hs_, ld_;
  T* to_;
  Matrix<C> sum_;
};

// Key head g of batch b, its query heads (tq, hs), keys [first, last) of (tk, hs).
template <class T> struct BackwardTile {
  using C = compute_t<T>;
  static constexpr int64_t P = kPanel<C>;
  static_assert(kStrip % P == 0 && kQueries % kStrip == 0);
  const Sizes& z;
  Bufs in, out;
  int64_t b, g, first, last;
  // dq of this key range (tq, whole vectors); null if it has all keys.
  C* part;
  int64_t hs = z.hs, ld = whole_vectors<C>(hs), wide = kWidens<T> || ld != hs ? ld : 0;
  // p holds rows of y before it holds scores.
  int64_t p_size = std::max(kStrip * kKeys, ld* kQueries);
  int64_t masks = z.mask ? kKeys * P : 0;
  Scratch scratch{need(masks) + need(p_size) + need(kStrip * kKeys) + 3 * need(kQueries) + 2 * need(kQueries * hs) +
                  2 * need(kQueries * ld) + 3 * need(kKeys * ld) + need(z.tq * wide) + 2 * need(z.tk * wide)};
  C *p = take(p_size), *dp = take(kStrip * kKeys), *log_sum = take(kQueries), *log_rest = take(kQueries),
    *delta = take(kQueries);
  C *transposed_q = take(kQueries * hs), *transposed_dy = take(kQueries * hs);
  C *qs = take(kQueries * ld), *dys = take(kQueries * ld), *ks = take(kKeys * ld), *vs = take(kKeys * ld),
    *pairs = take(kKeys * ld);
  C *dqs = take(z.tq * wide), *dks = take(z.tk * wide), *dvs = take(z.tk * wide), *mask = take(masks);

  static size_t need(int64_t n) { return Scratch::need<C>(n); }
  C* take(int64_t n) { return scratch.template take<C>(n); }

  void run() {
    Sums<T> dk(out[1], b, g, dks, first, last), dv(out[2], b, g, dvs, first, last);
    for (int64_t h = g * z.group; h < (g + 1) * z.group; ++h) query_head(h, dk, dv);
    dk.finish();
    dv.finish();
  }
  void query_head(int64_t h, Sums<T>& dk, Sums<T>& dv) {
    const auto all = [&](Matrix<C> dq) {
      for (int64_t q0 = 0; q0 < z.tq; q0 += kQueries) queries(h, q0, std::min(kQueries, z.tq - q0), dq, dk, dv);
    };
    if (part) {
      C* const of_head = part + (h - g * z.group) * z.tq * ld;
      std::fill_n(of_head, z.tq * ld, C(0));  // queries may see no keys
      return all({of_head, ld});
    }
    Sums<T> dq(out[0], b, h, dqs, 0, z.tq);
    all(dq.at(0));
    if (z.seen(z.tq - 1) > 0) dq.begin(0, z.tq);
    dq.finish();
  }
  void dot_rows(int64_t nq, MatView<C> dy, MatView<C> y) const {
    constexpr int64_t W = kVector<C>, L = kLanes;  // any vector width
    alignas(64) C parts[P * L], transposed[L * P];
    for (int64_t i0 = 0; i0 < kQueries; i0 += P) {
      const int64_t n = std::clamp<int64_t>(nq - i0, 0, P);
      for (int64_t i = 0; i < n; ++i) {
        const C *const a = dy.at(i0 + i, 0).p, *const c = y.at(i0 + i, 0).p;
        Vector<C> sum[L / W] = {};
        for (int64_t j = 0; j < ld; j += W) {
          Vector<C>& lanes = sum[j / W % (L / W)];
          lanes = fma(load_vector(a + j), load_vector(c + j), lanes);
        }
        std::memcpy(parts + i * L, sum, sizeof sum);
      }
      pack_panel<C>(L, n, {parts, 1, L}, transposed);
      for (int64_t w = 0; w < P; w += W) {
        Vector<C> sum = {};
        for (int64_t j = 0; j < L; ++j) sum += load_vector(transposed + j * P + w);
        store_vector(delta + i0 + w, sum);
      }
    }
  }
  void queries(int64_t h, int64_t q0, int64_t nq, Matrix<C> dq, Sums<T>& dk, Sums<T>& dv) {
    const int64_t end = std::min(last, z.seen(q0 + nq - 1));
    if (first >= end) return;
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
    turn<C>(z, true, nq, z.pairs ? score_rows<T>(z, head_of<T>(in[0], b, h), q0, nq, p, true) : q, transposed_q);
    turn<C>(z, false, nq, z.pairs ? score_rows<T>(z, head_of<T>(in[5], b, h), q0, nq, p, true) : dy, transposed_dy);
    for (int64_t k0 = first; k0 < end; k0 += kKeys) {
      const int64_t nk = std::min(kKeys, end - k0);
      const MatView<T> key = head_of<T>(in[1], b, g), value = head_of<T>(in[2], b, g);
      const MatView<C> k = rows_of<T>(key, k0, nk, hs, ks),
                       v = score_rows<T>(z, value, k0, nk, vs, reads_seldom<C>(nq)),
                       pairs_of_k = z.pairs ? score_rows<T>(z, key, k0, nk, pairs) : k;
      for (int64_t i = 0; i < nq; i += kStrip) {
        const int64_t some = std::min(kStrip, nq - i);
        const Block strip{z, q0 + i, some, k0, z.seen_of(q0 + i + some - 1, k0, nk)};
        if (strip.n == 0) continue;
        for (int64_t j = 0; j < some; j += P) {
          const Block panel{z, q0 + i + j, std::min(P, some - j), k0, strip.n};
          scores<C>(panel, pairs_of_k, transposed_q + (i + j) * z.depth, p + j, kStrip);
          scores<C>(panel, v, transposed_dy + (i + j) * z.depth, dp + j, kStrip);
          const lanes::Panel at = panel.template lanes<C>(kStrip);
          if (z.mask) {
            lanes::draw_mask<C>(panel.template lanes<C>(P), *z.mask, b * z.heads + h, z.start + panel.q0, k0, mask);
            lanes::apply_mask<C>(at, mask, P, dp + j);
          }
          lanes::softmax_grad<C>(at, p + j, dp + j, score_scale<C>(z), C(z.scale), log_sum + i + j, log_rest + i + j,
                                 delta + i + j);
          if (z.mask) lanes::apply_mask<C>(at, mask, P, p + j);
        }
        add_to_keys<C>(strip, p, kStrip, dy.at(i, 0), dv.at(k0), dv.begin(k0, strip.n));
        add_to_keys<C>(strip, dp, kStrip, q.at(i, 0), dk.at(k0), dk.begin(k0, strip.n));
        add_to_queries<C>(strip, dp, kStrip, k, dq.at(q0 + i), part || k0 > 0);
      }
    }
  }
};
template <class T> void backward_one(const BackwardTile<T>& t) {
  using C = compute_t<T>;
  const Sizes& z = t.z;
  const int64_t n = t.last - t.first, hs = t.hs, ld = t.ld, seen = z.seen_of(0, t.first, n), step = few::padded<C>(hs);
  const MatView<T> key = head_of<T>(t.in[1], t.b, t.g).at(t.first, 0),
                   value = head_of<T>(t.in[2], t.b, t.g).at(t.first, 0);
  std::vector<C> room(size_t(2 * whole_vectors<C>(n) + 2 * kKeys + kKeys * ld + 4 * ld + 2 * step));
  C *const p = room.data(), *const ds = p + whole_vectors<C>(n) + kKeys, *const q = ds + whole_vectors<C>(n) + kKeys,
           *const dy = q + ld, *const y = dy + ld, *const dq = y + ld, *const words = dq + ld,
           *const copies = words + 2 * step;
  for (const auto& [x, to] : {std::pair{&t.in[0], q}, {&t.in[5], dy}, {&t.in[3], y}}) {
    const MatView<T> from = head_of<T>(*x, t.b, t.g);
    for (int64_t j = 0; j < hs; ++j) to[j] = C(from.p[j * from.col]);
    if (to != y) few_row<T>(z, to == q && z.scale < 0, from.p, from.col, words + (to == q ? 0 : step));
  }
  const C delta = lane_sum<C>(hs, [dy, y](int64_t j) { return dy[j] * y[j]; });
  const double l = double(t.in[4].template data<C>()[t.b * t.in[0].size(1) + t.g]) * kLog2E;
  const C log_sum = C(l), log_rest = C(l - double(C(l))), scale = score_scale<C>(z), to_raw = C(z.scale), factor = 1;
  for (int64_t k0 = 0; k0 < seen; k0 += kKeys) {
    const int64_t some = std::min(kKeys, seen - k0);
    few_scores<1, T>(z, key, k0, some, words, copies, p + k0);
    few_scores<1, T>(z, value, k0, some, words + step, copies, ds + k0);
    if (z.mask) few::drop(*z.mask, t.b * z.heads + t.g, z.start, t.first + k0, some, ds + k0);
    for (int64_t j = k0; j < k0 + some; j += kVector<C>) {
      const Vector<C> none = {};
      const Vector<C> e = exp2_to_zero(fma(load_vector(p + j), none + scale, none - log_sum) - log_rest);
      store_vector(p + j, e);
      store_vector(ds + j, Vector<C>(e * (load_vector(ds + j) - delta) * to_raw));
    }
    if (z.mask) few::drop(*z.mask, t.b * z.heads + t.g, z.start, t.first + k0, some, p + k0);
    few_weigh<1, T>(z, key, k0, some, ds + k0, &factor, copies, dq, ld);
  }
  if (seen == 0) std::fill_n(dq, hs, C(0));
  if (t.part) std::copy_n(dq, ld, t.part);
  T* const to = t.out[0].template data<T>() + t.b * t.out[0].strides()[0] + t.g * t.out[0].strides()[1];
  for (int64_t j = 0; !t.part && j < hs; ++j) to[j] = T(dq[j]);
  const auto write = [&](const Buf& x, const C* weights, const C* of) {  // hidden keys get 0
    const Strides& st = x.strides();
    T* row = x.data<T>() + t.b * st[0] + t.g * st[1] + t.first * st[2];
    for (int64_t k = 0; k < n; ++k, row += st[2])
      for_lanes<C>(hs,
                   [&]<class V>(int64_t j) { store<V>(row + j, k < seen ? V(weights[k] * load<V>(of + j)) : V{}); });
  };
  write(t.out[1], ds, q);
  write(t.out[2], p, dy);
}

// Key ranges keep threads busy in backward if heads are few. Sizes alone decide; dq is the sum over ranges, in order.
struct Parts {
  // About kTiles tasks, with dq of all ranges in kBytes.
  static constexpr int64_t kTiles = 8, kBytes = int64_t(64) << 20;
  int64_t number, keys;  // keys per range but the last
  Parts(const Buf& q, const Buf& k) {
    const int64_t heads = std::max<int64_t>(1, k.size(0) * k.size(1)), blocks = (k.size(2) + kKeys - 1) / kKeys,
                  bytes = std::max<int64_t>(1, q.numel() * int64_t(sizeof(double)));
    const int64_t most = std::clamp<int64_t>(std::min((kTiles + heads - 1) / heads, kBytes / bytes), 1,
                                             std::max<int64_t>(1, blocks / 2));
    keys = std::max<int64_t>(1, (blocks + most - 1) / most) * kKeys;
    number = std::max<int64_t>(1, (k.size(2) + keys - 1) / keys);
  }
};
void attention_grad(const op::AttentionGrad& op, Bufs in, Bufs out, Context& c) {
  const Sequences sequences(op.o, in, in.subspan(6), c.op);
  const Parts parts(in[0], in[1]);
  const int64_t heads = in[1].size(1), tk = in[1].size(2), n = parts.number;
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const int64_t hs = in[0].size(3), ld = whole_vectors<C>(hs), group = heads ? in[0].size(1) / heads : 0;
    const int64_t rows = in[0].size(2), of_head = rows * ld, of_part = group * of_head;
    C* const sums = n > 1 ? c.scratch<C>(in[1].size(0) * heads * n * of_part) : nullptr;
    parallel_for(in[1].size(0) * heads * n, [&](int64_t t) {
      const int64_t b = t / n / heads, g = t / n % heads, first = t % n * parts.keys;
      const Sizes z = sequences[b];
      BackwardTile<T> tile{
          z, in, out, b, g, first, std::min(tk, first + parts.keys), sums ? sums + t * of_part : nullptr};
      if (z.group * z.tq == 1 && are_few(z))
        backward_one<T>(tile);
      else
        tile.run();
    });
    if (!sums) return;
    const Strides& st = out[0].strides();
    over_rows(in[0].size(0) * in[0].size(1) * rows, n * ld, [&](int64_t r) {
      const int64_t head = r / rows, b = head / in[0].size(1), h = head % in[0].size(1), i = r % rows;
      C* const sum = sums + head / group * n * of_part + head % group * of_head + i * ld;
      T* const to = out[0].data<T>() + b * st[0] + h * st[1] + i * st[2];
      for (int64_t k = 1; k < n; ++k) {
        const C* const more = sum + k * of_part;
        TG_SAME_INDEX
        for (int64_t j = 0; j < ld; ++j) sum[j] += more[j];
      }
      TG_SAME_INDEX
      for (int64_t j = 0; j < hs; ++j) to[j] = T(sum[j]);
    });
  });
}
TG_STRIDED_KERNEL(op::Attention, cpu, attention);
TG_STRIDED_KERNEL(op::AttentionGrad, cpu, attention_grad);
TG_STRIDED_KERNEL(op::SelfAttention, cpu, (tg::kernel::by_parts<op::SelfAttention, attention>));
TG_STRIDED_KERNEL(op::SelfAttentionGrad, cpu, (tg::kernel::by_parts<op::SelfAttentionGrad, attention_grad>));
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
