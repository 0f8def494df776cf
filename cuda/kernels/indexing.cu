// Gathers walk the output, 2 to 16 bytes per thread. Scatters have one writer per element, in source order: a thread
// per line, or, for few long lines, per run of sorted (destination, position) pairs (sort.h).
#include <tapegrad/core/check.h>
#include <tapegrad/cuda/device/index_check.h>
#include <tapegrad/cuda/device/sort.h>
#include <tapegrad/ops/indexing.h>

#include <numeric>

namespace tg::cuda {
namespace {
constexpr int kThreads = 256;

Error outside_dim(const IndexSite& s, int64_t position, int64_t value) {
  return tg::kernel::index_outside(s.op, value, tg::detail::position_of(position, s.index.shape), s.index, s.dim,
                                   s.size);
}
Error outside_table(const IndexSite& s, int64_t position, int64_t value) {
  return tg::kernel::id_outside(value, tg::detail::position_of(position, s.index.shape), s.index, s.size);
}
Ids ids_of(const Buf& index) { return {first_element(index), index.dtype()}; }
IndexCheck check_of(const Context& c, const Buf& index, size_t dim, int64_t size) {
  return {c, {outside_dim, c.op, *index.layout, dim, size}};
}

// --- reading by index
// Output element e has index number (e / repeat) % count.
struct Repeats {
  int64_t repeat, count, unit = 1;
  __device__ __forceinline__ int64_t operator()(int64_t i) const { return i * unit / repeat % count; }
};

// y[i] = x[at + index[at] * step], in units of Bits.
template <class Bits>
__global__ void __launch_bounds__(kThreads) index_pick(const Bits* x, Ids index, Bits* y, Strided<2> walk, int64_t step,
                                                       int64_t n, Repeats repeats, IndexCheck check) {
  for (GridLoop i(n); i; ++i) {
    int64_t at[2];
    walk.offsets(*i, at);
    const int64_t k = index[at[1]];
    Bits v{};
    if (check.inside(k))
      v = x[at[0] + k * step];
    else
      check.note(k, repeats(*i));
    y[*i] = v;
  }
}

// Strides over y's shape; step: x's along dim.
struct Pick {
  const Buf &x, &index, &y;
  Strides x_strides, index_strides;
  int64_t step;
  Repeats repeats;

