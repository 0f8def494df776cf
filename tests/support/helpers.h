// Small helpers of the tests: values and bits of tensors, filled tensors, the same values in other layouts, distances,
// central differences. Included by doctest files only.
#pragma once
#include <doctest/doctest.h>
#include <tapegrad/autograd/backward.h>
#include <tapegrad/core/rng.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/shape_ops.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tg {

#ifdef TG_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

template <class T = float> std::vector<T> values(const Tensor& t) { return t.to_vector<T>(); }
// The elements in row-major order, bit by bit: NaN equals itself, and 0 is not -0.
inline std::vector<std::byte> bits_of(const Tensor& t) {
  const Tensor c = t.detach().to(Device::cpu()).contiguous();
  evaluate({c});
  const std::byte* p = c.value()->storage->data + c.layout().offset * int64_t(size_of(c.dtype()));
  return std::vector<std::byte>(p, p + c.layout().bytes());
}
// Uniform in [lo, hi), other values for every seed.
template <class T = float> Tensor random(const Shape& s, uint64_t seed, double lo = -1, double hi = 1) {
  Rng rng{seed};
  std::vector<T> v(static_cast<size_t>(s.product()));
  for (auto& x : v) x = T(lo + (hi - lo) * double(rng.uniform()));
  return tensor<T>(v, s);
}
template <class T = float> Tensor filled(const Shape& s, T x) {
  return tensor<T>(std::vector<T>(static_cast<size_t>(s.product()), x), s);
}

// The same values in storage of another layout; a leaf.
enum class Store { contiguous, transposed, sliced, strided };
inline constexpr Store kStores[] = {Store::contiguous, Store::transposed, Store::sliced, Store::strided};
inline Tensor stored(const Tensor& x, Store how) {
  NoGradScope off;
  const Tensor c = x.detach().contiguous();
  if (how == Store::transposed && x.ndim() >= 2) return transpose(transpose(c, 0, -1).contiguous(), 0, -1).detach();
  if (how == Store::sliced && x.ndim() >= 1) {  // rows of something else before and after: an offset
    const Tensor other = slice(concat({c, c, c}, 0), 0, 0, std::min<int64_t>(1, c.size(0)));
    const int64_t at = other.size(0);
    return slice(concat({other, c, other}, 0), 0, at, at + c.size(0)).detach();
  }
  if (how == Store::strided && x.ndim() < kMaxDims) {  // every second element of its storage
    Shape pair = x.shape();
    pair.push_back(1);
    const Tensor p = reshape(c, pair), both = concat({p, p}, int64_t(x.ndim()));
    return reshape(slice(both, int64_t(x.ndim()), 1, 2), x.shape()).detach();
  }
  return Tensor(c.value());
}

inline std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}
inline bool has(const std::string& s, std::string_view part) { return s.find(part) != std::string::npos; }

// max |a - b| / max |b|, the error of a tensor against its oracle; infinite where only one of them is finite, or shapes
// differ. Equal infinities and NaN against NaN are equal.
inline double distance(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape()) return std::numeric_limits<double>::infinity();
  const auto x = values<double>(a), y = values<double>(b);
  double worst = 0, scale = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) {
      if (std::isfinite(y[i])) scale = std::max(scale, std::abs(y[i]));
      continue;
    }
    if (!std::isfinite(x[i]) || !std::isfinite(y[i])) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, std::abs(x[i] - y[i]));
    scale = std::max(scale, std::abs(y[i]));
  }
  return worst == 0 ? 0 : worst / scale;
}

// max |central difference - gradient| / max(1, |gradient|) of a scalar function of one of its f64 inputs.
inline double gradcheck(const std::function<Tensor(const Tensor&)>& f, const Tensor& at, const Tensor& gradient,
                        double h = 1e-5) {
  const auto x = values<double>(at), g = values<double>(gradient);
  double worst = 0, scale = 1;
  for (double y : g) scale = std::max(scale, std::abs(y));
  for (size_t i = 0; i < x.size(); ++i) {
    const auto moved = [&](double by) {
      auto v = x;
      v[i] += by;
      return f(tensor<double>(v, at.shape())).item<double>();
    };
    worst = std::max(worst, std::abs((moved(h) - moved(-h)) / (2 * h) - g[i]));
  }
  return worst / scale;
}
inline double gradcheck(const std::function<Tensor(const Tensor&)>& f, Tensor x) {
  x.requires_grad_();
  return gradcheck(f, x, backward(f(x))[x]);
}

// Emitted eagerly or lazily: for (bool lazy : {false, true}) { Mode mode(lazy); ... }
class Mode {
 public:
  explicit Mode(bool lazy) {
    if (lazy) scope_.emplace();
  }

 private:
  std::optional<LazyScope> scope_;
};

}  // namespace tg
