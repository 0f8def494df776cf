// 8-bit codes and their products on Device::cuda(): the bits of the CPU, at every form of the kernels, and what is said
// of values that have no code, and when. SwitchBack, which is made of them, forward and back.
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/cuda/gemm/gemm.h>
#include <tapegrad/ops/ops.h>

#include <cmath>
#include <limits>

#include "support/helpers.h"
#include "support/on_cuda.h"
#include "support/with_env.h"

using namespace tg;
namespace {
constexpr DType kQuantisable[] = {DType::f32, DType::bf16, DType::f16};
constexpr SwitchBackMode kModes[] = {SwitchBackMode::global, SwitchBackMode::vector_wise,
                                     SwitchBackMode::memory_efficient};

// Values over many binades, with rows of zeros, denormal rows, and the largest in the last place.
Tensor some_values(const Shape& s, uint64_t seed) {
  Rng rng{seed};
  std::vector<float> v(size_t(s.product()));
  const size_t n = s.size() ? size_t(s.back()) : 1;
  for (size_t i = 0; i < v.size(); ++i) {
    const size_t row = i / std::max<size_t>(n, 1);
    v[i] = float(rng.uniform()) * 2 - 1;
    if (row % 5 == 1) v[i] = 0;
    if (row % 5 == 2) v[i] *= std::ldexp(1.0f, -140);
    if (row % 5 == 3) v[i] *= 1000;
    if (row % 5 == 4) v[i] = i % n == n - 1 ? -3 : v[i];
  }
  return tensor(v, s);
}
Tensor some_codes(const Shape& s, uint64_t seed) { return random<int8_t>(s, seed, -128, 128); }

void expect_same_codes(const Quantized& gpu, const Quantized& cpu) {
  CHECK(gpu.codes.device() == kGpu);
  CHECK(gpu.absmax.dtype() == cpu.absmax.dtype());
  CHECK(bits_of(gpu.absmax) == bits_of(cpu.absmax));
  CHECK(bits_of(gpu.codes) == bits_of(cpu.codes));
}
void expect_same_codes(const Tensor& gpu, const Tensor& cpu) {
  CHECK(gpu.device() == kGpu);
  CHECK(gpu.shape() == cpu.shape());
  CHECK(bits_of(gpu) == bits_of(cpu));
}
void expect_all_same(const Tensor& x, const Tensor& y, DType state = DType::f32) {  // y: x on the device
  expect_same_codes(quantize_rowwise(y, state), quantize_rowwise(x, state));
  expect_same_codes(quantize_global(y, state), quantize_global(x, state));
  if (x.ndim() != 2) return;
  expect_same_codes(quantize_columnwise_transpose(y, state), quantize_columnwise_transpose(x, state));
  expect_same_codes(quantize_global_transpose(y, state), quantize_global_transpose(x, state));
  const QuantizedBothWays gpu = quantize_both_ways(y, state), cpu = quantize_both_ways(x, state);
  expect_same_codes(gpu.rows, cpu.rows);
  expect_same_codes(gpu.columns, cpu.columns);
}
}  // namespace

