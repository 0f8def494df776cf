// Without a device: the cache, messages, and (TG_CUDA=ON) NVRTC for every GPU of this build.
#include <tapegrad/core/node.h>
#include <tapegrad/core/plan/plan.h>
#include <tapegrad/cuda/jit/chain_source.h>
#include <tapegrad/cuda/jit/rtc.h>

#include <fstream>
#include <set>

#include "support/chain_cases.h"
#include "support/files.h"
#include "support/with_env.h"

using namespace tg;
namespace {
std::string kernel_of(const std::string& value) {
  return "#include <tapegrad/cuda/jit/chain_kernel.h>\n"
         "using Args = tg::cuda::Arguments<1, 0>;\n"
         "extern \"C\" __global__ void probe(const Args a) { *static_cast<float*>(a.data[0]) = " +
         value +
         "; }\n"
         "TG_CHAIN_ENTRY(probe, Args)\n";
}
void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }
std::vector<cuda::ChainSource> sources_of(const ChainCase& c) {
  const LazyScope lazy;
  const std::vector<Tensor> y = c.f(c.in);
  detail::Graph g = detail::collect(y);
  detail::number(g);
  const detail::Plan plan = detail::make_plan(g, detail::kAllPasses);
  std::vector<cuda::ChainSource> r;
  for (const detail::Step& s : plan.steps) {
    if (s.chain.uses.size() < 2) continue;
    std::vector<const Op*> ops;
    for (const uint32_t n : s.nodes) ops.push_back(g.nodes[n]->op.get());
    r.push_back(cuda::chain_source(s.chain, ops));
  }
  return r;
}
}  // namespace

