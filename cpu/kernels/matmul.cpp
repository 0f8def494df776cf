#include <tapegrad/cpu/gemm/gemm_bf16.h>
#include <tapegrad/cpu/simd/loop.h>
#include <tapegrad/cpu/simd/scratch.h>
#include <tapegrad/ops/matmul.h>

namespace tg::cpu::TG_ISA_NS {
namespace {
void matmul(const op::Matmul& op, Bufs in, Bufs out, Context&) {
  const Shape& s = out[0].shape();
  const size_t nd = s.size();
  const int64_t m = s[nd - 2], n = s[nd - 1];
  const int64_t k = in[0].shape()[in[0].shape().size() - 1 - size_t(op.o.trans_a)];
  kernel::visit_float(out[0].dtype(), [&]<class T>() {
    const auto matrix = [](const Buf& x, int64_t at, bool trans) {
      const size_t d = x.strides().size();
      const MatView<T> v{x.data<T>() + at, x.strides()[d - 2], x.strides()[d - 1]};
      return trans ? v.transposed() : v;
    };
    // Batch strides, broadcast to the output.
    Shape batch(s.begin(), s.end() - 2);
    const auto batch_strides = [&](const Buf& x) {
      const size_t d = x.shape().size() - 2;
      Layout l;
      l.shape = Shape(x.shape().begin(), x.shape().begin() + d);
      l.strides = Strides(x.strides().begin(), x.strides().begin() + d);
      return tg::detail::broadcast_strides(l, batch);
    };
    T* const c = out[0].data<T>();
    const int64_t count = batch.product();
    if (count == 1)
      return gemm_as(op.o.precision, m, n, k, matrix(in[0], 0, op.o.trans_a), matrix(in[1], 0, op.o.trans_b), c, n);
    const Walk<2> walk(batch, {batch_strides(in[0]), batch_strides(in[1])});
    const MatView<T> first = matrix(in[0], 0, op.o.trans_a);
    Shape all = batch;
    all.push_back(m);
    Strides steps = batch_strides(in[0]);
    steps.push_back(first.row);
    const Walk<1> rows(all, {steps});
    if (walk.shape.size() == 1 && walk.strides[1][0] == 0 && rows.shape.size() == 1)
      return gemm_as(op.o.precision, count * m, n, k, MatView<T>{first.p, rows.strides[0][0], first.col},
                     matrix(in[1], 0, op.o.trans_b), c, n);
    const bool many = m * n * k < (1 << 20);  // small matrices: one thread each
    const auto range = [&](int64_t begin, int64_t end) {
      int64_t i = begin;
      walk.rows(begin, end, [&](int64_t r, At<2> at, At<2> step) {
        for (int64_t x = 0; x < r; ++x, ++i) {
          const auto a = matrix(in[0], at[0] + x * step[0], op.o.trans_a),
                     b = matrix(in[1], at[1] + x * step[1], op.o.trans_b);
          if (many)
            gemm_serial<T>(m, n, k, a, b, c + i * m * n, n);
          else
            gemm_as(op.o.precision, m, n, k, a, b, c + i * m * n, n);
        }
      });
    };
    if (many)
      parallel_for(count, std::max<int64_t>(1, (1 << 17) / std::max<int64_t>(1, m * n * k)), range);
    else
      range(0, count);
  });
}

thread_local Scratch t_x, t_bias;
// x weight^T + bias; out is f32 if `unrounded`, which has no bias.
template <class T> void product(MatmulPrecision precision, Bufs in, const Buf& out, bool unrounded = false) {
  using C = compute_t<T>;
  const Buf &x = in[0], &weight = in[1];
  const int64_t n = weight.size(0), k = weight.size(1), m = out.numel() / n;
  const Walk<1> rows(x.shape().without_last(), {x.strides().without_last()});
  MatView<T> a{x.data<T>(), rows.strides[0][0], x.strides().back()};
  if (rows.shape.size() > 1) {
    T* const copy = t_x.get<T>(m * k);
    copy_elements(x, copy, dense(x.shape()));
    a = {copy, k, 1};
  }
  const MatView<T> b = MatView<T>{weight.data<T>(), weight.strides()[0], weight.strides()[1]}.transposed();
  if constexpr (std::is_same_v<T, bf16>)
    if (unrounded) return gemm<T>(m, n, k, a, b, nullptr, n, {.unrounded = out.data<float>()});
  (void)unrounded;
  C* bias = nullptr;
  if (in.size() > 2) {
    bias = t_bias.get<C>(n);
    for (int64_t j = 0; j < n; ++j) bias[j] = C(in[2].data<T>()[j * in[2].strides()[0]]);
  }
  const auto finish = [bias](C* row, int64_t j, int64_t count) {
    for (int64_t i = 0; i < count; ++i) row[i] += bias[j + i];
  };
  const FunctionRef<void(C*, int64_t, int64_t)> finish_row(finish);
  gemm_as(precision, m, n, k, a, b, out.data<T>(), n, {.finish = bias ? &finish_row : nullptr});
}
void linear(const op::Linear& op, Bufs in, Bufs out, Context&) {
  if (out[0].numel() > 0)
    kernel::visit_float(in[0].dtype(), [&]<class T>() { product<T>(op.precision, in, out[0], op.unrounded); });
}
// Calls the activation's kernel: compilers may round another loop over F differently.
template <class F> void linear_activation(const op::LinearActivation<F>& op, Bufs in, Bufs out, Context& c) {
  if (out[0].numel() == 0) return;
  kernel::visit_float(out[0].dtype(), [&]<class T>() { product<T>(op.precision, in, out[0]); });
  stateless<op::Unary<F>>()->run(out, out, c);
}
TG_STRIDED_KERNELS(op::ActivationFns, op::LinearActivation, cpu, linear_activation);
TG_STRIDED_KERNEL(op::Matmul, cpu, matmul);
TG_STRIDED_KERNEL(op::Linear, cpu, linear);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
