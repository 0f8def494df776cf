// Gathers walk the output. Scatters give each element one writer, which adds in source order.
#include <tapegrad/cpu/simd/rows.h>
#include <tapegrad/cpu/simd/sums.h>
#include <tapegrad/ops/indexing.h>

#include <atomic>
#include <vector>

namespace tg::cpu::TG_ISA_NS {
namespace {
template <class F> void report_outside(const Buf& index, int64_t size, F&& f) {
  const auto ids = flat_indices(index);
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= size) f(ids[i], tg::detail::position_of(int64_t(i), index.shape()));
}
bool inside(int64_t id, int64_t size) { return uint64_t(id) < uint64_t(size); }

// y[...] = x[... + index[...] * step]. Strides over y's shape.
struct Pick {
  const Buf &x, &index, &y;
  Strides x_strides, index_strides;
  int64_t step, size;  // step and size of x along the indexed dimension

  template <class T, class I> bool run() const {  // false: an index is outside
    std::atomic<bool> ok = true;
    const auto row = [&](int64_t n, const At<3>& at, const At<3>& s) {
      T* to = y.raw<T>() + at[0];
      const T* from = x.raw<T>() + at[1];
      const I* id = index.data<I>() + at[2];
      bool good = true;
      if (s[2] == 0) {  // one index: a segment of a slice
        good = inside(*id, size);
        const T* p = good ? from + int64_t(*id) * step : from;
        if (good && s[1] == 1)
          std::copy_n(p, n, to);
        else if (good)
          for (int64_t i = 0; i < n; ++i) to[i] = p[i * s[1]];
      } else {
        for (int64_t i = 0; i < n; ++i) {
          const int64_t k = id[i * s[2]];
          if (inside(k, size)) [[likely]]
            to[i] = from[i * s[1] + k * step];
          else
            good = false;
        }
      }
      if (!good) ok = false;
    };
    for_rows<3>(y.shape(), {y.strides(), x_strides, index_strides}, row);
    return ok;
  }
  bool operator()() const {  // one instance per element size
    bool ok = true;
    kernel::visit_index(index.dtype(),
                        [&]<class I>() { kernel::visit_size(y.dtype(), [&]<class T>() { ok = run<T, I>(); }); });
    return ok;
  }
};
// Throws if an index along `dim` is outside [0, size).
void check_inside(const Op& op, const Buf& index, size_t dim, int64_t size) {
  report_outside(index, size, [&](int64_t id, const Dims& p) {
    throw tg::kernel::index_outside(op.name(), id, p, *index.layout, dim, size);
  });
}

void gather(const op::Gather& op, Bufs in, Bufs out, Context&) {
  const Buf &x = in[0], &index = in[1];
  Strides others = x.strides();
  others[op.dim] = 0;
  const int64_t size = x.size(op.dim);
  if (!Pick{x, index, out[0], others, index.strides(), x.strides()[op.dim], size}())
    check_inside(op, index, op.dim, size);
}
void index_select(const op::IndexSelect& op, Bufs in, Bufs out, Context&) {
  const Buf &x = in[0], &index = in[1];
  Strides others = x.strides(), along = Strides::filled(others.size(), 0);
  others[op.dim] = 0;
  along[op.dim] = index.strides()[0];
  const int64_t size = x.size(op.dim);
  if (!Pick{x, index, out[0], others, along, x.strides()[op.dim], size}()) check_inside(op, index, op.dim, size);
}
void embedding(const op::Embedding&, Bufs in, Bufs out, Context&) {
  const Buf &ids = in[0], &table = in[1];
  Strides columns = Strides::filled(ids.shape().size(), 0), rows = ids.strides();
  columns.push_back(table.strides()[1]);
  rows.push_back(0);
  const int64_t size = table.size(0);
  if (Pick{table, ids, out[0], columns, rows, table.strides()[0], size}()) return;
  report_outside(ids, size,
                 [&](int64_t id, const Dims& where) { throw tg::kernel::id_outside(id, where, *ids.layout, size); });
}

// One thread adds a line along the dimension, or adjacent lines together, in order.
template <class A, class T, class I>
bool add_lines(const Buf& index, const Buf& src, A* y, const Strides& y_strides, size_t dim, int64_t size) {
  Shape others = src.shape();
  const int64_t n = others[dim], step = y_strides[dim], id_step = index.strides()[dim], src_step = src.strides()[dim];
  others[dim] = 1;
  const Walk<3> walk(others, {y_strides, index.strides(), src.strides()});
  const bool apart = walk.strides[0].back() > step;  // elements are closer than lines
  const int64_t grain = std::max<int64_t>(apart ? 1 : 256, kGrain / std::max<int64_t>(1, n));
  std::atomic<bool> ok = true;
  parallel_for(walk.shape.product(), grain, [&](int64_t begin, int64_t end) {
    walk.rows(begin, end, [&](int64_t lines, const At<3>& at, const At<3>& s) {
      A* to = y + at[0];
      const I* id = index.data<I>() + at[1];
      const T* from = src.data<T>() + at[2];
      bool good = true;
      const auto add = [&](int64_t i, int64_t j) {
        const int64_t k = id[i * id_step + j * s[1]];
        if (inside(k, size)) [[likely]]
          to[k * step + j * s[0]] += A(from[i * src_step + j * s[2]]);
        else
          good = false;
      };
      if (apart)
        for (int64_t j = 0; j < lines; ++j)
          for (int64_t i = 0; i < n; ++i) add(i, j);
      else
        for (int64_t i = 0; i < n; ++i)
          for (int64_t j = 0; j < lines; ++j) add(i, j);
      if (!good) ok = false;
    });
  });
  return ok;
}
// y = x (zeros when null) + src at the indices; false: an index is outside.
template <class T> bool add_at(const Buf* x, const Buf& index, const Buf& src, const Buf& y, size_t dim) {
  using A = compute_t<T>;
  std::vector<A> wide(std::is_same_v<T, A> ? 0 : size_t(y.numel()));  // rounds bf16 once
  A* sums = wide.data();
  if constexpr (std::is_same_v<T, A>) sums = y.data<T>();
  const Strides strides = dense(y.shape());
  const Shape all{y.numel()};
  if (!x)
    for_rows<1>(all, {Strides{1}}, [&](int64_t n, const auto& at, const auto&) { std::fill_n(sums + at[0], n, A(0)); });
  else if (static_cast<const void*>(sums) != x->data<T>())
    for_rows<2>(y.shape(), {strides, x->strides()}, [&](int64_t n, const auto& at, const auto& step) {
      map_row(
          n, sums + at[0], [](A v) { return v; }, RowOperand<T>(x->data<T>() + at[1], step[1]));
    });
  bool ok = true;
  kernel::visit_index(index.dtype(),
                      [&]<class I>() { ok = add_lines<A, T, I>(index, src, sums, strides, dim, y.size(dim)); });
  if constexpr (!std::is_same_v<T, A>)
    for_rows<1>(all, {Strides{1}}, [&](int64_t n, const auto& at, const auto&) {
      map_row(
          n, y.data<T>() + at[0], [](A v) { return v; }, RowOperand<A>(sums + at[0], 1));
    });
  return ok;
}
void scatter_add(const op::ScatterAdd& op, Bufs in, Bufs out, Context&) {
  bool ok = true;
  kernel::visit_number(out[0].dtype(), [&]<class T>() { ok = add_at<T>(&in[0], in[1], in[2], out[0], op.dim); });
  if (!ok) check_inside(op, in[1], op.dim, out[0].size(op.dim));
}

// Tokens are sorted by id, so slices have one writer. Thin slices are added line by line, unless there is an in[2].
void index_select_grad(const op::IndexSelectGrad& op, Bufs in, Bufs out, Context&) {
  const auto ids = flat_indices(in[0]);
  check_inside(op, in[0], op.dim, op.size);
  const auto m = int64_t(ids.size());
  const Shape& s = out[0].shape();
  const int64_t n = Shape(s.begin() + op.dim + 1, s.end()).product(),
                outer = Shape(s.begin(), s.begin() + op.dim).product();
  const bool add = in.size() > 2;  // dx += in[2]
  if (n < kLanes && !add) {
    Layout each = *in[0].layout;  // index of each element of dy
    each.shape = in[1].shape();
    each.strides = Strides::filled(each.shape.size(), 0);
    each.strides[op.dim] = in[0].strides()[0];
    const Buf index{&each, in[0].bytes};
    kernel::visit_float(out[0].dtype(), [&]<class T>() { add_at<T>(nullptr, index, in[1], out[0], op.dim); });
    return;
  }
  // Tokens with id v: order[first[v] .. first[v + 1]).
  std::vector<int64_t> first(size_t(op.size) + 1), order(ids.size());
  for (int64_t id : ids) ++first[size_t(id) + 1];
  for (size_t v = 0; v < size_t(op.size); ++v) first[v + 1] += first[v];
  auto next = first;
  for (size_t i = 0; i < ids.size(); ++i) order[size_t(next[size_t(ids[i])]++)] = int64_t(i);
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    if (add && out[0].bytes != in[2].bytes) copy_elements(in[2], out[0].data<T>(), dense(s));
    std::vector<T> copy;
    const T* dy = contiguous_data(in[1], copy);
    for_row_tiles(outer * op.size, n, [&](int64_t begin, int64_t end) {
      std::vector<C> row(static_cast<size_t>(n));
      C* const sum = row.data();
      for (int64_t t = begin; t < end; ++t) {
        const int64_t o = t / op.size, v = t % op.size;
        T* to = out[0].data<T>() + t * n;
        if (first[size_t(v)] == first[size_t(v) + 1]) {  // most ids of a vocabulary
          if (!add) std::fill_n(to, n, T(C(0)));
          continue;
        }
        std::fill_n(sum, n, C(0));
        for (int64_t k = first[size_t(v)]; k < first[size_t(v) + 1]; ++k) {
          const T* d = dy + (o * m + order[size_t(k)]) * n;
          for (int64_t j = 0; j < n; ++j) sum[j] += C(d[j]);
        }
        for (int64_t j = 0; add && j < n; ++j) sum[j] += C(to[j]);
        for (int64_t j = 0; j < n; ++j) to[j] = T(sum[j]);
      }
    });
  });
}

