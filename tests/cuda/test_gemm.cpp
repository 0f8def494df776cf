#include <tapegrad/autograd/recompute.h>
#include <tapegrad/cuda/gemm/gemm.h>
#include <tapegrad/cuda/gemm/gemm_file.h>
#include <tapegrad/cuda/runtime/api.h>
#include <tapegrad/ops/ops.h>

#ifdef TG_CUDA_EMULATED
#include <tapegrad/emulator/cublaslt.h>
#include <tapegrad/emulator/emulator.h>
#endif

#include "support/files.h"
#include "support/on_cuda.h"

using namespace tg;
namespace {
Shape with(const Shape& batch, int64_t r, int64_t c) {
  Shape s = batch;
  s.push_back(r);
  s.push_back(c);
  return s;
}
constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16};

struct Options {  // scope of set_gemm_options()
  cuda::GemmOptions before = cuda::gemm_options();
  explicit Options(const cuda::GemmOptions& o = {}) { cuda::set_gemm_options(o); }
  ~Options() { cuda::set_gemm_options(before); }
};
struct TemporaryFile {
  const Folder folder;
  std::string path = folder / "gemm.json";
  std::string text() const { return read_file(path); }
  void write(const std::string& s) const { detail::write_file_atomically(path, s); }
};
std::string replaced(std::string s, std::string_view from, std::string_view to) {
  const size_t at = s.find(from);
  REQUIRE(at != s.npos);
  return s.replace(at, from.size(), to);
}
std::string sealed(const std::string& text) {
  Json all = detail::json_or_null(text);
  if (all.is_null()) return text;
  for (size_t i = 0; i < all["algorithms"].size(); ++i)
    all["algorithms"][i] = cuda::with_checksum(all["algorithms"][i]);
  return detail::text_of(all);
}
// 10 bits of fraction, nearest even.
Tensor to_tf32(const Tensor& x) {
  auto v = values(x);
  for (float& f : v) {
    auto u = std::bit_cast<uint32_t>(f);
    u = (u + 0xfffu + (u >> 13 & 1u)) & ~0x1fffu;
    f = std::bit_cast<float>(u);
  }
  return tensor<float>(v, x.shape());
}
}  // namespace

