#include <fmt/ranges.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/layout.h>

#include <array>
#include <charconv>
#include <limits>

namespace tg {
namespace {
#define TG_X(T, d, name) name,
constexpr std::array<std::string_view, kDTypes> kNames = {TG_DTYPES(TG_X)};
#undef TG_X
}  // namespace

size_t size_of(DType d) {
  return visit_dtype(d, []<class T>() { return sizeof(T); });
}
std::string_view name_of(DType d) { return kNames[size_t(d)]; }
DType detail::dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == name) return DType(i);
  throw Error(Error::Kind::dtype,
              fmt::format("[dtype] there is no dtype '{}'. Use one of {}.", name, fmt::join(kNames, ", ")));
}

std::string_view name_of(Backend b) { return b == Backend::cpu ? "cpu" : "cuda"; }
std::string to_string(Device d) {
  return d.backend == Backend::cpu ? std::string("cpu") : fmt::format("cuda:{}", int(d.index));
}
Device Device::cuda(int index) {
  TG_CHECK(index >= 0 && index < 128, device, "[device] cuda:{} is no device. Numbers go from 0 to 127.", index);
  return {Backend::cuda, int8_t(index)};
}
Device Device::parse(std::string_view text) {
  if (text == "cpu") return cpu();
  if (text == "cuda") return cuda();
  if (text.starts_with("cuda:")) {
    int index = 0;
    const char *first = text.data() + 5, *last = text.data() + text.size();
    if (auto r = std::from_chars(first, last, index); r.ec == std::errc() && r.ptr == last && index >= 0 && index < 128)
      return cuda(index);
  }
  throw Error(Error::Kind::device, fmt::format("[device] '{}' is no device. Use cpu, cuda or cuda:N.", text));
}

void Dims::fail_full() {
  detail::fail(Error::Kind::shape,
               fmt::format("[shape] more than {} dimensions. At most {} are supported.", kMaxDims, kMaxDims));
}
std::string to_string(const Dims& d) { return fmt::format("({})", fmt::join(d, ", ")); }
std::string to_string(const Layout& l) { return fmt::format("{} {}", l.shape, l.dtype); }
size_t detail::normal_dim(std::string_view op, int64_t dim, const Shape& s) {
  const auto n = int64_t(s.size());
  TG_CHECK(dim >= -n && dim < n, shape, "[{}] dimension {} is outside of shape {}. It must be in [{}, {}).", op, dim, s,
           -n, n);
  return size_t(dim < 0 ? dim + n : dim);
}
int64_t detail::checked_numel(std::string_view op, const Shape& s) {
  int64_t n = 1;
  bool zero = false;
  for (int64_t d : s) {
    TG_CHECK(d >= 0, shape, "[{}] shape {} has a negative size. Sizes are 0 or more.", op, s);
    zero |= d == 0;
  }
  if (zero) return 0;
  for (int64_t d : s)
    TG_CHECK(!__builtin_mul_overflow(n, d, &n) && n <= std::numeric_limits<int64_t>::max() / 16, shape,
             "[{}] shape {} has more elements than 64-bit sizes in bytes allow. Split the tensor.", op, s);
  return n;
}
Dims detail::position_of(int64_t i, const Shape& s) {
  Dims at = s;
  for (size_t d = s.size(); d-- > 0; i /= s[d]) at[d] = i % s[d];
  return at;
}
}  // namespace tg
