// Cases of ops/quantized/, computed from f32 inputs, so every dtype gives the same values. test_switchback.cpp has
// SwitchBack's gradients.
#include <tapegrad/ops/ops.h>

#include <array>

#include "support/op_case_list.h"

namespace tg {
void add_code_cases(std::vector<OpCase>& list, const CaseSizes& size) {
  const int64_t r = size.rows, c = size.cols;
  const auto codes_of = [&](std::string op, const char* variant, std::vector<TensorInit> in,
                            std::function<Tensors(Inputs)> f) {
    list.emplace_back(std::move(op), variant, std::move(in), [f](Inputs x) {
      std::vector<Tensor> narrow;
      for (const Tensor& t : x) narrow.push_back(t.to(DType::f32));
      return f(narrow);
    });
    list.back().gradcheck = 0;
  };
  const auto both = [](const Quantized& q) { return Tensors{q.values, q.absmax.to(DType::f32)}; };
  const TensorInit x = floats({2, r, c}), m = floats({r, c}), w = floats({3 * c, c}), b = floats({3 * c});
  codes_of("quantize_rowwise", "plain", {x}, [=](Inputs v) { return both(quantize_rowwise(v[0])); });
  codes_of("quantize_rowwise", "f16", {x}, [=](Inputs v) { return both(quantize_rowwise(v[0], DType::f16)); });
  codes_of("quantize_rowwise", "columns", {m}, [=](Inputs v) { return both(quantize_columnwise_transpose(v[0])); });
  codes_of("quantize_global", "plain", {x}, [=](Inputs v) { return both(quantize_global(v[0])); });
  codes_of("quantize_global", "transpose", {m}, [=](Inputs v) { return both(quantize_global_transpose(v[0])); });
  codes_of("quantize_both_ways", "plain", {m}, [](Inputs v) {
    const QuantizedRowsAndColumns q = quantize_rows_and_columns(v[0]);
    return Tensors{q.rows.values, q.rows.absmax, q.columns.values, q.columns.absmax};
  });
  codes_of("dequantize", "rows", {x}, [](Inputs v) { return Tensors{dequantize(quantize_rowwise(v[0]))}; });
  codes_of("dequantize", "bf16", {x}, [](Inputs v) { return Tensors{dequantize(quantize_global(v[0]), DType::bf16)}; });
  codes_of("int8_linear", "sums", {x, w},
           [](Inputs v) { return Tensors{int8_linear(quantize_rowwise(v[0]).values, quantize_rowwise(v[1]).values)}; });
  codes_of("int8_linear", "bias", {x, w, b},
           [](Inputs v) { return Tensors{int8_linear(quantize_rowwise(v[0]), quantize_rowwise(v[1]), v[2])}; });
  codes_of("int8_linear", "transposed", {m, floats({c, 2 * c})}, [](Inputs v) {
    const Quantized q = quantize_global(v[1]);
    return Tensors{int8_linear(quantize_rowwise(v[0]), {transpose(q.values, 0, 1), q.absmax}, {}, DType::bf16)};
  });
  for (const bool tanh : {false, true}) {
    codes_of("gelu_quantize_rowwise", tanh ? "tanh" : "erf", {x},
             [=](Inputs v) { return both(gelu_quantize_rowwise(v[0], tanh)); });
    list.back().f32 = list.back().f64 = 1e-2;  // GELU's last bits change int8 values
    codes_of("switchback_mlp", tanh ? "tanh" : "erf", {x, w, floats({c, 3 * c}), b, floats({c})}, [=](Inputs v) {
      return Tensors{switchback_mlp(v[0], {.fc_weight = v[1],
                                           .fc_bias = v[3],
                                           .proj_weight = v[2],
                                           .proj_bias = v[4],
                                           .mode = tanh ? SwitchBackMode::global : SwitchBackMode::vector_wise,
                                           .by_tanh = tanh})};
    });
    list.back().f32 = list.back().f64 = 1e-2;
  }
  for (const auto f : {Fp8Format::e4m3, Fp8Format::e5m2}) {
    const char* const name = name_of(f).data();
    codes_of("quantize_fp8", name, {x}, [f](Inputs v) {
      const QuantizedFp8 q = quantize_fp8(v[0], f);
      return Tensors{q.values, q.absmax};
    });
    codes_of("dequantize_fp8", name, {x},
             [f](Inputs v) { return Tensors{dequantize_fp8(quantize_fp8(v[0], f), DType::bf16)}; });
    codes_of("fp8_linear", name, {x, w, b},
             [f](Inputs v) { return Tensors{fp8_linear(quantize_fp8(v[0], f), quantize_fp8(v[1]), v[2])}; });
  }
  // Bytes below 100 are blocks with finite scales.
  const auto weight = [](Inputs v, size_t first) {
    return BlockWeight{{{v[first].to(DType::u8), BlockFormat::q4_k}, {v[first + 1].to(DType::u8), BlockFormat::q6_k}}};
  };
  const TensorInit q4_k = floats({r, 144}, 0, 100), q6_k = floats({c, 210}, 0, 100),
                   ids{{2, r}, 0, double(r + c), true};
  codes_of("block_rows", "bf16", {q4_k, q6_k},
           [=](Inputs v) { return Tensors{dequantize(weight(v, 0), DType::bf16)}; });
  codes_of("quantize_nf4", "plain", {floats({r, 128})},
           [](Inputs v) { return Tensors{quantize_nf4(v[0]).parts[0].codes}; });
  codes_of("block_rows", "i32", {ids, q4_k, q6_k},
           [=](Inputs v) { return Tensors{block_rows(weight(v, 1), v[0].to(DType::i32), DType::f32)}; });
  const TensorInit q4_k_bytes{{20, 144}, 0, 40, true, false}, q6_k_bytes{{13, 210}, 0, 40, true, false};
  for (const bool bias : {false, true}) {
    std::vector<TensorInit> in{floats({2, r, 256}), q4_k_bytes, q6_k_bytes};
    if (bias) in.push_back(floats({33}));
    list.emplace_back("block_linear", bias ? "bias" : "no_bias", in,
                      [=](Inputs v) { return Tensors{block_linear(v[0], weight(v, 1), bias ? v[3] : Tensor())}; });
  }
  constexpr std::array kModes{"global", "vector_wise", "memory_efficient", "fp8", "fp8_e4m3"};
  for (size_t i = 0; i < kModes.size(); ++i)
    codes_of("switchback_linear", kModes[i], {x, w, b},
             [mode = SwitchBackMode(i)](Inputs v) { return Tensors{switchback_linear(v[0], v[1], v[2], mode)}; });
}
}  // namespace tg
