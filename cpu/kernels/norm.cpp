// Groups of rows overlap the latencies of their accumulators. The output may reuse an input. Variance takes two passes.
// RMSNorm is LayerNorm with mean 0.
#include <tapegrad/cpu/simd/lanes.h>
#include <tapegrad/cpu/simd/rows.h>
#include <tapegrad/cpu/simd/scratch.h>
#include <tapegrad/ops/norm.h>

#include <cmath>
#include <optional>
#include <type_traits>

namespace tg::cpu::TG_ISA_NS {
namespace {
template <class T> class Parameter {
 public:
  Parameter(Bufs in, size_t i, int64_t n) {
    if (i >= in.size()) return;
    const T* const p = in[i].data<T>();
    const int64_t step = in[i].strides()[0];
    if constexpr (std::is_same_v<T, compute_t<T>>)
      if (step == 1) {
        p_ = p;
        return;
      }
    auto* const copy = copy_.get<compute_t<T>>(n);
    for (int64_t j = 0; j < n; ++j) copy[j] = p[j * step];
    p_ = copy;
  }
  Parameter(const Parameter&) = delete;
  const compute_t<T>* data() const { return p_; }

 private:
  Scratch copy_;
  const compute_t<T>* p_ = nullptr;
};

constexpr int64_t kMostTogether = 8, kNear = 1 << 17;  // elements: x, y in L2
int64_t rows_together(int64_t n, int64_t elements) {
  return std::clamp<int64_t>(elements / std::max<int64_t>(n, 1), 1, kMostTogether);
}
thread_local Scratch t_rows;

// One term, or two, whose sum is the second output. One compiled function: the run-time choice is cheap. B: type of r
// and y.
template <class T, class B> void forward(size_t terms, bool centred, double eps, Bufs in, Bufs out) {
  using C = compute_t<T>;
  const Shape& shape = out[0].shape();
  const int64_t n = shape.back(), rows = shape.without_last().product();
  const Rows<T> x(in[0]);
  std::optional<Rows<B>> more;
  if (terms > 1) more.emplace(in[1]);
  const Parameter<T> weight(in, terms, n), bias(in, terms + 1, n);
  B* const y = out[0].data<B>();
  T* const sum = terms > 1 ? out[1].data<T>() : nullptr;
  C *const mean = centred ? out[terms].template data<C>() : nullptr, *const rstd = out.back().data<C>();
  const auto row = [&](int64_t r, std::vector<T>& scratch, std::vector<B>& more_scratch) -> const T* {
    const T* p = x(r, scratch);
    if (!sum) return p;
    const B* q = (*more)(r, more_scratch);
    T* const s = sum + r * n;
    for_lanes<C>(n, [&]<class V>(int64_t j) { store(s + j, V(load<V>(p + j) + load<V>(q + j))); });
    return s;
  };
  // L2: bound by latency of sums; memory: a steady stream is fastest.
  const int64_t together = rows_together(n, terms == 1 && rows * n <= kNear ? 2048 : 1024);
  for_row_tiles(rows, n, [&](int64_t begin, int64_t end) {
    std::vector<T> scratch[kMostTogether];
    std::vector<B> more_scratch;
    for (int64_t first = begin; first < end; first += together) {
      const int64_t count = std::min(together, end - first);
      const T* p[kMostTogether];
      C m[kMostTogether] = {}, scale[kMostTogether];
      for (int64_t i = 0; i < count; ++i) p[i] = row(first + i, scratch[i], more_scratch);
      if (mean && n)
        for (int64_t i = 0; i < count; ++i)
          m[i] = lane_sums<1, C>(n, [q = p[i]]<class V>(int64_t j) { return std::array{load<V>(q + j)}; })[0] / C(n);
      for (int64_t i = 0; i < count; ++i)
        scale[i] = lane_sums<1, C>(n, [q = p[i], c = m[i]]<class V>(int64_t j) {
          const V d = load<V>(q + j) - c;
          return std::array<V, 1>{d * d};
        })[0];
      for (int64_t i = 0; i < count; ++i) {
        scale[i] = C(1) / std::sqrt((n ? scale[i] / C(n) : C(0)) + C(eps));
        rstd[first + i] = scale[i];
        if (mean) mean[first + i] = m[i];
      }
      for (int64_t i = 0; i < count; ++i) {
        const auto write = [&, q = p[i], c = m[i], k = scale[i], to = y + (first + i) * n](auto shift) {
          for_lanes<C>(n, [&]<class V>(int64_t j) { store(to + j, shift(V((load<V>(q + j) - c) * k), j)); });
        };
        if (!weight.data())
          write([](const auto& h, int64_t) { return h; });
        else if (!bias.data())
          write([w = weight.data()]<class V>(const V& h, int64_t j) { return V(h * load<V>(w + j)); });
        else
          write([w = weight.data(), b = bias.data()]<class V>(const V& h, int64_t j) {
            return V(h * load<V>(w + j) + load<V>(b + j));
          });
      }
    }
  });
}

// g = dy * w, h = (x - mean) * rstd: dx = rstd * (g - h * mean(g * h) - mean(g)), dw, db = sums over rows of dy * h,
// dy. RMSNorm has no mean(g). ds is added to the rounded dx. Row sums: in order within chunks, then as a tree. B: type
// of dy and of dr, a copy of dx.
template <class T, class B> struct Backward {
  using C = compute_t<T>;
  Rows<B> dy;
  Rows<T> x;
  std::vector<C> mean, rstd;  // mean: empty for RMSNorm
  Parameter<T> weight;
  std::vector<C> ones;  // used without a weight
  std::optional<Rows<T>> ds;
  T* dx = nullptr;
  B* dr = nullptr;
  T *dw = nullptr, *db = nullptr;

  template <class Op>
  Backward(const Op& op, Bufs in, Bufs out)
      : dy(in[0]), x(in[1]), weight(in, 3 + (Op::kCentred ? 1 : 0) + (op.has_ds ? 1 : 0), x.n) {
    if (!weight.data()) ones.assign(size_t(x.n), C(1));
    size_t next = 2;
    if (Op::kCentred) mean = flat<C, C>(in[next++]);
    rstd = flat<C, C>(in[next++]);
    if (op.has_ds) ds.emplace(in[next++]);
    next = 0;
    if (op.wants.dx) dx = out[next++].data<T>();
    if (op.wants.dw) dw = out[next++].data<T>();
    if (op.wants.db) db = out[next++].data<T>();
    if (op.wants.dr) dr = out[next++].data<B>();
  }

  const C* weights() const { return weight.data() ? weight.data() : ones.data(); }

  // Recomputing g and h is cheaper than keeping them, unless conversion takes many steps. kSums: 1: dw, 2: dw and db.
  static constexpr bool kKeeps = kVectorBytes < 64 && sizeof(T) < sizeof(C);
  struct Row {
    const T* x;
    const B* dy;
    C *g, *h;  // null unless kKeeps
    C mean, scale;
    std::array<C, 2> sums;  // sums of g * h, of g
  };
  template <int kSums> void first_pass(Row& r, C* sum_w, C* sum_b) const {
    const C* const w = weights();
    r.sums = lane_sums<2, C>(x.n, [&, m = r.mean, k = r.scale]<class V>(int64_t j) {
      const V d = load<V>(r.dy + j), h = (load<V>(r.x + j) - m) * k, g = d * load<V>(w + j);
      if constexpr (kSums > 0) store(sum_w + j, V(load<V>(sum_w + j) + d * h));
      if constexpr (kSums > 1) store(sum_b + j, V(load<V>(sum_b + j) + d));
      if constexpr (kKeeps) store(r.g + j, g), store(r.h + j, h);
      return std::array<V, 2>{g * h, g};
    });
  }
  template <class To> void second_pass(const Row& r, To* to) const {
    const C* const w = weights();
    const C along = r.sums[0] / C(x.n), shift = mean.empty() ? C(0) : r.sums[1] / C(x.n);
    const C m = r.mean, k = r.scale;
    for_lanes<C>(x.n, [&]<class V>(int64_t j) {
      V h, g;
      if constexpr (kKeeps)
        h = load<V>(r.h + j), g = load<V>(r.g + j);
      else
        h = (load<V>(r.x + j) - m) * k, g = load<V>(r.dy + j) * load<V>(w + j);
      // shift last: for n == 1, shift equals the rounded g.
      store(to + j, V(k * (g - h * along - shift)));
    });
  }
  template <int kSums> void rows(int64_t begin, int64_t end, C* sum_w, C* sum_b) const {
    const int64_t n = x.n, together = rows_together(n, 1024);
    std::vector<T> x_scratch[kMostTogether], ds_scratch;
    std::vector<B> dy_scratch[kMostTogether];
    // Separate loops: in one loop dx and ds could be rounded together.
    T* const before = ds ? t_rows.get<T>(n) : nullptr;
    thread_local Scratch t_kept;
    C* const kept = kKeeps ? t_kept.get<C>(2 * together * n) : nullptr;
    for (int64_t first = begin; first < end; first += together) {
      const int64_t count = std::min(together, end - first);
      Row row[kMostTogether];
      for (int64_t i = 0; i < count; ++i) {
        const int64_t r = first + i;
        C* const g = kKeeps ? kept + 2 * i * n : nullptr;
        const C m = mean.empty() ? C(0) : mean[size_t(r)];
        row[i] = {x(r, x_scratch[i]), dy(r, dy_scratch[i]), g, kKeeps ? g + n : nullptr, m, rstd[size_t(r)], {}};
        first_pass<kSums>(row[i], sum_w, sum_b);
      }
      for (int64_t i = 0; dx && i < count; ++i) {
        T* const to = dx + (first + i) * n;
        second_pass(row[i], ds ? before : to);
        if (ds) {
          const T* more = (*ds)(first + i, ds_scratch);
          for_lanes<C>(n, [&]<class V>(int64_t j) { store(to + j, V(load<V>(before + j) + load<V>(more + j))); });
        }
        if (dr)
          for_lanes<C>(n,
                       [&, narrow = dr + (first + i) * n]<class V>(int64_t j) { store(narrow + j, load<V>(to + j)); });
      }
    }
  }
  void run() const {
    const int64_t n = x.n, count = int64_t(rstd.size());
    if (n == 0) return;
    const int64_t chunk = std::clamp<int64_t>((count + 63) / 64, 16, 128), chunks = (count + chunk - 1) / chunk;
    thread_local Scratch t_parts;
    C* const parts = dw || db ? t_parts.get<C>(2 * chunks * n) : nullptr;  // chunks of dw, then of db
    parallel_for(chunks, std::max<int64_t>(1, kGrain / (n * chunk)), [&](int64_t c, int64_t last) {
      for (; c < last; ++c) {
        const int64_t begin = c * chunk, end = std::min(count, begin + chunk);
        C* const w = parts ? parts + c * n : parts;
        C* const b = parts ? w + chunks * n : parts;
        if (db) {
          std::fill_n(w, n, C(0)), std::fill_n(b, n, C(0));
          rows<2>(begin, end, w, b);
        } else if (dw) {
          std::fill_n(w, n, C(0));
          rows<1>(begin, end, w, nullptr);
        } else {
          rows<0>(begin, end, nullptr, nullptr);
        }
      }
    });
    const auto total = [&](C* part, T* to) {
      parallel_for(n, std::max<int64_t>(64, kGrain / std::max<int64_t>(chunks, 1)), [&](int64_t j, int64_t end) {
        join_chunks(part + j, chunks, n, end - j, [](C a, C b) { return a + b; });
        for (; j < end; ++j) to[j] = count ? T(part[j]) : T(C(0));
      });
    };
    if (dw) total(parts, dw);
    if (db) total(parts + chunks * n, db);
  }
};

template <class F> void visit_dtypes(DType stream, DType branch, F&& f) {
  if (stream != branch) return f.template operator()<float, bf16>();
  kernel::visit_float(stream, [&]<class T>() { f.template operator()<T, T>(); });
}
template <class Op> void norm(const Op& op, Bufs in, Bufs out, Context&) {
  visit_dtypes(in[0].dtype(), op.to,
               [&]<class T, class B>() { forward<T, B>(Op::kTerms, Op::kCentred, op.eps, in, out); });
}
template <class Op> void norm_grad(const Op& op, Bufs in, Bufs out, Context&) {
  visit_dtypes(in[1].dtype(), in[0].dtype(), [&]<class T, class B>() { Backward<T, B>(op, in, out).run(); });
}
TG_STRIDED_KERNEL(op::LayerNorm, cpu, norm<op::LayerNorm>);
TG_STRIDED_KERNEL(op::RmsNorm, cpu, norm<op::RmsNorm>);
TG_STRIDED_KERNEL(op::AddLayerNorm, cpu, norm<op::AddLayerNorm>);
TG_STRIDED_KERNEL(op::AddRmsNorm, cpu, norm<op::AddRmsNorm>);
TG_STRIDED_KERNEL(op::LayerNormGrad, cpu, norm_grad<op::LayerNormGrad>);
TG_STRIDED_KERNEL(op::RmsNormGrad, cpu, norm_grad<op::RmsNormGrad>);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
