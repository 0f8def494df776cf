// attention_tiled*.cu: any dtype; attention_mma*.cu: bf16 on tensor cores. q, y (B, H, Tq, HS), k, v (B, Hkv, Tk, HS);
// scores stay on chip (FlashAttention-2, arXiv:2307.08691).
#pragma once
#include <tapegrad/core/check.h>
#include <tapegrad/cuda/device/step_values.h>
#include <tapegrad/ops/attention.h>

#include <limits>

namespace tg::cuda {

template <class T> struct HeadRows {  // (t, i) is p[t * row + i * col]
  T* p;
  int64_t row, col;
  bool vectors;
};
template <class T> struct Heads {  // (B, heads, T, HS), any strides
  T* p;
  int64_t batch, head, row, col;
  bool vectors;

  explicit Heads(const Buf& x)
      : p(x.data<T>()), batch(x.strides()[0]), head(x.strides()[1]), row(x.strides()[2]), col(x.strides()[3]) {
    constexpr int64_t kUnit = kVec<std::remove_const_t<T>>;
    vectors = aligned16(p) && col == 1 && x.size(3) % kUnit == 0 && batch % kUnit == 0 && head % kUnit == 0 &&
              row % kUnit == 0;
  }
  __device__ __forceinline__ HeadRows<T> at(int64_t b, int64_t h) const {
    return {p + b * batch + h * head, row, col, vectors};
  }
};

// `keys` of Tk keys are valid; the first query has position `start` among them.
struct AttentionSpan {
  int64_t keys, start;
};
struct AttentionSizes {
  int64_t batch, heads, key_heads, tq, tk, hs;
  bool causal;
  double scale;
  const AttentionSpan* spans;  // (B); null: tk keys, last query at last key

