#include <tapegrad/core/plan/compile.h>
#include <tapegrad/cuda/gemm/gemm.h>

#include "support/quantized.h"
#include "support/with_env.h"

using namespace tg;
namespace {
constexpr SwitchBackMode kModes[] = {SwitchBackMode::global, SwitchBackMode::vector_wise,
                                     SwitchBackMode::memory_efficient};

Tensor some_int8(const Shape& s, uint64_t seed) { return random<int8_t>(s, seed, -128, 128); }

void expect_all_same(const Tensor& x, const Tensor& y, DType state = DType::f32) {  // y: x on the device
  expect_same(quantize_rowwise(y, state), quantize_rowwise(x, state));
  expect_same(quantize_global(y, state), quantize_global(x, state));
  if (x.ndim() != 2) return;
  expect_same(quantize_columnwise_transpose(y, state), quantize_columnwise_transpose(x, state));
  expect_same(quantize_global_transpose(y, state), quantize_global_transpose(x, state));
  const QuantizedRowsAndColumns gpu = quantize_rows_and_columns(y, state), cpu = quantize_rows_and_columns(x, state);
  expect_same(gpu.rows, cpu.rows);
  expect_same(gpu.columns, cpu.columns);
}
}  // namespace

TEST_CASE("codes and states on the device: every dtype, layout and state, eager and lazy") {
  for (const Shape& s : {Shape{7, 33}, Shape{1, 1}, Shape{130, 72}, Shape{5, 1}, Shape{1, 257}})
    for (const DType t : kQuantizable)
      for (const Store how : kStores) {
        CAPTURE_ALL(s, name_of(t), int(how));
        const Tensor x = many_binades(s, 3).to(t);
        expect_all_same(x, stored(x.to(kGpu), how));
        expect_all_same(x, stored(x.to(kGpu), how), DType::f16);
      }
  const Tensor x = many_binades({20, 40}, 4);
  const Quantized cpu = quantize_rowwise(x);
  LazyScope lazy;
  expect_same(quantize_rowwise(x.to(kGpu)), cpu);
}
TEST_CASE("codes of rows on the device: at every length of rows, which begin where they may") {
  for (const int64_t n : {8, 520, 2056, 8200, 32776, 300, 4100, 250, 257, 4099})
    for (const DType t : kQuantizable) {
      CAPTURE_ALL(n, name_of(t));
      const Tensor x = random({3, n}, 5).to(t), y = x.to(kGpu);
      expect_same(quantize_rowwise(y), quantize_rowwise(x));
      const Tensor part = slice(x, 1, 1, n), there = slice(y, 1, 1, n);
      expect_same(quantize_rowwise(there), quantize_rowwise(part));
      expect_same(quantize_global(there), quantize_global(part));
    }
  const Tensor x = many_binades({2, 3, 5, 16}, 6);
  for (const size_t d : {size_t(0), size_t(1), size_t(2)})
    expect_same(quantize_rowwise(transpose(x.to(kGpu), int64_t(d), int64_t(d) + 1)),
                quantize_rowwise(transpose(x, int64_t(d), int64_t(d) + 1)));
  expect_same(quantize_global(tensor<float>({-2.5f}, {}).to(kGpu)), quantize_global(tensor<float>({-2.5f}, {})));
}
TEST_CASE("codes of tall and wide matrices on the device: several tiles, whole and in part") {
  for (const Shape& s : {Shape{300, 160}, Shape{1200, 16}, Shape{2, 1100}, Shape{16, 530}})
    for (const DType t : {DType::f32, DType::bf16}) {
      CAPTURE_ALL(s, name_of(t));
      const Tensor x = many_binades(s, 7).to(t), y = x.to(kGpu);
      expect_all_same(x, y);
      const Tensor transposed = transpose(x, 0, 1);
      const QuantizedRowsAndColumns gpu = quantize_rows_and_columns(transpose(y, 0, 1)),
                                    cpu = quantize_rows_and_columns(transposed);
      expect_same(gpu.rows, cpu.rows);
      expect_same(gpu.columns, cpu.columns);
      const Tensor part = slice(x, 1, 1, s[1]), there = slice(y, 1, 1, s[1]);
      expect_all_same(part, there);
    }
}
TEST_CASE("codes at the edge of the next on the device, for magnitudes of every binade") {
  std::vector<float> v;
  Rng rng{8};
  constexpr int kSteps = 2;
  for (int e = -149; e <= 127; e += 3) {
    const float absmax = std::ldexp(e < -126 ? 1.0f : 1 + float(rng.uniform()), e);
    v.push_back(absmax);
    for (int k = 1; k <= 127; ++k) {
      float x = float(double(absmax) * (k - 0.5) / 127);
      for (int i = 0; i < kSteps; ++i) x = std::nextafter(x, 0.0f);
      for (int i = -kSteps; i <= kSteps; ++i, x = std::nextafter(x, absmax)) v.push_back(i % 2 ? -x : x);
    }
  }
  const int64_t n = 1 + 127 * (2 * kSteps + 1);
  const Tensor x = tensor(v, {int64_t(v.size()) / n, n});
  expect_same(quantize_rowwise(x.to(kGpu)), quantize_rowwise(x));
  expect_same(quantize_columnwise_transpose(transpose(x, 0, 1).contiguous().to(kGpu)), quantize_rowwise(x));
}
TEST_CASE("codes of the largest numbers on the device") {
  for (const float most : {2.7e36f, 1e38f, 3.4e38f}) {
    const Tensor x = random({5, 70}, 7, -most, most);
    const Quantized q = quantize_rowwise(x);
    expect_same(dequantize(there(q)), dequantize(q));
  }
}
TEST_CASE("codes of nothing on the device") {
  for (const Shape& s : {Shape{0, 4}, Shape{3, 0}, Shape{0, 0}})
    for (const DType state : {DType::f32, DType::f16}) {
      CAPTURE(s);
      const Tensor x = filled<float>(s, 1);
      expect_all_same(x, x.to(kGpu), state);
      const Quantized q = quantize_rowwise(x);
      expect_same(dequantize(there(q)), dequantize(q));
    }
  for (const Shape& s : {Shape{0, 4}, Shape{3, 0}}) {
    const Tensor x = filled<int8_t>(s, 1), w = filled<int8_t>({6, s[1]}, 1), none = filled<int8_t>({0, s[1]}, 1);
    expect_same(int8_linear(x.to(kGpu), w.to(kGpu)), int8_linear(x, w));
    expect_same(int8_linear(x.to(kGpu), none.to(kGpu)), int8_linear(x, none));
    const Tensor one = filled<float>({1}, 2), bias = random({6}, 1);
    expect_same(int8_linear({x.to(kGpu), one.to(kGpu)}, {w.to(kGpu), one.to(kGpu)}, bias.to(kGpu)),
                int8_linear({x, one}, {w, one}, bias));
  }
}
TEST_CASE("what has no code is named at the next read, with the words of the CPU, and the device goes on") {
  using Use = std::function<Tensor(const Tensor&)>;
  const Use uses[] = {[](auto& x) { return quantize_rowwise(x, DType::f16).values; },
                      [](auto& x) { return quantize_global(x, DType::f16).values; },
                      [](auto& x) { return quantize_rows_and_columns(x, DType::f16).rows.values; },
                      [](auto& x) { return quantize_columnwise_transpose(x, DType::f16).values; },
                      [](auto& x) { return quantize_global_transpose(x, DType::f16).values; }};
  const auto named = [&](const Tensor& x, Store how, std::string_view part) {
    for (const Use& use : uses) expect_named(use, x, how, part);
  };
  for (const Store how : kStores)
    for (const DType t : kQuantizable) {
      CAPTURE_ALL(int(how), name_of(t));
      const float other = t == DType::f16 ? 0.25f : 70000.0f;
      for (const float bad : {kInf, -kInf, kNan}) named(with_bad(bad, other).to(t), how, "finite");
      std::vector<float> v(size_t(20 * 24), 0.5f);
      v[100] = 65519, v[217] = -65520, v[300] = 1e9f;
      if (t != DType::f16) named(tensor(v, {20, 24}).to(t), how, "65504");
    }
  const Tensor x = many_binades({40, 40}, 9);
  expect_all_same(x, x.to(kGpu));
}
TEST_CASE("values of codes on the device: every dtype and layout, and any magnitude") {
  Rng rng{10};
  for (const Shape& s : {Shape{300, 16}, Shape{7, 33}, Shape{2, 3, 8}, Shape{9}})
    for (const DType t : kQuantizable) {
      CAPTURE_ALL(s, name_of(t));
      const Shape rows(s.begin(), s.end() - 1);
      std::vector<float> a(size_t(rows.product()));
      for (size_t i = 0; i < a.size(); ++i) a[i] = std::ldexp(1 + float(rng.uniform()), int(i) % 277 - 149);
      a[0] = -1.5f;
      const Tensor q = some_int8(s, 11), absmax = tensor(a, rows), one = filled<float>({1}, 0.3f);
      for (const Store how : kStores)
        expect_same(dequantize({stored(q.to(kGpu), how), absmax.to(kGpu)}, t), dequantize({q, absmax}, t));
      expect_same(dequantize({q.to(kGpu), one.to(kGpu)}, t), dequantize({q, one}, t));
      const Tensor half = one.to(DType::f16);
      expect_same(dequantize({q.to(kGpu), half.to(kGpu)}, t), dequantize({q, half}, t));
    }
}
TEST_CASE("products of codes on the device: exact sums, at every form of the kernel") {
  struct {
    int64_t m, n, k;
  } const sizes[] = {{1, 1, 1},     {5, 332, 83},    {3, 83, 332},   {70, 66, 130},
                     {64, 64, 128}, {130, 300, 400}, {260, 520, 144}};
  for (auto& [m, n, k] : sizes)
    for (const Store how : kStores) {
      CAPTURE_ALL(m, n, k, int(how));
      const Tensor x = some_int8({m, k}, 12), w = some_int8({n, k}, 13);
      expect_same(int8_linear(stored(x.to(kGpu), how), stored(w.to(kGpu), how)), int8_linear(x, w));
    }
  const Tensor x = filled<int8_t>({2, 4112}, -128), w = filled<int8_t>({3, 4112}, -128);
  CHECK(values<int32_t>(int8_linear(x.to(kGpu), w.to(kGpu))) == std::vector<int32_t>(6, 4112 * 128 * 128));
  const Tensor deep = some_int8({2, 3, 5, 48}, 14), weight = some_int8({7, 48}, 15);
  for (const int64_t d : {0, 1})
    expect_same(int8_linear(transpose(deep.to(kGpu), d, d + 1), weight.to(kGpu)),
                int8_linear(transpose(deep, d, d + 1), weight));
  expect_same(int8_linear(reshape(slice(deep, 0, 0, 1), {15, 48}).to(kGpu), weight.to(kGpu)),
              int8_linear(reshape(slice(deep, 0, 0, 1), {15, 48}), weight));
}
TEST_CASE("scaled products on the device: the bits of the CPU, for every dtype, scale and bias") {
  struct {
    int64_t m, n, k;
  } const sizes[] = {{9, 70, 40}, {70, 72, 160}, {200, 520, 130}};
  for (auto& [m, n, k] : sizes)
    for (const DType t : kQuantizable)
      for (const bool rows : {false, true})
        for (const bool columns : {false, true}) {
          CAPTURE_ALL(m, name_of(t), rows, columns);
          const Quantized x{some_int8({m, k}, 16), random({rows ? m : 1}, 17, 0, 3)},
              w{some_int8({n, k}, 18), random({columns ? n : 1}, 19, 0, 3)};
          const Tensor bias = random({n}, 20);
          const Quantized a = there(x), b = there(w);
          expect_same(int8_linear(a, b, {}, t), int8_linear(x, w, {}, t));
          expect_same(int8_linear(a, b, bias.to(kGpu), t), int8_linear(x, w, bias, t));
        }
}
TEST_CASE("products of codes on the device: more tiles than a device does at once, and more steps than stages") {
#ifdef TG_CUDA_EMULATED  // a few tiles suffice
  const int64_t m = 390, n = 1030, k = 1160;
#else
  const int64_t m = 1150, n = 2200, k = 1160;
#endif
  const Quantized x{some_int8({m, k}, 16), random({m}, 17, 0, 3)}, w{some_int8({n, k}, 18), random({n}, 19, 0, 3)};
  const Quantized a = there(x), b = there(w);
  const Tensor bias = random({n}, 20);
  const Tensor sums = int8_linear(x.values, w.values), y = int8_linear(x, w, bias, DType::bf16);
  for (const std::string way : {"", "mma", "cublaslt"}) {
    CAPTURE(way);
    const WithEnv chosen("TG_INT8_PRODUCTS", way);
    expect_same(int8_linear(a.values, b.values), sums);
    expect_same(int8_linear(a, b, bias.to(kGpu), DType::bf16), y);
  }
}
uint64_t made() {
  const cuda::GemmStats s = cuda::gemm_stats();
  return s.products + s.plain;
}
TEST_CASE("products of codes by the library: the bits of the own kernel, which does what the library cannot") {
  const WithEnv chosen("TG_INT8_PRODUCTS", "cublaslt");
  struct {
    int64_t m, n, k;
  } const sizes[] = {{9, 70, 40}, {70, 72, 160}, {33, 332, 83}, {1, 4, 16}};
  for (auto& [m, n, k] : sizes) {
    CAPTURE(n);
    const Quantized x{some_int8({m, k}, 16), random({m}, 17, 0, 3)}, w{some_int8({n, k}, 18), random({1}, 19, 0, 3)};
    const Quantized a = there(x), b = there(w);
    const Tensor bias = random({n}, 20);
    const auto before = made();
    expect_same(int8_linear(a.values, b.values), int8_linear(x.values, w.values));
    for (const DType t : kQuantizable) expect_same(int8_linear(a, b, bias.to(kGpu), t), int8_linear(x, w, bias, t));
    CHECK(made() - before == (n % 4 == 0 ? 4 : 0));
  }
  // cuBLASLt refuses this number of rows; few terms are fast.
  const Tensor x = some_int8({65541, 4}, 25), w = some_int8({4, 4}, 26), one = filled<float>({1}, 2);
  const auto before = made();
  expect_same(int8_linear(x.to(kGpu), w.to(kGpu)), int8_linear(x, w));
  const Tensor scales = random({65541}, 27);
  expect_same(int8_linear({x.to(kGpu), scales.to(kGpu)}, {w.to(kGpu), one.to(kGpu)}),
              int8_linear({x, scales}, {w, one}));
  CHECK(made() - before == 4);
}
TEST_CASE("SwitchBack on the device: result and gradients in every mode, and lazily the same bits") {
  for (const SwitchBackMode mode : {SwitchBackMode::global, SwitchBackMode::vector_wise,
                                    SwitchBackMode::memory_efficient, SwitchBackMode::fp8, SwitchBackMode::fp8_e4m3})
    for (const DType t : kQuantizable)
      for (const Shape& s : {Shape{3, 5, 83}, Shape{130, 64}}) {
        CAPTURE_ALL(int(mode), name_of(t), s);
        const int64_t k = s.back(), n = k == 83 ? 332 : 80;
        const auto run_on = [&](Device d, bool lazy) {
          const Mode scope(lazy);
          const auto made = [&](const Shape& shape, uint64_t seed) { return random(shape, seed).to(t).to(d); };
          Shape ys = s;
          ys.back() = n;
          const auto r = run({made(s, 21), made({n, k}, 22), made({n}, 23), made(ys, 24)}, mode);
          eval(r);
          return r;
        };
        const auto gpu = run_on(kGpu, false), cpu = run_on(Device::cpu(), false), lazy = run_on(kGpu, true);
        for (size_t i = 0; i < gpu.size(); ++i) {
          CAPTURE(i);
          CHECK(bits_of(gpu[i]) == bits_of(lazy[i]));
          if (i < 2 && mode != SwitchBackMode::fp8 && mode != SwitchBackMode::fp8_e4m3)
            expect_same(gpu[i], cpu[i]);
          else
            CHECK(distance(gpu[i].to(DType::f32), cpu[i].to(DType::f32)) <= (t == DType::f32 ? 1e-5 : 1e-2));
        }
      }
}
// Other last bits of GELU may give the next int8 value.
TEST_CASE("GELU and codes in one pass on the device: the CPU's, and those of the two passes") {
  for (const Shape& s : {Shape{7, 33}, Shape{4, 2048}, Shape{2, 3, 600}, Shape{1, 1}, Shape{0, 5}, Shape{3, 0}})
    for (const DType t : {DType::f32, DType::bf16})
      for (const bool tanh : {true, false}) {
        CAPTURE_ALL(s, name_of(t));
        const Tensor h = random(s, 5, -4, 4).to(t), on_gpu = h.to(kGpu);
        const Quantized gpu = gelu_quantize_rowwise(on_gpu, tanh), cpu = gelu_quantize_rowwise(h, tanh);
        const Quantized two = quantize_rowwise(tanh ? gelu_tanh(on_gpu) : gelu(on_gpu));
        for (const Quantized& other : {cpu, two}) {
          CHECK(gpu.values.shape() == other.values.shape());
          if (s.product() == 0) continue;
          const auto a = gpu.values.to_vector<int8_t>(), b = other.values.to_vector<int8_t>();
          for (size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) <= 1);
          CHECK(distance(gpu.absmax.to(Device::cpu()), other.absmax.to(Device::cpu())) <
                (t == DType::f32 ? 1e-6 : 1e-2));
        }
      }
  Tensor bad = random({3, 40}, 1);
  bad.mutable_data<float>()[51] = kNan;
  const Tensor on_gpu = bad.to(kGpu);
  CHECK_HAS(error_of([&] {
              gelu_quantize_rowwise(on_gpu);
              synchronize(kGpu);
            }),
            "(1, 11)");
}

TEST_CASE("codes and products in a recorded graph: the bits of eager mode, wherever inputs lie") {
  const Tensor w = random({300, 300}, 28).to(kGpu), b = random({300}, 29).to(kGpu);
  const TensorFunction f = [&](Inputs x) {
    Tensor y = x[0];
    for (const SwitchBackMode mode : kModes) y = switchback_linear(y, w, b, mode);
    const QuantizedRowsAndColumns both = quantize_rows_and_columns(y, DType::f16);
    return std::vector<Tensor>{y, both.columns.values, both.columns.absmax, quantize_global(transpose(y, 0, 1)).values};
  };
  const tg::Compiled fast = compile(f);
  std::vector<Tensor> held;
  for (uint64_t i = 0; i < 5; ++i) {
    const Tensor x = held.emplace_back(random({260, 300}, 30 + i).to(kGpu));
    check_same_bits(fast(std::array{x}), f(std::array{x}));
  }
  CHECK(fast.stats().why_no_graph == "");
  CHECK(fast.stats().graph_launches > 0);
}
