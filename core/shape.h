/// @file
/// Shape and Strides: an inline vector of at most 8 sizes, in elements, so that a shape costs no allocation. No data,
/// no dtype, no device: those are in layout.h, which is where nearly all of the library meets shapes.
#pragma once
#include <tapegrad/core/error.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace tg {

inline constexpr size_t kMaxDims = 8;

class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<int64_t> l) : Dims(l.begin(), l.end()) {}
  template <class It> Dims(It first, It last) {
    for (; first != last; ++first) push_back(*first);
  }
  static Dims filled(size_t n, int64_t value) {
    Dims d;
    for (size_t i = 0; i < n; ++i) d.push_back(value);
    return d;
  }
  size_t size() const { return n_; }
  bool empty() const { return n_ == 0; }
  int64_t* begin() { return v_; }
  int64_t* end() { return v_ + n_; }
  const int64_t* begin() const { return v_; }
  const int64_t* end() const { return v_ + n_; }
  int64_t& operator[](size_t i) { return v_[i]; }
  int64_t operator[](size_t i) const { return v_[i]; }
  int64_t back() const { return v_[n_ - 1]; }
  int64_t& back() { return v_[n_ - 1]; }
  void push_back(int64_t x) {
    TG_CHECK(n_ < kMaxDims, shape, "[shape] more than {} dimensions. At most {} are supported.", kMaxDims, kMaxDims);
    v_[n_++] = x;
  }
  void insert(size_t at, int64_t x) {
    push_back(0);
    for (size_t i = n_ - 1; i > at; --i) v_[i] = v_[i - 1];
    v_[at] = x;
  }
  void erase(size_t at) {
    for (size_t i = at + 1; i < n_; ++i) v_[i - 1] = v_[i];
    --n_;
  }
  bool operator==(const Dims& o) const { return n_ == o.n_ && std::equal(begin(), end(), o.begin()); }
  int64_t product() const {
    int64_t p = 1;
    for (int64_t d : *this) p *= d;
    return p;
  }

 private:
  int64_t v_[kMaxDims] = {};
  uint32_t n_ = 0;
};
using Shape = Dims;
using Strides = Dims;
std::string to_string(const Dims&);  ///< "(2, 3)"

/// dim counted from the end when negative; an Error names op, dim and shape.
size_t normal_dim(std::string_view op, int64_t dim, const Shape&);
/// The product, or an Error when a size is negative or the product does not fit 63 bits.
int64_t checked_numel(std::string_view op, const Shape&);
/// Where the i-th element in row-major order is.
Dims position_of(int64_t i, const Shape&);

}  // namespace tg

template <> struct fmt::formatter<tg::Dims> : tg::PlainFormatter {
  template <class C> auto format(const tg::Dims& d, C& c) const { return write(tg::to_string(d), c); }
};