TEST_CASE("products in all transpositions, odd sizes, batch forms and dtypes") {
  const int64_t sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {17, 1, 33}, {1, 31, 2}, {33, 65, 1}, {8, 16, 24}};
  const struct {
    Shape a, b;
  } batches[] = {{{}, {}},         {{3}, {3}},       {{3}, {}},        {{}, {3}},     {{2, 1}, {3}},
                 {{2, 3}, {2, 1}}, {{1, 2}, {2, 1}}, {{2, 3}, {2, 3}}, {{2, 3}, {1}}, {{3, 1, 2}, {1, 4, 2}}};
  for (DType t : kTypes)
    for (auto [m, k, n] : sizes)
      for (auto& [ba, bb] : batches)
        for (bool ta : {false, true})
          for (bool tb : {false, true}) {
            const Tensor a = make(ta ? with(ba, k, m) : with(ba, m, k), 1, t),
                         b = make(tb ? with(bb, n, k) : with(bb, k, n), 2, t);
            const MatmulOptions o{.trans_a = ta, .trans_b = tb};
            CAPTURE(
                fmt::format("{} {} {}{}{}", name_of(t), a, b, ta ? " a transposed" : "", tb ? " b transposed" : ""));
            CHECK(distance(matmul(on_cuda(a), on_cuda(b), o), matmul(a, b, o)) < tolerance(t));
          }
}
TEST_CASE("a long sum is right to the tolerance of its dtype") {
  for (DType t : kTypes) {
    const Tensor a = make({9, 3000}, 1, t), b = make({3000, 5}, 2, t);
    CHECK(distance(matmul(on_cuda(a), on_cuda(b)), matmul(a, b)) < tolerance(t, 3000));
  }
}
TEST_CASE("views: offsets, odd and wide leading dimensions, transposed, repeated, with holes") {
  const std::function<Tensor(const Tensor&)> views[] = {
      [](const Tensor& x) { return slice(x, -1, 1, 8); },                   // odd ld, odd offset
      [](const Tensor& x) { return slice(slice(x, -2, 1, 8), -1, 0, 7); },  // first row skipped
      [](const Tensor& x) { return transpose(slice(x, -2, 2, 9)); },        // no copy
      [](const Tensor& x) { return transpose(slice(slice(x, -1, 2, 9), -2, 1, 8)); },
      [](const Tensor& x) {
        return expand(slice(slice(x, -1, 0, 7), -2, 3, 4), {2, 3, 7, 7});
      },  // one row
      [](const Tensor& x) {
        return expand(slice(slice(x, -1, 3, 4), -2, 0, 7), {2, 3, 7, 7});
      },                                                                                     // one column
      [](const Tensor& x) { return transpose(slice(slice(x, -1, 0, 7), -2, 0, 7), 0, 1); },  // batch (3, 2)
      [](const Tensor& x) { return slice(slice(transpose(x, 0, -1), -1, 0, 1), 0, 1, 8); },  // (7, 3, 9, 1)
      [](const Tensor& x) { return slice(slice(slice(x, 0, 1, 2), -1, 0, 7), -2, 0, 7); },
  };
  for (DType t : kTypes) {
    const Tensor base = make({2, 3, 9, 9}, 1, t), other = make({1, 1, 9, 7}, 2, t);
    const Tensor base_d = on_cuda(base), other_d = on_cuda(other);
    for (size_t i = 0; i < std::size(views); ++i) {
      CAPTURE_ALL(i, name_of(t));
      const Tensor a = views[i](base), a_d = views[i](base_d);
      const int64_t k = a.shape().back(), rows = a.size(2);
      const Tensor b = slice(other, 2, 0, k), b_d = slice(other_d, 2, 0, k);
      CHECK(distance(matmul(a_d, b_d), matmul(a, b)) < tolerance(t));
      CHECK(distance(matmul(a_d, a_d, {.trans_b = true}), matmul(a, a, {.trans_b = true})) < tolerance(t));
      const Tensor left = slice(transpose(other), 3, 0, rows), left_d = slice(transpose(other_d), 3, 0, rows);
      CHECK(distance(matmul(left_d, a_d), matmul(left, a)) < tolerance(t));
      const Tensor w = make({5, k}, 3, t), bias = make({5, 2}, 4, t);
      const Tensor bias_view = slice(bias, 1, 1, 2), bias_d = slice(on_cuda(bias), 1, 1, 2);
      CHECK(distance(linear(a_d, on_cuda(w), reshape(bias_d, {5})), linear(a, w, reshape(bias_view, {5}))) <
            tolerance(t));
      const Tensor one = slice(slice(a, 0, 0, 1), 1, 0, 1), one_d = slice(slice(a_d, 0, 0, 1), 1, 0, 1);
      const Tensor as_w = reshape(one, {rows, k}), as_w_d = reshape(one_d, {rows, k});
      const Tensor x = make({4, k}, 6, t);
      CHECK(distance(linear(on_cuda(x), as_w_d), linear(x, as_w)) < tolerance(t));
    }
  }
}
TEST_CASE("what is read in place is not copied") {
  const Tensor x = on_cuda(make({64, 65}, 1, DType::f32)), w = on_cuda(make({64, 64}, 2, DType::f32));
  const auto allocated = [&](auto&& f) {
    const int64_t before = memory_stats(Device::cuda()).total;
    const Tensor y = f();
    return memory_stats(Device::cuda()).total - before - int64_t(y.layout().bytes());
  };
  const Tensor left = slice(x, 1, 0, 64);
  const int64_t operand = 64 * 64 * 4;
  CHECK(allocated([&] { return matmul(left, w); }) < operand / 2);
  CHECK(allocated([&] { return matmul(transpose(left), transpose(w)); }) < operand / 2);
  CHECK(allocated([&] { return linear(left, transpose(w)); }) < operand / 2);
  const Tensor repeated = expand(slice(w, 0, 0, 1), {64, 64});  // no leading dimension
  CHECK(allocated([&] { return matmul(repeated, w); }) >= operand);
}

