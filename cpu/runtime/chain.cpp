#include <tapegrad/core/backend/chain.h>
#include <tapegrad/core/op.h>
#include <tapegrad/cpu/runtime/chain.h>
#include <tapegrad/cpu/runtime/thread_pool.h>

#include <algorithm>

namespace tg::cpu {
namespace {
constexpr int64_t kTile = 4096;     // elements: a few buffers fit L1 or L2
constexpr int64_t kWork = 1 << 14;  // a wake-up does not pay below

struct Tile {
  int64_t row, rows, column, columns;
};
struct Scratch {  // a thread's buffers
  std::vector<std::byte> bytes;
  std::vector<Layout> layouts;
  std::vector<std::byte*> data;
};

void run_tile(const Chain& c, const Tile& t, Scratch& s) {
  const ChainPlan& p = c.plan;
  const size_t n = p.buffers.size();
  const Shape shape = t.rows == 1 ? Shape{t.columns} : Shape{t.rows, t.columns};
  s.layouts.resize(n), s.data.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const ChainPlan::Buffer& b = p.buffers[i];
    const bool inside = b.kind == ChainPlan::Buffer::Kind::temporary;
    Layout& l = s.layouts[i];
    l.shape = shape, l.dtype = b.dtype, l.offset = 0;
    if (t.rows == 1)
      l.strides = Strides{inside ? 1 : b.column_step};
    else
      l.strides = inside ? Strides{t.columns, 1} : Strides{b.row_step, b.column_step};
    s.data[i] = inside ? s.bytes.data() + kTile * 8 * int64_t(b.index)
                       : c.data[i] + (t.row * b.row_step + t.column * b.column_step) * int64_t(size_of(b.dtype));
  }
  SmallVec<Buf, 4> in;
  for (size_t k = 0; k < p.uses.size(); ++k) {
    in.clear();
    for (const uint32_t i : p.uses[k].in) in.emplace_back(&s.layouts[i], s.data[i]);
    const Buf out{&s.layouts[p.uses[k].out], s.data[p.uses[k].out]};
    Context context{Device::cpu(), c.ops[k]->name()};
    c.ops[k]->run({in.data(), in.size()}, {&out, 1}, context);
  }
}
}  // namespace

void run_chain(const Chain& c) {
  const ChainPlan& p = c.plan;
  const int64_t columns = std::min(p.columns, kTile),
                rows = std::max<int64_t>(1, kTile / std::max<int64_t>(1, p.columns));
  const int64_t across = (p.columns + columns - 1) / columns, down = (p.rows + rows - 1) / rows;
  const int64_t grain = std::max<int64_t>(1, kWork / (columns * rows * int64_t(p.uses.size())));
  parallel_for(across * down, grain, [&](int64_t begin, int64_t end) {
    thread_local Scratch scratch;
    scratch.bytes.resize(std::max(scratch.bytes.size(), size_t(p.scratch) * size_t(kTile) * 8));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / across * rows, column = i % across * columns;
      run_tile(c, {row, std::min(rows, p.rows - row), column, std::min(columns, p.columns - column)}, scratch);
    }
  });
}

}  // namespace tg::cpu