void slice_update(const op::SliceUpdate& op, Bufs in, Bufs out, Context&) {
  const Buf &x = in[0], &update = in[1], &y = out[0];
  const int64_t n = update.size(op.dim), size = y.size(op.dim);
  const std::vector<int64_t> starts = flat_indices(in[2]);
  for (size_t i = 0; i < starts.size(); ++i)
    if (starts[i] < 0 || starts[i] > size - n)
      throw tg::kernel::slice_outside(op.name(), starts[i], int64_t(i), n, op.dim, size);
  kernel::visit_size(y.dtype(), [&]<class Bits>() {
    if (y.bytes != x.bytes) copy_elements(x, y.raw<Bits>(), y.strides());
    Layout part = *update.layout;
    if (!in[2].shape().empty()) part.shape[0] = 1;
    for (size_t i = 0; i < starts.size(); ++i) {
      const Buf from{&part, update.bytes};
      copy_elements(from, y.raw<Bits>() + int64_t(i) * y.strides()[0] + starts[i] * y.strides()[op.dim], y.strides());
      part.offset += part.strides[0];
    }
  });
}

TG_STRIDED_KERNEL(op::SliceUpdate, cpu, slice_update);
TG_STRIDED_KERNEL(op::Gather, cpu, gather);
TG_STRIDED_KERNEL(op::IndexSelect, cpu, index_select);
TG_STRIDED_KERNEL(op::IndexSelectGrad, cpu, index_select_grad);
TG_STRIDED_KERNEL(op::ScatterAdd, cpu, scatter_add);
TG_STRIDED_KERNEL(op::Embedding, cpu, embedding);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
