/// @file
/// What a value looks like: Shape, Strides, offset, DType, Device. No data and no ops here.
/// Strides count elements; an op's infer() returns Layouts, so a view is fully known before anything runs.
#pragma once
#include <tapegrad/core/device.h>
#include <tapegrad/core/dtype.h>
#include <tapegrad/core/shape.h>

namespace tg {

struct Layout {
  Shape shape;
  Strides strides;
  int64_t offset = 0;
  DType dtype = DType::f32;
  Device device;
  int8_t aliases_input = -1;  ///< >= 0: a view of that input's storage, nothing to compute

  static Layout contiguous(const Shape& s, DType t, Device d = {}) {
    Layout l{s, Strides::filled(s.size(), 1), 0, t, d};
    for (size_t i = s.size(); i-- > 1;) l.strides[i - 1] = l.strides[i] * s[i];
    return l;
  }
  int64_t numel() const { return shape.product(); }
  size_t bytes() const { return size_t(numel()) * size_of(dtype); }
  bool is_contiguous() const {
    int64_t want = 1;
    for (size_t i = shape.size(); i-- > 0; want *= shape[i])
      if (shape[i] != 1 && strides[i] != want) return false;
    return true;
  }
};

/// Strides that read `in` as if it had shape `to` (aligned at the right, 0 where it is repeated).
inline Strides broadcast_strides(const Layout& in, const Shape& to) {
  Strides r = Strides::filled(to.size(), 0);
  const size_t skip = to.size() - in.shape.size();
  for (size_t i = 0; i < in.shape.size(); ++i) r[i + skip] = in.shape[i] == 1 ? 0 : in.strides[i];
  return r;
}

}  // namespace tg
/// "(2, 3) f32"
template <> struct fmt::formatter<tg::Layout> : tg::PlainFormatter {
  template <class C> auto format(const tg::Layout& l, C& c) const {
    return write(tg::to_string(l.shape) + " " + std::string(tg::name_of(l.dtype)), c);
  }
};
