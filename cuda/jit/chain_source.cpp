#include <tapegrad/core/check.h>
#include <tapegrad/cuda/jit/chain_source.h>

#include <algorithm>
#include <bit>
#include <limits>

namespace tg::cuda {
namespace {
using Buffer = ChainPlan::Buffer;

constexpr std::string_view kBegin = R"(#define TG_FUNCTIONS_ONLY
#include <tapegrad/cuda/jit/chain_kernel.h>
#include <tapegrad/ops/comparison.h>
#include <tapegrad/ops/pointwise.h>

namespace tg::cuda {
namespace {
)";
// {0} kernel, {1} threads, {2} adjacent elements per thread minus 1, {3} values of Once
constexpr std::string_view kEnd = R"(}}  // namespace
}}  // namespace tg::cuda
using tg::cuda::Args;

extern "C" __global__ void __launch_bounds__({1}) {0}(const __grid_constant__ Args a) {{
  using namespace tg::cuda;
  const Once once{{{3}}};
  for (GridLoop g(a.elements - a.groups * {2}); g; ++g) {{
    if (*g < a.groups)
      run<{2} + 1>(a, once, *g * ({2} + 1));
    else
      run<1>(a, once, *g + a.groups * {2});
  }}
}}
TG_CHAIN_ENTRY({0}, Args)
)";

std::string_view type_of(DType d) {
  switch (d) {
    case DType::f64: return "double";
    case DType::f32: return "float";
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::i64: return "int64_t";
    case DType::i32: return "int32_t";
    case DType::i8: return "int8_t";
    case DType::u16: return "uint16_t";
    case DType::u8:
    case DType::boolean: break;  // 0 or 1
  }
  return "uint8_t";
}

class Writer {
 public:
  Writer(const ChainPlan& p, std::span<const Op* const> ops) : p_(p), ops_(ops), readers_(p.buffers.size()) {
    for (const ChainPlan::Use& u : p.uses)
      for (const uint32_t b : u.in) ++readers_[b];
    size_t widest = 2;  // registers
    for (uint32_t b = 0; b < p.buffers.size(); ++b) {
      if (!in_memory(b)) continue;
      s_.buffers.push_back(b);
      if (reads_of(p, p.buffers[b]) != Reads::one) widest = std::max(widest, size_of(p.buffers[b].dtype));
    }
    s_.vector = int(16 / widest);
  }
  ChainSource write() {
    std::string body;
    for (uint32_t k = 0; k < p_.uses.size(); ++k) body += op(k);
    std::string once, first;  // declarations, values read once
    for (const uint32_t b : s_.buffers)
      if (reads_of(p_, p_.buffers[b]) == Reads::one && !is_output(b)) {
        once += fmt::format(" {} b{};", type_of(p_.buffers[b].dtype), b);
        first += fmt::format("{}element<{}>({}, 0)", first.empty() ? "" : ", ", type_of(p_.buffers[b].dtype), data(b));
      }
    s_.text = kBegin;
    s_.text += fmt::format("using Args = Arguments<{}, {}>;\nstruct Once {{{} }};\n", s_.buffers.size(),
                           s_.numbers.size(), once);
    s_.text +=
        "template <int V>\n__device__ __forceinline__ void run(const Args& a, [[maybe_unused]] const Once& once, "
        "int64_t i) {\n";
    s_.text += loads();
    s_.text += "#pragma unroll\n  for (int k = 0; k < V; ++k) {\n" + body + "  }\n" + stores() + "}\n";
    s_.text += fmt::format(kEnd, kChainKernel, kChainThreads, s_.vector - 1, first);
    return std::move(s_);
  }

