// C is cut into tiles of rows and columns, each computed by one thread from what it packs of A and B itself, into
// memory of its own. How it is cut changes no bit, but for the baseline's Eigen.
#include <tapegrad/cpu/bf16_path.h>
#include <tapegrad/cpu/gemm_bf16.h>
#include <tapegrad/cpu/scratch.h>
#include <tapegrad/cpu/thread_pool.h>

#include <algorithm>
#include <optional>
#if TG_ISA_LEVEL == 4
#include <tapegrad/cpu/gemm_bf16_micro.h>
#endif

namespace tg::cpu::TG_ISA_NS {
namespace {
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Product {
  int64_t m, n, k;
  MatView<bf16> a, b;
  bf16* c;
  int64_t ldc;
  const FunctionRef<void(float*, int64_t, int64_t)>* finish;

  // Rows [i, i + rows) and columns [j, j + cols) of C from their sums, which are rows ld apart.
  void store(int64_t i, int64_t rows, int64_t j, int64_t cols, float* sums, int64_t ld) const {
    for (int64_t r = 0; r < rows; ++r, sums += ld) {
      if (finish) (*finish)(sums, j, cols);
      bf16* const to = c + (i + r) * ldc + j;
      for (int64_t s = 0; s < cols; ++s) to[s] = bf16(sums[s]);
    }
  }
};
// tile(i, rows, j, cols) for all of C: `down` tiles of `height` rows, `across` of `width` columns; the last take what
// is left, which may be more.
struct Cut {
  int64_t height, width, down, across;
  template <class F> void for_tiles(const Product& p, bool parallel, F&& tile) const {
    const auto run = [&](int64_t t) {
      const int64_t y = t / across, x = t % across, i = y * height, j = x * width;
      tile(i, y + 1 < down ? height : p.m - i, j, x + 1 < across ? width : p.n - j);
    };
    if (parallel) return parallel_for(down * across, run);
    for (int64_t t = 0; t < down * across; ++t) run(t);
  }
};
thread_local Scratch t_a, t_b, t_sums, t_own;

// In f32: blocks of both operands are widened and multiplied by gemm_serial.
namespace widened {
constexpr int64_t kDepth = 384, kHeight = 192, kWidth = 256;  // kDepth is at most that of the f32 product's own blocks

MatView<float> widen(MatView<bf16> v, int64_t rows, int64_t cols, bool by_rows, float* to) {
  if (v.row == 1 && v.col != 1 && !by_rows) return widen(v.transposed(), cols, rows, true, to).transposed();
  for (int64_t i = 0; i < rows; ++i) {
    const bf16* const from = v.p + i * v.row;
    float* const row = to + i * cols;
    if (v.col == 1)
      for (int64_t j = 0; j < cols; ++j) row[j] = from[j];
    else
      for (int64_t j = 0; j < cols; ++j) row[j] = from[j * v.col];
  }
  return {to, cols, 1};
}
void multiply(const Product& p, bool parallel) {
  const int64_t depth = ceil_div(p.k, ceil_div(p.k, kDepth));
  // The last tile takes the rest of the columns: very few columns would be added in another order.
  const Cut cut{kHeight, kWidth, ceil_div(p.m, kHeight), std::max<int64_t>(1, p.n / kWidth)};
  cut.for_tiles(p, parallel, [&](int64_t i, int64_t rows, int64_t j, int64_t cols) {
    float* const sums = t_sums.get<float>(rows * cols);
    for (int64_t q = 0; q < p.k; q += depth) {
      const int64_t terms = std::min(depth, p.k - q);
      // Few columns are added in an order that depends on how A lies, and one row may lie in either direction.
      const auto a = widen(p.a.at(i, q), rows, terms, p.n <= 16, t_a.get<float>(rows * terms));
      const auto b = widen(p.b.at(q, j), terms, cols, false, t_b.get<float>(terms * cols));
      gemm_serial<float>(rows, cols, terms, a, b, sums, cols, {.accumulate = q > 0});
    }
    p.store(i, rows, j, cols, sums, cols);
  });
}
}  // namespace widened

#if TG_ISA_LEVEL == 4
// On packed pairs of bf16. Threads pack a block of A and one of B together, each block once; then each thread takes
// rows of C. Of what it multiplies, the block of B stays in L2, while chunks of kSide rows and kChunk steps of A and
// the chunks of B that they meet pass through L1.
namespace paired {
using namespace micro_bf16;
constexpr int64_t kDepth = 1024, kWhole = 8192;            // k of a block of B; k up to which one of A has all
constexpr int64_t kPackedB = 3 << 17, kPackedA = 1 << 22;  // elements of a block, 0.75 and 8 MiB
constexpr int64_t kChunk = 8, kSerial = 1 << 21;           // multiply-adds: less runs on the calling thread

struct Block {  // of C and of k
  int64_t i, rows, j, cols, first, depth;
};
class Blocked {
 public:
  Blocked(const Product& p, Bf16Path path, bool parallel) : p_(p), path_(path), parallel_(parallel) {}
  void run() {
    const int64_t depth = even_part(p_.k, kDepth), depth_a = p_.k <= kWhole ? std::max(p_.k, kStep) : depth;
    const int64_t rows = even_part(p_.m, kPackedA / depth_a), cols = even_part(p_.n, kPackedB / depth);
    for (int64_t i = 0; i < p_.m; i += rows)
      for (int64_t j = 0; j < p_.n; j += cols)
        for (int64_t q = 0; q < p_.k; q += depth) {
          const Block b{i, std::min(rows, p_.m - i), j, std::min(cols, p_.n - j), q, std::min(depth, p_.k - q)};
          if (depth_a < p_.k)
            a_ = pack<false>(p_.a.at(i, q), b.rows, b.depth, t_a);
          else if (j == 0 && q == 0)
            a_ = pack<false>(p_.a.at(i, 0), b.rows, p_.k, t_a);
          b_ = pack<true>(p_.b.at(q, j).transposed(), b.cols, b.depth, t_b);
          multiply(b);
        }
  }

