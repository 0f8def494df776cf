// A TMA transfer completes when the schedule says so, at the latest when no thread can run. A wgmma reads operands at
// its wait.
#include <tapegrad/cuda/device/hopper.h>

#include <cstring>
#include <deque>
#include <map>

#include <tapegrad/emulator/order.h>

namespace simt::engine {
using tg::cuda::mbarrier;
using tg::cuda::TensorMap;
namespace {

struct Phase {
  int arrivals = 0, left = 0, bytes = 0;
  unsigned parity = 0;
  bool fenced = false;
  Clock arriving, completed;
};
struct Transfer {
  char* to;
  TensorMap map;
  int row, column;
  mbarrier* barrier;
  unsigned bytes() const { return map.box_rows * map.box_columns * map.element; }
};

std::map<const mbarrier*, Phase> barriers;  // barriers of the running block
std::deque<Transfer> transfers;
std::array<unsigned, max_threads / 128> meeting;

Phase& phase(mbarrier* b, Site at) {
  const auto it = barriers.find(b);
  if (it == barriers.end()) fail(Fault::usage, at, "an mbarrier that was not initialised");
  return it->second;
}

void advance(Phase& p) {
  if (p.left || p.bytes) return;
  p.left = p.arrivals;
  p.parity ^= 1;
  p.completed = p.arriving;
  for (unsigned i = 0; i < thread_count; ++i)
    if (threads[i].state == Thread::waiting && threads[i].frame == &p) release(threads[i]);
}

std::size_t swizzled(std::size_t at) { return at ^ (at >> 7 & 7) << 4; }

void complete(std::size_t index) {
  const Transfer t = transfers[index];
  transfers.erase(transfers.begin() + static_cast<std::ptrdiff_t>(index));
  const TensorMap& m = t.map;
  for (unsigned r = 0; r < m.box_rows; ++r)
    for (unsigned c = 0; c < m.box_columns; ++c) {
      const std::int64_t row = std::int64_t{t.row} + r, column = std::int64_t{t.column} + c;
      const bool valid = row >= 0 && column >= 0 && std::uint64_t(row) < m.rows && std::uint64_t(column) < m.columns;
      char* const to = t.to + swizzled((r * m.box_columns + c) * m.element);
      if (valid)
        std::memcpy(to, m.data + std::uint64_t(row) * m.stride + std::uint64_t(column) * m.element, m.element);
      else
        std::memset(to, 0, m.element);
    }
  async_end(t.to, t.bytes(), tma_unit);
  Phase& p = barriers[t.barrier];
  order_release(p.arriving, tma_unit);
  p.bytes -= static_cast<int>(t.bytes());
  advance(p);
}

// Byte k of an operand's row.
const char* element(std::uint64_t operand, unsigned row, unsigned k) {
  const std::size_t start = (operand & 0x3fff) << 4, stride = (operand >> 32 & 0x3fff) << 4;
  return dynamic_arena + swizzled(start + row / 8 * stride + row % 8 * 128 + k);
}

// d (64, N) += a b over 32 bytes of k. int8 is exact; bf16 is rounded once.
template <unsigned N, class E, class D, class Sum>
void multiply(unsigned group, const Product& p, std::size_t index, Site at) {
  constexpr unsigned K = 32 / sizeof(E);
  static Sum a[64][K], b[N][K];
  const auto read = [&](std::uint64_t operand, unsigned rows, Sum(*to)[K]) {
    for (unsigned r = 0; r < rows; ++r)
      for (unsigned k = 0; k < K; ++k) {
        const char* e = element(operand, r, k * sizeof(E));
        if (k * sizeof(E) % 16 == 0) unit_read(e, 16, warpgroup_unit + group, at);
        E v;
        std::memcpy(&v, e, sizeof v);
        if constexpr (sizeof(E) == 1)
          to[r][k] = v;
        else
          to[r][k] = static_cast<float>(v);
      }
  };
  read(p.a, 64, a), read(p.b, N, b);
  for (unsigned t = 0; t < 128; ++t) {
    D* const d = static_cast<D*>(threads[group * 128 + t].products[index].d);
    for (unsigned i = 0; i < N / 2; ++i) {
      const unsigned row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + t % 4 * 2 + i % 2;
      Sum sum = static_cast<Sum>(d[i]);
      for (unsigned k = 0; k < K; ++k) sum += a[row][k] * b[column][k];
      d[i] = static_cast<D>(sum);
    }
  }
}

// Accumulators hold NaNs until the wait.
void begin(Product p, std::size_t bytes, Site at) {
  Thread& t = *current;
  if (!t.fenced) fail(Fault::usage, at, "wgmma without wgmma_fence");
  bool known = false;
  for (const auto& s : t.saved) known |= s.first == p.d;
  if (!known) {
    const auto* d = static_cast<const unsigned char*>(p.d);
    t.saved.emplace_back(p.d, std::vector<unsigned char>(d, d + bytes));
    std::memset(p.d, 0xff, bytes);
  }
  t.products.push_back(p);
}

}  // namespace

void hopper_block() {
  barriers.clear();
  transfers.clear();
  meeting.fill(0);
}

bool hopper_progress(bool must) {
  if (transfers.empty()) return false;
  const bool may = policy.kind == Policy::forward || (policy.kind == Policy::shuffled && random() % 4 == 0);
  if (!must && !may) return false;
  complete(policy.kind == Policy::shuffled   ? random() % transfers.size()
           : policy.kind == Policy::backward ? transfers.size() - 1
                                             : 0);
  return true;
}

void hopper_end() {
  if (!transfers.empty()) fail(Fault::async_copy, {}, "a block ended with %zu TMA loads in flight", transfers.size());
}

}  // namespace simt::engine