 private:
  bool in_memory(uint32_t b) const { return p_.buffers[b].kind != Buffer::Kind::temporary; }
  bool is_output(uint32_t b) const { return p_.buffers[b].kind == Buffer::Kind::output; }
  std::string data(uint32_t b) const {
    return fmt::format("a.data[{}]", std::ranges::lower_bound(s_.buffers, b) - s_.buffers.begin());
  }
  std::string loads() const {
    std::string r, place;
    for (const uint32_t b : s_.buffers) {
      const std::string_view t = type_of(p_.buffers[b].dtype);
      const Reads how = reads_of(p_, p_.buffers[b]);
      if (is_output(b))
        r += fmt::format("  Vec<{}, V> b{};\n", t, b);
      else if (how == Reads::all)
        r += fmt::format("  const auto b{} = load<{}, V>({}, i);\n", b, t, data(b));
      else if (how == Reads::row)
        r += fmt::format("  const auto b{} = load<{}, V>({}, at.column);\n", b, t, data(b));
      else if (how == Reads::column)
        r += fmt::format("  const auto b{} = element<{}>({}, at.row);\n", b, t, data(b));
      if (!is_output(b) && (how == Reads::row || how == Reads::column))
        place = "  const Place at = place_of(i, a.columns);\n";
    }
    return place + r;
  }
  std::string stores() const {
    std::string r;
    for (const uint32_t b : s_.buffers)
      if (is_output(b)) r += fmt::format("  store({}, i, b{});\n", data(b), b);
    return r;
  }
  std::string input(uint32_t b, bool bitwise) const {
    const Buffer& from = p_.buffers[b];
    std::string s = fmt::format("v{}", b);  // an op's result
    if (from.kind == Buffer::Kind::input) {
      const Reads how = reads_of(p_, from);
      s = fmt::format("{}b{}{}", how == Reads::one ? "once." : "", b,
                      how == Reads::all || how == Reads::row ? ".x[k]" : "");
    }
    return bitwise ? s : fmt::format("widen({})", s);
  }
  std::string number(uint32_t k, uint32_t index, bool bitwise) {
    const DType d = p_.buffers[p_.uses[k].in[0]].dtype;
    const auto same = [&](const ChainSource::Number& n) { return n.op == k && n.index == index; };
    const auto it = std::ranges::find_if(s_.numbers, same);
    const auto at = size_t(it - s_.numbers.begin());
    if (it == s_.numbers.end()) s_.numbers.push_back({k, index, d, bitwise});
    const bool half = !bitwise && (d == DType::bf16 || d == DType::f16);
    return fmt::format("number<{}>(a.numbers[{}])", half ? "float" : type_of(d), at);
  }
  std::string op(uint32_t k) {
    const ChainPlan::Use& u = p_.uses[k];
    const Expression e = ops_[k]->expression();
    std::string value;
    for (size_t i = 0; i < e.text.size(); ++i) {
      const char c = e.text[i];
      if (c == '$')
        value += input(u.in[size_t(e.text[++i] - '0')], e.bitwise);
      else if (c == '#')
        value += number(k, uint32_t(e.text[++i] - '0'), e.bitwise);
      else
        value += c;
    }
    const std::string_view t = type_of(p_.buffers[u.out].dtype);
    if (!e.bitwise) value = fmt::format("Narrowed<{}>::from({})", t, value);
    if (!e.bitwise && readers_[u.out]) value = fmt::format("settled({}, a.zero)", value);
    std::string s = fmt::format("    const {} v{} = {};\n", t, u.out, value);
    if (is_output(u.out)) s += fmt::format("    b{0}.x[k] = v{0};\n", u.out);
    return s;
  }

  const ChainPlan& p_;
  std::span<const Op* const> ops_;
  std::vector<uint32_t> readers_;
  ChainSource s_;
};

// Casts truncate towards 0 and saturate.
template <class T> T to(double x) {
  if constexpr (std::is_integral_v<T>) {
    constexpr T lo = std::numeric_limits<T>::min(), hi = std::numeric_limits<T>::max();
    return x != x ? T(0) : x <= double(lo) ? lo : x >= double(hi) ? hi : T(x);
  } else {
    return T(compute_t<T>(x));
  }
}
template <class T> uint64_t word(T x) {
  if constexpr (sizeof(T) == 8)
    return std::bit_cast<uint64_t>(x);
  else if constexpr (sizeof(T) == 4)
    return std::bit_cast<uint32_t>(x);
  else if constexpr (sizeof(T) == 2)
    return std::bit_cast<uint16_t>(x);
  else
    return std::bit_cast<uint8_t>(x);
}
}  // namespace

Reads reads_of(const ChainPlan& p, const Buffer& b) {
  if (b.kind != Buffer::Kind::input) return Reads::all;
  if (b.row_step == p.columns && b.column_step == 1) return Reads::all;
  return b.column_step ? Reads::row : b.row_step ? Reads::column : Reads::one;
}
ChainSource chain_source(const ChainPlan& p, std::span<const Op* const> ops) { return Writer(p, ops).write(); }
uint64_t number_bits(const ChainSource::Number& n, double x) {
  uint64_t r = 0;
  visit_dtype(n.dtype, [&]<class T>() { r = n.bitwise ? word(to<T>(x)) : word(to<compute_t<T>>(x)); });
  return r;
}

}  // namespace tg::cuda
