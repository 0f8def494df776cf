// A step is kSide rows of A, or columns of B, by 64 bytes of k; a panel is all its steps along k. Threads pack a block
// of A together, then one of B, and each takes rows of C; if B is larger, each packs columns of B and multiplies all
// rows. Packed B stays in L2; chunks of A and B (kSide by kChunk steps) pass through L1. f32 elements as three bf16
// parts (gemm_parts.cpp) need six GEMMs per chunk, smallest first.
#pragma once
#include <tapegrad/cpu/gemm/gemm_types.h>
#include <tapegrad/cpu/runtime/cpus.h>
#include <tapegrad/cpu/runtime/thread_pool.h>
#include <tapegrad/cpu/simd/function_ref.h>
#include <tapegrad/cpu/simd/scratch.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace tg::cpu::TG_ISA_NS::packed {
inline constexpr int64_t kSide = 32;            // C's block is kSide x kSide
inline constexpr int64_t kRow = 64;             // bytes
inline constexpr int64_t kStep = kSide * kRow;  // bytes
// Steps: depth of a block of B; largest k that packs A as a whole; a chunk.
inline constexpr int64_t kDepth = 32, kWhole = 256, kChunk = 8;
inline constexpr int64_t kBytesOfB = 3 << 18, kBytesOfA = 1 << 23, kBytesOfSums = 1 << 23;
inline constexpr int64_t kTilesEach = 4, kOwnOfFast = 4;  // own: tiles of a thread, panels of a tile

inline thread_local Scratch t_a, t_b, t_sums, t_own, t_chunk, t_starts;

template <class T, class Sum> struct Kernels {
  int64_t step;  // elements of k
  // A step of v, rows of A or columns of B: `rows` x `depth`, zero-padded. Parts are `part` bytes apart.
  void (*pack_a)(MatView<T> v, int64_t rows, int64_t depth, std::byte* to, int64_t part);
  void (*pack_b)(MatView<T> v, int64_t rows, int64_t depth, std::byte* to, int64_t part);
  // At least `rows` rows of C, ld apart, = or += A B over `steps`, plus starts[r] unless null.
  void (*block)(int64_t steps, int64_t rows, const std::byte* a, const std::byte* b, Sum* c, int64_t ld, bool add,
                const Sum* starts);
  // Sums to add to kSide rows of C, from packed A; null: none.
  void (*starts)(int64_t steps, const std::byte* a, Sum* to) = nullptr;
  void (*enter)() = nullptr, (*leave)() = nullptr;
  int64_t parts = 1;  // 1 or 3
};

template <class T, class Sum> struct Product {
  int64_t m, n, k;
  MatView<T> a, b;
  FunctionRef<void(int64_t i, int64_t j, int64_t n, Sum* sums)> store;
  // Unless null: called per packed panel of A or B, from row or column `first` on.
  const FunctionRef<void(bool of_b, int64_t first, int64_t steps, const std::byte* panel)>* packed = nullptr;
};

// `Rows` rows of a block of C, and two vectors of columns, the second `right` bytes after the first in B.
template <class Dot, int Rows, int64_t right, class Sum>
void dot_rows(int64_t steps, const std::byte* a, const std::byte* b, Sum* c, int64_t ld, bool add,
              [[maybe_unused]] const Sum* starts) {
  using V = typename Dot::Vector;
  typedef uint32_t Words __attribute__((vector_size(sizeof(V))));
  constexpr int64_t kLanes = sizeof(V) / sizeof(Sum);
  const auto load = [](const void* p) {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
  };
  V sum[Rows][2];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
    for (int w = 0; w < 2; ++w) sum[r][w] = add ? load(c + r * ld + w * kLanes) : V{};
  if constexpr (std::is_integral_v<Sum>)
    if (starts)
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
        for (int w = 0; w < 2; ++w) sum[r][w] = V(Words(sum[r][w]) + uint32_t(starts[r]));
  for (; steps > 0; --steps, a += kStep, b += kStep)
#pragma GCC unroll 2
    for (int t = 0; t < 16; ++t) {
      const V one = load(b + t * kRow), other = load(b + t * kRow + right);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        uint32_t some;
        std::memcpy(&some, a + r * kRow + 4 * t, sizeof some);
        const V x = V(Words{} + some);
        Dot::add(sum[r][0], x, one), Dot::add(sum[r][1], x, other);
      }
    }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 2
    for (int w = 0; w < 2; ++w) std::memcpy(c + r * ld + w * kLanes, &sum[r][w], sizeof(V));
}

// Calls tile(i, rows, j, cols) for `down` x `across` tiles of `height` x `width` that cover C; the last ones take the
// rest, which may be larger.
struct Cut {
  int64_t height, width, down, across;
  template <class F> void for_tiles(int64_t m, int64_t n, bool parallel, F&& tile) const {
    cpu::for_tiles(parallel, down * across, [&](int64_t t) {
      const int64_t y = t / across, x = t % across, i = y * height, j = x * width;
      tile(i, y + 1 < down ? height : m - i, j, x + 1 < across ? width : n - j);
    });
  }
};

