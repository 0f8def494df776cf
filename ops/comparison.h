/// @file
/// Comparisons (bool, no gradient), where(), masked_fill() and clamp(). All except clamp() broadcast: right-aligned,
/// each size equal or 1.
#pragma once
#include <tapegrad/ops/binary.h>

#ifndef TG_FUNCTIONS_ONLY
#include <limits>
#include <optional>
#endif

namespace tg {
namespace op {

/// x == y.
struct Eq {
  static constexpr char kName[] = "eq", kScalarName[] = "eq_scalar";
  static constexpr bool kBools = true;  ///< takes bool too
  template <class T> TG_HD_INLINE static bool f(T x, T y) { return x == y; }
};
/// x != y.
struct Ne {
  static constexpr char kName[] = "ne", kScalarName[] = "ne_scalar";
  static constexpr bool kBools = true;
  template <class T> TG_HD_INLINE static bool f(T x, T y) { return x != y; }
};
/// x < y.
struct Lt {
  static constexpr char kName[] = "lt", kScalarName[] = "lt_scalar";
  static constexpr bool kBools = false;
  template <class T> TG_HD_INLINE static bool f(T x, T y) { return x < y; }
};
/// x <= y.
struct Le {
  static constexpr char kName[] = "le", kScalarName[] = "le_scalar";
  static constexpr bool kBools = false;
  template <class T> TG_HD_INLINE static bool f(T x, T y) { return x <= y; }
};
/// x > y.
struct Gt {
  static constexpr char kName[] = "gt", kScalarName[] = "gt_scalar";
  static constexpr bool kBools = false;
  template <class T> TG_HD_INLINE static bool f(T x, T y) { return x > y; }
};
/// x >= y.
struct Ge {
  static constexpr char kName[] = "ge", kScalarName[] = "ge_scalar";
  static constexpr bool kBools = false;
  template <class T> TG_HD_INLINE static bool f(T x, T y) { return x >= y; }
};
/// All comparisons.
using CompareFns = TypeList<Eq, Ne, Lt, Le, Gt, Ge>;
/// clamp() and its gradient, for kernels.
struct ClampFn {
  template <class T> TG_HD_INLINE static T f(T x, T min, T max) {
    return math::select(x < min, min, math::select(x > max, max, x));
  }
  template <class T> TG_HD_INLINE static T df(T x, T min, T max, T dy) {
    return math::select((x >= min) & (x <= max), dy, T(0));
  }
};
}  // namespace op

#ifndef TG_FUNCTIONS_ONLY
namespace detail {
/// Bool layout of two broadcast operands with equal dtypes, for the op `name`.
Layouts infer_compare(std::string_view name, Inputs, bool bools);
/// Bool layout of a tensor and a number, for the op `name`. An Error if the dtype lacks the number.
Layouts infer_compare_scalar(std::string_view name, Inputs, double s, bool bools);
}  // namespace detail

namespace op {

/// (x, y) -> bool, with broadcasting.
template <class F> struct Compare : OpOf<Compare<F>> {
  static constexpr auto kName = F::kName;
  Traits traits() const override { return {.kind = OpKind::pointwise}; }
  Layouts infer(Inputs in) const override { return detail::infer_compare(kName, in, F::kBools); }
  Expression expression() const override {
    static const std::string text = detail::expression_of<F>("@::f($0, $1)");
    return {text};
  }
};
/// (x) -> bool, compared with a number.
template <class F> struct CompareScalar : OpOf<CompareScalar<F>> {
  static constexpr auto kName = F::kScalarName;
  double s;
  explicit CompareScalar(double number) : s(number) {}
  Traits traits() const override { return {.kind = OpKind::pointwise, .dynamic_attributes = true}; }
  Layouts infer(Inputs in) const override { return detail::infer_compare_scalar(F::kName, in, s, F::kBools); }
  Expression expression() const override {
    static const std::string text = detail::expression_of<F>("@::f($0, #0)");
    return {text, {s}};
  }
};
/// (condition, x, y) -> condition ? x : y.
struct Where : OpOf<Where> {
  static constexpr auto kName = "where";
  Traits traits() const override { return {.kind = OpKind::pointwise, .may_alias = mask_of(1, 2)}; }
  Layouts infer(Inputs) const override;
  Expression expression() const override { return {.text = "$0 ? $1 : $2", .bitwise = true}; }
  Mask saves_in(Mask) const override { return mask_of(0); }
  Tensors vjp(const Vjp&) const override;
};
/// (x, mask) -> x with `value` where the mask is true.
struct MaskedFill : OpOf<MaskedFill> {
  static constexpr auto kName = "masked_fill";
  double value;
  explicit MaskedFill(double v) : value(v) {}
  Traits traits() const override {
    return {.kind = OpKind::pointwise, .may_alias = mask_of(0), .may_be_infinite = value - value != 0};
  }
  Layouts infer(Inputs) const override;
  Expression expression() const override { return {"$1 ? #0 : $0", {value}, true}; }
  Mask saves_in(Mask) const override { return mask_of(1); }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash& k) const override { k.add(value); }
};
}  // namespace op

