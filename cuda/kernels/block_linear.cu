// Threads: one per element. Products dequantize the whole weight into scratch: rows of their results are adjacent.
#include <tapegrad/cuda/device/quantize.h>
#include <tapegrad/ops/indexing.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/quantized/block_linear.h>
#include <tapegrad/ops/quantized/inputs.h>

#include <vector>

namespace tg::cuda {
namespace {
constexpr int kThreads = 256;

template <BlockFormat F, class T> __device__ __forceinline__ T element_of(const uint8_t* row, int64_t i) {
  using Block = tg::detail::Block<F>;
  constexpr int kElements = Block::kRuns * Block::kRun;
  const auto at = int(i % kElements);
  const tg::detail::BlockBytes b{row + i / kElements * Block::kBytes};
  return narrow<T>(Block::value(b, Block::scale(b, at / Block::kRun), at / Block::kRun, at % Block::kRun));
}
template <BlockFormat F, class T>
__global__ void __launch_bounds__(kThreads)
    block_values(int64_t total, int64_t n, const uint8_t* codes, int64_t bytes, T* y) {
  for (GridLoop i(total); i; ++i) y[*i] = element_of<F, T>(codes + *i / n * bytes, *i % n);
}
// Rows whose ids are in [first, first + rows), those of a part. The last part notes ids outside of the table.
template <BlockFormat F, class T>
__global__ void __launch_bounds__(kThreads)
    block_rows_of(int64_t total, int64_t n, Ids ids, int64_t first, int64_t rows, const uint8_t* codes, int64_t bytes,
                  T* y, IndexCheck check, bool last) {
  for (GridLoop i(total); i; ++i) {
    const int64_t row = *i / n, id = ids[row] - first;
    if (id >= 0 && id < rows) {
      y[*i] = element_of<F, T>(codes + id * bytes, *i % n);
    } else if (last && !check.inside(ids[row])) {
      check.note(ids[row], row);
      y[*i] = T(compute_t<T>(0));
    }
  }
}

template <class F> void for_parts(const tg::detail::BlockFormats& formats, Bufs codes, DType dtype, F&& f) {
  int64_t first = 0;
  for (size_t i = 0; i < formats.size(); first += codes[i++].size(0))
    kernel::visit_float(dtype, [&]<class T>() {
      tg::detail::visit_block_format(formats[i],
                                     [&]<BlockFormat Format>() { f.template operator()<Format, T>(codes[i], first); });
    });
}
void dequantize_parts(const Context& c, const tg::detail::BlockFormats& formats, Bufs codes, const Buf& to) {
  const int64_t n = to.size(1);
  for_parts(formats, codes, to.dtype(), [&]<BlockFormat F, class T>(const Buf& part, int64_t first) {
    const int64_t total = part.size(0) * n;
    if (total > 0)
      launch(c, block_values<F, T>, blocks_for(c, total, kThreads), kThreads, 0, total, n, part.data<uint8_t>(),
             part.size(1), to.data<T>() + first * n);
  });
}
// A dequantized weight (out, in) for the time of a product.
class Weight {
 public:
  Weight(const Context& c, const tg::detail::BlockFormats& formats, Bufs codes, int64_t out, int64_t in, DType dtype)
      : layout_(Layout::contiguous({out, in}, dtype, c.device)), memory_(c, layout_.bytes()) {
    dequantize_parts(c, formats, codes, buf());
  }
  Buf buf() const { return {&layout_, memory_.as<std::byte>()}; }

 private:
  Layout layout_;
  Scratch memory_;
};
void block_linear(const op::BlockLinear& op, Bufs in, Bufs out, Context& c) {
  if (out[0].numel() == 0) return;
  const size_t parts = op.formats.size();
  const Weight w(c, op.formats, in.subspan(1, parts), out[0].shape().back(), in[0].shape().back(), out[0].dtype());
  std::vector<Buf> all{in[0], w.buf()};
  if (in.size() > 1 + parts) all.push_back(in[1 + parts]);
  op::Linear(op.precision).run(all, out, c);
}
void block_linear_grad(const op::BlockLinearGrad& op, Bufs in, Bufs out, Context& c) {
  if (out[0].numel() == 0) return;
  const int64_t n = in[0].shape().back(), k = out[0].shape().back(), m = out[0].numel() / k;
  const Weight w(c, op.formats, in.subspan(1), n, k, out[0].dtype());
  const Layout rows = Layout::contiguous({m, n}, out[0].dtype(), c.device),
               result = Layout::contiguous({m, k}, out[0].dtype(), c.device);
  const Buf all[] = {{&rows, first_element(in[0])}, w.buf()}, to{&result, first_element(out[0])};
  op::Matmul({.precision = op.precision}).run(all, {&to, 1}, c);
}
Error outside_rows(const IndexSite& s, int64_t position, int64_t value) {
  return tg::kernel::index_outside(s.op, value, tg::detail::position_of(position, s.index.shape), s.index, 0, s.size);
}
void block_rows(const op::BlockRows& op, Bufs in, Bufs out, Context& c) {
  const int64_t n = out[0].shape().back(), total = out[0].numel();
  if (total == 0) return;
  const Bufs all = in.subspan(1);
  int64_t rows = 0;
  for (const Buf& b : all) rows += b.size(0);
  const IndexCheck check(c, {outside_rows, c.op, *in[0].layout, 0, rows});
  for_parts(op.formats, all, out[0].dtype(), [&]<BlockFormat F, class T>(const Buf& codes, int64_t first) {
    launch(c, block_rows_of<F, T>, blocks_for(c, total, kThreads), kThreads, 0, total, n,
           Ids(first_element(in[0]), in[0].dtype()), first, codes.size(0), codes.data<uint8_t>(), codes.size(1),
           out[0].data<T>(), check, first + codes.size(0) == rows);
  });
}
template <class T>
__global__ void __launch_bounds__(kThreads)
    blocks_of_nf4(int64_t blocks, const T* x, uint8_t* to, NonFiniteCheck check) {
  for (GridLoop b(blocks); b; ++b) {
    float v[64];
    for (int i = 0; i < 64; ++i) v[i] = value(x[*b * 64 + i]);
    if (tg::detail::quantize_nf4_block(v, to + *b * 36)) continue;
    for (int i = 0; i < 64; ++i) check(x[*b * 64 + i], *b * 64 + i);
  }
}
void quantize(const op::QuantizeNf4&, Bufs in, Bufs out, Context& c) {
  const int64_t blocks = in[0].numel() / 64;
  if (blocks == 0) return;
  tg::detail::visit_quantizable(in[0].dtype(), [&]<class T>() {
    launch(c, blocks_of_nf4<T>, blocks_for(c, blocks, kThreads), kThreads, 0, blocks, in[0].data<T>(),
           out[0].data<uint8_t>(), NonFiniteCheck(c, in[0], DType::f32));
  });
}
TG_KERNEL(op::QuantizeNf4, cuda, quantize);
TG_KERNEL(op::BlockLinear, cuda, block_linear);
TG_KERNEL(op::BlockLinearGrad, cuda, block_linear_grad);
TG_KERNEL(op::BlockRows, cuda, block_rows);
}  // namespace
}  // namespace tg::cuda
