// Sines and cosines of all (position, pair) once per call, then one pass over rows. A thread keeps rotations of V
// adjacent elements (16 bytes, or an unaligned pair) through the batch.
#include <tapegrad/core/math.h>
#include <tapegrad/cuda/device/copy.h>
#include <tapegrad/cuda/device/index_check.h>
#include <tapegrad/ops/rope.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace tg::cuda {
namespace {
constexpr int kThreads = 128;

template <class C> struct alignas(2 * sizeof(C)) Turn {
  C s, c;
};

Error outside_positions(const IndexSite& s, int64_t position, int64_t value) {
  return tg::kernel::rope_outside(s.op, value, position, op::kRopeEnd + 1 - s.size);
}
struct OneStart {  // shared by all sequences
  int64_t start, count = 1;
  __device__ __forceinline__ int64_t operator[](int64_t) const { return start; }
};
struct Starts {  // one per sequence, `step` apart
  Ids ids;
  int64_t step, count;
  IndexCheck check;
  __device__ __forceinline__ int64_t operator[](int64_t b) const {
    const int64_t start = ids[b * step];
    return check(start, b) ? start : 0;
  }
};

// turns (starts, T, pairs).
template <class C, class S>
__global__ void rope_make_turns(double theta, RopeScaling scaling, S starts, bool inverse, int64_t positions,
                                int64_t pairs, Turn<C>* turns) {
  for (GridLoop i(starts.count * positions * pairs); i; ++i) {
    const int64_t row = *i / pairs, pair = *i - row * pairs, b = row / positions, t = row - b * positions;
    Turn<C> turn;
    math::sincos(double(starts[b] + t) * tg::kernel::rope_frequency(theta, scaling, pair, pairs), turn.s, turn.c);
    if (inverse) turn.s = -turn.s;
    turns[*i] = turn;
  }
}
// Row (b, t) of x and y begins at batch.offsets(b) + t * step.
struct Rows {
  Strided<2> batch;
  int64_t step[2], positions, hs, count;  // count: batch rows in all
  int64_t same;                           // rows that share a start
};
// y may alias x.
template <class T, int V, bool kStarts>
__global__ void rope_turn(Rows rows, int64_t threads, const Turn<compute_t<T>>* turns, const T* x, T* y) {
  using C = compute_t<T>;
  const int64_t groups = rows.positions * (rows.hs / V);
  for (GridLoop i(threads); i; ++i) {
    const int64_t first = *i / groups, g = *i - first * groups;
    const int64_t t = g / (rows.hs / V), j = (g - t * (rows.hs / V)) * V;
    Vec<Turn<C>, V / 2> by;
    const auto load = [&](int64_t row) { by = load16<V / 2>(turns + (row * rows.hs + j) / 2); };
    if constexpr (!kStarts) load(t);
    for (int64_t b = first; b < rows.count; b += threads / groups) {
      if constexpr (kStarts) load(b / rows.same * rows.positions + t);
      int64_t at[2];
      rows.batch.offsets(b, at);
      const T* from = x + at[0] + t * rows.step[0] + j;
      T* to = y + at[1] + t * rows.step[1] + j;
      Vec<T, V> v;
      if constexpr (V == 2)  // a pair may be unaligned
        v.x[0] = from[0], v.x[1] = from[1];
      else
        v = load16<V>(from);
#pragma unroll
      for (int k = 0; k < V / 2; ++k) {
        const C p = widen(v.x[2 * k]), q = widen(v.x[2 * k + 1]);
        v.x[2 * k] = narrow<T>(by.x[k].c * p - by.x[k].s * q);
        v.x[2 * k + 1] = narrow<T>(by.x[k].s * p + by.x[k].c * q);
      }
      if constexpr (V == 2)
        to[0] = v.x[0], to[1] = v.x[1];
      else
        store16(to, v);
    }
  }
}
template <class T, int V>
void turn_rows(const Context& c, const Rows& rows, const Turn<compute_t<T>>* turns, const T* x, T* y) {
  const int64_t groups = rows.positions * (rows.hs / V);
  const int64_t wanted = int64_t(blocks_for(c, groups * rows.count, kThreads)) * kThreads;
  const int64_t threads = groups * std::clamp<int64_t>(wanted / groups, 1, rows.count);
  launch(c, rows.same < rows.count ? rope_turn<T, V, true> : rope_turn<T, V, false>, blocks_for(c, threads, kThreads),
         kThreads, 0, rows, threads, turns, x, y);
}
template <int V> bool in_groups(const Rows& rows, const void* x, const void* y) {
  bool ok = aligned16(x) && aligned16(y) && rows.hs % V == 0;
  for (int k = 0; k < 2; ++k) {
    ok = ok && rows.step[k] % V == 0;
    for (int32_t d = 0; d < rows.batch.dims; ++d) ok = ok && rows.batch.stride[k][d] % V == 0;
  }
  return ok;
}

void rope(const op::Rope& op, Bufs in, Bufs out, Context& c) {
  if (out[0].numel() == 0) return;
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Layout to = op.rotated(*out[0].layout);
    const size_t last = to.shape.size() - 1;
    const int64_t positions = to.shape[last - 1], hs = to.shape[last], pairs = hs / 2;
    const int64_t starts = op.starts ? in[1].numel() : 1, angles = starts * positions * pairs;
    const Scratch turns(c, size_t(angles) * sizeof(Turn<C>));
    const auto make = [&]<class S>(const S& at) {
      launch(c, rope_make_turns<C, S>, blocks_for(c, angles, kThreads), kThreads, 0, op.theta, op.scaling, at,
             op.inverse, positions, pairs, turns.as<Turn<C>>());
    };
    if (op.starts)
      make(Starts{Ids(first_element(in[1]), in[1].dtype()), in[1].strides()[0], starts,
                  IndexCheck(c, {outside_positions, c.op, *in[1].layout, 0, op::kRopeEnd - positions + 1})});
    else
      make(OneStart{op.start});
    std::optional<Contiguous> dense;
    Layout all = *in[0].layout;
    const std::byte* x = in[0].bytes;
    if (all.strides.back() != 1) {
      x = static_cast<const std::byte*>(dense.emplace(c, in[0]).data());
      all = Layout::contiguous(all.shape, all.dtype, all.device);
    }
    const auto at = [](const auto* bytes, const Layout& l) { return bytes + l.offset * int64_t(sizeof(T)); };
    const Layout from = op.rotated(all), same_from = op.kept(all), same_to = op.kept(*out[0].layout);
    Shape batch;
    std::array<Strides, 2> strides;
    for (size_t d = 0; d + 1 < last; ++d) {
      batch.push_back(to.shape[d]);
      strides[0].push_back(from.strides[d]), strides[1].push_back(to.strides[d]);
    }
    const int64_t count = to.numel() / (positions * hs);
    const Rows rows{Strided<2>(batch, strides),
                    {from.strides[last - 1], to.strides[last - 1]},
                    positions,
                    hs,
                    count,
                    count / starts};
    const T* const first = reinterpret_cast<const T*>(at(x, from));
    T* const y = out[0].data<T>();
    in_groups<kVec<T>>(rows, first, y) ? turn_rows<T, kVec<T>>(c, rows, turns.as<Turn<C>>(), first, y)
                                       : turn_rows<T, 2>(c, rows, turns.as<Turn<C>>(), first, y);
    if (same_to.numel() == 0 || at(x, same_from) == at(out[0].bytes, same_to)) return;
    const Region region{same_to.shape, at(x, same_from), same_from.strides,
                        const_cast<std::byte*>(at(out[0].bytes, same_to)), same_to.strides};
    copy_regions(c, sizeof(T), {&region, 1});
  });
}
TG_STRIDED_KERNEL(op::Rope, cuda, rope);
}  // namespace
}  // namespace tg::cuda
