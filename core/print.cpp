#include <tapegrad/core/check.h>
#include <tapegrad/core/tensor.h>

#include <fmt/format.h>

#include <ostream>

namespace tg {
namespace {
constexpr int64_t kEdge = 3;    // values at each abridged end
constexpr int64_t kWhole = 10;  // largest complete size

struct Printer {
  const std::vector<double>& v;
  const Layout& layout;
  std::string text;

  void value(double x) {
    if (layout.dtype == DType::boolean)
      text += x != 0 ? "true" : "false";
    else if (is_float(layout.dtype))
      text += fmt::format("{:.4g}", x);
    else
      text += fmt::format("{}", int64_t(x));
  }
  void block(size_t dim, int64_t at, int64_t count) {
    if (dim == layout.shape.size()) return value(v[size_t(at)]);
    const int64_t n = layout.shape[dim], inner = n ? count / n : 0;
    const bool cut = n > kWhole, leaf = dim + 1 == layout.shape.size();
    text += '[';
    for (int64_t i = 0; i < n; ++i) {
      if (cut && i == kEdge) {
        text += leaf ? ", ..." : ",\n" + std::string(dim + 1, ' ') + "...";
        i = n - kEdge;
      }
      if (i > 0) text += leaf ? ", " : ",\n" + std::string(dim + 1, ' ');
      block(dim + 1, at + i * inner, inner);
    }
    text += ']';
  }
};
}  // namespace

std::string to_string(const Tensor& t) {
  if (!t) return detail::describe(t);
  const std::vector<double> v = t.to_vector<double>();
  Printer p{v, t.layout(), {}};
  p.block(0, 0, t.numel());
  return fmt::format("{}\n{}", p.text, detail::describe(t));
}
std::ostream& operator<<(std::ostream& s, const Tensor& t) { return s << to_string(t); }
}  // namespace tg
