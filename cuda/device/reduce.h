// Output o joins value(x, o) of n elements, in an order that depends on the sizes alone. Contiguous reduced elements:
// a warp or block per output (rows). Contiguous kept ones: adjacent threads have adjacent outputs (columns). Few
// outputs are reduced in chunks first.
//   struct R {
//     using A = float;                                                 // accumulator
//     __device__ A start() const, join(A before, A later) const;
//     __device__ A value(compute_t<T> x, int64_t out) const;           // operand of join
//     __device__ void store(int64_t out, A total) const;
//     static constexpr Forms kForms = Forms::all;                      // optional
//     Q partial() const;                                               // joins chunks; default: R
//   };
#pragma once
#include <tapegrad/cuda/device/kernel.h>

namespace tg::cuda {

struct Reduced {
  Strided<1> kept, reduced;
  int64_t outputs, n;
};

namespace {
// `dims`: mask of the reduced dimensions.
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

// few: a warp per row, a column per thread; columns: also 16 bytes of columns; all: also a block per row. Sets sum
// order.
enum class Forms { few, columns, all };
template <class R> inline constexpr Forms forms_of = Forms::all;
template <class R>
  requires requires { R::kForms; }
inline constexpr Forms forms_of<R> = R::kForms;

struct Chunks {
  int64_t count = 1, size;
  Chunks(int64_t n, int64_t blocks, int64_t least, int64_t most) : size(n) {
    constexpr int64_t kEnough = 512, kRound = 64;
    const auto ceil = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
    const int64_t want = std::max(ceil(n, most), std::min(ceil(n, least), ceil(kEnough, blocks)));
    if (want <= 1) return;
    size = ceil(ceil(n, want), kRound) * kRound;
    count = ceil(n, size);
  }
};

// Thread t's partial result, 16 bytes at a time once aligned.
template <int kThreads, class T, class R>
__device__ __forceinline__ typename R::A fold_dense(const R& r, const T* p, int64_t n, int64_t out, int t) {
  constexpr int V = kVec<T>;
  auto total = r.start();
  const auto past = int64_t(reinterpret_cast<uintptr_t>(p) % 16 / sizeof(T));
  const int64_t head = std::min<int64_t>(n, (V - past) % V), packs = (n - head) / V, tail = head + packs * V;
  if (t < head) total = r.join(total, r.value(widen(p[t]), out));
  [[maybe_unused]] constexpr int kAtOnce = forms_of<R> == Forms::few ? 2 : 4;
#pragma unroll kAtOnce
  for (int64_t k = t; k < packs; k += kThreads) {
    const auto v = load16(p + head + k * V);
#pragma unroll
    for (int e = 0; e < V; ++e) total = r.join(total, r.value(widen(v.x[e]), out));
  }
  if (tail + t < n) total = r.join(total, r.value(widen(p[tail + t]), out));
  return total;
}
// An output and chunk per warp or block. part (chunks, outputs), null for one chunk.
template <int kThreads, class T, class R>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_rows(R r, const T* x, Reduced z, bool dense, Chunks chunks, typename R::A* part) {
  using A = typename R::A;
  const auto join = [&r](A a, A b) { return r.join(a, b); };
  const int64_t groups = int64_t(gridDim.x) * (kReduceThreads / kThreads);
  const int t = int(threadIdx.x) % kThreads;
  for (int64_t task = blockIdx.x * int64_t(kReduceThreads / kThreads) + threadIdx.x / kThreads;
       task < z.outputs * chunks.count; task += groups) {
    const int64_t chunk = task / z.outputs, o = task - chunk * z.outputs;
    const int64_t begin = chunk * chunks.size, end = std::min(z.n, begin + chunks.size);
    int64_t at[1], step[1];
    z.kept.offsets(o, at);
    A total = r.start();
    if (dense) {
      total = fold_dense<kThreads>(r, x + at[0] + begin, end - begin, o, t);
    } else {
      for (int64_t i = begin + t; i < end; i += kThreads) {
        z.reduced.offsets(i, step);
        total = r.join(total, r.value(widen(x[at[0] + step[0]]), o));
      }
    }
    total = block_all<decltype(join), kThreads>(total, r.start(), join);
    if (t != 0) continue;
    if (part)
      part[task] = total;
    else
      r.store(o, total);
  }
}
// V adjacent outputs per thread; `rows` threads (a power of 2) share an output.
template <int V, class T, class R>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_columns(R r, const T* x, Reduced z, int rows, Chunks chunks, typename R::A* part) {
  using A = typename R::A;
  __shared__ A shares[kReduceThreads * V];  // (rows, width)
  const int lanes = kReduceThreads / rows, width = lanes * V;
  const int lane = int(threadIdx.x) % lanes, row = int(threadIdx.x) / lanes;
  const int64_t tiles = (z.outputs + width - 1) / width;
  for (int64_t task = blockIdx.x; task < tiles * chunks.count; task += gridDim.x) {
    const int64_t chunk = task / tiles, first = (task - chunk * tiles) * width, o = first + lane * V;
    const int64_t end = std::min(z.n, (chunk + 1) * chunks.size);
    A total[V];
#pragma unroll
    for (int e = 0; e < V; ++e) total[e] = r.start();
    if (o < z.outputs) {
      const auto add = [&](const T* p) {
        const auto v = load16<V>(p);
#pragma unroll
        for (int e = 0; e < V; ++e) total[e] = r.join(total[e], r.value(widen(v.x[e]), o + e));
      };
      int64_t at[1], step[1];
      z.kept.offsets(o, at);
      int64_t i = chunk * chunks.size + row;
      if (z.reduced.dims <= 1) {  // no division
        const int64_t stride = z.reduced.stride[0][0];
#pragma unroll 4
        for (; i < end; i += rows) add(x + at[0] + i * stride);
      } else {
#pragma unroll 1
        for (; i < end; i += rows) {
          z.reduced.offsets(i, step);
          add(x + at[0] + step[0]);
        }
      }
    }
    __syncthreads();  // shares are read
#pragma unroll
    for (int e = 0; e < V; ++e) shares[row * width + lane * V + e] = total[e];
    __syncthreads();
    for (int j = int(threadIdx.x); j < width && first + j < z.outputs; j += kReduceThreads) {
      A all = shares[j];
#pragma unroll 1
      for (int k = 1; k < rows; ++k) all = r.join(all, shares[k * width + j]);
      if (part)
        part[chunk * z.outputs + first + j] = all;
      else
        r.store(first + j, all);
    }
  }
}

template <class T, class R> void reduce(const Context& c, const R& r, const T* x, const Reduced& z);

template <class R> struct Joined : R {
  static constexpr Forms kForms = Forms::few;
  explicit Joined(const R& r) : R(r) {}
  __device__ __forceinline__ typename R::A value(typename R::A x, int64_t) const { return x; }
  Joined partial() const { return *this; }
};
template <class R> auto joined(const R& r) {
  if constexpr (requires { r.partial(); })
    return r.partial();
  else
    return Joined<R>(r);
}
template <class R, class F>
void in_chunks(const Context& c, const R& r, int64_t outputs, const Chunks& chunks, F&& run) {
  using A = typename R::A;
  if (chunks.count == 1) return run(static_cast<A*>(nullptr));
  const Scratch part(c, size_t(chunks.count * outputs) * sizeof(A));
  run(part.as<A>());
  reduce(c, joined(r), part.as<A>(), split(0b01, {chunks.count, outputs}, {outputs, 1}));
}

// About a second of compilation per R and T.
template <class T, class R> void launch_rows(const Context& c, const R& r, const T* x, const Reduced& z) {
  constexpr int64_t kOfWarp = 1024;
  constexpr bool kBlocks = forms_of<R> == Forms::all;
  const Chunks chunks(z.n, z.outputs, kBlocks ? 2048 : kOfWarp, kBlocks ? 16384 : kOfWarp);
  const bool dense = z.reduced.contiguous();
  in_chunks(c, r, z.outputs, chunks, [&](typename R::A* part) {
    const int64_t tasks = z.outputs * chunks.count;
    if constexpr (kBlocks)
      if (chunks.size > kOfWarp)
        return launch(c, reduce_rows<kReduceThreads, T, R>, blocks_for(c, tasks, 1), kReduceThreads, 0, r, x, z, dense,
                      chunks, part);
    launch(c, reduce_rows<32, T, R>, blocks_for(c, tasks, kReduceThreads / 32), kReduceThreads, 0, r, x, z, dense,
           chunks, part);
  });
}
template <int V, class T, class R>
void launch_columns(const Context& c, const R& r, const T* x, const Reduced& z, int rows) {
  const int64_t width = kReduceThreads / rows * V, tiles = (z.outputs + width - 1) / width;
  const Chunks chunks(z.n, tiles, 64, 1024);
  in_chunks(c, r, z.outputs, chunks, [&](typename R::A* part) {
    launch(c, reduce_columns<V, T, R>, blocks_for(c, tiles * chunks.count, 1), kReduceThreads, 0, r, x, z, rows, chunks,
           part);
  });
}

template <class T> bool in_vectors(const T* x, const Reduced& z) {
  const auto& k = z.kept;
  bool even = aligned16(x) && k.dims > 0 && k.stride[0][0] == 1 && k.shape[0] % kVec<T> == 0;
  for (int32_t d = 1; d < k.dims; ++d) even = even && k.stride[0][d] % kVec<T> == 0;
  for (int32_t d = 0; d < z.reduced.dims; ++d) even = even && z.reduced.stride[0][d] % kVec<T> == 0;
  return even;
}
template <class T, class R> void reduce(const Context& c, const R& r, const T* x, const Reduced& z) {
  constexpr int64_t kFew = 16;  // fewer would idle lanes
  if (z.outputs == 0) return;
  const bool narrow = z.kept.dims == 0 || z.kept.shape[0] < kFew;
  if (z.n > kFew && (narrow || (z.reduced.dims > 0 && z.reduced.stride[0][0] < z.kept.stride[0][0])))
    return launch_rows(c, r, x, z);
  if (z.n <= kFew) return launch_columns<1>(c, r, x, z, 1);
  if constexpr (forms_of<R> != Forms::few)
    if (in_vectors(x, z)) return launch_columns<kVec<T>>(c, r, x, z, kTallRows);
  launch_columns<1>(c, r, x, z, kTallRows);
}
}  // namespace

}  // namespace tg::cuda