TEST_CASE("a shape is planned once, the plans kept are bounded, and a repeated call allocates its output only") {
  cuda::GemmOptions few;
  few.plans = 2;
  const Options options(few);
  const Tensor a = make({8, 8}, 1, DType::f32), expected = matmul(a, a), d = on_cuda(a);
  const auto stats = [] { return cuda::gemm_stats(); };
  matmul(d, d);
  CHECK_OFFERED(stats().hits == 0);
  synchronize(Device::cuda());
  size_t free = 0, then = 0, total = 0;
  CHECK(cudaMemGetInfo(&free, &total) == cudaSuccess);
  const int64_t before = memory_stats(Device::cuda()).total;
  Tensor y;
  for (int i = 0; i < 3; ++i) y = matmul(d, d);
  synchronize(Device::cuda());
  CHECK(cudaMemGetInfo(&then, &total) == cudaSuccess);
  CHECK(memory_stats(Device::cuda()).total - before == 3 * int64_t(expected.layout().bytes()));
  CHECK(then == free);
  CHECK(distance(y, expected) < 1e-5);
  CHECK_OFFERED(stats().hits == 3);
  CHECK_OFFERED(stats().products == 4);
  matmul(d, d, {.trans_a = true});
  matmul(d, d);  // the other plan is older
  matmul(d, d, {.trans_b = true});
  CHECK_OFFERED(stats().held == 2);
  CHECK_OFFERED(stats().hits == 4);
  matmul(d, d);
  CHECK_OFFERED(stats().hits == 5);
  CHECK(distance(matmul(d, d, {.trans_a = true}), matmul(a, a, {.trans_a = true})) < 1e-5);
  CHECK_OFFERED(stats().hits == 5);
  CHECK_OFFERED(stats().held == 2);
}
TEST_CASE("one shape with bias at other addresses: the bias of each call counts") {
  const Options options;
  const Tensor x = make({4, 8}, 1, DType::f32), w = make({8, 8}, 2, DType::f32);
  const Tensor xd = on_cuda(x), wd = on_cuda(w);
  for (uint64_t seed : {3, 4, 5}) {
    const Tensor bias = make({8}, seed, DType::f32);
    CHECK(distance(linear(xd, wd, on_cuda(bias)), linear(x, w, bias)) < 1e-5);
  }
  CHECK_OFFERED(cuda::gemm_stats().hits == 2);
}
TEST_CASE("sizes above the library's are split") {
  cuda::GemmOptions o;
  o.largest = 8, o.largest_batch = 2;
  const Options options(o);
  for (DType t : kTypes)
    for (bool ta : {false, true})
      for (bool tb : {false, true}) {
        const Tensor a = make(ta ? Shape{5, 23, 19} : Shape{5, 19, 23}, 1, t),
                     b = make(tb ? Shape{5, 21, 23} : Shape{5, 23, 21}, 2, t);
        CHECK(distance(matmul(on_cuda(a), on_cuda(b), {ta, tb}), matmul(a, b, {ta, tb})) < tolerance(t));
        const Tensor x = make({9, 20}, 3, t), w = make({17, 20}, 4, t), bias = make({17}, 5, t);
        CHECK(distance(linear(on_cuda(x), on_cuda(w), on_cuda(bias)), linear(x, w, bias)) < tolerance(t));
      }
  CHECK_OFFERED(cuda::gemm_stats().products > 100);
  CHECK_HAS(error_of([&] {
              o.largest = 0;
              cuda::set_gemm_options(o);
            }),
            "[gemm] options of 1024 plans, sizes up to 0 and batches up to 2. Each must be 1 or more.");
}

