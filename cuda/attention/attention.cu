#include <tapegrad/core/check.h>
#include <tapegrad/ops/attention.h>

#include <tapegrad/cuda/attention/attention_kernels.h>
#include <tapegrad/cuda/device/copy.h>
#include <tapegrad/cuda/device/index_check.h>

#include <cmath>

namespace tg::cuda {
namespace {
constexpr int kThreads = 256;

Error outside_lengths(const IndexSite& s, int64_t position, int64_t value) {
  return tg::kernel::attention_span_outside(s.op, "lengths", value, position, s.size - 1);
}
Error outside_starts(const IndexSite& s, int64_t position, int64_t value) {
  return tg::kernel::attention_span_outside(s.op, "starts", value, position, s.size - 1);
}
// Lengths or starts; null ids.first: absent. Values outside [0, most] are logged and clamped.
struct SpanIds {
  Ids ids;
  int64_t step;
  IndexCheck check;
  __device__ __forceinline__ int64_t operator()(int64_t b, int64_t most, int64_t not_given) const {
    if (!ids.first) return not_given;
    const int64_t n = ids[b * step];
    if (!check.inside(n)) check.note(n, b);
    return n < 0 ? 0 : n > most ? most : n;
  }
};
__global__ void attention_read_spans(SpanIds lengths, SpanIds starts, int64_t batch, int64_t tq, int64_t tk,
                                     AttentionSpan* spans) {
  for (GridLoop b(batch); b; ++b) spans[*b] = {lengths(*b, tk, tk), starts(*b, tk, tk - tq)};
}
class Spans {
 public:
  Spans(const op::AttentionForm& o, const AttentionSizes& z, Bufs extra, const Context& c)
      : memory_(c, size_t(extra.empty() ? 0 : z.batch) * sizeof(AttentionSpan)), given_(!extra.empty()) {
    if (!given_) return;
    const auto ids = [&](const Buf& x, bool given, auto error) {
      return SpanIds{Ids(given ? first_element(x) : nullptr, x.dtype()), x.strides()[0],
                     IndexCheck(c, {error, c.op, *x.layout, 0, z.tk + 1})};
    };
    launch(c, attention_read_spans, blocks_for(c, z.batch, kThreads), kThreads, 0,
           ids(extra.front(), o.kv_lengths, outside_lengths), ids(extra.back(), o.query_starts, outside_starts),
           z.batch, z.tq, z.tk, memory_.as<AttentionSpan>());
  }
  const AttentionSpan* get() const { return given_ ? memory_.as<AttentionSpan>() : nullptr; }

 private:
  Scratch memory_;
  bool given_;
};

// An operand's own memory, or a copy with rows zero-padded to whole vectors.
class WholeRows {
 public:
  WholeRows(const Context& c, const Buf& x) : heads(x) {
    if (heads.vectors || x.numel() == 0) return;
    const Shape& s = x.shape();
    const int64_t hs = s[3], row = (hs + kVec<bf16> - 1) / kVec<bf16> * kVec<bf16>, head = s[2] * row,
                  batch = s[1] * head;
    bf16* p = copy_.emplace(c, size_t(s[0] * batch) * sizeof(bf16)).as<bf16>();
    const Strides to{batch, head, row, 1};
    const auto bytes = [](const bf16* at) { return const_cast<std::byte*>(reinterpret_cast<const std::byte*>(at)); };
    const Region parts[] = {{s, bytes(heads.p), x.strides(), bytes(p), to},
                            {{s[0], s[1], s[2], row - hs}, nullptr, {}, bytes(p + hs), to}};
    copy_regions(c, sizeof(bf16), parts);
    heads.p = p, heads.batch = batch, heads.head = head, heads.row = row, heads.col = 1, heads.vectors = true;
  }
  Heads<const bf16> heads;

 private:
  std::optional<Scratch> copy_;
};

AttentionSizes sizes_of(const op::AttentionForm& o, const Buf& q, const Buf& k, const Context& c) {
  const int64_t hs = q.size(3), most = q.dtype() == DType::f64 ? kMostF64HeadSize : kMostHeadSize;
  TG_CHECK(hs <= most, shape,
           "[{}] q has the shape {}: a head size of {}. Device::cuda() takes up to {} of {}. Use more and smaller "
           "heads, or Device::cpu().",
           c.op, q.shape(), hs, most, name_of(q.dtype()));
  const double scale = o.scale != 0 ? o.scale : 1 / std::sqrt(double(std::max<int64_t>(1, hs)));
  return {q.size(0), q.size(1), k.size(1), q.size(2), k.size(2), hs, o.causal, scale, nullptr};
}
// A replay asks the op that runs for the state, which may be a self_attention.
AttentionDropout dropout_of(const Op& op, const op::AttentionForm& o) {
  if (o.dropout == 0) return {};
  const tg::kernel::AttentionMask m(o.dropout, o.rng);
  return {StepValue<Rng>(op, [](const Op& now) { return *now.rng_state(); }), m.limit, m.factor};
}
void attention(const op::Attention& op, Bufs in, Bufs out, Context& c) {
  AttentionSizes z = sizes_of(op.o, in[0], in[1], c);
  if (z.batch * z.heads * z.tq == 0) return;
  const Spans spans(op.o, z, in.subspan(3), c);
  z.spans = spans.get();
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    AttentionArgs<T> a{z,
                       dropout_of(op, op.o),
                       Heads<const T>(in[0]),
                       Heads<const T>(in[1]),
                       Heads<const T>(in[2]),
                       Heads<T>(out[0]),
                       out[1].data<compute_t<T>>()};
    if constexpr (std::is_same_v<T, bf16>)
      if (z.hs <= kMostMmaHeadSize && z.scale > 0) {
        const WholeRows q(c, in[0]), k(c, in[1]), v(c, in[2]);
        a.q = q.heads, a.k = k.heads, a.v = v.heads;
        return attention_mma(c, a);
      }
    attention_tiled<T>(c, a);
  });
}

