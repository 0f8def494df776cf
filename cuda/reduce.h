// Reductions of any layout over any dimensions: each output o is the join of value(x, o) over n elements, in an order
// that the sizes alone decide. Where an operand's neighbours are reduced, a warp or a block reads along them (rows);
// where they are kept, neighbouring threads have neighbouring outputs (columns). Few outputs of many elements are made
// of chunks, whose results are reduced in turn. For reduce.cu and kernels that end in a sum of partial results.
//   struct R {
//     using A = float;                                                 // what is joined
//     static __device__ A start(), join(A before, A later);
//     __device__ A value(compute_t<T> x, int64_t out) const;           // an element's share
//     __device__ void store(int64_t out, A total) const;
//   };
#pragma once
#include <tapegrad/cuda/kernel.h>

namespace tg::cuda {

// The elements as (kept, reduced): element i of output o lies at kept's offset of o plus reduced's of i.
struct Reduced {
  Strided<1> kept, reduced;
  int64_t outputs, n;
};

namespace {
// Of a value of these sizes: the dimensions of a mask are reduced, the others kept, both in their order.
Reduced split(uint8_t dims, const Shape& s, const Strides& strides) {
  Shape shape[2];
  Strides stride[2];
  int64_t count[2] = {1, 1};
  for (size_t d = 0; d < s.size(); ++d) {
    const size_t to = dims >> d & 1;
    shape[to].push_back(s[d]), stride[to].push_back(strides[d]), count[to] *= s[d];
  }
  return {{shape[0], {stride[0]}}, {shape[1], {stride[1]}}, count[0], count[1]};
}

constexpr int kReduceThreads = 256, kTallRows = 8;

struct Chunks {  // of the n elements of an output
  int64_t count = 1, size;
  // `blocks` work on each chunk: more chunks where those are too few to fill a GPU.
  Chunks(int64_t n, int64_t blocks, int64_t least, int64_t most) : size(n) {
    constexpr int64_t kEnough = 512, kRound = 64;
    const auto ceil = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
    const int64_t want = std::max(ceil(n, most), std::min(ceil(n, least), ceil(kEnough, blocks)));
    if (want <= 1) return;
    size = ceil(ceil(n, want), kRound) * kRound;
    count = ceil(n, size);
  }
};

// Thread t's share, of kThreads, of n neighbours: 16 bytes at a time from the first aligned address on.
template <int kThreads, class T, class R>
__device__ __forceinline__ typename R::A fold_dense(const R& r, const T* p, int64_t n, int64_t out, int t) {
  constexpr int V = kVec<T>;
  auto total = R::start();
  const auto past = int64_t(reinterpret_cast<uintptr_t>(p) % 16 / sizeof(T));
  const int64_t head = std::min<int64_t>(n, (V - past) % V), packs = (n - head) / V, tail = head + packs * V;
  if (t < head) total = R::join(total, r.value(widen(p[t]), out));
  const auto* vectors = reinterpret_cast<const Vec<T>*>(p + head);
#pragma unroll 4
  for (int64_t k = t; k < packs; k += kThreads) {
    const Vec<T> v = vectors[k];
#pragma unroll
    for (int e = 0; e < V; ++e) total = R::join(total, r.value(widen(v.x[e]), out));
  }
  if (tail + t < n) total = R::join(total, r.value(widen(p[tail + t]), out));
  return total;
}
// kThreads threads, a warp or the block, per output and chunk. part: (chunks, outputs), or null where there is one
// chunk.
template <int kThreads, class T, class R>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_rows(R r, const T* x, Reduced z, bool dense, Chunks chunks, typename R::A* part) {
  using A = typename R::A;
  struct Join {
    __device__ __forceinline__ A operator()(A a, A b) const { return R::join(a, b); }
  };
  const int64_t groups = int64_t(gridDim.x) * (kReduceThreads / kThreads);
  const int t = int(threadIdx.x) % kThreads;
  for (int64_t task = blockIdx.x * int64_t(kReduceThreads / kThreads) + threadIdx.x / kThreads;
       task < z.outputs * chunks.count; task += groups) {
    const int64_t chunk = task / z.outputs, o = task - chunk * z.outputs;
    const int64_t begin = chunk * chunks.size, end = std::min(z.n, begin + chunks.size);
    int64_t at[1], step[1];
    z.kept.offsets(o, at);
    A total = R::start();
    if (dense) {
      total = fold_dense<kThreads>(r, x + at[0] + begin, end - begin, o, t);
    } else {
      for (int64_t i = begin + t; i < end; i += kThreads) {
        z.reduced.offsets(i, step);
        total = R::join(total, r.value(widen(x[at[0] + step[0]]), o));
      }
    }
    total = block_all<Join, kThreads>(total, R::start());
    if (t != 0) continue;
    if (part)
      part[task] = total;
    else
      r.store(o, total);
  }
}
// V neighbouring outputs per thread, kRows threads share the elements of an output.
template <int kRows, int V, class T, class R>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_columns(R r, const T* x, Reduced z, Chunks chunks, typename R::A* part) {
  using A = typename R::A;
  constexpr int kLanes = kReduceThreads / kRows, kWidth = kLanes * V;
  __shared__ A shares[kRows][kWidth];
  const int lane = int(threadIdx.x) % kLanes, row = int(threadIdx.x) / kLanes;
  const int64_t tiles = (z.outputs + kWidth - 1) / kWidth;
  for (int64_t task = blockIdx.x; task < tiles * chunks.count; task += gridDim.x) {
    const int64_t chunk = task / tiles, first = (task - chunk * tiles) * kWidth, o = first + lane * V;
    const int64_t end = std::min(z.n, (chunk + 1) * chunks.size);
    A total[V];
#pragma unroll
    for (int e = 0; e < V; ++e) total[e] = R::start();
    if (o < z.outputs) {
      int64_t at[1], step[1];
      z.kept.offsets(o, at);
#pragma unroll 4
      for (int64_t i = chunk * chunks.size + row; i < end; i += kRows) {
        z.reduced.offsets(i, step);
        const auto v = *reinterpret_cast<const Vec<T, V>*>(x + at[0] + step[0]);
#pragma unroll
        for (int e = 0; e < V; ++e) total[e] = R::join(total[e], r.value(widen(v.x[e]), o + e));
      }
    }
    __syncthreads();  // the last use of shares is over
#pragma unroll
    for (int e = 0; e < V; ++e) shares[row][lane * V + e] = total[e];
    __syncthreads();
    for (int j = int(threadIdx.x); j < kWidth && first + j < z.outputs; j += kReduceThreads) {
      A all = shares[0][j];
      for (int k = 1; k < kRows; ++k) all = R::join(all, shares[k][j]);
      if (part)
        part[chunk * z.outputs + first + j] = all;
      else
        r.store(first + j, all);
    }
  }
}

template <class T, class R> void reduce(const Context& c, const R& r, const T* x, const Reduced& z);

template <class R> struct Joined : R {  // of results of chunks
  explicit Joined(const R& r) : R(r) {}
  __device__ __forceinline__ typename R::A value(typename R::A x, int64_t) const { return x; }
};
template <class R> Joined<R> joined(const R& r) { return Joined<R>(r); }
template <class R> Joined<R> joined(const Joined<R>& r) { return r; }
template <class R> inline constexpr bool kJoined = false;
template <class R> inline constexpr bool kJoined<Joined<R>> = true;
// run(part) reduces the chunks; what they give is reduced in turn.
template <class R, class F>
void in_chunks(const Context& c, const R& r, int64_t outputs, const Chunks& chunks, F&& run) {
  using A = typename R::A;
  if (chunks.count == 1) return run(static_cast<A*>(nullptr));
  const Scratch part(c, size_t(chunks.count * outputs) * sizeof(A));
  run(part.as<A>());
  reduce(c, joined(r), part.as<A>(), split(0b01, {chunks.count, outputs}, {outputs, 1}));
}

// Each kernel costs compilers a second for each R and T. Results of chunks are few: they have the plain ones.
template <class T, class R> void launch_rows(const Context& c, const R& r, const T* x, const Reduced& z) {
  constexpr int64_t kOfWarp = 1024;
  const Chunks chunks(z.n, z.outputs, kJoined<R> ? kOfWarp : 2048, kJoined<R> ? kOfWarp : 16384);
  const bool dense = z.reduced.contiguous();
  in_chunks(c, r, z.outputs, chunks, [&](typename R::A* part) {
    const int64_t tasks = z.outputs * chunks.count;
    if constexpr (!kJoined<R>)
      if (chunks.size > kOfWarp)
        return launch(c, reduce_rows<kReduceThreads, T, R>, blocks_for(c, tasks, 1), kReduceThreads, 0, r, x, z, dense,
                      chunks, part);
    launch(c, reduce_rows<32, T, R>, blocks_for(c, tasks, kReduceThreads / 32), kReduceThreads, 0, r, x, z, dense,
           chunks, part);
  });
}
template <int kRows, int V, class T, class R>
void launch_columns(const Context& c, const R& r, const T* x, const Reduced& z) {
  constexpr int kWidth = kReduceThreads / kRows * V;
  const int64_t tiles = (z.outputs + kWidth - 1) / kWidth;
  const Chunks chunks(z.n, tiles, 64, 1024);
  in_chunks(c, r, z.outputs, chunks, [&](typename R::A* part) {
    launch(c, reduce_columns<kRows, V, T, R>, blocks_for(c, tiles * chunks.count, 1), kReduceThreads, 0, r, x, z,
           chunks, part);
  });
}

// V neighbouring outputs are always V neighbours in memory, and aligned.
template <class T> bool in_vectors(const T* x, const Reduced& z) {
  const auto& k = z.kept;
  bool even = aligned16(x) && k.dims > 0 && k.stride[0][0] == 1 && k.shape[0] % kVec<T> == 0;
  for (int32_t d = 1; d < k.dims; ++d) even = even && k.stride[0][d] % kVec<T> == 0;
  for (int32_t d = 0; d < z.reduced.dims; ++d) even = even && z.reduced.stride[0][d] % kVec<T> == 0;
  return even;
}
template <class T, class R> void reduce(const Context& c, const R& r, const T* x, const Reduced& z) {
  constexpr int64_t kFew = 16;  // so many lanes of a warp would be idle with columns, or with rows
  if (z.outputs == 0) return;
  const bool narrow = z.kept.dims == 0 || z.kept.shape[0] < kFew;
  if (z.n > kFew && (narrow || (z.reduced.dims > 0 && z.reduced.stride[0][0] < z.kept.stride[0][0])))
    return launch_rows(c, r, x, z);
  if (z.n <= kFew) return launch_columns<1, 1>(c, r, x, z);
  if constexpr (!kJoined<R> && !std::is_integral_v<T>)
    if (in_vectors(x, z)) return launch_columns<kTallRows, kVec<T>>(c, r, x, z);
  launch_columns<kTallRows, 1>(c, r, x, z);
}
}  // namespace

}  // namespace tg::cuda