TEST_CASE("measured algorithms: kept in a file, read again, and the file's damage is said") {
  const TemporaryFile file;
  cuda::GemmOptions o;
  o.autotune = true, o.file = file.path;
  const Options options(o);
  const Tensor a = make({16, 24}, 1, DType::f32), b = make({24, 8}, 2, DType::f32), expected = matmul(a, b);
  const Tensor ad = on_cuda(a), bd = on_cuda(b);
  const auto right = [&] { return distance(matmul(ad, bd), expected) < 1e-5; };
  CHECK(right());
  CHECK(right());
  CHECK_OFFERED(cuda::gemm_stats().timed == 1);
  if (cuda::gemm_stats().timed == 0) return;
  CHECK(cuda::gemm_stats().hits == 1);
  const std::string text = file.text();
  CHECK_HAS(text, "\"size\":[8,16,24,1]");
  const auto read_again = [&](bool autotune) {
    o.autotune = autotune;
    cuda::set_gemm_options(o);
    CHECK(right());
    return cuda::gemm_stats();
  };
  CHECK(read_again(false).from_file == 1);
  CHECK(read_again(true).timed == 0);
  CHECK(file.text() == text);
  // Another GPU's entries are kept, unused.
  const std::string gpu = cuda::gemm_stats().foreign ? "" : text.substr(text.find("\"gpu\":\"") + 7, 4);
  file.write(sealed(replaced(text, "\"gpu\":\"" + gpu, "\"gpu\":\"another ")));
  auto s = read_again(false);
  CHECK(s.from_file == 0);
  CHECK(s.foreign == 1);
  s = read_again(true);
  CHECK(s.timed == 1);
  CHECK_HAS(file.text(), "another ");
  s = read_again(false);
  CHECK(s.from_file == 1);
  CHECK(s.foreign == 1);
  // So are entries of another cuBLASLt version.
  file.write(sealed(replaced(text, "\"cublaslt\":", "\"cublaslt\":9")));
  CHECK(read_again(false).foreign == 1);
  const std::string digits = text.substr(text.find("\"algorithm\":\"") + 13, 128);
  const std::string damages[] = {
      text.substr(0, text.size() / 2),
      replaced(text, "gemm algorithms", "something"),
      replaced(text, "\"us\":", "\"vs\":"),
      replaced(text, "\"size\":[8,", "\"size\":[-8,"),
      replaced(text, "\"ld\":[", "\"ld\":[true,"),
      replaced(text, "\"dtype\":\"f32\"", "\"dtype\":\"f31\""),
      replaced(text, "\"alignment\":[", "\"alignment\":[3,"),
      replaced(text, digits, digits.substr(1)),
      replaced(text, digits, "g" + digits.substr(1)),
#ifdef TG_CUDA_EMULATED                                       // the real cuBLASLt may crash
      sealed(replaced(text, digits, std::string(128, '1'))),  // no algorithm
#endif
      "",
  };
  for (auto& damage : damages) {
    CAPTURE(damage);
    file.write(sealed(damage));
    o.autotune = false;
    cuda::set_gemm_options(o);
    CHECK_SAYS(matmul(ad, bd), "[gemm] the file of measured algorithms '" + file.path + "' is damaged: ",
               "Delete it, or choose another with TG_GEMM_CACHE; TG_AUTOTUNE=1 makes a new one.");
  }
  for (size_t at = text.find("{\"dtype"); at < text.rfind("\n]"); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      std::string damage = text;
      damage[at] = char(damage[at] ^ 1 << bit);
      file.write(damage);
      CAPTURE(damage);
      CHECK_SAYS(cuda::GemmFile(file.path, "a GPU", {}), "is damaged: ");
    }
  std::filesystem::remove(file.path);
  CHECK_SAYS(matmul(ad, bd), "[gemm] the file of measured algorithms '" + file.path +
                                 "' does not exist. Choose another with TG_GEMM_CACHE");
  file.write(text);
  CHECK(right());
  // Shipped algorithms are read after the file, and never when measuring.
  const auto shipped = [&](std::string_view algorithms, bool autotune) {
    o.shipped = std::span(&algorithms, 1), o.autotune = autotune, o.file = autotune ? file.path : "";
    cuda::set_gemm_options(o);
    CHECK(right());
    return cuda::gemm_stats();
  };
  CHECK(shipped(text, false).from_file == 1);
#ifdef TG_CUDA_EMULATED
  CHECK(shipped(sealed(replaced(text, digits, std::string(128, '1'))), false).from_file == 0);
#endif
  s = shipped(sealed(replaced(text, "\"cublaslt\":", "\"cublaslt\":9")), false);
  CHECK(s.from_file == 0);
  CHECK(s.foreign == 0);
  std::filesystem::remove(file.path);
  CHECK(shipped(text, true).timed == 1);
  CHECK_HAS(file.text(), "\"size\":[8,16,24,1]");
  o.shipped = {};
}
TEST_CASE("measured algorithms that are shipped can be read") {
  for (const std::string_view text : cuda::shipped_algorithms())
    CHECK_NOTHROW(cuda::GemmFile("", "a GPU", std::span(&text, 1)));
}

