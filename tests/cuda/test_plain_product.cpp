#include <tapegrad/core/plan/compile.h>
#include <tapegrad/cuda/gemm/gemm.h>
#include <tapegrad/ops/ops.h>

#ifdef TG_CUDA_EMULATED
#include <tapegrad/emulator/cublaslt.h>
#endif
#include "support/on_cuda.h"
#include "support/with_env.h"

using namespace tg;
namespace {
constexpr DType kProductTypes[] = {DType::f64, DType::f32, DType::bf16};
constexpr int64_t kSizes[][3] = {{1, 1, 1},   {3, 83, 1},  {3, 33, 65}, {83, 1, 3},
                                 {65, 3, 83}, {1, 33, 83}, {83, 33, 1}, {83, 17, 65}};

struct ProductOptions {
  cuda::GemmOptions before = cuda::gemm_options();
  explicit ProductOptions(const cuda::GemmOptions& o = {}) { cuda::set_gemm_options(o); }
  ~ProductOptions() { cuda::set_gemm_options(before); }
};

void check_products() {
  for (const DType t : kProductTypes)
    for (auto [m, k, n] : kSizes)
      for (const bool ta : {false, true})
        for (const bool tb : {false, true}) {
          CAPTURE(fmt::format("{} {} x {} x {}{}{}", name_of(t), m, k, n, ta ? " a transposed" : "",
                              tb ? " b transposed" : ""));
          const Tensor a = make(ta ? Shape{2, k, m} : Shape{2, m, k}, 1, t),
                       b = make(tb ? Shape{2, n, k} : Shape{2, k, n}, 2, t);
          const MatmulOptions o{.trans_a = ta, .trans_b = tb};
          const auto agree = [&](const Tensor& l, const Tensor& r, const Tensor& ld, const Tensor& rd) {
            CHECK(distance(matmul(ld, rd, o), matmul(l, r, o)) < tolerance(t));
          };
          const Tensor ad = on_cuda(a), bd = on_cuda(b);
          const auto one = [](const Tensor& x) { return reshape(slice(x, 0, 1, 2), {x.size(1), x.size(2)}); };
          agree(a, b, ad, bd);
          agree(one(a), b, one(ad), bd);  // step 0
          const auto odd = [](const Tensor& x) {
            return slice(slice(concat({x, x, x}, 2), 2, 1, 1 + x.size(2)), 0, 1, 2);
          };
          if (ta != tb) agree(odd(a), b, odd(ad), bd);
          if (ta) continue;
          const Tensor w = tb ? one(b) : transpose(one(b)), bias = make({n}, 3, t);
          const Tensor wd = tb ? one(bd) : transpose(one(bd));
          CHECK(distance(linear(ad, wd, on_cuda(bias)), linear(a, w, bias)) < tolerance(t));
        }
}
void check_integers() {
  const WithEnv by_library("TG_INT8_PRODUCTS", "cublaslt");
  const auto integers = [](const Shape& s, uint64_t seed) {
    return random<double>(s, seed, -127, 127).to(DType::i32).to(DType::i8);
  };
  const Tensor x = integers({83, 65}, 1), w = integers({68, 65}, 2);
  CHECK(bits_of(int8_linear(on_cuda(x), on_cuda(w))) == bits_of(int8_linear(x, w)));
}
}  // namespace

TEST_CASE("products of odd shapes and steps, with bias and in batches") {
  const ProductOptions options;
  check_products();
  check_integers();
#ifdef TG_CUDA_EMULATED  // has algorithms for all
  CHECK(cuda::gemm_stats().plain == 0);
#else
  MESSAGE("cuBLASLt has no algorithm for ", cuda::gemm_stats().plain, " of these products");
#endif
}
#ifdef TG_CUDA_EMULATED
namespace {
// Restricts cuBLASLt's reductions and accepted algorithms.
struct Library {
  explicit Library(uint32_t reductions, uint32_t refused = 0) { set(reductions, refused); }
  ~Library() { set(CUBLASLT_REDUCTION_SCHEME_MASK, 0); }
  static void set(uint32_t reductions, uint32_t refused) {
    simt::lt::set_reductions(reductions);
    simt::lt::set_refused(refused);
  }
};
}  // namespace

