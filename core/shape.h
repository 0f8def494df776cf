/// @file
/// Shape and Strides: an inline vector of at most 8 numbers, so a shape costs no allocation. layout.h adds dtype and
/// device.
#pragma once
#include <tapegrad/core/error.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace tg {

/// Maximal number of dimensions of a tensor.
inline constexpr size_t kMaxDims = 8;

/// A short vector of sizes, strides or dimensions. Adding a ninth number throws an Error of kind shape.
class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<int64_t> l) : Dims(l.begin(), l.end()) {}
  template <class It> Dims(It first, It last) {
    for (; first != last; ++first) push_back(*first);
  }
  /// n times the same value.
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
    if (n_ == kMaxDims) [[unlikely]]
      fail_full();
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
  Dims without_last() const { return Dims(begin(), end() - 1); }
  Dims followed_by(int64_t x) const {
    Dims d = *this;
    d.push_back(x);
    return d;
  }
  bool operator==(const Dims& o) const { return n_ == o.n_ && std::equal(begin(), end(), o.begin()); }
  /// Product of all numbers; 1 without numbers.
  int64_t product() const {
    int64_t p = 1;
    for (int64_t d : *this) p *= d;
    return p;
  }

 private:
  [[noreturn]] static void fail_full();
  int64_t v_[kMaxDims] = {};
  uint32_t n_ = 0;
};
/// Sizes of the dimensions, the outermost first.
using Shape = Dims;
/// Distance in elements from one index to the next along each dimension; 0 repeats an element.
using Strides = Dims;
/// Text "(2, 3)".
std::string to_string(const Dims&);

namespace detail {
/// `dim` from 0; a negative one counts from the end. An Error outside of [-ndim, ndim).
size_t normal_dim(std::string_view op, int64_t dim, const Shape&);
/// Number of elements. An Error for a negative size or a product beyond 63 bits.
int64_t checked_numel(std::string_view op, const Shape&);
/// Position of the i-th element in row-major order.
Dims position_of(int64_t i, const Shape&);
}  // namespace detail

}  // namespace tg