TEST_CASE("measuring: many launches of each algorithm, on copies of operands of any form; it needs a file") {
  cuda::GemmOptions o;
  o.autotune = true;
  CHECK_SAYS(cuda::set_gemm_options(o),
             "[gemm] TG_AUTOTUNE=1 measures algorithms, and there is no file to keep them in. Results would differ "
             "from run to run. Set TG_GEMM_CACHE=FILE");
  const TemporaryFile file;
  o.file = file.path;
  const Options options(o);
  for (const DType t : kTypes)
    for (const int64_t n : {5, 40}) {  // few bytes; more than the emulator's cache
      const Tensor base = make({3, n + 1, n + 3}, 1, t), there = on_cuda(base);
      const auto view = [&](const Tensor& x) { return slice(slice(x, 1, 1, n + 1), 2, 2, n + 2); };  // odd steps
      CHECK(distance(matmul(view(there), view(there)), matmul(view(base), view(base))) < tolerance(t));
      const auto one = [](const Tensor& x) { return reshape(slice(x, 0, 0, 1), {x.size(1), x.size(2)}); };
      CHECK(distance(matmul(view(there), one(view(there)), {.trans_a = true}),
                     matmul(view(base), one(view(base)), {.trans_a = true})) < tolerance(t));
      const Tensor bias = make({n}, 2, t), bias_there = on_cuda(bias);
      CHECK(distance(linear(view(there), one(view(there)), bias_there), linear(view(base), one(view(base)), bias)) <
            tolerance(t));
    }
#ifdef TG_CUDA_EMULATED  // a GPU may lack algorithms
  const auto stats = cuda::gemm_stats();
  CHECK(stats.timed == stats.products);
  const auto before = simt::lt::statistics().products;
  const Tensor x = on_cuda(make({8, 8}, 1, DType::f32));
  matmul(x, x);
  // Four candidates, three rounds, a launch that loads the kernel, and the product.
  CHECK(simt::lt::statistics().products - before == 4 * (3 * 20 + 1) + 1);
#endif
}
TEST_CASE("products at addresses of 16 to 128 bytes share a plan, and those of 256 and more another") {
  const Options options;
  const Tensor x = on_cuda(make({64, 8}, 1, DType::f32));
  const auto plans = [&](int64_t row) {
    matmul(slice(x, 0, row, row + 8), x, {.trans_b = true});
    return cuda::gemm_stats().held;
  };
  CHECK(plans(0) == 1);
  for (const int64_t row : {1, 2, 4, 8, 16, 24}) CHECK(plans(row) == 2);
}
#ifdef TG_CUDA_EMULATED
TEST_CASE("where memory is short, measuring takes no copies of operands") {
  const TemporaryFile file;
  cuda::GemmOptions o;
  o.autotune = true, o.file = file.path;
  const Options options(o);
  const Tensor a = make({1000, 2}, 1, DType::f32), b = make({2, 1000}, 2, DType::f32);
  const Tensor ad = on_cuda(a), bd = on_cuda(b), small = on_cuda(make({2, 2}, 3, DType::f32));
  matmul(small, small);
  empty_cache(kGpu);
  size_t free = 0, total = 0;
  CHECK(cudaMemGetInfo(&free, &total) == cudaSuccess);
  simt::set_memory(total - free + (size_t(6) << 20));
  const Tensor y = matmul(ad, bd);
  CHECK_SAYS(zeros(y.shape(), DType::f32, kGpu), "is out of memory");
  simt::set_memory(size_t(4) << 30);
  CHECK(cuda::gemm_stats().timed == 2);
  CHECK(distance(y, matmul(a, b)) < tolerance(DType::f32));
}
#endif