TEST_CASE("without an algorithm that adds in the computed type, another is taken") {
  const ProductOptions options;
  const Tensor a = make({40, 41}, 1, DType::bf16), b = make({41, 7}, 2, DType::bf16);
  const Tensor x = on_cuda(a), y = on_cuda(b);
  const Library only(CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE);
  const auto before = simt::lt::statistics().heuristics;
  CHECK(distance(matmul(x, y), matmul(a, b)) < tolerance(DType::bf16));
  CHECK(simt::lt::statistics().heuristics == before + 2);
  CHECK(cuda::gemm_stats().plain == 0);
}
TEST_CASE("products that the library has no algorithm for") {
  const ProductOptions options;
  const Library none(0);
  check_products();
  check_integers();
  CHECK(cuda::gemm_stats().products == 0);
  CHECK(cuda::gemm_stats().plain > 250);
}
TEST_CASE("products with a bias for which the library has none: added to by the library, rounded once") {
  for (const DType t : kProductTypes) {
    const ProductOptions options;
    const Tensor x = make({17, 24}, 1, t), w = make({41, 24}, 2, t), bias = make({41}, 3, t);
    const Tensor xd = on_cuda(x), wd = on_cuda(w), bd = on_cuda(bias);
    const auto with = bits_of(linear(xd, wd, bd));
    simt::lt::set_biases(false);
    cuda::set_gemm_options({});
    const auto without = bits_of(linear(xd, wd, bd));
    simt::lt::set_biases(true);
    CHECK(without == with);
    CHECK(cuda::gemm_stats().plain == 0);
    CHECK(cuda::gemm_stats().products == 1);
  }
}
TEST_CASE("products that the library refuses after all: by another algorithm, or by none") {
  const Tensor x = make({17, 24}, 1, DType::bf16), w = make({40, 24}, 2, DType::bf16),
               bias = make({40}, 3, DType::bf16);
  const Tensor xd = on_cuda(x), wd = on_cuda(w), bd = on_cuda(bias), expected = linear(x, w, bias);
  for (const uint32_t refused : {0b1u, 0b111u, 0b1111u}) {
    const ProductOptions options;
    const Library library(CUBLASLT_REDUCTION_SCHEME_MASK, refused);
    for (int i = 0; i < 2; ++i) CHECK(distance(linear(xd, wd, bd), expected) < tolerance(DType::bf16));
    CHECK(cuda::gemm_stats().plain == (refused == 0b1111 ? 2 : 0));
    CHECK(cuda::gemm_stats().products == (refused == 0b1111 ? 0 : 2));
  }
}
TEST_CASE("without algorithms: parts of products that are split, and a graph") {
  const Library none(0);
  for (const DType t : kProductTypes) {
    cuda::GemmOptions few;
    few.largest = 16, few.largest_batch = 2;
    const ProductOptions options(few);
    const Tensor x = make({3, 19, 37}, 1, t), w = make({21, 37}, 2, t), bias = make({21}, 3, t);
    CHECK(distance(linear(on_cuda(x), on_cuda(w), on_cuda(bias)), linear(x, w, bias)) < 2 * tolerance(t));
    CHECK(distance(matmul(on_cuda(x), on_cuda(x), {.trans_b = true}), matmul(x, x, {.trans_b = true})) <
          2 * tolerance(t));
  }
  const ProductOptions options;
  const Tensor x = on_cuda(make({19, 37}, 1, DType::f32)), w = on_cuda(make({21, 37}, 2, DType::f32));
  auto step = compile([&](Inputs in) { return std::vector<Tensor>{linear(in[0], w)}; });
  const auto eager = bits_of(linear(x, w));
  for (int i = 0; i < 5; ++i) CHECK(bits_of(step({x})[0]) == eager);
  CHECK(step.stats().graph_launches > 0);
}
#endif