  // Elements per vector copy: gcd of all offsets and sizes.
  int64_t unit() const {
    const auto bytes = int64_t(size_of(y.dtype()));
    if (y.shape().empty() || index_strides.back() != 0 || x_strides.back() != 1) return 1;
    int64_t most = std::gcd(16 / bytes, y.shape().back());
    most = std::gcd(most, step);
    for (size_t d = 0; d + 1 < x_strides.size(); ++d) most = std::gcd(most, x_strides[d]);
    const auto start = reinterpret_cast<uintptr_t>(x.bytes) + uintptr_t(x.layout->offset * bytes);
    return int64_t(std::gcd(uintptr_t(most * bytes), start)) / bytes;
  }
  template <class Bits> void run(const Context& c, int64_t unit, const IndexCheck& check) const {
    Shape shape = y.shape();
    Strides from = x_strides;
    Repeats r = repeats;
    r.unit = unit;
    if (unit > 1) {
      shape.back() /= unit;
      for (size_t d = 0; d + 1 < from.size(); ++d) from[d] /= unit;
    }
    const int64_t n = y.numel() / unit, bytes = int64_t(size_of(y.dtype()));
    const auto first = [bytes](const Buf& b) { return reinterpret_cast<Bits*>(b.bytes + b.layout->offset * bytes); };
    launch(c, index_pick<Bits>, blocks_for(c, n, kThreads), kThreads, 0, first(x), ids_of(index), first(y),
           Strided<2>(shape, {from, index_strides}), step / unit, n, r, check);
  }
  void operator()(const Context& c, const IndexCheck& check) const {
    if (y.numel() == 0) return;
    const int64_t u = unit();
    switch (u * int64_t(size_of(y.dtype()))) {
      case 2: return run<uint16_t>(c, u, check);
      case 4: return run<uint32_t>(c, u, check);
      case 8: return run<uint64_t>(c, u, check);
      default: return run<Vec<uint32_t>>(c, u, check);
    }
  }
};

int64_t product(const Shape& s, size_t from, size_t to) {
  return Shape(s.begin() + ptrdiff_t(from), s.begin() + ptrdiff_t(to)).product();
}
void gather(const op::Gather& op, Bufs in, Bufs out, Context& c) {
  const Buf &x = in[0], &index = in[1];
  Strides others = x.strides();
  others[op.dim] = 0;
  Pick{x, index, out[0], others, index.strides(), x.strides()[op.dim], {1, std::max<int64_t>(1, out[0].numel())}}(
      c, check_of(c, index, op.dim, x.size(op.dim)));
}
void index_select(const op::IndexSelect& op, Bufs in, Bufs out, Context& c) {
  const Buf &x = in[0], &index = in[1];
  Strides others = x.strides(), along = Strides::filled(others.size(), 0);
  others[op.dim] = 0;
  along[op.dim] = index.strides()[0];
  const int64_t inner = product(out[0].shape(), op.dim + 1, out[0].shape().size());
  Pick{x, index, out[0], others, along, x.strides()[op.dim], {inner, index.numel()}}(
      c, check_of(c, index, op.dim, x.size(op.dim)));
}
void embedding(const op::Embedding&, Bufs in, Bufs out, Context& c) {
  const Buf &ids = in[0], &table = in[1];
  Strides columns = Strides::filled(ids.shape().size(), 0), rows = ids.strides();
  columns.push_back(table.strides()[1]);
  rows.push_back(0);
  const IndexSite site{outside_table, c.op, *ids.layout, 0, table.size(0)};
  Pick{table, ids, out[0], columns, rows, table.strides()[0], {table.size(1), ids.numel()}}(c, {c, site});
}

// --- adding slices by index
// (index, position); bad indices sort last.
__global__ void __launch_bounds__(kThreads)
    index_make_pairs(Ids index, uint64_t* pairs, int64_t n, int64_t size, int position_bits, IndexCheck check) {
  for (GridLoop i(n); i; ++i) {
    const int64_t id = index[*i];
    pairs[*i] = uint64_t(check(id, *i) ? id : size) << position_bits | uint64_t(*i);
  }
}
struct Run {  // one key's sorted pairs
  int64_t begin, end;
};
__global__ void __launch_bounds__(kThreads)
    index_find_runs(const uint64_t* pairs, int64_t n, int position_bits, int64_t size, Run* runs) {
  for (GridLoop i(n); i; ++i) {
    const auto key = int64_t(pairs[*i] >> position_bits);
    if (key >= size) continue;
    if (*i == 0 || int64_t(pairs[*i - 1] >> position_bits) != key) runs[key].begin = *i;
    if (*i == n - 1 || int64_t(pairs[*i + 1] >> position_bits) != key) runs[key].end = *i + 1;
  }
}
// dx (outer, size, n) = or += dy (outer, m, n), four terms in flight.
template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    index_sum_runs(const T* dy, const uint64_t* pairs, const Run* runs, T* dx, bool add_to_dx, int64_t items,
                   int64_t size, int64_t m, int64_t n, uint64_t position_mask) {
  const int64_t across = n / V;
  for (GridLoop i(items); i; ++i) {
    const int64_t t = *i / across, column = (*i - t * across) * V, o = t / size;
    const Run run = runs[t - o * size];
    if (add_to_dx && run.begin == run.end) continue;
    const auto load = [&](int64_t k) {
      const auto position = int64_t(pairs[k] & position_mask);
      return load16<V>(dy + (o * m + position) * n + column);
    };
    compute_t<T> sum[V] = {};
    const auto add = [&](const Vec<T, V>& d) {
#pragma unroll
      for (int v = 0; v < V; ++v) sum[v] += widen(d.x[v]);
    };
    int64_t k = run.begin;
    for (; k + 4 <= run.end; k += 4) {
      const Vec<T, V> a = load(k), b = load(k + 1), c = load(k + 2), d = load(k + 3);
      add(a), add(b), add(c), add(d);
    }
    for (; k < run.end; ++k) add(load(k));
    if (add_to_dx) add(load16<V>(dx + *i * V));
    Vec<T, V> r;
#pragma unroll
    for (int v = 0; v < V; ++v) r.x[v] = narrow<T>(sum[v]);
    store16(dx + *i * V, r);
  }
}

template <class T> void copy_to(const Context& c, const Buf& x, const Buf& y) {  // no-op on aliases
  if (x.data<T>() != y.data<T>() || !x.is_contiguous()) copy_contiguous(c, x, y.data<T>());
}
template <class T>
void sum_slices(const Context& c, const T* dy, const uint64_t* pairs, const Run* runs, const Buf& dx, bool add,
                int64_t m, int64_t n, int64_t size, int position_bits) {
  T* to = dx.data<T>();
  const uint64_t mask = (uint64_t(1) << position_bits) - 1;
  const auto run = [&](auto kernel, int v) {
    const int64_t items = dx.numel() / v;
    launch(c, kernel, blocks_for(c, items, kThreads), kThreads, 0, dy, pairs, runs, to, add, items, size, m, n, mask);
  };
  if (n % kVec<T> == 0 && aligned16(dy) && aligned16(to))
    run(index_sum_runs<T, kVec<T>>, kVec<T>);
  else
    run(index_sum_runs<T, 1>, 1);
}
void index_select_grad(const op::IndexSelectGrad& op, Bufs in, Bufs out, Context& c) {
  const Buf &index = in[0], &dy = in[1], &dx = out[0];
  const int64_t m = index.numel(), n = product(dx.shape(), op.dim + 1, dx.shape().size());
  const IndexCheck check = check_of(c, index, op.dim, op.size);
  const PairBits bits(uint64_t(op.size), uint64_t(m));
  TG_CHECK(bits.fit(), internal, "[{}] {} indices into {} slices are more than can be sorted.", c.op, m, op.size);
  SortedPairs pairs(c, m, bits);
  const Scratch runs(c, size_t(op.size) * sizeof(Run));
  if (op.size > 0)
    cuda::check(cudaMemsetAsync(runs.as<Run>(), 0, size_t(op.size) * sizeof(Run), stream_of(c.device.index)), c.op,
                "clearing");
  if (m > 0) {
    const unsigned blocks = blocks_for(c, m, kThreads);
    const Contiguous ids(c, index);
    launch(c, index_make_pairs, blocks, kThreads, 0, Ids(ids.data(), index.dtype()), pairs.data(), m, op.size,
           bits.position, check);
    pairs.sort();
    launch(c, index_find_runs, blocks, kThreads, 0, pairs.data(), m, bits.position, op.size, runs.as<Run>());
  }
  if (dx.numel() == 0) return;
  kernel::visit_float(dx.dtype(), [&]<class T>() {
    const Dense<T> from(c, dy);
    const bool add = in.size() > 2;
    if (add) copy_to<T>(c, in[2], dx);
    sum_slices<T>(c, from, pairs.data(), runs.as<Run>(), dx, add, m, n, op.size, bits.position);
  });
}

// --- adding elements by index
template <class From, class To>
__global__ void __launch_bounds__(kThreads) index_convert_all(const From* x, To* y, Strided<1> walk, int64_t n) {
  for (GridLoop i(n); i; ++i) {
    int64_t at[1];
    walk.offsets(*i, at);
    y[*i] = narrow<To>(widen(x[at[0]]));
  }
}
template <class From, class To> void convert_to(const Context& c, const Buf& x, const Buf& y) {
  const int64_t n = y.numel();
  launch(c, index_convert_all<From, To>, blocks_for(c, n, kThreads), kThreads, 0, x.data<From>(), y.data<To>(),
         Strided<1>(x.shape(), {x.strides()}), n);
}

struct Lines {
  // count: lines. Steps along a line: y, index, src.
  int64_t count, n, step, id_step, src_step;
  int64_t inner;  // inner: elements of src after the dimension
};
template <class A, class T>
__global__ void __launch_bounds__(kThreads)
    index_add_lines(Ids index, const T* src, A* y, Strided<3> walk, Lines lines, IndexCheck check) {
  for (GridLoop l(lines.count); l; ++l) {
    int64_t at[3];
    walk.offsets(*l, at);
    const int64_t first = *l / lines.inner * lines.n * lines.inner + *l % lines.inner;
    for (int64_t i = 0; i < lines.n; ++i) {
      const int64_t k = index[at[1] + i * lines.id_step];
      if (check(k, first + i * lines.inner)) y[at[0] + k * lines.step] += widen(src[at[2] + i * lines.src_step]);
    }
  }
}

// (offset in y, position in src); bad indices sort last.
__global__ void __launch_bounds__(kThreads)
    index_make_element_pairs(Ids index, uint64_t* pairs, Strided<2> walk, int64_t n, int64_t step, int64_t y_size,
                             int position_bits, IndexCheck check) {
  for (GridLoop i(n); i; ++i) {
    int64_t at[2];
    walk.offsets(*i, at);
    const int64_t id = index[at[1]];
    pairs[*i] = uint64_t(check(id, *i) ? at[0] + id * step : y_size) << position_bits | uint64_t(*i);
  }
}
// The thread of a run's first pair accumulates the run.
template <class T>
__global__ void __launch_bounds__(kThreads)
    index_add_element_runs(const uint64_t* pairs, const T* src, T* y, Strided<1> walk, int64_t n, int64_t y_size,
                           int position_bits) {
  const uint64_t mask = (uint64_t(1) << position_bits) - 1;
  for (GridLoop i(n); i; ++i) {
    const uint64_t key = pairs[*i] >> position_bits;
    if (key >= uint64_t(y_size) || (*i > 0 && pairs[*i - 1] >> position_bits == key)) continue;
    compute_t<T> sum = widen(y[key]);
    for (int64_t k = *i; k < n && pairs[k] >> position_bits == key; ++k) {
      int64_t at[1];
      walk.offsets(int64_t(pairs[k] & mask), at);
      sum += widen(src[at[0]]);
    }
    y[key] = narrow<T>(sum);
  }
}

template <class T> void scatter_lines(const Context& c, Bufs in, const Buf& out, size_t dim, const IndexCheck& check) {
  using A = compute_t<T>;
  const Buf &index = in[1], &src = in[2];
  Layout wide_layout = *out.layout;
  std::optional<Scratch> wide;  // rounds bf16 once
  Buf y = out;
  if constexpr (std::is_same_v<A, T>) {
    copy_to<T>(c, in[0], out);
  } else {
    wide_layout = Layout::contiguous(out.shape(), DType::f32, c.device);
    wide.emplace(c, wide_layout.bytes());
    y = {&wide_layout, wide->as<std::byte>()};
    convert_to<T, A>(c, in[0], y);
  }
  Shape others = src.shape();
  const Strides y_strides = Layout::contiguous(out.shape(), out.dtype()).strides;
  const Lines lines{src.numel() / src.size(dim), src.size(dim),      y_strides[dim],
                    index.strides()[dim],        src.strides()[dim], product(src.shape(), dim + 1, src.shape().size())};
  others[dim] = 1;
  launch(c, index_add_lines<A, T>, blocks_for(c, lines.count, kThreads), kThreads, 0, ids_of(index), src.data<T>(),
         y.data<A>(), Strided<3>(others, {y_strides, index.strides(), src.strides()}), lines, check);
  if constexpr (!std::is_same_v<A, T>) convert_to<A, T>(c, y, out);
}
template <class T>
void scatter_sorted(const Context& c, Bufs in, const Buf& out, size_t dim, const IndexCheck& check, PairBits bits) {
  const Buf &index = in[1], &src = in[2];
  copy_to<T>(c, in[0], out);
  Strides others = Layout::contiguous(out.shape(), out.dtype()).strides;
  const int64_t step = others[dim], n = src.numel();
  others[dim] = 0;
  SortedPairs pairs(c, n, bits);
  const unsigned blocks = blocks_for(c, n, kThreads);
  launch(c, index_make_element_pairs, blocks, kThreads, 0, ids_of(index), pairs.data(),
         Strided<2>(src.shape(), {others, index.strides()}), n, step, out.numel(), bits.position, check);
  pairs.sort();
  launch(c, index_add_element_runs<T>, blocks, kThreads, 0, static_cast<const uint64_t*>(pairs.data()), src.data<T>(),
         out.data<T>(), Strided<1>(src.shape(), {src.strides()}), n, out.numel(), bits.position);
}
void scatter_add(const op::ScatterAdd& op, Bufs in, Bufs out, Context& c) {
  constexpr int64_t kShort = 32, kManyLines = 8192;
  const Buf &index = in[1], &src = in[2];
  const IndexCheck check = check_of(c, index, op.dim, out[0].size(op.dim));
  const PairBits bits(uint64_t(out[0].numel()), uint64_t(src.numel()));
  kernel::visit_number(out[0].dtype(), [&]<class T>() {
    if (src.numel() == 0) return copy_to<T>(c, in[0], out[0]);
    const int64_t n = src.size(op.dim);
    const bool by_lines = n <= kShort || src.numel() / n >= kManyLines || !bits.fit();
    if (by_lines)
      scatter_lines<T>(c, in, out[0], op.dim, check);
    else
      scatter_sorted<T>(c, in, out[0], op.dim, check, bits);
  });
}

// --- writing slices in place
Error outside_slices(const IndexSite& s, int64_t position, int64_t value) {
  const int64_t n = *s.ignore;  // slices of the update
  return tg::kernel::slice_outside(s.op, value, position, n, s.dim, s.size + n - 1);
}
// y[at + start * step] = update[at], in units of Bits; `per_start` elements per start.
template <class Bits>
__global__ void __launch_bounds__(kThreads)
    index_write_slices(const Bits* update, Ids starts, Bits* y, Strided<3> walk, int64_t step, int64_t n,
                       int64_t per_start, IndexCheck check) {
  for (GridLoop i(n); i; ++i) {
    int64_t at[3];
    walk.offsets(*i, at);
    const int64_t start = starts[at[2]];
    if (check(start, *i / per_start)) y[at[0] + start * step] = update[at[1]];
  }
}
void slice_update(const op::SliceUpdate& op, Bufs in, Bufs out, Context& c) {
  const Buf &update = in[1], &start = in[2], &y = out[0];
  const int64_t n = update.numel(), slices = update.size(op.dim);
  Strides start_strides = Strides::filled(update.shape().size(), 0);
  if (!start.shape().empty()) start_strides[0] = start.strides()[0];
  const IndexSite site{outside_slices, c.op, *start.layout, op.dim, y.size(op.dim) - slices + 1, slices};
  const IndexCheck check(c, site);
  kernel::visit_number(y.dtype(), [&]<class T>() {
    copy_to<T>(c, in[0], y);
    if (n == 0) return;
    launch(c, index_write_slices<T>, blocks_for(c, n, kThreads), kThreads, 0, update.data<T>(), ids_of(start),
           y.data<T>(), Strided<3>(update.shape(), {y.strides(), update.strides(), start_strides}), y.strides()[op.dim],
           n, n / std::max<int64_t>(1, start.numel()), check);
  });
}

TG_STRIDED_KERNEL(op::SliceUpdate, cuda, slice_update);
TG_STRIDED_KERNEL(op::Gather, cuda, gather);
TG_STRIDED_KERNEL(op::IndexSelect, cuda, index_select);
TG_STRIDED_KERNEL(op::IndexSelectGrad, cuda, index_select_grad);
TG_STRIDED_KERNEL(op::ScatterAdd, cuda, scatter_add);
TG_STRIDED_KERNEL(op::Embedding, cuda, embedding);
}  // namespace
}  // namespace tg::cuda