  __host__ __device__ __forceinline__ int64_t group() const { return heads / key_heads; }
  __device__ __forceinline__ AttentionSpan span(int64_t b) const {
    return spans ? spans[b] : AttentionSpan{tk, tk - tq};
  }
  // seen: visible keys of query i, a prefix; 0 without keys. first_query: lowest query that sees key j, else tq.
  __device__ __forceinline__ int64_t seen(const AttentionSpan& s, int64_t i) const {
    const int64_t n = i + 1 + s.start;
    return causal && n < s.keys ? n : s.keys;
  }
  __device__ __forceinline__ int64_t first_query(const AttentionSpan& s, int64_t j) const {
    const int64_t i = j - s.start;
    return j >= s.keys ? tq : causal && i > 0 ? i : 0;
  }
};
struct AttentionDropout {
  StepValue<Rng> rng = {};
  int32_t limit = 0;  // 0: kernels without kDrops
  double factor = 0;
};
// The mask of a head's weights (ops/attention.h), factors of C, 1 without kDrops. start: position of the first query.
template <bool kDrops, class C> struct HeadMask {
  Rng rng;
  int64_t head, start;
  int32_t limit;
  C factor;
  __device__ __forceinline__ HeadMask(const AttentionDropout& d, int64_t b_h, int64_t first) {
    if constexpr (kDrops) rng = d.rng.get(), head = b_h, start = first, limit = d.limit, factor = C(d.factor);
  }
  // Random words of keys 4 quad to 4 quad + 3 and query i.
  __device__ __forceinline__ Words words(int64_t i, int64_t quad) const {
    if constexpr (!kDrops) return {};
    return tg::kernel::attention_words(rng, head, start + i, quad);
  }
  __device__ __forceinline__ C operator()(uint32_t word) const {
    return !kDrops ? C(1) : int32_t(word >> 8) < limit ? C(0) : factor;
  }
};
// Four lanes, kStep apart, have a block each. Returns this lane's word of each block.
template <int kStep> __device__ __forceinline__ Words across_blocks(const Words& b) {
  const bool upper = threadIdx.x / kStep & 2, odd = threadIdx.x / kStep & 1;
  const uint32_t u = __shfl_xor_sync(~0u, upper ? b.x : b.z, 2 * kStep),
                 v = __shfl_xor_sync(~0u, upper ? b.y : b.w, 2 * kStep);
  const Words half = upper ? Words{u, v, b.z, b.w} : Words{b.x, b.y, u, v};
  const uint32_t s = __shfl_xor_sync(~0u, odd ? half.x : half.y, kStep),
                 t = __shfl_xor_sync(~0u, odd ? half.z : half.w, kStep);
  return odd ? Words{s, half.y, t, half.w} : Words{half.x, s, half.z, t};
}
template <class T> struct AttentionArgs {
  AttentionSizes z;
  AttentionDropout dropout;
  Heads<const T> q, k, v;
  Heads<T> y;
  compute_t<T>* lse;  // (B, NH, Tq)
};
// Per head, with Q, dY, dQ (tq, hs) and K, V, dK, dV (tk, hs), five GEMMs (arXiv:2307.08691):
//   S = Q K^T           P = exp(scale S - lse)
//   dP = dY V^T         dS = P (dP - delta)
//   dV = P^T dY         dK = scale dS^T Q          dQ = scale dS K
// With dropout, dP is multiplied by the mask, and P of dV.
// The kernels' p holds S, then P; ds holds dP, then dS. A group's query heads accumulate into one dK and dV.
template <class T> struct AttentionGradArgs {
  AttentionSizes z;
  AttentionDropout dropout;
  Heads<const T> q, k, v, dy;
  const compute_t<T>*lse, *delta;  // (B, NH, Tq); delta: row sums of dy y
  Heads<T> dq, dk, dv;
};

inline constexpr double kLog2e = 1.4426950408889634, kLn2 = 0.6931471805599453;
inline constexpr int64_t kMostHeadSize = 512, kMostF64HeadSize = 256, kMostMmaHeadSize = 128;

// A block's sequence, head and tile i. Kernels give the longest loops to the lowest i, which starts first.
struct HeadBlock {
  int64_t b, h, i;
  __device__ __forceinline__ HeadBlock(int64_t batch, int64_t heads) {
    const int64_t all = batch * heads, k = int64_t(blockIdx.x) % all;
    i = int64_t(blockIdx.x) / all;
    b = k / heads;
    h = k % heads;
  }
};

template <int... kSizes, class F> void visit_head_size(int64_t n, F f) {
  (void)((n <= kSizes && (f.template operator()<kSizes>(), true)) || ...);
}

template <class F> void visit_dropout(const AttentionDropout& d, F f) {
  d.limit ? f.template operator()<true>() : f.template operator()<false>();
}

// Small if Large exceeds the device's shared memory.
template <class Large, class Small, class F> void visit_tile(const Context& c, DType t, int64_t hs, F f) {
  const size_t most = properties(c.device.index).shared_per_block;
  const bool large = Large::kShared <= kLeastShared || Large::kShared <= most;
  const size_t bytes = large ? Large::kShared : Small::kShared;
  TG_CHECK(bytes <= most, shape,
           "[{}] a head size of {} in {} takes {} bytes of shared memory per block, and {} has {}. Use more and "
           "smaller heads, or Device::cpu().",
           c.op, hs, name_of(t), bytes, c.device, most);
  if constexpr (Large::kShared > kLeastShared)
    if (!large) return f.template operator()<Small>();
  f.template operator()<Large>();
}

template <class T> void attention_tiled(const Context&, const AttentionArgs<T>&);
template <class T> void attention_grad_tiled(const Context&, const AttentionGradArgs<T>&);
// q, k, v and dy are in whole vectors; scale > 0 in forward.
void attention_mma(const Context&, const AttentionArgs<bf16>&);
void attention_grad_mma(const Context&, const AttentionGradArgs<bf16>&);

}  // namespace tg::cuda
