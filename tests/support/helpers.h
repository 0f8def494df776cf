// Values and bits of tensors, filled tensors, the same values in other layouts, distances, central differences.
#pragma once
#include <tapegrad/autograd/backward.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/safetensors.h>
#include <tapegrad/core/rng.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/shape_ops.h>

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "support/amx.h"
#include "support/errors.h"

namespace tg {

#ifdef TG_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
inline bool hurries() { return kSanitized || EmulatedAmx::running(); }
// Whether there is time for a GEMM of m n k multiplications; all paths have such.
inline bool small_enough(int64_t m, int64_t n, int64_t k) { return !hurries() || m * n * k < 20'000'000; }

inline constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

template <class T = float> std::vector<T> values(const Tensor& t) { return t.to_vector<T>(); }
// Row-major, bit by bit: NaN equals itself, and 0 is not -0.
std::vector<std::byte> bits_of(const Tensor& t);
std::vector<std::vector<std::byte>> bits_of(Inputs all);
// Lazy ops in profiler ranges a and b.
void lazy_in_ranges(const Tensor& x);
// Bit for bit; an empty tensor equals an empty one.
void check_same_bits(Inputs a, Inputs b);
// By distance(), which refuses other shapes.
void check_near(Inputs a, Inputs b, double tolerance);
// Uniform in [lo, hi).
template <class T = float> Tensor random(const Shape& s, uint64_t seed, double lo = -1, double hi = 1) {
  Rng rng{seed};
  std::vector<T> v(static_cast<size_t>(s.product()));
  for (auto& x : v) x = T(lo + (hi - lo) * double(rng.uniform()));
  return tensor<T>(v, s);
}
inline Tensor wide(const Tensor& t) { return t.to(DType::f64); }
template <class T = float> Tensor filled(const Shape& s, T x) {
  return tensor<T>(std::vector<T>(static_cast<size_t>(s.product()), x), s);
}

// The same values in storage of another layout; a leaf.
enum class Store { contiguous, transposed, sliced, strided };
inline constexpr Store kStores[] = {Store::contiguous, Store::transposed, Store::sliced, Store::strided};
Tensor stored(const Tensor& x, Store how);

// x after change(x).
template <class T, class F> T changed(T x, F change) {
  change(x);
  return x;
}
// `all` with another tensor of this name, or without it.
inline StateDict with_tensor(StateDict all, const std::string& name, const Tensor& t = {}) {
  all[name] = t;
  if (!t) all.erase(name);
  return all;
}

std::string error_of(const std::function<void()>& f);
bool has(const std::string& s, std::string_view part);
size_t count_of(std::string_view text, std::string_view part);

// max |a - b| / max |b|. Infinite where only one is finite, or shapes differ. Equal infinities are equal, and so are
// NaNs.
double distance(const Tensor& a, const Tensor& b);

// max over rows of the last dimension of max |a - b| / max |b|.
double row_distance(const Tensor& a, const Tensor& b);

// norm(a - b) / norm(b)
double norm_distance(const Tensor& a, const Tensor& b);

// max |central difference - gradient| / max(1, |gradient|) of a scalar function of one f64 input.
double gradcheck(const std::function<Tensor(const Tensor&)>& f, const Tensor& at, const Tensor& gradient,
                 double h = 1e-5);
double gradcheck(const std::function<Tensor(const Tensor&)>& f, Tensor x);

// f() in a scope: under<LazyScope>([&] { return x * 2.0; }).
template <class Scope, class F> auto under(F f) {
  const Scope scope;
  return f();
}
// A scope if asked for. Emitted eagerly or lazily: for (bool lazy : {false, true}) { Mode mode(lazy); ... }
template <class Scope> class ScopeIf {
 public:
  explicit ScopeIf(bool on) {
    if (on) scope_.emplace();
  }

 private:
  std::optional<Scope> scope_;
};
using Mode = ScopeIf<LazyScope>;

}  // namespace tg
