// Kernels of ops/matmul.h on cpu/gemm.h. bf16 operands are widened to f32, and the product is rounded once.
#include <tapegrad/cpu/gemm.h>
#include <tapegrad/cpu/loop.h>
#include <tapegrad/ops/linear_activation.h>

#include <vector>

namespace tg::cpu::TG_ISA_NS {
namespace {
// The data of a buffer in the dtype that gemm computes in, with its strides; bf16 goes through `scratch`, contiguous.
template <class T> struct Operand {
  using C = compute_t<T>;
  const C* p;
  Strides strides;
  std::vector<C> scratch;
  explicit Operand(const Buf& b) : strides(b.strides()) {
    if constexpr (std::is_same_v<T, C>) {
      p = b.data<T>();
    } else {
      scratch.resize(size_t(b.numel()));
      strides = dense(b.shape());
      using At = std::array<int64_t, 2>;
      for_rows<2>(b.shape(), {strides, b.strides()}, [&](int64_t n, At at, At step) {
        map_row(
            n, scratch.data() + at[0], [](float x) { return x; }, RowOperand<T>(b.data<T>() + at[1], step[1]));
      });
      p = scratch.data();
    }
  }
};
template <class T> void store(const std::vector<compute_t<T>>& from, T* to) {
  parallel_for(int64_t(from.size()), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = T(from[size_t(i)]);
  });
}
// run(pointer to m x n results in compute_t<T>), stored to out as T.
template <class T, class F> void with_output(const Buf& out, F&& run) {
  if constexpr (std::is_same_v<T, compute_t<T>>) {
    run(out.data<T>());
  } else {
    std::vector<compute_t<T>> scratch(size_t(out.numel()));
    run(scratch.data());
    store(scratch, out.data<T>());
  }
}

void matmul(const Matmul& op, Bufs in, Bufs out, Context&) {
  const Shape& s = out[0].shape();
  const size_t nd = s.size();
  const int64_t m = s[nd - 2], n = s[nd - 1];
  const int64_t k = in[0].shape()[in[0].shape().size() - 1 - size_t(op.o.trans_a)];
  visit_float(out[0].dtype(), [&]<class T>() {
    using C = compute_t<T>;
    const Operand<T> a(in[0]), b(in[1]);
    const auto matrix = [](const Operand<T>& x, int64_t at, bool trans) {
      const size_t d = x.strides.size();
      const MatView<C> v{x.p + at, x.strides[d - 2], x.strides[d - 1]};
      return trans ? v.transposed() : v;
    };
    // Strides of the batch dimensions only, broadcast to the output's.
    Shape batch(s.begin(), s.end() - 2);
    const auto batch_strides = [&](const Buf& x, const Strides& st) {
      const size_t d = x.shape().size() - 2;
      Layout l;
      l.shape = Shape(x.shape().begin(), x.shape().begin() + d);
      l.strides = Strides(st.begin(), st.begin() + d);
      return broadcast_strides(l, batch);
    };
    with_output<T>(out[0], [&](C* c) {
      const int64_t count = batch.product();
      if (count == 1) return gemm<C>(m, n, k, matrix(a, 0, op.o.trans_a), matrix(b, 0, op.o.trans_b), c, n);
      const Walk<2> walk(batch, {batch_strides(in[0], a.strides), batch_strides(in[1], b.strides)});
      const bool many = m * n * k < (1 << 20);  // small matrices: one thread each
      const auto range = [&](int64_t begin, int64_t end) {
        int64_t i = begin;
        using At = std::array<int64_t, 2>;
        walk.rows(begin, end, [&](int64_t r, At at, At step) {
          for (int64_t x = 0; x < r; ++x, ++i) {
            const auto va = matrix(a, at[0] + x * step[0], op.o.trans_a),
                       vb = matrix(b, at[1] + x * step[1], op.o.trans_b);
            if (many)
              gemm_serial<C>(m, n, k, va, vb, c + i * m * n, n);
            else
              gemm<C>(m, n, k, va, vb, c + i * m * n, n);
          }
        });
      };
      if (many)
        parallel_for(count, std::max<int64_t>(1, (1 << 17) / std::max<int64_t>(1, m * n * k)), range);
      else
        range(0, count);
    });
  });
}

// x weight^T + bias
template <class T> void product(Bufs in, const Buf& out) {
  using C = compute_t<T>;
  const int64_t n = in[1].size(0), k = in[1].size(1), m = out.numel() / n;
  const Operand<T> w(in[1]);
  const Buf& x = in[0];
  // The rows of x: by its strides when its leading dimensions are one, else copied.
  const Walk<1> rows(Shape(x.shape().begin(), x.shape().end() - 1),
                     {Strides(x.strides().begin(), x.strides().end() - 1)});
  const bool one = rows.shape.size() == 1;
  std::vector<T> dense_x;
  Layout flat = Layout::contiguous({m, k}, x.dtype());
  Buf xb{&flat, x.bytes};
  if (one) {
    flat.strides = {rows.strides[0][0], x.strides().back()};
    flat.offset = x.layout->offset;
  } else {
    dense_x.resize(size_t(m * k));
    T* to = dense_x.data();
    for_each<1>(x.shape(), {x.strides()}, [&](int64_t at) { *to++ = x.data<T>()[at]; });
    xb.bytes = reinterpret_cast<std::byte*>(dense_x.data());
  }
  const Operand<T> a(xb);
  std::vector<C> bias;
  if (in.size() > 2)
    for (int64_t j = 0; j < n; ++j) bias.push_back(C(in[2].data<T>()[j * in[2].strides()[0]]));
  const auto finish = [&, b = bias.data()](C* row, int64_t j, int64_t count) {
    for (int64_t i = 0; i < count; ++i) row[i] += b[j + i];
  };
  const FunctionRef<void(C*, int64_t, int64_t)> finish_row(finish);
  with_output<T>(out, [&](C* c) {
    gemm<C>(m, n, k, {a.p, a.strides[0], a.strides[1]}, MatView<C>{w.p, w.strides[0], w.strides[1]}.transposed(), c, n,
            {.finish = bias.empty() ? nullptr : &finish_row});
  });
}
void linear(const Linear&, Bufs in, Bufs out, Context&) {
  if (out[0].numel() > 0) visit_float(out[0].dtype(), [&]<class T>() { product<T>(in, out[0]); });
}
// The kernel of the activation itself, in place: compilers may round another loop over F otherwise.
template <class F> void linear_activation(const LinearActivation<F>&, Bufs in, Bufs out, Context& c) {
  if (out[0].numel() == 0) return;
  visit_float(out[0].dtype(), [&]<class T>() { product<T>(in, out[0]); });
  stateless<Unary<F>>()->run(out, out, c);
}
template <class... F> bool add_activations(TypeList<F...>, const KernelOrigin& o) {
  (add_kernel<LinearActivation<F>, Backend::cpu, linear_activation<F>>(o), ...);
  return true;
}
constexpr KernelOrigin kActivationOrigin{__FILE__, __LINE__, TG_ISA_LEVEL};
[[maybe_unused]] const bool registered = add_activations(ActivationFns{}, kActivationOrigin);
TG_KERNEL(Matmul, cpu, matmul);
TG_KERNEL(Linear, cpu, linear);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
