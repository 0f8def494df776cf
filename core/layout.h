/// @file
/// Layout: shape, strides, offset, dtype and device of a value, without data. An op's infer() returns Layouts, so a
/// view is fully known before anything runs.
#pragma once
#include <tapegrad/core/device.h>
#include <tapegrad/core/dtype.h>
#include <tapegrad/core/shape.h>

namespace tg {

/// A value's place in its storage; strides and offset count elements.
struct Layout {
  Shape shape;
  Strides strides;
  int64_t offset = 0;
  DType dtype = DType::f32;
  Device device;
  /// The input whose storage this views, without a kernel; -1: none.
  int8_t aliases_input = -1;

  /// A view of input i.
  Layout view_of(size_t i) const {
    Layout l = *this;
    l.aliases_input = int8_t(i);
    return l;
  }
  /// Row-major order without gaps.
  static Layout contiguous(const Shape& s, DType t, Device d = {}) {
    Layout l{s, Strides::filled(s.size(), 1), 0, t, d};
    for (size_t i = s.size(); i-- > 1;) l.strides[i - 1] = l.strides[i] * s[i];
    return l;
  }
  int64_t numel() const { return shape.product(); }
  /// Bytes of distinct elements, without gaps.
  size_t bytes() const { return size_t(numel()) * size_of(dtype); }
  bool is_contiguous() const {
    int64_t want = 1;
    for (size_t i = shape.size(); i-- > 0; want *= shape[i])
      if (shape[i] != 1 && strides[i] != want) return false;
    return true;
  }
};
/// "(2, 3) f32".
std::string to_string(const Layout&);

namespace detail {
/// Strides that broadcast `in` to shape `to`: 0 along repeated dimensions.
inline Strides broadcast_strides(const Layout& in, const Shape& to) {
  Strides r = Strides::filled(to.size(), 0);
  const size_t skip = to.size() - in.shape.size();
  for (size_t i = 0; i < in.shape.size(); ++i) r[i + skip] = in.shape[i] == 1 ? 0 : in.strides[i];
  return r;
}
}  // namespace detail

}  // namespace tg