template <class T, class Sum> class Blocked {
 public:
  Blocked(const Product<T, Sum>& p, const Kernels<T, Sum>& kernels, bool parallel)
      : p_(p), kernels_(kernels), threads_(parallel ? num_threads() : 1) {}
  void run() {
    const int64_t step = kernels_.step, depth = even_part(p_.k, kDepth * step, step);
    const int64_t depth_a = p_.k <= kWhole * step ? std::max(p_.k, step) : depth;
    const int64_t rows = even_part(p_.m, kBytesOfA / kRow * step / depth_a / kernels_.parts, kSide);
    const int64_t cols = even_part(p_.n, kBytesOfB / kRow * step / depth / kernels_.parts, kSide);
    static const int64_t l2 = cpu::detail::l2_bytes();
    const int64_t bytes_of_a = p_.m * ceil_div(std::min(depth, p_.k), step) * kRow * kernels_.parts;
    const bool own = p_.m <= p_.n && bytes_of_a <= l2 && ceil_div(p_.n, kSide) >= 2 * kTilesEach * threads_;
    const int64_t kept = depth < p_.k ? kBytesOfSums / int64_t(sizeof(Sum)) / rows : p_.n;
    const int64_t wide = own ? even_part(p_.n, kept, kSide) : cols;
    for (int64_t i = 0; i < p_.m; i += rows)
      for (int64_t j = 0; j < p_.n; j += wide)
        for (int64_t q = 0; q < p_.k; q += depth) {
          const Block b{i, std::min(rows, p_.m - i), j, std::min(wide, p_.n - j), q, std::min(depth, p_.k - q)};
          if (depth_a < p_.k)
            pack_a(i, p_.a.at(i, q), b.rows, b.depth);
          else if (j == 0 && q == 0)
            pack_a(i, p_.a.at(i, 0), b.rows, p_.k);
          (this->*(own ? &Blocked::multiply_own : &Blocked::multiply_shared))(b);
        }
  }

 private:
  struct Block {
    int64_t i, rows, j, cols, first, depth;
  };
  // kSide rows, all steps of one part, then of the next.
  struct Packed {
    std::byte* p = nullptr;
    int64_t steps = 0, parts = 1;
    std::byte* at(int64_t panel, int64_t step, int64_t part = 0) const {
      return p + ((panel * parts + part) * steps + step) * kStep;
    }
  };

  // Equal ranges of n in units: at most `most`, or 4 units.
  static int64_t even_part(int64_t n, int64_t most, int64_t unit) {
    most = std::max(4 * unit, most / unit * unit);
    return ceil_div(ceil_div(n, ceil_div(n, most)), unit) * unit;
  }
  Packed pack(bool of_b, int64_t first, MatView<T> v, int64_t rows, int64_t depth, Scratch& scratch,
              bool parallel) const {
    const auto pack_step = of_b ? kernels_.pack_b : kernels_.pack_a;
    const int64_t panels = ceil_div(rows, kSide), steps = ceil_div(depth, kernels_.step), parts = kernels_.parts;
    const Packed to{scratch.get<std::byte>(panels * parts * steps * kStep), steps, parts};
    for_tiles(parallel, panels, [&](int64_t t) {
      for (int64_t s = 0; s < steps; ++s)
        pack_step(v.at(t * kSide, s * kernels_.step), std::min(kSide, rows - t * kSide),
                  std::min(kernels_.step, depth - s * kernels_.step), to.at(t, s), steps * kStep);
      if (p_.packed) (*p_.packed)(of_b, first + t * kSide, steps, to.at(t, 0));
    });
    return to;
  }
  void pack_a(int64_t first, MatView<T> v, int64_t rows, int64_t depth) {
    a_ = pack(false, first, v, rows, depth, t_a, threads_ > 1);
    if (!kernels_.starts) return;
    const int64_t panels = ceil_div(rows, kSide);
    starts_ = t_starts.get<Sum>(panels * kSide);
    for_tiles(threads_ > 1, panels, [&](int64_t t) { kernels_.starts(a_.steps, a_.at(t, 0), starts_ + t * kSide); });
  }
  static int64_t ld_of(int64_t panels) { return panels * kSide + 16; }  // not a power of two: L1 aliasing
  void multiply_shared(const Block& b) const {
    const int64_t down = ceil_div(b.rows, kSide), across = ceil_div(b.cols, kSide), ld = ld_of(across);
    const Packed all = pack(true, b.j, p_.b.at(b.first, b.j).transposed(), b.cols, b.depth, t_b, threads_ > 1);
    Sum* const kept = b.depth < p_.k ? t_sums.get<Sum>(down * kSide * ld) : nullptr;
    const int64_t groups = threads_ > 1 ? std::clamp<int64_t>(ceil_div(2 * threads_, down), 1, across) : 1;
    const int64_t group = ceil_div(across, groups);
    for_tiles(threads_ > 1, down * groups, [&](int64_t t) {
      const int64_t i = t / groups * kSide, first = t % groups * group, last = std::min(across, first + group);
      Ahead<T> none;
      if (first < last) rows(b, all, i, first, last, kept ? kept + i * ld : t_own.get<Sum>(kSide * ld), ld, none, 0);
    });
  }
  void multiply_own(const Block& b) const {
    const int64_t down = ceil_div(b.rows, kSide), across = ceil_div(b.cols, kSide);
    // AMX and int8 outrun L2 unless several panels of B use a chunk of A.
    const bool fast = kernels_.enter || sizeof(T) == 1;
    const int64_t group = std::clamp<int64_t>(across / (kTilesEach * threads_), 1, fast ? kOwnOfFast : 1);
    const int64_t ld = ld_of(b.depth < p_.k ? across : group);
    Sum* const kept = b.depth < p_.k ? t_sums.get<Sum>(down * kSide * ld) : nullptr;
    for_tiles(threads_ > 1, ceil_div(across, group), [&](int64_t t) {
      const int64_t width = group * kSide, j = t * width, left = b.cols - j - width;
      const Block mine{b.i, b.rows, b.j + j, std::min(width, b.cols - j), b.first, b.depth};
      const MatView<T> from = p_.b.at(b.first, mine.j);
      const Packed own = pack(true, mine.j, from.transposed(), mine.cols, b.depth, t_b, false);
      auto ahead = left > 0 ? Ahead<T>::of(from.at(0, width), b.depth, std::min(width, left)) : Ahead<T>{};
      const int64_t lines = ahead.lines() / (down * group * ceil_div(own.steps, kChunk)) + 1;
      for (int64_t i = 0; i < b.rows; i += kSide)
        rows(mine, own, i, 0, ceil_div(mine.cols, kSide), kept ? kept + i * ld + j : t_own.get<Sum>(kSide * ld), ld,
             ahead, lines);
    });
  }
  void rows(const Block& b, const Packed& of_b, int64_t i, int64_t first, int64_t last, Sum* sums, int64_t ld,
            Ahead<T>& ahead, int64_t lines) const {
    const int64_t some = std::min(kSide, b.rows - i);
    const bool all_of_a = a_.steps > of_b.steps;
    const int64_t most = kernels_.parts > 1 ? kChunk / 2 : kChunk;
    if (kernels_.enter) kernels_.enter();
    for (int64_t s = 0; s < of_b.steps; s += most) {
      const int64_t chunk = std::min(most, of_b.steps - s), at = (all_of_a ? b.first / kernels_.step : 0) + s;
      const bool begins = s == 0 && (b.first == 0 || !all_of_a);  // `starts` count once per packed A
      const Sum* const starts = kernels_.starts && begins ? starts_ + i : nullptr;
      const bool add = b.first + s > 0;
      for (int64_t j = first; j < last; ++j) {
        ahead.template prefetch<2>(lines);
        const auto block = [&](int64_t x, int64_t y, Sum* to, int64_t step, bool more) {
          kernels_.block(chunk, some, a_.at(i / kSide, at, x), of_b.at(j, s, y), to, step, more, starts);
        };
        Sum* const to = sums + j * kSide;
        if (kernels_.parts == 1)
          block(0, 0, to, ld, add);
        else
          add_parts(block, some, to, ld, add);
      }
    }
    if (kernels_.leave) kernels_.leave();
    if (b.first + b.depth < p_.k) return;
    const int64_t j = first * kSide, cols = std::min(last * kSide, b.cols) - j;
    for (int64_t r = 0; r < some; ++r) p_.store(b.i + i + r, b.j + j, cols, sums + r * ld + j);
  }
  template <class Block> static void add_parts(Block&& block, int64_t rows, Sum* sums, int64_t ld, bool add) {
    Sum* const chunk = t_chunk.get<Sum>(kSide * kSide);
    block(2, 0, chunk, kSide, false);
    for (const auto& [x, y] : {std::pair(1, 1), std::pair(0, 2), std::pair(1, 0), std::pair(0, 1), std::pair(0, 0)})
      block(x, y, chunk, kSide, true);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t x = 0; x < kSide; ++x)
        sums[r * ld + x] = add ? sums[r * ld + x] + chunk[r * kSide + x] : chunk[r * kSide + x];
  }

  const Product<T, Sum>& p_;
  const Kernels<T, Sum>& kernels_;
  int64_t threads_;
  Packed a_;  // a_: one block, or all of k
  Sum* starts_ = nullptr;
};
}  // namespace tg::cpu::TG_ISA_NS::packed