/// Bounds of clamp(); at least one must be set.
struct ClampOptions {
  std::optional<double> min = {}, max = {};
};
namespace detail {
/// An Expression of clamp() with the bounds as its numbers; a missing bound is infinite.
inline Expression with_bounds(std::string_view text, const ClampOptions& o) {
  constexpr double kUnbounded = std::numeric_limits<double>::infinity();
  return {text, {o.min.value_or(-kUnbounded), o.max.value_or(kUnbounded)}};
}
}  // namespace detail
namespace op {

/// (x) -> x limited to [min, max].
struct Clamp : OpOf<Clamp> {
  static constexpr auto kName = "clamp";
  ClampOptions o;
  explicit Clamp(const ClampOptions& options) : o(options) {}
  Traits traits() const override { return {.kind = OpKind::pointwise, .may_alias = mask_of(0)}; }
  Layouts infer(Inputs) const override;
  Expression expression() const override { return detail::with_bounds("op::ClampFn::f($0, #0, #1)", o); }
  Mask saves_in(Mask) const override { return mask_of(0); }
  Tensors vjp(const Vjp&) const override;
  void key(StructuralHash&) const override;
};
/// (x, dy) -> dy where x is in [min, max], else 0.
struct ClampGrad : OpOf<ClampGrad> {
  static constexpr auto kName = "clamp_grad";
  ClampOptions o;
  explicit ClampGrad(const ClampOptions& options) : o(options) {}
  Traits traits() const override { return {.kind = OpKind::pointwise, .may_alias = mask_of(1)}; }
  Layouts infer(Inputs in) const override { return {contiguous_like(in[1])}; }
  Expression expression() const override { return detail::with_bounds("op::ClampFn::df($0, #0, #1, $1)", o); }
  Tensors compose(Inputs) const override;
  void key(StructuralHash&) const override;
};
}  // namespace op

/// x == y, x != y, x < y, x <= y, x > y or x >= y, elementwise: bool, no gradient. Shapes broadcast; dtypes are equal:
/// f64, f32, bf16, i64 or i32; i32 with i64 compares as i64; eq and ne also take bool. NaN is unequal to everything. A
/// number is converted to the tensor's dtype; an Error if that lacks it.
/// @{
Tensor eq(const Tensor& x, const Tensor& y);
Tensor ne(const Tensor& x, const Tensor& y);
Tensor lt(const Tensor& x, const Tensor& y);
Tensor le(const Tensor& x, const Tensor& y);
Tensor gt(const Tensor& x, const Tensor& y);
Tensor ge(const Tensor& x, const Tensor& y);
Tensor eq(const Tensor& x, double s);
Tensor ne(const Tensor& x, double s);
Tensor lt(const Tensor& x, double s);
Tensor le(const Tensor& x, double s);
Tensor gt(const Tensor& x, double s);
Tensor ge(const Tensor& x, double s);
/// @}

