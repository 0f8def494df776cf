#include <tapegrad/cpu/gemm/gemm.h>
#include <tapegrad/cpu/simd/lanes.h>
#include <tapegrad/cpu/simd/loop.h>
#include <tapegrad/cpu/simd/scratch.h>
#include <tapegrad/ops/training/optim_math.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace tg::cpu::TG_ISA_NS {
namespace {
// A full bf16 block: f32 holds the squares exactly, so rounded sums suffice. Else NaN.
template <class T> float f32_square_sum(int64_t n, const T* p) {
  if constexpr (std::is_same_v<T, bf16>)
    if (n == kBlock)
      return lane_sums<1, float>(kBlock, [p]<class V>(int64_t j) {
        const V x = load<V>(p + j);
        return std::array<V, 1>{x * x};
      })[0];
  return std::numeric_limits<float>::quiet_NaN();
}
template <class T> double square_sum(const Buf& x, const Walk<1>& walk, int64_t begin, int64_t end) {
  double sum = 0;
  walk.rows(begin, end, [&](int64_t n, const At<1>& at, const At<1>& step) {
    RowOperand<T> row(x.data<T>() + at[0], step[0]);
    for (int64_t i = 0; i < n; i += kBlock) {
      const int64_t m = std::min(kBlock, n - i);
      const T* p = row.block(i, m);
      if (const float quick = f32_square_sum(m, p); quick > 0x1p-90f && quick < std::numeric_limits<float>::infinity())
        sum += double(quick);
      else
        sum += lane_sum<double>(m, [p](int64_t j) { return double(p[j]) * double(p[j]); });
    }
  });
  return sum;
}
struct Tile {
  size_t tensor;
  int64_t begin, end;
};
std::vector<Tile> tiles_of(Bufs tensors) {
  std::vector<Tile> tiles;
  for (size_t k = 0; k < tensors.size(); ++k)
    for (int64_t i = 0, n = tensors[k].numel(); i < n; i += kGrain) tiles.push_back({k, i, std::min(n, i + kGrain)});
  return tiles;
}
void square_sums(const op::SquareSums&, Bufs in, Bufs out, Context&) {
  static_assert(kGrain == op::SquareSums::kSegment);
  const std::vector<Tile> tiles = tiles_of(in);
  std::vector<Walk<1>> walks;
  walks.reserve(in.size());
  for (const Buf& x : in) walks.emplace_back(x.shape(), std::array<Strides, 1>{x.strides()});
  double* const sums = out[0].data<double>();
  parallel_for(int64_t(tiles.size()), [&](int64_t t) {
    const Tile& tile = tiles[size_t(t)];
    const Buf& x = in[tile.tensor];
    kernel::visit_float(x.dtype(),
                        [&]<class T>() { sums[t] = square_sum<T>(x, walks[tile.tensor], tile.begin, tile.end); });
  });
}
void norm_of_square_sums(const op::NormOfSquareSums&, Bufs in, Bufs out, Context&) {
  const double* const sums = in[0].data<double>();
  double sum = 0;
  for (int64_t i = 0; i < in[0].numel(); ++i) sum += sums[i];
  kernel::visit_among<double, float>(out[0].dtype(), [&]<class T>() { *out[0].data<T>() = T(std::sqrt(sum)); });
}

std::optional<double> norm_of(Bufs in, size_t lists) {
  if (in.size() == lists) return {};
  const Buf& x = in[lists];
  return x.dtype() == DType::f64 ? *x.data<double>() : double(*x.data<float>());
}
struct Clip {
  double factor = 1;
  bool skip = false;  // skip: weights and state stay
  template <class Op> Clip(const Op& op, const std::optional<double>& norm) {
    if (!norm) return;
    const double c = op.max_norm / (*norm + 1e-6);
    factor = c > 1 ? 1 : c;  // NaN stays visible
    skip = op.o.skip_non_finite && !std::isfinite(*norm);
  }
};
template <class... I, class... O> void keep(int64_t n, const std::tuple<I...>& in, const std::tuple<O...>& out) {
  const auto one = [n](auto from, auto to) {
    if (from != to) std::copy_n(from, n, to);
  };
  [&]<size_t... K>(std::index_sequence<K...>) {
    (one(std::get<K>(in), std::get<K>(out)), ...);
  }(std::index_sequence_for<I...>());
}
template <class Numbers, class T> struct Clipped : Numbers {
  T clip;
  bool skip;
  template <class Op, class Overrides>
  Clipped(const Op& op, const Overrides& x, const Clip& c) : Numbers(op, x), clip(T(c.factor)), skip(c.skip) {}
};
template <class T> using AdamWOf = Clipped<op::AdamWNumbers<T>, T>;
template <class T> using SgdOf = Clipped<op::SgdNumbers<T>, T>;
// `at`: the position in the weight.
template <class T, class M, class G>
void adamw_block(int64_t n, int64_t at, const AdamWOf<T>& numbers, const std::tuple<const T*, const M*, const M*>& in,
                 const G* g, const std::tuple<T*, M*, M*>& out) {
  const AdamWOf<T> c = numbers;
  const auto decay = c.decay(c.now);  // hoisted: selects prevent vectorisation
  if (c.skip) return keep(n, in, out);
  const auto [w, m, v] = in;
  const auto [w1, m1, v1] = out;
  TG_SAME_INDEX
  for (int64_t i = 0; i < n; ++i) {
    T x = w[i], a = T(m[i]), b = T(v[i]);
    c.template update<!std::is_same_v<T, M>>(c.now, decay, c.clip, T(g[i]), x, a, b);
    w1[i] = x;
    if constexpr (std::is_same_v<T, M>) {
      m1[i] = a, v1[i] = b;
    } else {
      const uint32_t word = op::rounding_word(c.now.key, uint32_t(at) + uint32_t(i));
      m1[i] = op::stochastic_bf16(a, word), v1[i] = op::stochastic_bf16(b, word >> 16);
    }
  }
}
template <class T, class G>
void sgd_block(int64_t n, const SgdOf<T>& numbers, bool nesterov, const std::tuple<const T*, const T*>& in, const G* g,
               const std::tuple<T*, T*>& out) {
  const SgdOf<T> c = numbers;
  if (c.skip) return keep(n, in, out);
  const auto [w, b] = in;
  const auto [w1, b1] = out;
  const auto loop = [&](auto direction) {
    TG_SAME_INDEX
    for (int64_t i = 0; i < n; ++i) {
      const T x = T(g[i]) * c.clip + c.decay * w[i], y = c.now.keep * b[i] + c.now.take * x;
      w1[i] = w[i] - c.now.rate * direction(x, y), b1[i] = y;
    }
  };
  nesterov ? loop([&](T x, T y) { return x + c.momentum * y; }) : loop([](T, T y) { return y; });
}
template <class T, class G>
void sgd_block(int64_t n, const SgdOf<T>& numbers, bool, const std::tuple<const T*>& in, const G* g,
               const std::tuple<T*>& out) {
  const SgdOf<T> c = numbers;
  if (c.skip) return keep(n, in, out);
  const auto [w] = in;
  const auto [w1] = out;
  TG_SAME_INDEX
  for (int64_t i = 0; i < n; ++i) w1[i] = w[i] - c.now.rate * (T(g[i]) * c.clip + c.decay * w[i]);
}
// block<W>(tensor, at, n, inputs, gradient, outputs) covers n entries of kLists tensors. W: weights' type, bf16 if
// split. Gradients and AdamW's moments may be bf16 unless it is f64.
template <size_t I, class W, class M> using ListOf = std::conditional_t<I == 0, W, M>;
template <size_t kLists, class Block> void update(size_t n, Bufs in, Bufs grads, Bufs out, const Block& block) {
  constexpr size_t kAll = kLists + 2;  // w of out, then all of in
  const std::vector<Tile> tiles = tiles_of(out.first(n));
  std::vector<Walk<kAll>> walks;
  walks.reserve(n);
  for (size_t k = 0; k < n; ++k) {
    std::array<Strides, kAll> strides{out[k].strides()};
    for (size_t role = 0; role < kLists; ++role) strides[role + 1] = in[role * n + k].strides();
    strides[kLists + 1] = grads[k].strides();
    walks.emplace_back(out[k].shape(), strides);
  }
  parallel_for(int64_t(tiles.size()), [&](int64_t t) {
    const auto& [k, begin, end] = tiles[size_t(t)];
    const auto run = [&]<class W, class M, class G>() {
      walks[k].rows(begin, end, [&](int64_t size, const At<kAll>& at, const At<kAll>& step) {
        [&]<size_t... I>(std::index_sequence<I...>) {
          const auto to = [&](int64_t o) { return std::tuple(out[I * n + k].template data<ListOf<I, W, M>>() + o...); };
          [&](auto&& grad, auto&&... from) {
            for (int64_t i = 0; i < size; i += kBlock) {
              const int64_t some = std::min(kBlock, size - i), o = at[0] + i;
              block.template operator()<W>(k, o, some, std::tuple(from.block(i, some)...), grad.block(i, some), to(o));
            }
          }(RowOperand<G>(grads[k].template data<G>() + at[kLists + 1], step[kLists + 1]),
            RowOperand<ListOf<I, W, M>>(in[I * n + k].template data<ListOf<I, W, M>>() + at[I + 1], step[I + 1])...);
        }(std::make_index_sequence<kLists>());
      });
    };
    const auto of_gradient = [&]<class W, class M>() {
      kernel::visit_among<bf16, float>(grads[k].dtype(), [&]<class G>() { run.template operator()<W, M, G>(); });
    };
    if (out[k].dtype() == DType::f64) return run.template operator()<double, double, double>();
    if constexpr (kLists == 3)
      kernel::visit_among<bf16, float>(out[k].dtype(), [&]<class W>() {
        kernel::visit_among<bf16, float>(out[n + k].dtype(),
                                         [&]<class M>() { of_gradient.template operator()<W, M>(); });
      });
    else
      of_gradient.template operator()<float, float>();
  });
}
template <template <class> class Numbers> struct Both {
  std::vector<Numbers<float>> f32;
  std::vector<Numbers<double>> f64;
  template <class Op> Both(const Op& op, Bufs out, const Clip& clip) {
    const auto fill = [&]<class T>(std::vector<Numbers<T>>& to) {
      if (std::is_same_v<T, double> && std::ranges::find(out, DType::f64, &Buf::dtype) == out.end()) return;
      to.reserve(op.tensors());
      for (const auto& x : op.each) to.emplace_back(op, x, clip);
    };
    fill(f32), fill(f64);
  }
  template <class T> const Numbers<T>& of(size_t k) const {
    if constexpr (std::is_same_v<T, double>)
      return f64[k];
    else
      return f32[k];
  }
};
// Inputs after the lists, bf16 copies of weights, low bits.
struct Rest {
  Bufs grads;
  std::vector<bf16*> copy;  // null: the weight has none
  std::vector<uint16_t*> low;
  template <class Op> Rest(const Op& op, size_t updated, Bufs in, Bufs out) : copy(op.tensors()), low(op.tensors()) {
    const size_t n = updated * op.tensors();
    const Bufs copies = out.subspan(n + op.split.size());
    grads = in.subspan(out.size());
    for (size_t j = 0; j < op.split.size(); ++j) low[op.split[j]] = out[n + j].data<uint16_t>();
    for (size_t j = 0; j < copies.size(); ++j) copy[op.copied[j]] = copies[j].data<bf16>();
  }
  template <class T> void write_copy(size_t k, int64_t at, int64_t n, const T* w) const {
    bf16* const to = copy[k];
    if (!to) return;
    for (int64_t i = 0; i < n; ++i) to[at + i] = bf16(float(w[i]));
  }
};
// Copies low bits, and elements outside the updated parts.
template <class Op> void keep_rest(const Op& op, Bufs in, Bufs out) {
  const size_t copies = out.size() - op.copied.size(), low = copies - op.split.size();
  for (size_t k = 0; k < copies; ++k) {
    if ((k < low && k >= op.first.size()) || in[k].bytes == out[k].bytes) continue;
    kernel::visit_size(out[k].dtype(),
                       [&]<class T>() { copy_elements(in[k], out[k].template raw<T>(), out[k].strides()); });
  }
}
void adamw_step(const op::AdamWStep& op, Bufs all_in, Bufs all_out, Context&) {
  keep_rest(op, all_in, all_out);
  const op::StepParts parts(op.first, op.copied, op.split, all_in, all_out);
  const Bufs in = parts.in(), out = parts.out();
  const size_t n = op.tensors();
  const Rest rest(op, 3, in, out);
  const Both<AdamWOf> numbers(op, out, Clip(op, norm_of(rest.grads, n)));
  update<3>(n, in, rest.grads, out,
            [&]<class W>(size_t k, int64_t at, int64_t size, const auto& from, const auto* grad, const auto& to) {
              const int64_t place = at + (op.first.empty() ? 0 : op.first[k]);
              if constexpr (std::is_same_v<W, bf16>) {
                float x[kBlock];
                uint16_t* const low = rest.low[k] + at;
                const auto [w, m, v] = from;
                const auto [w1, m1, v1] = to;
                for (int64_t i = 0; i < size; ++i) x[i] = op::join(w[i], low[i]);
                adamw_block(size, place, numbers.of<float>(k), std::tuple(std::as_const(x) + 0, m, v), grad,
                            std::tuple(x + 0, m1, v1));
                TG_SAME_INDEX
                for (int64_t i = 0; i < size; ++i) {
                  const op::SplitWeight s = op::split(x[i]);
                  w1[i].bits = s.high.bits, low[i] = s.low;  // struct copies prevent vectorisation
                }
              } else {
                adamw_block(size, place, numbers.of<W>(k), from, grad, to);
                rest.write_copy(k, at, size, std::get<0>(to));
              }
            });
}
thread_local Scratch t_gradient;
void adamw_product_step(const op::AdamWProductStep& op, Bufs in, Bufs out, Context&) {
  constexpr int64_t kTile = 24576, kMostColumns = 8192, kMostRows = 24;  // long rows, in memory order
  const int64_t r = in[3].size(0), rows = in[3].size(1), columns = in[4].size(1);
  if (out[0].numel() == 0) return;
  const int64_t wide = std::min(columns, kMostColumns), high = std::min(kTile / wide, kMostRows);
  const auto run = [&]<class T, class M>() {
    const AdamWOf<T> numbers(op, op.each[0], Clip(op, norm_of(in, 5)));
    const MatView<T> a{in[3].data<T>(), 1, rows}, b{in[4].data<T>(), columns, 1};
    const int64_t across = (columns + wide - 1) / wide, down = (rows + high - 1) / high;
    parallel_for(across * down, [&](int64_t t) {
      const int64_t i = t / across * high, j = t % across * wide;
      const int64_t m = std::min(high, rows - i), n = std::min(wide, columns - j);
      T* const g = t_gradient.get<T>(high * wide);
      gemm_serial<T>(m, n, r, a.at(i, 0), b.at(0, j), g, n);
      for (int64_t q = 0; q < m; ++q) {
        const int64_t at = (i + q) * columns + j;
        adamw_block<T, M, T>(n, at, numbers, {in[0].data<T>() + at, in[1].data<M>() + at, in[2].data<M>() + at},
                             g + q * n, {out[0].data<T>() + at, out[1].data<M>() + at, out[2].data<M>() + at});
      }
    });
  };
  if (out[0].dtype() == DType::f64) return run.template operator()<double, double>();
  out[1].dtype() == DType::bf16 ? run.template operator()<float, bf16>() : run.template operator()<float, float>();
}
void sgd_step(const op::SgdStep& op, Bufs all_in, Bufs all_out, Context&) {
  keep_rest(op, all_in, all_out);
  const op::StepParts parts(op.first, op.copied, op.split, all_in, all_out);
  const Bufs in = parts.in(), out = parts.out();
  const size_t n = op.tensors();
  const Rest rest(op, op.updated(), in, out);
  const Both<SgdOf> numbers(op, out, Clip(op, norm_of(rest.grads, n)));
  const auto block = [&]<class T>(size_t k, int64_t at, int64_t size, const auto& from, const auto* grad,
                                  const auto& to) {
    sgd_block<T>(size, numbers.of<T>(k), op.o.nesterov, from, grad, to);
    rest.write_copy(k, at, size, std::get<0>(to));
  };
  op.updated() == 2 ? update<2>(n, in, rest.grads, out, block) : update<1>(n, in, rest.grads, out, block);
}
TG_STRIDED_KERNEL(op::SquareSums, cpu, square_sums);
TG_KERNEL(op::NormOfSquareSums, cpu, norm_of_square_sums);
TG_STRIDED_KERNEL(op::AdamWStep, cpu, adamw_step);
TG_KERNEL(op::AdamWProductStep, cpu, adamw_product_step);
TG_STRIDED_KERNEL(op::SgdStep, cpu, sgd_step);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
