#include "support/helpers.h"

#include <tapegrad/core/mode.h>
#include <tapegrad/core/profile/profile_range.h>
#include <tapegrad/core/scope.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/reduce.h>

#include <algorithm>
#include <cmath>

namespace tg {

std::vector<std::byte> bits_of(const Tensor& t) {
  const Tensor c = t.detach().to(Device::cpu()).contiguous();
  eval({c});
  const std::byte* p = c.value()->storage->data + c.layout().offset * int64_t(size_of(c.dtype()));
  return std::vector<std::byte>(p, p + c.layout().bytes());
}
std::vector<std::vector<std::byte>> bits_of(Inputs all) {
  std::vector<std::vector<std::byte>> r;
  for (const Tensor& t : all) r.push_back(bits_of(t));
  return r;
}
void lazy_in_ranges(const Tensor& x) {
  Tensor y;
  {
    const LazyScope lazy;
    {
      const ProfileRange a("a");
      y = matmul(x, x);
    }
    const ProfileRange b("b");
    const NameScope layer("norm");
    y = sum(y);
  }
  const ProfileRange reading("reading");
  eval({y});
}
Tensor stored(const Tensor& x, Store how) {
  NoGradScope off;
  const Tensor c = x.detach().contiguous();
  if (how == Store::transposed && x.ndim() >= 2) return transpose(transpose(c, 0, -1).contiguous(), 0, -1).detach();
  if (how == Store::sliced && x.ndim() >= 1) {
    const Tensor other = slice(concat({c, c, c}, 0), 0, 0, std::min<int64_t>(1, c.size(0)));
    const int64_t at = other.size(0);
    return slice(concat({other, c, other}, 0), 0, at, at + c.size(0)).detach();
  }
  if (how == Store::strided && x.ndim() < kMaxDims) {
    Shape pair = x.shape();
    pair.push_back(1);
    const Tensor p = reshape(c, pair), both = concat({p, p}, int64_t(x.ndim()));
    return reshape(slice(both, int64_t(x.ndim()), 1, 2), x.shape()).detach();
  }
  return Tensor(c.value());
}
std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}
bool has(const std::string& s, std::string_view part) { return s.find(part) != std::string::npos; }
size_t count_of(std::string_view text, std::string_view part) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; ++at) ++n;
  return n;
}
double distance(const Tensor& a, const Tensor& b) {
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
template <class F> static void each_pair(Inputs a, Inputs b, F check) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    REQUIRE(bool(a[i]) == bool(b[i]));
    if (a[i]) check(a[i], b[i]);
  }
}
void check_same_bits(Inputs a, Inputs b) {
  each_pair(a, b, [](const Tensor& x, const Tensor& y) { CHECK(bits_of(x) == bits_of(y)); });
}
void check_near(Inputs a, Inputs b, double tolerance) {
  each_pair(a, b, [&](const Tensor& x, const Tensor& y) { CHECK(distance(x, y) <= tolerance); });
}
double row_distance(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  double worst = 0;
  const Tensor x = reshape(a.detach(), {-1, a.size(-1)}), y = reshape(b.detach(), {-1, b.size(-1)});
  for (int64_t r = 0; r < x.size(0); ++r)
    worst = std::max(worst, distance(slice(x, 0, r, r + 1), slice(y, 0, r, r + 1)));
  return worst;
}
double norm_distance(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  const auto x = values<double>(a), y = values<double>(b);
  double difference = 0, size = 0;
  for (size_t i = 0; i < x.size(); ++i) difference += (x[i] - y[i]) * (x[i] - y[i]), size += y[i] * y[i];
  return std::sqrt(difference / size);
}
double gradcheck(const std::function<Tensor(const Tensor&)>& f, const Tensor& at, const Tensor& gradient, double h) {
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
double gradcheck(const std::function<Tensor(const Tensor&)>& f, Tensor x) {
  x.requires_grad_();
  return gradcheck(f, x, backward(f(x))[x]);
}

}  // namespace tg
