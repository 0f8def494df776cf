// argmax: a block per row, or a thread per strided row. topk: radix select of the k-th largest key per row, then a sort
// in shared memory; k above kChunk takes several rounds. argsort: stable radix sorts by 32 bits of the keys at a time
// from the lowest, and last by row.
#include <tapegrad/core/check.h>
#include <tapegrad/cuda/device/row_loop.h>
#include <tapegrad/cuda/device/sort.h>
#include <tapegrad/ops/topk.h>

namespace tg::cuda {
namespace {
constexpr int kSmall = 128, kLarge = 512;  // short, long rows
constexpr int64_t kShortRow = 1024;

// Total order: NaN is largest, ties go to the lower index.
template <class C> struct Best {
  C value = 0;
  int64_t index = -1;
  __device__ __forceinline__ bool before(const Best& o) const {
    if (index < 0 || o.index < 0) return o.index < 0 && index >= 0;
    const bool nan = value != value, other = o.value != o.value;
    if (nan || other) return nan && (!other || index < o.index);
    return value > o.value || (value == o.value && index < o.index);
  }
  __device__ __forceinline__ void take(const Best& o) {
    if (o.before(*this)) *this = o;
  }
};

template <int kThreads, class T>
__global__ void __launch_bounds__(kThreads)
    argmax_by_block(const T* x, Strided<1> walk, int64_t rows, int64_t n, int64_t step, int64_t* y) {
  using C = compute_t<T>;
  __shared__ C values[kThreads / 32];
  __shared__ int64_t indices[kThreads / 32];
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    int64_t at[1];
    walk.offsets(r, at);
    Best<C> best;
    if (step == 1)
      for_row<kThreads>(x + at[0], n, [&](int64_t j, T v) { best.take({C(widen(v)), j}); });
    else
      for (int64_t j = threadIdx.x; j < n; j += kThreads) best.take({C(widen(x[at[0] + j * step])), j});
    for (int d = 16; d > 0; d /= 2)
      best.take({__shfl_xor_sync(~0u, best.value, d), __shfl_xor_sync(~0u, best.index, d)});
    __syncthreads();  // the last row is written
    if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = best.value, indices[threadIdx.x / 32] = best.index;
    __syncthreads();
    if (threadIdx.x != 0) continue;
    for (int w = 1; w < kThreads / 32; ++w) best.take({values[w], indices[w]});
    y[r] = best.index;
  }
}
template <class T>
__global__ void __launch_bounds__(kLarge)
    argmax_by_thread(const T* x, Strided<1> walk, int64_t rows, int64_t n, int64_t step, int64_t* y) {
  for (GridLoop r(rows); r; ++r) {
    int64_t at[1];
    walk.offsets(*r, at);
    Best<compute_t<T>> best;
    for (int64_t j = 0; j < n; ++j) best.take({widen(x[at[0] + j * step]), j});
    y[*r] = best.index;
  }
}
void argmax(const op::ArgMax& op, Bufs in, Bufs out, Context& c) {
  constexpr int64_t kFew = 2048, kTiny = 16;
  const Buf &x = in[0], &y = out[0];
  const int64_t rows = y.numel(), n = x.size(op.dim), step = x.strides()[op.dim];
  if (rows == 0) return;
  Strides from = x.strides();
  from.erase(op.dim);
  const Strided<1> walk(y.shape(), {from});
  kernel::visit_number(x.dtype(), [&]<class T>() {
    const auto start = [&](auto kernel, unsigned blocks, int threads) {
      launch(c, kernel, blocks, threads, 0, x.data<T>(), walk, rows, n, step, y.data<int64_t>());
    };
    if (n <= kTiny || (step != 1 && rows >= kFew))
      start(argmax_by_thread<T>, blocks_for(c, rows, kLarge), kLarge);
    else if (n <= kShortRow)
      start(argmax_by_block<kSmall, T>, blocks_for(c, rows, 1), kSmall);
    else
      start(argmax_by_block<kLarge, T>, blocks_for(c, rows, 1), kLarge);
  });
}

// --- topk
constexpr int kChunk = 1024;

// Ordered unsigned integers: NaN largest, all NaN equal, -0 as 0.
__device__ __forceinline__ uint32_t key_of(float x) {
  if (x != x) return ~0u;
  const auto b = __builtin_bit_cast(uint32_t, x == 0.0f ? 0.0f : x);
  return b >> 31 ? ~b : b | 0x80000000u;
}
__device__ __forceinline__ uint64_t key_of(double x) {
  if (x != x) return ~uint64_t(0);
  const auto b = __builtin_bit_cast(uint64_t, x == 0.0 ? 0.0 : x);
  return b >> 63 ? ~b : b | uint64_t(1) << 63;
}
__device__ __forceinline__ uint32_t key_of(int32_t x) { return uint32_t(x) ^ 0x80000000u; }
__device__ __forceinline__ uint64_t key_of(int64_t x) { return uint64_t(x) ^ uint64_t(1) << 63; }
template <class K> struct Item {
  K key;
  int64_t index;
  __device__ __forceinline__ bool before(const Item& o) const {
    return key > o.key || (key == o.key && index < o.index);
  }
};
template <class K> struct Selection {
  Item<K> items[kChunk];
  unsigned long long histogram[256];
  unsigned long long need;  // items wanted with this prefix
  K prefix;
  unsigned above;  // items known to be larger
  unsigned per_warp[kLarge / 32];
};

template <class K> __device__ __forceinline__ void choose_digit(Selection<K>& s, int shift) {
  const int lane = int(threadIdx.x);
  const unsigned long long need = s.need;
  unsigned long long own = 0;
  for (int d = 0; d < 8; ++d) own += s.histogram[255 - lane * 8 - d];
  unsigned long long upto = own;
  for (int d = 1; d < 32; d *= 2) {
    const unsigned long long left = __shfl_up_sync(~0u, upto, d);
    if (lane >= d) upto += left;
  }
  unsigned long long before = upto - own;
  __syncwarp();
  if (before >= need || need > upto) return;
  int digit = 255 - lane * 8;
  while (before + s.histogram[digit] < need) before += s.histogram[digit--];
  s.need = need - before;
  s.prefix |= K(digit) << shift;
}

// Sorts the `count` largest items after `last` into s.items.
template <int kThreads, class T, class K>
__device__ __forceinline__ void select_round(Selection<K>& s, const T* p, int64_t n, const Item<K>& last, int count) {
  const auto open = [&](K key, int64_t j) { return last.index < 0 || last.before({key, j}); };
  const int tid = int(threadIdx.x);
  if (tid == 0) s.need = unsigned(count), s.prefix = 0, s.above = 0;
  K mask = 0;
  for (int shift = int(sizeof(K)) * 8 - 8; shift >= 0; shift -= 8) {
    for (int d = tid; d < 256; d += kThreads) s.histogram[d] = 0;
    __syncthreads();
    const K prefix = s.prefix;
    for_row<kThreads>(p, n, [&](int64_t j, T v) {
      const K key = key_of(widen(v));
      if ((key & mask) == prefix && open(key, j)) atomicAdd(&s.histogram[int(key >> shift) & 255], 1ull);
    });
    __syncthreads();
    if (tid < 32) choose_digit(s, shift);
    __syncthreads();
    mask |= K(255) << shift;
  }
  const K threshold = s.prefix;
  const auto need = int64_t(s.need);
  int64_t seen = 0;
  for (int64_t from = 0; from < n; from += kThreads) {
    const int64_t j = from + tid;
    const K key = j < n ? key_of(widen(p[j])) : K(0);
    const bool candidate = j < n && open(key, j);
    if (candidate && key > threshold) s.items[atomicAdd(&s.above, 1u)] = {key, j};
    const bool at = candidate && key == threshold;
    const unsigned votes = __ballot_sync(~0u, at);
    if (tid % 32 == 0) s.per_warp[tid / 32] = unsigned(__popc(votes));
    __syncthreads();
    int64_t rank = seen + __popc(votes & ((1u << (tid % 32)) - 1));
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w < tid / 32) rank += s.per_warp[w];
      seen += s.per_warp[w];
    }
    if (at && rank < need) s.items[count - need + rank] = {key, j};
    __syncthreads();
  }
}
template <int kThreads, class K> __device__ __forceinline__ void sort_items(Selection<K>& s, int count) {
  int size = 1;
  while (size < count) size *= 2;
  for (int i = count + int(threadIdx.x); i < size; i += kThreads) s.items[i] = {K(0), INT64_MAX};
  __syncthreads();
  for (int run = 2; run <= size; run *= 2)
    for (int d = run / 2; d > 0; d /= 2) {
      for (int i = int(threadIdx.x); i < size / 2; i += kThreads) {
        const int a = i / d * 2 * d + i % d, b = a + d;
        const bool up = (a & run) == 0;
        const Item<K> x = s.items[a], y = s.items[b];
        if (y.before(x) == up) s.items[a] = y, s.items[b] = x;
      }
      __syncthreads();
    }
}
template <int kThreads, class T>
__global__ void __launch_bounds__(kThreads)
    select_topk(const T* x, int64_t rows, int64_t n, int64_t k, T* values, int64_t* indices) {
  using K = decltype(key_of(compute_t<T>()));
  __shared__ __align__(16) unsigned char memory[sizeof(Selection<K>)];
  auto& s = *reinterpret_cast<Selection<K>*>(memory);
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const T* p = x + r * n;
    Item<K> last{0, -1};
    for (int64_t done = 0; done < k; done += kChunk) {
      const int count = k - done < kChunk ? int(k - done) : kChunk;
      select_round<kThreads, T, K>(s, p, n, last, count);
      sort_items<kThreads>(s, count);
      for (int i = int(threadIdx.x); i < count; i += kThreads) {
        const int64_t j = s.items[i].index;
        values[r * k + done + i] = p[j];
        indices[r * k + done + i] = j;
      }
      last = s.items[count - 1];  // many barriers precede its next write
    }
  }
}
void topk(const op::SelectTopK& op, Bufs in, Bufs out, Context& c) {
  const int64_t n = in[0].shape().back(), rows = in[0].numel() / n;
  if (rows == 0) return;
  kernel::visit_float(in[0].dtype(), [&]<class T>() {
    const Dense<T> x(c, in[0]);
    const bool small = n <= kShortRow;
    launch(c, small ? select_topk<kSmall, T> : select_topk<kLarge, T>, blocks_for(c, rows, 1), small ? kSmall : kLarge,
           0, static_cast<const T*>(x), rows, n, op.k, out[0].data<T>(), out[1].data<int64_t>());
  });
}

