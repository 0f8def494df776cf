// Contiguous rows or columns are read in place, others copied. A batch with equal strides is one cuBLASLt call.
#include <tapegrad/cuda/device/map.h>
#include <tapegrad/cuda/device/small_m.h>
#include <tapegrad/cuda/gemm/gemm.h>
#include <tapegrad/ops/matmul.h>

#include <algorithm>

namespace tg::cuda {
namespace {

// False unless rows or columns are contiguous without overlap.
bool read_in_place(int64_t rows, int64_t columns, int64_t row_step, int64_t column_step, GemmOperand& x) {
  const auto fits = [](int64_t lines, int64_t length, int64_t line_step, int64_t step) {
    return (length == 1 || step == 1) && (lines == 1 || line_step >= length);
  };
  x.transposed = !fits(rows, columns, row_step, column_step);
  if (x.transposed && !fits(columns, rows, column_step, row_step)) return false;
  const int64_t lines = x.transposed ? columns : rows, length = x.transposed ? rows : columns;
  x.ld = lines == 1 ? length : x.transposed ? column_step : row_step;
  return true;
}

// Matrices in the last two dimensions; others broadcast.
class Batched {
 public:
  Batched(const Context& c, const Buf& b, bool transposed) : layout_(*b.layout) {
    std::byte* p = first_element(b);
    if (!in_place()) {
      for (size_t d = 0; d + 2 < layout_.shape.size(); ++d)  // broadcast matrices are copied once
        if (layout_.strides[d] == 0) layout_.shape[d] = 1;
      copy_.emplace(c, layout_.bytes());
      copy_contiguous(c, {&layout_, b.bytes}, copy_->as<void>());
      layout_ = Layout::contiguous(layout_.shape, layout_.dtype);
      p = copy_->as<std::byte>();
      (void)in_place();
    }
    matrix.data = p;
    matrix.transposed ^= transposed;
  }
  GemmOperand matrix;  // first matrix of the batch
  // Elements between matrices, per batch dimension.
  Strides steps(const Shape& batch) const {
    const size_t nd = layout_.shape.size() - 2;
    Layout l;
    l.shape = Shape(layout_.shape.begin(), layout_.shape.begin() + nd);
    l.strides = Strides(layout_.strides.begin(), layout_.strides.begin() + nd);
    return tg::detail::broadcast_strides(l, batch);
  }