TEST_CASE("codes and states on the device: every dtype, layout and state, eager and lazy") {
  for (const Shape& s : {Shape{7, 33}, Shape{1, 1}, Shape{130, 72}, Shape{5, 1}, Shape{1, 257}})
    for (const DType t : kQuantisable)
      for (const Store how : kStores) {
        CAPTURE(s);
        CAPTURE(name_of(t));
        CAPTURE(int(how));
        const Tensor x = some_values(s, 3).to(t);
        expect_all_same(x, stored(x.to(kGpu), how));
        expect_all_same(x, stored(x.to(kGpu), how), DType::f16);
      }
  const Tensor x = some_values({20, 40}, 4);
  const Quantized cpu = quantize_rowwise(x);
  LazyScope lazy;
  expect_same_codes(quantize_rowwise(x.to(kGpu)), cpu);
}
TEST_CASE("codes of rows on the device: at every length of rows, which begin where they may") {
  for (const int64_t n : {8, 520, 2056, 8200, 32776, 300, 4100, 250, 257, 4099})
    for (const DType t : kQuantisable) {
      CAPTURE(n);
      CAPTURE(name_of(t));
      const Tensor x = random({3, n}, 5).to(t), y = x.to(kGpu);
      expect_same_codes(quantize_rowwise(y), quantize_rowwise(x));
      const Tensor part = slice(x, 1, 1, n), there = slice(y, 1, 1, n);
      expect_same_codes(quantize_rowwise(there), quantize_rowwise(part));
      expect_same_codes(quantize_global(there), quantize_global(part));
    }
  const Tensor x = some_values({2, 3, 5, 16}, 6);
  for (const size_t d : {size_t(0), size_t(1), size_t(2)})
    expect_same_codes(quantize_rowwise(transpose(x.to(kGpu), int64_t(d), int64_t(d) + 1)),
                      quantize_rowwise(transpose(x, int64_t(d), int64_t(d) + 1)));
  expect_same_codes(quantize_global(tensor<float>({-2.5f}, {}).to(kGpu)), quantize_global(tensor<float>({-2.5f}, {})));
}
TEST_CASE("codes of tall and wide matrices on the device: several tiles, whole and in part") {
  for (const Shape& s : {Shape{300, 160}, Shape{1200, 16}, Shape{2, 1100}, Shape{16, 530}})
    for (const DType t : {DType::f32, DType::bf16}) {
      CAPTURE(s);
      CAPTURE(name_of(t));
      const Tensor x = some_values(s, 7).to(t), y = x.to(kGpu);
      expect_all_same(x, y);
      const Tensor turned = transpose(x, 0, 1);
      const QuantizedBothWays gpu = quantize_both_ways(transpose(y, 0, 1)), cpu = quantize_both_ways(turned);
      expect_same_codes(gpu.rows, cpu.rows);
      expect_same_codes(gpu.columns, cpu.columns);
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
  expect_same_codes(quantize_rowwise(x.to(kGpu)), quantize_rowwise(x));
  expect_same_codes(quantize_columnwise_transpose(transpose(x, 0, 1).contiguous().to(kGpu)), quantize_rowwise(x));
}
TEST_CASE("codes of the largest numbers on the device") {
  for (const float most : {2.7e36f, 1e38f, 3.4e38f}) {
    const Tensor x = random({5, 70}, 7, -most, most);
    const Quantized q = quantize_rowwise(x);
    expect_same_codes(dequantize({q.codes.to(kGpu), q.absmax.to(kGpu)}), dequantize(q));
  }
}
TEST_CASE("codes of nothing on the device") {
  for (const Shape& s : {Shape{0, 4}, Shape{3, 0}, Shape{0, 0}})
    for (const DType state : {DType::f32, DType::f16}) {
      CAPTURE(s);
      const Tensor x = filled<float>(s, 1);
      expect_all_same(x, x.to(kGpu), state);
      const Quantized q = quantize_rowwise(x);
      expect_same_codes(dequantize({q.codes.to(kGpu), q.absmax.to(kGpu)}), dequantize(q));
    }
  for (const Shape& s : {Shape{0, 4}, Shape{3, 0}}) {
    const Tensor x = filled<int8_t>(s, 1), w = filled<int8_t>({6, s[1]}, 1), none = filled<int8_t>({0, s[1]}, 1);
    expect_same_codes(int8_linear(x.to(kGpu), w.to(kGpu)), int8_linear(x, w));
    expect_same_codes(int8_linear(x.to(kGpu), none.to(kGpu)), int8_linear(x, none));
    const Tensor one = filled<float>({1}, 2), bias = random({6}, 1);
    expect_same_codes(int8_linear({x.to(kGpu), one.to(kGpu)}, {w.to(kGpu), one.to(kGpu)}, bias.to(kGpu)),
                      int8_linear({x, one}, {w, one}, bias));
  }
}
TEST_CASE("what has no code is named at the next read, with the words of the CPU, and the device goes on") {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  using Use = std::function<Tensor(const Tensor&)>;
  const Use uses[] = {[](auto& x) { return quantize_rowwise(x, DType::f16).codes; },
                      [](auto& x) { return quantize_global(x, DType::f16).codes; },
                      [](auto& x) { return quantize_both_ways(x, DType::f16).rows.codes; },
                      [](auto& x) { return quantize_columnwise_transpose(x, DType::f16).codes; },
                      [](auto& x) { return quantize_global_transpose(x, DType::f16).codes; }};
  const auto named = [&](const Tensor& x, Store how, std::string_view part) {
    for (const Use& use : uses) {
      const std::string expected = error_of([&] { use(x); });
      CHECK(has(expected, part));
      const Tensor q = use(stored(x.to(kGpu), how));  // says nothing yet
      const std::string got = error_of([&] { values<int8_t>(q); });
      const auto at = [](const std::string& s) { return s.substr(s.find("and its element")); };
      REQUIRE(has(got, "and its element"));
      CHECK(at(got) == at(expected));
      CHECK(got.substr(0, got.find(']')) == expected.substr(0, expected.find(']')));
    }
  };
  for (const Store how : kStores)
    for (const DType t : kQuantisable) {
      CAPTURE(int(how));
      CAPTURE(name_of(t));
      for (const float bad : {inf, -inf, nan}) {
        std::vector<float> v(size_t(150 * 70), 0.5f);
        v[size_t(3 * 70 + 1)] = t == DType::f16 ? 0.25f : 70000.0f;  // not what is named
        v[size_t(17 * 70 + 41)] = bad, v[size_t(133 * 70 + 2)] = nan;
        named(tensor(v, {150, 70}).to(t), how, "finite");
      }
      std::vector<float> v(size_t(20 * 24), 0.5f);
      v[100] = 65519, v[217] = -65520, v[300] = 1e9f;
      if (t != DType::f16) named(tensor(v, {20, 24}).to(t), how, "65504");
    }
  const Tensor x = some_values({40, 40}, 9);
  expect_all_same(x, x.to(kGpu));
}
TEST_CASE("values of codes on the device: every dtype and layout, and any magnitude") {
  Rng rng{10};
  for (const Shape& s : {Shape{300, 16}, Shape{7, 33}, Shape{2, 3, 8}, Shape{9}})
    for (const DType t : kQuantisable) {
      CAPTURE(s);
      CAPTURE(name_of(t));
      const Shape rows(s.begin(), s.end() - 1);
      std::vector<float> a(size_t(rows.product()));
      for (size_t i = 0; i < a.size(); ++i) a[i] = std::ldexp(1 + float(rng.uniform()), int(i) % 277 - 149);
      a[0] = -1.5f;
      const Tensor q = some_codes(s, 11), absmax = tensor(a, rows), one = filled<float>({1}, 0.3f);
      for (const Store how : kStores)
        expect_same_codes(dequantize({stored(q.to(kGpu), how), absmax.to(kGpu)}, t), dequantize({q, absmax}, t));
      expect_same_codes(dequantize({q.to(kGpu), one.to(kGpu)}, t), dequantize({q, one}, t));
      const Tensor half = one.to(DType::f16);
      expect_same_codes(dequantize({q.to(kGpu), half.to(kGpu)}, t), dequantize({q, half}, t));
    }
}
TEST_CASE("products of codes on the device: exact sums, at every form of the kernel") {
  struct {
    int64_t m, n, k;
  } const sizes[] = {{1, 1, 1},     {5, 332, 83},    {3, 83, 332},   {70, 66, 130},
                     {64, 64, 128}, {130, 300, 400}, {260, 520, 144}};
  for (auto& [m, n, k] : sizes)
    for (const Store how : kStores) {
      CAPTURE(m);
      CAPTURE(n);
      CAPTURE(k);
      CAPTURE(int(how));
      const Tensor x = some_codes({m, k}, 12), w = some_codes({n, k}, 13);
      expect_same_codes(int8_linear(stored(x.to(kGpu), how), stored(w.to(kGpu), how)), int8_linear(x, w));
    }
  const Tensor x = filled<int8_t>({2, 4112}, -128), w = filled<int8_t>({3, 4112}, -128);
  CHECK(values<int32_t>(int8_linear(x.to(kGpu), w.to(kGpu))) == std::vector<int32_t>(6, 4112 * 128 * 128));
  const Tensor deep = some_codes({2, 3, 5, 48}, 14), weight = some_codes({7, 48}, 15);
  for (const int64_t d : {0, 1})
    expect_same_codes(int8_linear(transpose(deep.to(kGpu), d, d + 1), weight.to(kGpu)),
                      int8_linear(transpose(deep, d, d + 1), weight));
  expect_same_codes(int8_linear(reshape(slice(deep, 0, 0, 1), {15, 48}).to(kGpu), weight.to(kGpu)),
                    int8_linear(reshape(slice(deep, 0, 0, 1), {15, 48}), weight));
}
TEST_CASE("scaled products on the device: the bits of the CPU, for every dtype, scale and bias") {
  struct {
    int64_t m, n, k;
  } const sizes[] = {{9, 70, 40}, {70, 72, 160}, {200, 520, 130}};
  for (auto& [m, n, k] : sizes)
    for (const DType t : kQuantisable)
      for (const bool rows : {false, true})
        for (const bool columns : {false, true}) {
          CAPTURE(m);
          CAPTURE(name_of(t));
          CAPTURE(rows);
          CAPTURE(columns);
          const Quantized x{some_codes({m, k}, 16), random({rows ? m : 1}, 17, 0, 3)},
              w{some_codes({n, k}, 18), random({columns ? n : 1}, 19, 0, 3)};
          const Tensor bias = random({n}, 20);
          const Quantized a{x.codes.to(kGpu), x.absmax.to(kGpu)}, b{w.codes.to(kGpu), w.absmax.to(kGpu)};
          expect_same_codes(int8_linear(a, b, {}, t), int8_linear(x, w, {}, t));
          expect_same_codes(int8_linear(a, b, bias.to(kGpu), t), int8_linear(x, w, bias, t));
        }
}
TEST_CASE("products of codes on the device: more tiles than a device does at once, and more steps than stages") {
  // Of 81 tiles; on the emulator, whose devices are small, of a few.
#ifdef TG_CUDA_EMULATED
  const int64_t m = 390, n = 1030, k = 1160;
#else
  const int64_t m = 1150, n = 2200, k = 1160;
#endif
  const Quantized x{some_codes({m, k}, 16), random({m}, 17, 0, 3)}, w{some_codes({n, k}, 18), random({n}, 19, 0, 3)};
  const Quantized a{x.codes.to(kGpu), x.absmax.to(kGpu)}, b{w.codes.to(kGpu), w.absmax.to(kGpu)};
  const Tensor bias = random({n}, 20);
  const Tensor sums = int8_linear(x.codes, w.codes), y = int8_linear(x, w, bias, DType::bf16);
  for (const std::string way : {"", "mma", "cublaslt"}) {
    CAPTURE(way);
    const WithEnv chosen("TG_INT8_PRODUCTS", way);
    expect_same_codes(int8_linear(a.codes, b.codes), sums);
    expect_same_codes(int8_linear(a, b, bias.to(kGpu), DType::bf16), y);
  }
}
uint64_t made() {  // by gemm(), by the library or in its place
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
    const Quantized x{some_codes({m, k}, 16), random({m}, 17, 0, 3)}, w{some_codes({n, k}, 18), random({1}, 19, 0, 3)};
    const Quantized a{x.codes.to(kGpu), x.absmax.to(kGpu)}, b{w.codes.to(kGpu), w.absmax.to(kGpu)};
    const Tensor bias = random({n}, 20);
    const auto before = made();
    expect_same_codes(int8_linear(a.codes, b.codes), int8_linear(x.codes, w.codes));
    for (const DType t : kQuantisable)
      expect_same_codes(int8_linear(a, b, bias.to(kGpu), t), int8_linear(x, w, bias, t));
    CHECK(made() - before == (n % 4 == 0 ? 4 : 0));
  }
  // More rows than the library takes at once. Its sums of so few terms are quick.
  const Tensor x = some_codes({65541, 4}, 25), w = some_codes({4, 4}, 26), one = filled<float>({1}, 2);
  const auto before = made();
  expect_same_codes(int8_linear(x.to(kGpu), w.to(kGpu)), int8_linear(x, w));
  const Tensor scales = random({65541}, 27);
  expect_same_codes(int8_linear({x.to(kGpu), scales.to(kGpu)}, {w.to(kGpu), one.to(kGpu)}),
                    int8_linear({x, scales}, {w, one}));
  CHECK(made() - before == 4);
}
TEST_CASE("SwitchBack on the device: result and gradients in every mode, and lazily the same bits") {
  for (const SwitchBackMode mode : kModes)
    for (const DType t : kQuantisable)
      for (const Shape& s : {Shape{3, 5, 83}, Shape{130, 64}}) {
        CAPTURE(int(mode));
        CAPTURE(name_of(t));
        CAPTURE(s);
        const int64_t k = s.back(), n = k == 83 ? 332 : 80;
        const auto run = [&](Device d, bool lazy) {
          const Mode scope(lazy);
          const Tensor x = random(s, 21).to(t).to(d).requires_grad_(),
                       w = random({n, k}, 22).to(t).to(d).requires_grad_();
          const Tensor bias = random({n}, 23).to(t).to(d).requires_grad_();
          const Tensor y = switchback_linear(x, w, bias, mode);
          const auto g = backward(y, random(y.shape(), 24).to(t).to(d));
          Tensors r{y.detach(), g[x], g[w], g[bias]};
          evaluate(r);
          return r;
        };
        const Tensors gpu = run(kGpu, false), cpu = run(Device::cpu(), false), lazy = run(kGpu, true);
        for (size_t i = 0; i < gpu.size(); ++i) CHECK(bits_of(gpu[i]) == bits_of(lazy[i]));
        expect_same_codes(gpu[0], cpu[0]);
        expect_same_codes(gpu[1], cpu[1]);
        for (const size_t i : {size_t(2), size_t(3)})
          CHECK(distance(gpu[i].to(DType::f32), cpu[i].to(DType::f32)) <= (t == DType::f32 ? 1e-5 : 1e-2));
      }
}
// GELU may have other last bits, and a code then be the next.
TEST_CASE("GELU and codes in one pass on the device: the CPU's, and those of the two passes") {
  for (const Shape& s : {Shape{7, 33}, Shape{4, 2048}, Shape{2, 3, 600}, Shape{1, 1}, Shape{0, 5}, Shape{3, 0}})
    for (const DType t : {DType::f32, DType::bf16})
      for (const bool tanh : {true, false}) {
        CAPTURE(s);
        CAPTURE(name_of(t));
        const Tensor h = random(s, 5, -4, 4).to(t), on_gpu = h.to(kGpu);
        const Quantized gpu = gelu_quantize_rowwise(on_gpu, tanh), cpu = gelu_quantize_rowwise(h, tanh);
        const Quantized two = quantize_rowwise(tanh ? gelu_tanh(on_gpu) : gelu(on_gpu));
        for (const Quantized& other : {cpu, two}) {
          CHECK(gpu.codes.shape() == other.codes.shape());
          if (s.product() == 0) continue;
          const auto a = gpu.codes.to_vector<int8_t>(), b = other.codes.to_vector<int8_t>();
          for (size_t i = 0; i < a.size(); ++i) CHECK(std::abs(a[i] - b[i]) <= 1);
          CHECK(distance(gpu.absmax.to(Device::cpu()), other.absmax.to(Device::cpu())) <
                (t == DType::f32 ? 1e-6 : 1e-2));
        }
      }
  Tensor bad = random({3, 40}, 1);
  bad.mutable_data<float>()[51] = std::numeric_limits<float>::quiet_NaN();
  const Tensor on_gpu = bad.to(kGpu);
  CHECK(has(error_of([&] {
              gelu_quantize_rowwise(on_gpu);
              synchronize(kGpu);
            }),
            "(1, 11)"));
}

TEST_CASE("codes and products in a recorded graph: the bits of eager mode, wherever inputs lie") {
  const Tensor w = random({300, 300}, 28).to(kGpu), b = random({300}, 29).to(kGpu);
  const TensorFunction f = [&](Inputs x) {
    Tensor y = x[0];
    for (const SwitchBackMode mode : kModes) y = switchback_linear(y, w, b, mode);
    const QuantizedBothWays both = quantize_both_ways(y, DType::f16);
    return std::vector<Tensor>{y, both.columns.codes, both.columns.absmax, quantize_global(transpose(y, 0, 1)).codes};
  };
  const tg::Compiled fast = compile(f);
  std::vector<Tensor> held;
  for (uint64_t i = 0; i < 5; ++i) {
    const Tensor x = held.emplace_back(random({260, 300}, 30 + i).to(kGpu));
    const std::vector<Tensor> want = f(std::array{x}), got = fast(std::array{x});
    for (size_t k = 0; k < want.size(); ++k) CHECK(bits_of(got[k]) == bits_of(want[k]));
  }
  CHECK(fast.stats().why_no_graph == "");
  CHECK(fast.stats().graph_launches > 0);
}