namespace tg::cuda {
using namespace simt::engine;
using simt::Fault;
using simt::Site;

cudaError_t make_tensor_map(TensorMap* map, const __nv_bfloat16* data, std::uint64_t rows, std::uint64_t columns,
                            std::uint32_t box_rows, std::uint32_t box_columns) {
  if (reinterpret_cast<std::uintptr_t>(data) % 16 || columns % 8 || !rows || !columns || box_rows > 256 ||
      box_columns != 64)
    return cudaErrorInvalidValue;
  *map = {reinterpret_cast<const char*>(data), rows, columns, columns * 2, box_rows, box_columns, 2};
  return cudaSuccess;
}
cudaError_t make_tensor_map(TensorMap* map, const std::int8_t* data, std::uint64_t rows, std::uint64_t columns,
                            std::uint64_t stride, std::uint32_t box_rows) {
  if (reinterpret_cast<std::uintptr_t>(data) % 16 || stride % 16 || stride >> 40 || !rows || !columns || rows >> 32 ||
      columns >> 32 || box_rows > 256)
    return cudaErrorInvalidValue;
  *map = {reinterpret_cast<const char*>(data), rows, columns, stride, box_rows, 128, 1};
  return cudaSuccess;
}

void mbarrier_init(mbarrier* b, int arrivals) {
  touch(b, sizeof *b, Access::write, __builtin_return_address(0));
  Phase& p = barriers[b];
  p = {};
  p.arrivals = p.left = arrivals;
}

void mbarrier_init_fence() {
  for (auto& [b, p] : barriers) p.fenced = true;
}

void mbarrier_arrive_expect(mbarrier* b, int bytes, Site at) {
  touch(b, sizeof *b, Access::atomic, __builtin_return_address(0));
  Phase& p = phase(b, at);
  if (p.left == 0) fail(Fault::usage, at, "more arrivals than the mbarrier expects");
  order_release(p.arriving, current->index);
  p.bytes += bytes;
  --p.left;
  advance(p);
}

void mbarrier_wait(mbarrier* b, int parity, Site at) {
  touch(b, sizeof *b, Access::atomic, __builtin_return_address(0));
  Phase& p = phase(b, at);
  while (p.parity == unsigned(parity)) {
    current->frame = &p;
    simt::engine::wait("mbarrier_wait", at);
  }
  current->frame = nullptr;
  order_acquire(current->index, p.completed);
}

void tma_load(void* shared, const TensorMap* map, int row, int column, mbarrier* b, Site at) {
  const void* pc = __builtin_return_address(0);
  char* to = static_cast<char*>(shared);
  const Transfer t{to, *map, row, column, b};  // the map may be on the thread's stack
  if (to < dynamic_arena || (to - dynamic_arena) % 1024)
    fail(Fault::misaligned, at, "TMA with the 128-byte swizzle to %p, not a multiple of 1024", shared);
  touch(to, t.bytes(), Access::write, pc);
  for (unsigned r = 0; r < map->box_rows; ++r) {
    const std::int64_t y = std::int64_t{row} + r, x = column;
    if (y >= 0 && std::uint64_t(y) < map->rows && std::uint64_t(x) < map->columns)
      touch(map->data + std::uint64_t(y) * map->stride + std::uint64_t(x) * map->element,
            std::min<std::uint64_t>(map->box_columns, map->columns - std::uint64_t(x)) * map->element, Access::read,
            pc);
  }
  if (!phase(b, at).fenced) fail(Fault::usage, at, "TMA with an mbarrier before mbarrier_init_fence");
  std::memset(to, 0xff, t.bytes());
  async_begin(to, t.bytes());
  transfers.push_back(t);
}

std::uint64_t wgmma_operand(const void* shared) {
  const auto at = static_cast<std::uint64_t>(static_cast<const char*>(shared) - dynamic_arena);
  if (at % 1024) fail(Fault::misaligned, __builtin_return_address(0), "a wgmma operand at byte %zu", at);
  return (at & 0x3ffff) >> 4 | std::uint64_t{1} << 16 | std::uint64_t{1024 >> 4} << 32 | std::uint64_t{1} << 62;
}

void async_fence() { order_async_fence(); }

void wgmma_fence() { current->fenced = true; }

void wgmma_m64n64k16(float (&d)[32], std::uint64_t a, std::uint64_t b, Site at) {
  begin({d, a, b, false, false}, sizeof d, at);
}
void wgmma_m64n256k32(int (&d)[32][4], std::uint64_t a, std::uint64_t b, Site at) {
  begin({d, a, b, true, false}, sizeof d, at);
}

void wgmma_commit() {
  for (Product& p : current->products) p.committed = true;
}

namespace {
void wait_for_products(const void* d, Site at) {
  for (const Product& p : current->products)
    if (p.d != d) fail(Fault::usage, at, "wgmma_wait names other registers than the accumulators in flight");
  const unsigned group = current->index / 128;
  current->fenced = false;
  if (++meeting[group] < 128) {
    simt::engine::wait("wgmma_wait", at);
  } else {
    meeting[group] = 0;
    Thread* const team = &threads[group * 128];
    for (Thread* t = team; t < team + 128; ++t) {
      if (t->products.size() != team->products.size())
        fail(Fault::divergence, at, "threads of a warpgroup with %zu and %zu wgmma in flight", t->products.size(),
             team->products.size());
      for (const auto& [to, v] : t->saved) std::memcpy(to, v.data(), v.size());
    }
    for (std::size_t i = 0; i < team->products.size(); ++i) {
      const Product& p = team->products[i];
      if (!p.committed) fail(Fault::async_copy, at, "wgmma_wait before wgmma_commit");
      for (Thread* t = team; t < team + 128; ++t)
        if (t->products[i] != p) fail(Fault::divergence, at, "threads of a warpgroup with different operands");
      if (p.integers)
        multiply<256, std::int8_t, int, int>(group, p, i, at);
      else
        multiply<64, __nv_bfloat16, float, double>(group, p, i, at);
    }
    Clock done;
    order_release(done, warpgroup_unit + group);
    for (Thread* t = team; t < team + 128; ++t) {
      t->products.clear();
      t->saved.clear();
      order_acquire(t->index, done);
      if (t != current) release(*t);
    }
  }
}
}  // namespace
void wgmma_wait(float (&d)[32], Site at) { wait_for_products(d, at); }
void wgmma_wait(int (&d)[32][4], Site at) { wait_for_products(d, at); }

}  // namespace tg::cuda