 private:
  // The size of equal parts of n, in whole steps or blocks, of at most `most`.
  static int64_t even_part(int64_t n, int64_t most) {
    most = std::max(4 * kSide, most / kSide * kSide);
    return ceil_div(ceil_div(n, ceil_div(n, most)), kSide) * kSide;
  }
  template <class F> void for_tiles(int64_t n, F&& f) const {
    if (parallel_) return parallel_for(n, f);
    for (int64_t t = 0; t < n; ++t) f(t);
  }
  // Panels of kSide rows of v, one after another, each of all steps.
  struct Packed {
    const bf16* p = nullptr;
    int64_t steps = 0;
    const bf16* at(int64_t panel, int64_t step) const { return p + (panel * steps + step) * kStepSize; }
  };
  template <bool Pairs> Packed pack(MatView<bf16> v, int64_t rows, int64_t depth, Scratch& scratch) const {
    const int64_t panels = ceil_div(rows, kSide), steps = ceil_div(depth, kStep);
    bf16* const to = scratch.get<bf16>(panels * steps * kStepSize);
    for_tiles(panels, [&](int64_t t) {
      for (int64_t s = 0; s < steps; ++s)
        pack_step<Pairs>(v.at(t * kSide, s * kStep), rows - t * kSide, depth - s * kStep,
                         to + (t * steps + s) * kStepSize);
    });
    return {to, steps};
  }
  // The block's part of C, in tiles of some rows and columns.
  void multiply(const Block& b) const {
    const int64_t down = ceil_div(b.rows, kSide), across = ceil_div(b.cols, kSide);
    const int64_t ld = across * kSide + 16;  // no power of two, for the caches' sake
    const bool whole = b.depth == p_.k;      // else sums stay from block to block of k
    float* const kept = whole ? nullptr : t_sums.get<float>(down * kSide * ld);
    const int64_t groups = parallel_ ? std::clamp<int64_t>(ceil_div(2 * num_threads(), down), 1, across) : 1;
    const int64_t group = ceil_div(across, groups);
    for_tiles(down * groups, [&](int64_t t) {
      const int64_t i = t / groups * kSide, first = t % groups * group, last = std::min(across, first + group);
      if (first < last) rows(b, i, first, last, whole ? t_own.get<float>(kSide * ld) : kept + i * ld, ld);
    });
  }
  // Rows [i, i + kSide) of the block and its panels [first, last) of columns.
  void rows(const Block& b, int64_t i, int64_t first, int64_t last, float* sums, int64_t ld) const {
    const int64_t some = std::min(kSide, b.rows - i), skip = a_.steps > b_.steps ? b.first / kStep : 0;
    {
      std::optional<Tiles> tiles;
      if (path_ == Bf16Path::amx) tiles.emplace();
      for (int64_t s = 0; s < b_.steps; s += kChunk) {
        const int64_t chunk = std::min(kChunk, b_.steps - s);
        const bf16* const x = a_.at(i / kSide, skip + s);
        for (int64_t j = first; j < last; ++j) {
          const bf16* const y = b_.at(j, s);
          float* const c = sums + j * kSide;
          const bool add = b.first + s > 0;
          if (path_ == Bf16Path::avx512)
            avx512_block(chunk, some, x, y, c, ld, add);
          else
            (some > 16 ? amx_block<2> : amx_block<1>)(chunk, x, y, c, ld, add);
        }
      }
    }
    const int64_t j = first * kSide;
    if (b.first + b.depth == p_.k) p_.store(b.i + i, some, b.j + j, std::min(last * kSide, b.cols) - j, sums + j, ld);
  }

  const Product& p_;
  Bf16Path path_;
  bool parallel_;
  Packed a_, b_;  // a_ of the block's part of k, or of all
};
}  // namespace paired
#endif

void multiply(const Product& p, bool parallel) {
  if (p.m == 0 || p.n == 0) return;
  if (p.k == 0) {
    float* const zeros = t_sums.get<float>(p.n);
    for (int64_t i = 0; i < p.m; ++i) {
      std::fill_n(zeros, p.n, 0.0f);
      p.store(i, 1, 0, p.n, zeros, p.n);
    }
    return;
  }
  const Bf16Path path = bf16_path();
#if TG_ISA_LEVEL == 4
  if (path != Bf16Path::f32) return paired::Blocked(p, path, parallel && p.m * p.n * p.k >= paired::kSerial).run();
#endif
  (void)path;
  widened::multiply(p, parallel);
}
}  // namespace

template <>
void gemm(int64_t m, int64_t n, int64_t k, MatView<bf16> a, MatView<bf16> b, bf16* c, int64_t ldc,
          GemmOptions<bf16> o) {
  multiply({m, n, k, a, b, c, ldc, o.finish}, true);
}
template <>
void gemm_serial(int64_t m, int64_t n, int64_t k, MatView<bf16> a, MatView<bf16> b, bf16* c, int64_t ldc,
                 GemmOptions<bf16> o) {
  multiply({m, n, k, a, b, c, ldc, o.finish}, false);
}
}  // namespace tg::cpu::TG_ISA_NS
