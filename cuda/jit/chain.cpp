#include <tapegrad/core/check.h>
#include <tapegrad/cuda/jit/chain.h>
#include <tapegrad/cuda/jit/chain_source.h>
#include <tapegrad/cuda/jit/rtc.h>
#include <tapegrad/cuda/runtime/runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace tg::cuda {
namespace {
struct ChainKernel {
  ChainSource source;
  cudaKernel_t kernel = nullptr;  // null: not compilable
  std::string name;
};
struct Chains {  // leaked: messages hold kernel names
  std::mutex mutex;
  std::unordered_map<StructuralHash, const ChainKernel*, StructuralHasher> kernels;
  std::unordered_map<std::string, cudaKernel_t> loaded;  // key: source and architecture
  std::optional<bool> has_compiler;
  uint64_t refused = 0;
};
Chains& chains() {
  static auto& c = *new Chains;
  return c;
}

void say(const std::string& why) {
  fmt::print(stderr, "tapegrad: [chain] pointwise ops run one by one on cuda, with the same results. {}\n", why);
}

int architecture(int device) { return properties(device).major * 10 + properties(device).minor; }

StructuralHash key_of(const Chain& c) {
  StructuralHash k;
  k.add(c.device.index);
  for (const ChainPlan::Buffer& b : c.plan.buffers)
    k.add(uint64_t(b.dtype) << 16 | uint64_t(b.kind) << 8 | uint64_t(reads_of(c.plan, b)));
  for (size_t i = 0; i < c.ops.size(); ++i) {
    k.add(c.ops[i]->type());
    c.ops[i]->key(k);
    for (const uint32_t b : c.plan.uses[i].in) k.add(uint64_t(b));
    k.add(uint64_t(c.plan.uses[i].out));
  }
  return k;
}
std::string name_of(const Chain& c) {
  std::string s;
  for (const Op* op : c.ops) fmt::format_to(std::back_inserter(s), "{}{}", s.empty() ? "" : "+", op->name());
  return s;
}
cudaKernel_t load(Chains& all, const std::string& source, int arch) {
  const std::string key = fmt::format("{} {}", arch, source);
  if (const auto it = all.loaded.find(key); it != all.loaded.end()) return it->second;
  cudaKernel_t kernel = nullptr;
  try {
    kernel = load_kernel(compile_kernels(source, arch).image, kChainKernel);
  } catch (const Error& e) {
    check_alive();
    say(e.what());
    ++all.refused;
  }
  return all.loaded[key] = kernel;
}
const ChainKernel& kernel_of(const Chain& c) {
  Chains& all = chains();
  const std::lock_guard lock(all.mutex);
  const ChainKernel*& kernel = all.kernels[key_of(c)];
  if (!kernel) {
    auto fresh = std::make_unique<ChainKernel>(ChainKernel{chain_source(c.plan, c.ops), nullptr, name_of(c)});
    fresh->kernel = load(all, fresh->source.text, architecture(c.device.index));
    kernel = fresh.release();
  }
  return *kernel;
}

// True if groups of `vector` elements are, per buffer, contiguous and aligned, or one repeated element.
bool in_groups(const Chain& c, const ChainSource& s) {
  for (const uint32_t b : s.buffers) {
    const ChainPlan::Buffer& buffer = c.plan.buffers[b];
    const Reads how = reads_of(c.plan, buffer);
    if (how != Reads::all && how != Reads::one && c.plan.columns % s.vector != 0) return false;
    if (how != Reads::all && how != Reads::row) continue;
    if (reinterpret_cast<uintptr_t>(c.data[b]) % (size_t(s.vector) * size_of(buffer.dtype)) != 0) return false;
  }
  return true;
}
void launch(const Chain& c, const ChainKernel& k) {
  const ChainSource& s = k.source;
  const int64_t n = c.plan.rows * c.plan.columns, groups = s.vector > 1 && in_groups(c, s) ? n / s.vector : 0;
  SmallVec<uint64_t, 32> words;  // Arguments of chain_kernel.h
  for (const int64_t x : {n, groups, c.plan.columns, int64_t(0)}) words.emplace_back(uint64_t(x));
  for (const uint32_t b : s.buffers) words.emplace_back(reinterpret_cast<uintptr_t>(c.data[b]));
  for (const ChainSource::Number& x : s.numbers)
    words.emplace_back(number_bits(x, c.ops[x.op]->expression().numbers[x.index]));
  if (s.numbers.empty()) words.emplace_back(0u);
  const Context context{c.device, k.name};
  const cudaStream_t stream = stream_of(c.device.index);
  void* arguments[] = {words.data()};
  (void)cudaLaunchKernel(reinterpret_cast<const void*>(k.kernel),
                         blocks_for(context, n - groups * (s.vector - 1), kChainThreads), kChainThreads, arguments, 0,
                         stream);  // launched() checks its error
  launched(context);
}
void run_one_by_one(const Chain& c) {
  const ChainPlan& p = c.plan;
  const size_t bytes = (size_t(p.rows * p.columns) * 8 + 255) / 256 * 256;
  const Scratch scratch({c.device, c.ops[0]->name()}, bytes * std::max(1u, p.scratch));
  std::vector<Layout> layouts(p.buffers.size());
  std::vector<std::byte*> data(c.data.begin(), c.data.end());
  for (size_t i = 0; i < layouts.size(); ++i) {
    const ChainPlan::Buffer& b = p.buffers[i];
    layouts[i] = {{p.rows, p.columns}, {b.row_step, b.column_step}, 0, b.dtype, c.device};
    if (b.kind == ChainPlan::Buffer::Kind::temporary) data[i] = scratch.as<std::byte>() + bytes * b.index;
  }
  SmallVec<Buf, 4> in;
  for (size_t k = 0; k < c.ops.size(); ++k) {
    in.clear();
    for (const uint32_t i : p.uses[k].in) in.emplace_back(&layouts[i], data[i]);
    const Buf out{&layouts[p.uses[k].out], data[p.uses[k].out]};
    Context context{c.device, c.ops[k]->name()};
    c.ops[k]->run({in.data(), in.size()}, {&out, 1}, context);
  }
}
}  // namespace

bool runs_in_chains(const Op& op) {
#ifdef TG_CUDA_EMULATED
  const char* on = std::getenv("TG_EMULATE_CHAINS");
  if (!on || std::string_view(on) != "1") return false;
#endif
  if (op.expression().text.empty()) return false;
  Chains& all = chains();
  const std::lock_guard lock(all.mutex);
  if (!all.has_compiler) {
    const std::string why = why_no_compiler();
    all.has_compiler = why.empty();
    if (!why.empty()) say(why);
  }
  return *all.has_compiler;
}
void run_chain(const Chain& c) {
  const ChainKernel& k = kernel_of(c);
  k.kernel ? launch(c, k) : run_one_by_one(c);
}
uint64_t refused_chains() {
  const std::lock_guard lock(chains().mutex);
  return chains().refused;
}
void forget_chains() {
  Chains& all = chains();
  const std::lock_guard lock(all.mutex);
  all.kernels.clear(), all.loaded.clear();
  all.has_compiler.reset();
}

}  // namespace tg::cuda