// delta[i] = dy[i] . y[i], rows of HS; kLanes lanes per row.
constexpr int kProductRows = 64;  // rows per block
template <class T, int kLanes, bool kVectors>
__global__ void __launch_bounds__(kThreads, 6)
    attention_row_products(AttentionSizes z, Heads<const T> y, Heads<const T> dy, compute_t<T>* delta) {
  constexpr int V = kVec<T>;
  const HeadBlock at(z.batch, z.heads);
  const auto a = y.at(at.b, at.h), b = dy.at(at.b, at.h);
  const int lane = int(threadIdx.x) % kLanes;
#pragma unroll 1
  for (int r = int(threadIdx.x) / kLanes; r < kProductRows; r += kThreads / kLanes) {
    const int64_t t = at.i * kProductRows + r;
    compute_t<T> sum = 0;
#pragma unroll 1
    for (int64_t d = lane * V; t < z.tq && d < z.hs; d += kLanes * V) {
      if constexpr (kVectors) {
        const auto p = load16(a.p + t * a.row + d), q = load16(b.p + t * b.row + d);
#pragma unroll
        for (int v = 0; v < V; ++v) sum += widen(p.x[v]) * widen(q.x[v]);
      } else {
        for (int64_t e = d; e < min(d + V, z.hs); ++e)
          sum += widen(a.p[t * a.row + e * a.col]) * widen(b.p[t * b.row + e * b.col]);
      }
    }
#pragma unroll
    for (int s = kLanes / 2; s > 0; s /= 2) sum += __shfl_xor_sync(~0u, sum, s);
    if (lane == 0 && t < z.tq) delta[(at.b * z.heads + at.h) * z.tq + t] = sum;
  }
}
template <class T>
void row_products(const AttentionSizes& z, const Heads<const T>& y, const Heads<const T>& dy, compute_t<T>* delta,
                  const Context& c) {
  const int64_t blocks = (z.tq + kProductRows - 1) / kProductRows * z.batch * z.heads;
  if (blocks == 0) return;
  const auto run = [&]<int kLanes>() {
    launch(c,
           y.vectors && dy.vectors ? attention_row_products<T, kLanes, true> : attention_row_products<T, kLanes, false>,
           unsigned(blocks), kThreads, 0, z, y, dy, delta);
  };
  const int64_t parts = (z.hs + kVec<T> - 1) / kVec<T>;
  parts <= 8    ? run.template operator()<8>()
  : parts <= 16 ? run.template operator()<16>()
                : run.template operator()<32>();
}
void attention_grad(const op::AttentionGrad& op, Bufs in, Bufs out, Context& c) {
  AttentionSizes z = sizes_of(op.o, in[0], in[1], c);
  if (z.batch * z.key_heads * z.hs == 0) return;
  const Spans spans(op.o, z, in.subspan(6), c);
  z.spans = spans.get();
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const int64_t rows = z.batch * z.heads * z.tq;
    const Scratch scratch(c, size_t(rows) * sizeof(C));
    const Heads<const T> dy(in[5]);
    row_products<T>(z, Heads<const T>(in[3]), dy, scratch.as<C>(), c);
    AttentionGradArgs<T> a{z,
                           dropout_of(op, op.o),
                           Heads<const T>(in[0]),
                           Heads<const T>(in[1]),
                           Heads<const T>(in[2]),
                           dy,
                           in[4].data<const C>(),
                           scratch.as<C>(),
                           Heads<T>(out[0]),
                           Heads<T>(out[1]),
                           Heads<T>(out[2])};
    if constexpr (std::is_same_v<T, bf16>)
      if (z.hs <= kMostMmaHeadSize) {
        const WholeRows q(c, in[0]), k(c, in[1]), v(c, in[2]), g(c, in[5]);
        a.q = q.heads, a.k = k.heads, a.v = v.heads, a.dy = g.heads;
        return attention_grad_mma(c, a);
      }
    attention_grad_tiled<T>(c, a);
  });
}
TG_STRIDED_KERNEL(op::Attention, cuda, attention);
TG_STRIDED_KERNEL(op::AttentionGrad, cuda, attention_grad);
TG_STRIDED_KERNEL(op::SelfAttention, cuda, (tg::kernel::by_parts<op::SelfAttention, attention>));
TG_STRIDED_KERNEL(op::SelfAttentionGrad, cuda, (tg::kernel::by_parts<op::SelfAttentionGrad, attention_grad>));
}  // namespace
}  // namespace tg::cuda
