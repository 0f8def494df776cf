/// @file
/// TG_CHECK, and fmt formatters of tensors, shapes and dtypes. Only .cpp and .cu files include it, so that programs do
/// not depend on the headers of fmt.
#pragma once
#include <fmt/core.h>
#include <tapegrad/core/device.h>
#include <tapegrad/core/dtype.h>
#include <tapegrad/core/error.h>
#include <tapegrad/core/shape.h>

namespace tg {

struct Layout;
class Tensor;
std::string to_string(const Layout&);
namespace detail {
std::string describe(const Tensor&);
std::string about_empty();  // message part after "an empty tensor"
}  // namespace detail

/// Throws an Error of `kind` with a formatted message unless `cond` holds. Always on; evaluates arguments only on
/// failure.
#define TG_CHECK(cond, kind, ...)                                              \
  do {                                                                         \
    if (!(cond)) [[unlikely]]                                                  \
      ::tg::detail::fail(::tg::Error::Kind::kind, ::fmt::format(__VA_ARGS__)); \
  } while (0)

/// Base of fmt formatters for our types: it accepts "{}" only.
struct PlainFormatter {
  template <class C> constexpr auto parse(C& c) { return c.begin(); }
  template <class C> static auto write(std::string_view text, C& c) {
    auto out = c.out();
    for (char ch : text) *out++ = ch;
    return out;
  }
};

}  // namespace tg

/// @cond
template <> struct fmt::formatter<tg::Device> : tg::PlainFormatter {
  template <class C> auto format(tg::Device d, C& c) const { return write(tg::to_string(d), c); }
};
template <> struct fmt::formatter<tg::DType> : tg::PlainFormatter {
  template <class C> auto format(tg::DType d, C& c) const { return write(tg::name_of(d), c); }
};
template <> struct fmt::formatter<tg::Dims> : tg::PlainFormatter {
  template <class C> auto format(const tg::Dims& d, C& c) const { return write(tg::to_string(d), c); }
};
template <> struct fmt::formatter<tg::Layout> : tg::PlainFormatter {
  template <class C> auto format(const tg::Layout& l, C& c) const { return write(tg::to_string(l), c); }
};
// describe()
template <> struct fmt::formatter<tg::Tensor> : tg::PlainFormatter {
  template <class C> auto format(const tg::Tensor& t, C& c) const { return write(tg::detail::describe(t), c); }
};
/// @endcond
