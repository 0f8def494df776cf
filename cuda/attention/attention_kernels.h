// What the attention kernels of this folder take, and which of them there are: attention.cu chooses,
// attention_tiled*.cu computes any dtype in its own precision, attention_mma*.cu bf16 on tensor cores. Scores live in
// registers and shared memory only (Dao, FlashAttention-2, 2023). For these files alone.
#pragma once
#include <tapegrad/cuda/device/kernel.h>

#include <limits>

namespace tg::cuda {

template <class T> struct HeadRows {  // of one head: element (t, i) at p[t * row + i * col]
  T* p;
  int64_t row, col;
  bool vectors;  // rows are whole 16-byte vectors, and aligned to them
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

struct AttentionSpan {  // of a sequence: its keys, the others are padding, and the position of its first query
  int64_t keys, start;
};
struct AttentionSizes {
  int64_t batch, heads, key_heads, tq, tk, hs;
  bool causal;
  double scale;
  const AttentionSpan* spans;  // (B); null: tk keys, and the last query stands at the last of them

  __host__ __device__ __forceinline__ int64_t group() const { return heads / key_heads; }
  __device__ __forceinline__ AttentionSpan span(int64_t b) const {
    return spans ? spans[b] : AttentionSpan{tk, tk - tq};
  }
  // How many keys query i sees (at least one, unless there are none), and the first query that sees key j.
  __device__ __forceinline__ int64_t seen(const AttentionSpan& s, int64_t i) const {
    const int64_t n = i + 1 + s.start;
    return causal && n < s.keys ? n : s.keys;
  }
  __device__ __forceinline__ int64_t first_query(const AttentionSpan& s, int64_t j) const {
    const int64_t i = j - s.start;
    return j >= s.keys ? tq : causal && i > 0 ? i : 0;
  }
};
template <class T> struct AttentionArgs {
  AttentionSizes z;
  Heads<const T> q, k, v;
  Heads<T> y;
  compute_t<T>* lse;  // (B, NH, Tq)
};
template <class T> struct AttentionGradArgs {
  AttentionSizes z;
  Heads<const T> q, k, v, dy;
  const compute_t<T>*lse, *delta;  // (B, NH, Tq); delta = sum of dy y over a row
  Heads<T> dq, dk, dv;
};

inline constexpr double kLog2e = 1.4426950408889634, kLn2 = 0.6931471805599453;
inline constexpr int64_t kMostHeadSize = 512, kMostF64HeadSize = 256, kMostMmaHeadSize = 128;

// A launch has one dimension: the i-th block of all heads before the next of any, so that blocks with much to do can go
// first.
struct HeadBlock {
  int64_t b, h, i;
  __device__ __forceinline__ HeadBlock(int64_t batch, int64_t heads) {
    const int64_t all = batch * heads, k = int64_t(blockIdx.x) % all;
    i = int64_t(blockIdx.x) / all;
    b = k / heads;
    h = k % heads;
  }
};

// f.template operator()<N>() with the first of kSizes that holds a head of n.
template <int... kSizes, class F> void visit_head_size(int64_t n, F f) {
  (void)((n <= kSizes && (f.template operator()<kSizes>(), true)) || ...);
}

// Head sizes up to kMostHeadSize, of f64 kMostF64HeadSize.
template <class T> void attention_tiled(const Context&, const AttentionArgs<T>&);
template <class T> void attention_grad_tiled(const Context&, const AttentionGradArgs<T>&);
// Head sizes up to kMostMmaHeadSize; q, k, v and dy in whole vectors; forward a scale above 0.
void attention_mma(const Context&, const AttentionArgs<bf16>&);
void attention_grad_mma(const Context&, const AttentionGradArgs<bf16>&);

}  // namespace tg::cuda