/// `if (x < y)` does not compile, since a Tensor as bool means a handle that is not empty. Use any(x < y), all(x < y),
/// or (x < y).item<bool>() of one element.
class BoolTensor : public Tensor {
 public:
  explicit BoolTensor(Tensor mask) : Tensor(std::move(mask)) {}
  explicit operator bool() const = delete;  // any(), all() or item<bool>() state the intent
};
/// eq(), ne(), lt(), le(), gt() and ge(): x == y compares elements, not handles. !(x < y) is the opposite mask. For any
/// other Tensor, !x says whether the handle is empty.
/// @{
inline BoolTensor operator==(const Tensor& x, const Tensor& y) { return BoolTensor(eq(x, y)); }
inline BoolTensor operator!=(const Tensor& x, const Tensor& y) { return BoolTensor(ne(x, y)); }
inline BoolTensor operator<(const Tensor& x, const Tensor& y) { return BoolTensor(lt(x, y)); }
inline BoolTensor operator<=(const Tensor& x, const Tensor& y) { return BoolTensor(le(x, y)); }
inline BoolTensor operator>(const Tensor& x, const Tensor& y) { return BoolTensor(gt(x, y)); }
inline BoolTensor operator>=(const Tensor& x, const Tensor& y) { return BoolTensor(ge(x, y)); }
inline BoolTensor operator==(const Tensor& x, double s) { return BoolTensor(eq(x, s)); }
inline BoolTensor operator!=(const Tensor& x, double s) { return BoolTensor(ne(x, s)); }
inline BoolTensor operator<(const Tensor& x, double s) { return BoolTensor(lt(x, s)); }
inline BoolTensor operator<=(const Tensor& x, double s) { return BoolTensor(le(x, s)); }
inline BoolTensor operator>(const Tensor& x, double s) { return BoolTensor(gt(x, s)); }
inline BoolTensor operator>=(const Tensor& x, double s) { return BoolTensor(ge(x, s)); }
inline BoolTensor operator==(double s, const Tensor& x) { return BoolTensor(eq(x, s)); }
inline BoolTensor operator!=(double s, const Tensor& x) { return BoolTensor(ne(x, s)); }
inline BoolTensor operator<(double s, const Tensor& x) { return BoolTensor(gt(x, s)); }
inline BoolTensor operator<=(double s, const Tensor& x) { return BoolTensor(ge(x, s)); }
inline BoolTensor operator>(double s, const Tensor& x) { return BoolTensor(lt(x, s)); }
inline BoolTensor operator>=(double s, const Tensor& x) { return BoolTensor(le(x, s)); }
inline BoolTensor operator!(const BoolTensor& mask) { return BoolTensor(eq(mask, 0.0)); }
/// @}

/// x where the condition (bool) holds, else y; all three broadcast. x and y have one dtype, any. Elements not
/// chosen have gradient 0, even if NaN. A number is converted to the tensor's dtype.
/// @{
Tensor where(const Tensor& condition, const Tensor& x, const Tensor& y);
Tensor where(const Tensor& condition, const Tensor& x, double y);
Tensor where(const Tensor& condition, double x, const Tensor& y);
/// @}

/// x with `value` where mask (bool) is true; mask broadcasts to x's shape, but not x to the mask. Any dtype; an Error
/// if it lacks the value.
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value);

/// x limited to [min, max]; NaN stays NaN: clamp(x, {.min = 0}). f64, f32, bf16, i64, i32. The gradient is 1 in [min,
/// max], else 0. An Error without bounds, for a NaN bound, or if min > max.
Tensor clamp(const Tensor& x, const ClampOptions&);

namespace detail {
// ids (i64, i32) != value, exactly; an op's number is a double.
Tensor differs_from(const Tensor& ids, int64_t value);
}  // namespace detail
#endif

}  // namespace tg