// --- argsort
struct Positions {  // low bits of a word: position in x
  int bits;
  __device__ __forceinline__ int64_t of(uint64_t word) const { return int64_t(word & ((uint64_t(1) << bits) - 1)); }
  __device__ __forceinline__ uint64_t word(uint64_t key, int64_t at) const { return key << bits | uint64_t(at); }
};
template <class T>
__global__ void argsort_by_key(const T* x, int64_t n, int shift, bool first, bool descending, Positions p,
                               uint64_t* words) {
  for (GridLoop i(n); i; ++i) {
    const int64_t at = first ? *i : p.of(words[*i]);
    const auto key = key_of(widen(x[at]));
    words[*i] = p.word(uint32_t((descending ? ~key : key) >> shift), at);
  }
}
__global__ void argsort_by_row(int64_t n, int64_t row, Positions p, uint64_t* words) {
  for (GridLoop i(n); i; ++i) words[*i] = p.word(uint64_t(p.of(words[*i]) / row), p.of(words[*i]));
}
__global__ void argsort_indices(int64_t n, int64_t row, Positions p, const uint64_t* words, int64_t* y) {
  for (GridLoop i(n); i; ++i) y[*i] = p.of(words[*i]) % row;
}
void argsort(const op::ArgSort& op, Bufs in, Bufs out, Context& c) {
  const int64_t n = in[0].numel();
  if (n == 0) return;
  const int64_t row = in[0].shape().back(), rows = n / row;
  const PairBits bits(~uint32_t(0), uint64_t(n));
  TG_CHECK(bits.fit(), value, "[argsort] {} has {} elements. A GPU sorts fewer than 2^32 at once: sort parts.",
           *in[0].layout, n);
  const Positions p{bits.position};
  const unsigned blocks = blocks_for(c, n, kLarge);
  SortedPairs pairs(c, n, bits);
  kernel::visit_number(in[0].dtype(), [&]<class T>() {
    constexpr int kBits = 8 * sizeof(T), kAll = 8 * sizeof(compute_t<T>);  // those of bf16 are the high ones
    const Dense<T> x(c, in[0]);
    for (int shift = kAll - kBits; shift < kAll; shift += 32) {
      launch(c, argsort_by_key<T>, blocks, kLarge, 0, static_cast<const T*>(x), n, shift, shift == kAll - kBits,
             op.descending, p, pairs.data());
      pairs.sort(std::min(kBits, 32));
    }
  });
  if (rows > 1) {
    launch(c, argsort_by_row, blocks, kLarge, 0, n, row, p, pairs.data());
    pairs.sort(std::bit_width(uint64_t(rows - 1)));
  }
  launch(c, argsort_indices, blocks, kLarge, 0, n, row, p, pairs.data(), out[0].data<int64_t>());
}

TG_STRIDED_KERNEL(op::ArgMax, cuda, argmax);
TG_STRIDED_KERNEL(op::ArgSort, cuda, argsort);
TG_STRIDED_KERNEL(op::SelectTopK, cuda, topk);
}  // namespace
}  // namespace tg::cuda