 private:
  Layout layout_;
  std::optional<Scratch> copy_;
  bool in_place() {
    const size_t r = layout_.shape.size() - 2, c = r + 1;
    return read_in_place(layout_.shape[r], layout_.shape[c], layout_.strides[r], layout_.strides[c], matrix);
  }
};

// False unless reading b dominates and the kernels apply.
template <class T> bool small_m(const Context& c, const Gemm& g) {
  constexpr int64_t kWorthwhile = 1 << 16;  // elements of b
  if (g.m > kMaxSmallM || g.batch != 1 || g.a.transposed || g.n * g.k < kWorthwhile) return false;
  const auto at = [](const void* p) { return static_cast<const T*>(p); };
  const SmallM<T> p{at(g.a.data), g.m, g.a.ld, at(g.b.data), g.n, g.k, g.b.ld, at(g.bias), static_cast<T*>(g.out)};
  if (!in_vectors(p, g.b.transposed)) return false;
  multiply_small_m(c, p, g.b.transposed);
  return true;
}
void product(const Context& c, const Gemm& g) {
  if (g.dtype == DType::f32 && small_m<float>(c, g)) return;
  if (g.dtype == DType::bf16 && small_m<bf16>(c, g)) return;
  gemm(c, g);
}

// If a batch shares b, and a's rows have one stride, the batch becomes more rows.
bool fold_batch(Gemm& g, const Shape& batch, const Strides& step_a, const Strides& step_b) {
  for (size_t d = 0; d < batch.size(); ++d)
    if (step_b[d] != 0 && batch[d] != 1) return false;
  if (g.a.transposed) return false;
  Shape rows = batch;
  rows.push_back(g.m);
  Strides step = step_a;
  step.push_back(g.a.ld);
  const Strided<1> walk(rows, {step});
  if (walk.dims > 1 || (walk.dims == 1 && walk.stride[0][0] < g.k)) return false;
  g.m = rows.product();
  if (walk.dims == 1) g.a.ld = walk.stride[0][0];
  return true;
}

void run_batches(const Context& c, Gemm g, const Shape& batch, const Strides& step_a, const Strides& step_b) {
  Strides step_out = Strides::filled(batch.size(), g.m * g.n);
  for (size_t d = batch.size(); d-- > 1;) step_out[d - 1] = step_out[d] * batch[d];
  Strided<3> walk(batch, {step_a, step_b, step_out});
  if (walk.dims > 0) {
    const int longest = int(std::max_element(walk.shape, walk.shape + walk.dims) - walk.shape);
    g.batch = std::exchange(walk.shape[longest], 1);
    g.a.stride = walk.stride[0][longest];
    g.b.stride = walk.stride[1][longest];
    g.out_stride = walk.stride[2][longest];
  }
  int64_t count = 1;
  for (int d = 0; d < walk.dims; ++d) count *= walk.shape[d];
  const auto *a = static_cast<const std::byte*>(g.a.data), *b = static_cast<const std::byte*>(g.b.data);
  auto* out = static_cast<std::byte*>(g.out);
  const auto size = int64_t(size_of(g.dtype));
  for (int64_t i = 0; i < count; ++i) {
    int64_t at[3] = {}, rest = i;
    for (int d = 0; d < walk.dims; rest /= walk.shape[d++])
      for (int k = 0; k < 3; ++k) at[k] += rest % walk.shape[d] * walk.stride[k][d];
    g.a.data = a + at[0] * size;
    g.b.data = b + at[1] * size;
    g.out = out + at[2] * size;
    product(c, g);
  }
}

void matmul(const op::Matmul& op, Bufs in, Bufs out, Context& c) {
  if (out[0].numel() == 0) return;
  const Shape& s = out[0].shape();
  const Shape batch(s.begin(), s.end() - 2);
  const Shape& a_shape = in[0].shape();
  Gemm g;
  g.dtype = out[0].dtype();
  g.products = op.o.precision;
  g.m = s[s.size() - 2];
  g.n = s.back();
  g.k = a_shape[a_shape.size() - 1 - size_t(op.o.trans_a)];
  g.out = first_element(out[0]);
  if (g.k == 0) {
    g.batch = batch.product();
    return gemm(c, g);
  }
  const Batched a(c, in[0], op.o.trans_a), b(c, in[1], op.o.trans_b);
  g.a = a.matrix;
  g.b = b.matrix;
  const Strides step_a = a.steps(batch), step_b = b.steps(batch);
  if (fold_batch(g, batch, step_a, step_b)) return product(c, g);
  run_batches(c, g, batch, step_a, step_b);
}

void linear_into(MatmulPrecision precision, Bufs in, Bufs out, Context& c) {
  if (out[0].numel() == 0) return;
  const Buf &x = in[0], &w = in[1];
  Gemm g;
  g.dtype = out[0].dtype();
  g.products = precision;
  g.n = w.size(0);
  g.k = w.size(1);
  g.m = out[0].numel() / g.n;
  g.out = first_element(out[0]);
  if (g.k == 0 && in.size() > 2) {
    const Layout& bias = *in[2].layout;
    Layout rows = Layout::contiguous({g.m, g.n}, g.dtype);
    rows.strides = {0, bias.strides[0]};
    rows.offset = bias.offset;
    return copy_contiguous(c, {&rows, in[2].bytes}, g.out);
  }
  if (g.k == 0) return gemm(c, g);

  const Strided<1> rows(Shape(x.shape().begin(), x.shape().end() - 1),
                        {Strides(x.strides().begin(), x.strides().end() - 1)});
  std::optional<Contiguous> copy;
  g.a.data = first_element(x);
  if (rows.dims > 1 || !read_in_place(g.m, g.k, rows.dims ? rows.stride[0][0] : 0, x.strides().back(), g.a)) {
    copy.emplace(c, x);
    g.a = {.data = copy->data(), .ld = g.k};
  }
  const Batched weight(c, w, true);
  g.b = weight.matrix;
  std::optional<Contiguous> bias;
  if (in.size() > 2) g.bias = bias.emplace(c, in[2]).data();
  product(c, g);
}

void linear(const op::Linear& op, Bufs in, Bufs out, Context& c) { linear_into(op.precision, in, out, c); }

template <class F> struct Value {
  template <class T> __device__ __forceinline__ static T f(Scalars<T>, T x) { return F::f(x); }
};
template <class F> void linear_activation(const op::LinearActivation<F>& op, Bufs in, Bufs out, Context& c) {
  linear_into(op.precision, in, out, c);
  visit_computed(out[0].dtype(), [&]<class T>() { map<Value<F>, T, T>(c, out, out[0]); });
}
TG_STRIDED_KERNELS(op::ActivationFns, op::LinearActivation, cuda, linear_activation);
TG_STRIDED_KERNEL(op::Matmul, cuda, matmul);
TG_STRIDED_KERNEL(op::Linear, cuda, linear);
}  // namespace
}  // namespace tg::cuda
