#include "support/block_weights.h"
#include "support/quantized.h"

using namespace tg;
namespace {
BlockWeight there(BlockWeight w) {
  for (auto& part : w.parts) part.codes = part.codes.to(kGpu);
  return w;
}
}  // namespace

TEST_CASE("blocks on the device: the same values and rows, products within the tolerance of matmul") {
  for (const BlockFormat f : kBlockFormats) {
    const BlockWeight w = random_blocks({{f, 19}, {BlockFormat::q8_0, 1}, {f, 20}}, 512, 1), gpu = there(w);
    for (const DType d : {DType::f64, DType::f32, DType::bf16}) {
      CAPTURE_ALL(detail::layout_of_block(f).name, name_of(d));
      expect_same(dequantize(gpu, d), dequantize(w, d));
      const Tensor ids = tensor<int64_t>({39, 0, 19, 20, 18, 0}, {2, 3});
      expect_same(block_rows(gpu, ids.to(kGpu), d), block_rows(w, ids, d));
      const Tensor b = make({40}, 2, d), g = make({2, 5, 40}, 3, d);
      const Tensor x = make({2, 5, 512}, 4, d).requires_grad_(), y = on_cuda(x).requires_grad_();
      const Tensor cpu = block_linear(x, w, b), result = block_linear(y, gpu, b.to(kGpu));
      CHECK(distance(result, cpu) < tolerance(d, 512));
      CHECK(distance(grad({result}, {y}, {g.to(kGpu)})[0], grad({cpu}, {x}, {g})[0]) < tolerance(d, 40));
    }
  }
}
TEST_CASE("blocks on the device: an id outside is named at the next read, as on the CPU") {
  const BlockWeight w = random_blocks({{BlockFormat::q4_0, 3}, {BlockFormat::q6_k, 4}}, 256, 1);
  for (const int64_t id : {7, -1}) {
    const Tensor ids = tensor<int64_t>({0, 1, id, 2}, {2, 2});
    const Tensor rows = block_rows(there(w), ids.to(kGpu), DType::f32);
    CHECK(error_of([&] { bits_of(rows); }) == error_of([&] { block_rows(w, ids, DType::f32); }));
  }
}
TEST_CASE("nf4 on the device: the same bytes, and the same element is refused") {
  for (const DType d : kQuantizable) {
    Tensor x = many_binades({40, 128}, 1).to(d);
    expect_same(quantize_nf4(x.to(kGpu)).parts[0].codes, quantize_nf4(x).parts[0].codes);
  }
  Tensor x = random({40, 128}, 2);
  x.mutable_data<float>()[700] = kNan, x.mutable_data<float>()[600] = kInf;
  expect_named([](const Tensor& t) { return quantize_nf4(t).parts[0].codes; }, x, Store::contiguous, "(4, 88)");
}