TEST_CASE("high and medium: operands of TF32 and of bf16, and the gradients likewise, lazy and checkpointed too") {
  const Tensor a = make({5, 64}, 1, DType::f32), b = make({64, 7}, 2, DType::f32), w = make({7, 64}, 3, DType::f32);
  const Tensor strict = matmul(a, b), g = make({5, 7}, 4, DType::f32);
  const Tensor ad = on_cuda(a), bd = on_cuda(b), wd = on_cuda(w);
  CHECK(distance(matmul(ad, bd), strict) < 1e-5);
  for (const MatmulPrecision precision : {MatmulPrecision::high, MatmulPrecision::medium}) {
    const bool high = precision == MatmulPrecision::high;
    const auto narrow = [&](const Tensor& x) { return high ? to_tf32(x) : x.to(DType::bf16).to(DType::f32); };
    const Tensor rounded = matmul(narrow(a), narrow(b)), rounded_grad = matmul(narrow(g), narrow(b), {.trans_b = true});
#ifdef TG_CUDA_EMULATED
    const double near = 1e-5;
#else  // other rounding, or f32
    const double near = high ? 2e-3 : 2e-2;
#endif
    CHECK(distance(matmul(ad, bd, {.precision = precision}), rounded) < near);
    CHECK(distance(rounded, strict) > 2e-5);
    CHECK(distance(rounded, strict) < (high ? 2e-3 : 2e-2));
    const auto gradient = [&](const std::function<Tensor(const Tensor&)>& f) {  // no scope is open
      const Tensor x = ad.detach().requires_grad_(true);
      Tensor y;
      {
        const MatmulPrecisionScope scope(precision);
        y = f(x);
      }
      return std::pair(y, backward(y, on_cuda(g))[x]);
    };
    for (bool lazy : {false, true}) {
      std::optional<LazyScope> scope;
      if (lazy) scope.emplace();
      const auto [y, dx] = gradient([&](const Tensor& x) { return matmul(x, bd); });
      CHECK(distance(y, rounded) < near);
      CHECK(distance(dx, rounded_grad) < near);
      const auto [z, dz] = gradient([&](const Tensor& x) { return linear(x, wd); });
      CHECK(distance(z, matmul(narrow(a), narrow(w), {.trans_b = true})) < near);
      CHECK(distance(dz, matmul(narrow(g), narrow(w))) < near);
      // A checkpoint runs its product again, which feeds the gradient.
      const auto [q, dq] = gradient([&](const Tensor& x) {
        return recompute(
            [&](Inputs in, Rng*) {
              const Tensor p = matmul(in[0], bd);
              return Tensors{p * p};
            },
            std::array{x}, nullptr)[0];
      });
      CHECK(distance(q, rounded * rounded) < near);
      CHECK(distance(dq, matmul(narrow(g * rounded * 2.0), narrow(b), {.trans_b = true})) <
            std::max(2 * near, high ? 5e-4 : 5e-3));
      const Tensor one = matmul(ad, bd), two = matmul(ad, bd, {.precision = precision});
#ifdef TG_CUDA_EMULATED
      CHECK(distance(one, two) > 2e-5);
#else
      MESSAGE("operands that are rounded move the product by ", distance(one, two));
#endif
    }
    const MatmulPrecisionScope scope(precision);
    for (DType t : {DType::f64, DType::bf16}) {
      const Tensor x = make({20, 30}, 1, t), y = make({30, 20}, 1, t);
      CHECK(distance(matmul(on_cuda(x), on_cuda(y)), matmul(x, y)) < tolerance(t));
    }
  }
}