TEST_CASE("kernels at run time: compiled once, then read from the disk; what is damaged or foreign is replaced") {
  const Folder folder;
  const WithEnv cache("TG_CACHE_DIR", folder / "made/when needed");
  const std::string source = kernel_of("tg::math::exp(1.0f)");
  const std::string path = cuda::cached_file(source, 90);
  CHECK(path.starts_with(folder / "made/when needed/"));
  CHECK(path != cuda::cached_file(source, 80));
  CHECK(path != cuda::cached_file(kernel_of("tg::math::exp(2.0f)"), 90));
  const auto counts = [&] { return std::pair(cuda::rtc_stats().compiled, cuda::rtc_stats().read); };
  const auto [compiled, read] = counts();
  const cuda::Compiled first = cuda::compile_kernels(source, 90);
  CHECK(first.log.empty());
  CHECK(counts() == std::pair(compiled + 1, read));
  CHECK(cuda::compile_kernels(source, 90).image == first.image);
  CHECK(counts() == std::pair(compiled + 1, read + 1));
  const std::string whole = read_file(path);
  std::string flipped = whole;
  flipped[flipped.size() / 2] ^= 1;
  uint64_t n = 1;
  for (const std::string& text : {whole.substr(0, whole.size() - 1), flipped, std::string(), std::string("foreign")}) {
    write(path, text);
    CHECK(cuda::compile_kernels(source, 90).image.size() == first.image.size());
    CHECK(counts() == std::pair(compiled + ++n, read + 1));
    CHECK(read_file(path).size() == whole.size());
  }
}
TEST_CASE("kernels at run time: a folder that cannot be written is not used") {
  const Folder folder;
  write(folder / "file", "no folder");
  const WithEnv cache("TG_CACHE_DIR", folder / "file/kernels");
  for (int i = 0; i < 2; ++i) CHECK(!cuda::compile_kernels(kernel_of("3.0f"), 90).image.empty());
  CHECK(read_file(folder / "file") == "no folder");
}
TEST_CASE("kernels at run time: a folder or a file that others may write is not read, and not written") {
  const Folder folder;
  const WithEnv cache("TG_CACHE_DIR", folder / "kernels");
  const std::string source = kernel_of("5.0f"), path = cuda::cached_file(source, 90);
  const auto counts = [&] { return std::pair(cuda::rtc_stats().compiled, cuda::rtc_stats().read); };
  const auto [compiled, read] = counts();
  cuda::compile_kernels(source, 90);
  CHECK(int(fs::status(folder / "kernels").permissions()) == 0700);
  cuda::compile_kernels(source, 90);
  CHECK(counts() == std::pair(compiled + 1, read + 1));
  fs::permissions(path, fs::perms(0666));
  cuda::compile_kernels(source, 90);
  CHECK(counts() == std::pair(compiled + 2, read + 1));
  fs::permissions(folder / "kernels", fs::perms(0777));
  fs::remove(path);
  for (int i = 0; i < 2; ++i) cuda::compile_kernels(source, 90);
  CHECK(counts() == std::pair(compiled + 4, read + 1));
  CHECK(!fs::exists(path));
}
TEST_CASE("kernels at run time: where they are kept") {
  const std::string source = kernel_of("4.0f");
  const auto folder_of = [&] { return fs::path(cuda::cached_file(source, 90)).parent_path().string(); };
  const WithEnv home("HOME", "/h"), caches("XDG_CACHE_HOME", "/c"), own("TG_CACHE_DIR", "/t");
  CHECK(folder_of() == "/t");
  {
    const WithEnv none("TG_CACHE_DIR", "");
    CHECK(folder_of() == "/c/tapegrad");
    const WithEnv nor("XDG_CACHE_HOME", "");
    CHECK(folder_of() == "/h/.cache/tapegrad");
    const WithEnv relative("XDG_CACHE_HOME", "c");
    CHECK(folder_of() == "/h/.cache/tapegrad");
    const WithEnv neither("HOME", "");
    CHECK(cuda::cached_file(source, 90).empty());
  }
}
TEST_CASE("kernels at run time: what the compiler says of a source that it refuses") {
  const WithEnv cache("TG_CACHE_DIR", "");
  const WithEnv caches("XDG_CACHE_HOME", ""), home("HOME", "");
  CHECK_SAYS_OF(cuda, cuda::compile_kernels(kernel_of("not_declared"), 80), "[cuda] NVRTC ",
                " cannot compile a kernel for sm_80: NVRTC_ERROR_COMPILATION", "not_declared");
}
TEST_CASE("sources of chains depend on structure, and not on sizes or numbers") {
  const auto source = [](int64_t n, double s) {
    const ChainCase c{"", {random({n}, 1)}, [s](Inputs x) { return std::vector{tg::exp(x[0] * s) - s}; }};
    const auto all = sources_of(c);
    REQUIRE(all.size() == 1);
    CHECK(all[0].numbers.size() == 2);
    CHECK(cuda::number_bits(all[0].numbers[0], s) == std::bit_cast<uint32_t>(float(s)));
    return all[0].text;
  };
  CHECK(source(10, 2) == source(11, 3));
  CHECK_HAS(source(10, 2), "Exp::f(widen(v");
}
TEST_CASE("numbers of kernels saturate in their dtype, as a cast does") {
  const auto bits = [](DType t, bool bitwise, double x) { return cuda::number_bits({0, 0, t, bitwise}, x); };
  CHECK(bits(DType::i64, false, kInf) == uint64_t(std::numeric_limits<int64_t>::max()));
  CHECK(bits(DType::i64, false, -kInf) == uint64_t(1) << 63);
  CHECK(bits(DType::i32, false, kInf) == 0x7fffffffu);
  CHECK(bits(DType::i32, false, -3) == 0xfffffffdu);
  CHECK(bits(DType::bf16, false, 1) == std::bit_cast<uint32_t>(1.0f));
  CHECK(bits(DType::bf16, true, 1) == bf16(1.0f).bits);
  CHECK(bits(DType::f16, true, 1.5) == f16(1.5f).bits);
  CHECK(bits(DType::f64, false, 0.1) == std::bit_cast<uint64_t>(0.1));
  CHECK(bits(DType::boolean, true, 1) == 1);
}
#ifndef TG_CUDA_EMULATED
namespace {
// sm_80 to sm_90: the low nine bits of 16 bytes.
size_t count_of(const std::string& cubin, uint64_t instruction) {
  const auto at = [&](size_t offset, auto x) {
    std::memcpy(&x, cubin.data() + offset, sizeof x);
    return x;
  };
  const uint64_t sections = at(0x28, uint64_t());
  size_t n = 0;
  for (uint64_t k = 0; k < at(0x3c, uint16_t()); ++k) {
    const uint64_t s = sections + k * at(0x3a, uint16_t());
    if (!(at(s + 8, uint64_t()) & 4)) continue;  // executable
    const uint64_t begin = at(s + 24, uint64_t()), bytes = at(s + 32, uint64_t());
    for (uint64_t i = begin; i < begin + bytes; i += 16) n += (at(i, uint64_t()) & 0x1ff) == instruction;
  }
  return n;
}
}  // namespace
TEST_CASE("NVRTC compiles every chain, without a word, for every GPU that this library is built for") {
  const Folder folder;
  const WithEnv cache("TG_CACHE_DIR", folder.path);
  CHECK(cuda::why_no_compiler() == "");
  std::set<std::string> different;
  for (const ChainCase& c : chain_cases())
    for (const cuda::ChainSource& s : sources_of(c))
      for (const int arch : {80, 90}) {
        INFO(c.name);
        INFO(s.text);
        const cuda::Compiled r = cuda::compile_kernels(s.text, arch);
        CHECK(r.log == "");
        CHECK(r.image.substr(1, 3) == "ELF");
        different.insert(s.text);
      }
  CHECK(different.size() > 12);
  CHECK(folder.entries() == 2 * different.size());
}
TEST_CASE("a product and a sum of two ops are not contracted, those within an op are") {
  constexpr uint64_t kFfma = 0x023, kDfma = 0x02b;
  const WithEnv cache("TG_CACHE_DIR", ""), caches("XDG_CACHE_HOME", ""), home("HOME", "");
  for (const DType t : {DType::f32, DType::f64}) {
    const auto fused = [&](const std::function<std::vector<Tensor>(Inputs)>& f) {
      const auto all = sources_of({"", {random({8}, 1).to(t), random({8}, 2).to(t), random({8}, 3).to(t)}, f});
      REQUIRE(all.size() == 1);
      return count_of(cuda::compile_kernels(all[0].text, 90).image, t == DType::f32 ? kFfma : kDfma);
    };
    CHECK(fused([](Inputs x) { return std::vector{x[0] * x[1] + x[2]}; }) == 0);
    CHECK(fused([](Inputs x) { return std::vector{tanh(x[0]) * x[1] + x[2]}; }) > 0);
  }
}
#endif
