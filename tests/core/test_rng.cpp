// core/rng.h: known answers of Philox4x32-10 and statistics. Seeds are fixed; limits are 4 to 5 standard errors.
#include <doctest/doctest.h>
#include <tapegrad/core/error.h>
#include <tapegrad/core/rng.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

namespace {
using tg::Rng;
using tg::Words;

std::array<uint32_t, 4> list(Words w) { return {w.x, w.y, w.z, w.w}; }
uint64_t key(uint32_t first, uint32_t second) { return uint64_t(second) << 32 | first; }
bool same(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

// FNV-1a over the bit patterns.
uint64_t hash_of(const std::vector<float>& v) {
  uint64_t h = 0xcbf29ce484222325u;
  for (float x : v) h = (h ^ std::bit_cast<uint32_t>(x)) * 0x100000001b3u;
  return h;
}
std::vector<float> normals(Rng rng, size_t n) {
  std::vector<float> v(n);
  rng.fill_normal(v, 0, 1);
  return v;
}
// Means of the powers of x, and of the products of the two values of a pair.
struct Moments {
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0, pairs = 0;
  explicit Moments(const std::vector<float>& z) {
    for (size_t i = 0; i < z.size(); ++i) {
      const double x = z[i], n = double(z.size());
      m1 += x / n, m2 += x * x / n, m3 += x * x * x / n, m4 += x * x * x * x / n;
      if (i % 2) pairs += x * z[i - 1] / (n / 2);
    }
  }
};
// Kolmogorov-Smirnov: the largest distance of the empirical distribution from `cdf`, times sqrt(n).
template <class Cdf> double ks(std::vector<float> v, Cdf cdf) {
  std::sort(v.begin(), v.end());
  double d = 0;
  const double n = double(v.size());
  for (size_t i = 0; i < v.size(); ++i) {
    const double p = cdf(double(v[i]));
    d = std::max({d, p - double(i) / n, double(i + 1) / n - p});
  }
  return d * std::sqrt(n);
}
// sum of (seen - expected)^2 / expected over equally likely cells.
double chi_squared(const std::vector<int>& seen) {
  const double expected = double(std::accumulate(seen.begin(), seen.end(), 0)) / double(seen.size());
  double sum = 0;
  for (int s : seen) sum += (s - expected) * (s - expected) / expected;
  return sum;
}
}  // namespace

TEST_CASE("rng: Philox4x32-10 known answers") {
  // Vectors of the paper's reference implementation.
  using A = std::array<uint32_t, 4>;
  CHECK(list(tg::detail::philox4x32({0, 0, 0, 0}, 0)) == A{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(list(tg::detail::philox4x32({~0u, ~0u, ~0u, ~0u}, ~uint64_t(0))) ==
        A{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(list(tg::detail::philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, key(0xa4093822, 0x299f31d0))) ==
        A{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("rng: words are indexed from the offset, in blocks of four") {
  const Rng at{7, (uint64_t(1) << 32) - 2};  // the block number crosses 32 bits
  for (uint64_t i = 0; i < 40; ++i) {
    const uint64_t n = at.offset + i / 4;
    CHECK(tg::detail::random_word(at, i) ==
          list(tg::detail::philox4x32({uint32_t(n), uint32_t(n >> 32), 0, 0}, 7))[i % 4]);
    CHECK(tg::detail::random_word(Rng{7, at.offset + 3}, i) == tg::detail::random_word(at, i + 12));
  }
  Rng rng{7, 10};
  CHECK(rng.take(0) == Rng{7, 10});
  CHECK(rng.take(1) == Rng{7, 10});
  CHECK(rng.take(4) == Rng{7, 11});
  CHECK(rng.take(5) == Rng{7, 12});
  CHECK(rng == Rng{7, 14});
}

TEST_CASE("rng: fill_uniform stays below its upper bound") {
  std::vector<float> u(1 << 21);
  const std::pair<float, float> bounds[] = {
      {0.0f, 1.0f},   {1.0f, 2.0f}, {-1.0f, 1e-7f}, {-3e38f, 1.0f}, {16777216.0f, 16777218.0f},
      {0.0f, 1e-45f}, {5.0f, 5.0f}};
  for (const auto& [lo, hi] : bounds) {
    Rng rng{7};
    rng.fill_uniform(u, lo, hi);
    const auto [least, most] = std::ranges::minmax(u);
    CAPTURE(lo);
    CHECK(least >= lo);
    CHECK((most < hi || lo == hi));
  }
}
TEST_CASE("rng: bulk functions equal the per-index ones, bit by bit") {
  for (size_t n : {0, 1, 2, 3, 4, 5, 63, 1027}) {
    const Rng at{99, 5};
    Rng rng = at;
    std::vector<float> u(n), z(n), t(n);
    rng.fill_uniform(u, -3.0f, 0.7f);
    CHECK(rng.offset == at.offset + (n + 3) / 4);
    rng = at;
    rng.fill_normal(z, 0.3f, 1.7f);
    CHECK(rng.offset == at.offset + (n + 3) / 4);
    rng = at;
    rng.fill_truncated_normal(t, 0.3f, 1.7f);
    CHECK(rng.offset == at.offset + (n + 3) / 4);
    for (size_t i = 0; i < n; ++i) {
      REQUIRE(same(u[i], std::fma(tg::detail::uniform(tg::detail::random_word(at, i)), 0.7f + 3.0f, -3.0f)));
      REQUIRE(same(z[i], std::fma(tg::detail::normal(at, i), 1.7f, 0.3f)));
      REQUIRE(same(t[i], std::fma(tg::detail::truncated_normal(tg::detail::random_word(at, i)), 1.7f, 0.3f)));
    }
  }
  Rng a{1, 0}, b{1, 0};
  CHECK(same(a.uniform(), tg::detail::uniform(tg::detail::random_word(b, 0))));
  CHECK(same(a.normal(), tg::detail::normal(Rng{1, 1}, 0)));
  CHECK(a.offset == 2);
}

TEST_CASE("rng: vector loops give the bits of single calls") {
  const Rng at{2024, 3};
  std::vector<float> looped(4099);
  for (size_t i = 0; i < looped.size(); ++i) looped[i] = tg::detail::normal(at, i);  // vectorised when optimised
  for (size_t i = 0; i < looped.size(); ++i) {
    const volatile uint64_t index = i;  // keeps this loop scalar
    REQUIRE(same(looped[i], tg::detail::normal(at, index)));
  }
}

TEST_CASE("rng: fixed bits on every compiler and instruction set") {
  CHECK(hash_of(normals({1337, 0}, 1000000)) == 0xf52fb92aba7c8107u);
  std::vector<float> u(1000000);
  Rng rng{1337, 0};
  rng.fill_uniform(u, 0, 1);
  CHECK(hash_of(u) == 0x5372527ec4ad6bd2u);
  rng = {1337, 0};
  rng.fill_truncated_normal(u, 0, 1);
  CHECK(hash_of(u) == 0xaaa1d0778951ab6cu);
}

TEST_CASE("rng: truncated normals are the inverse of their distribution function") {
  const double inside = std::erf(3 / std::sqrt(2.0)), outside = std::erfc(3 / std::sqrt(2.0));
  double worst = 0;
  float last = -1;
  const auto check = [&](uint32_t word) {
    const float x = tg::detail::truncated_normal(word);
    REQUIRE(same(tg::detail::truncated_normal(word | 0x80000000u), -x));
    REQUIRE(x >= last);
    last = x;
    // Newton's steps to the solution of erf(z / sqrt 2) = v; near v = 1 they use 1 - v.
    const double u = (word + 0.5) * 0x1p-31, left = (0x7fffffffu - word + 0.5) * 0x1p-31;
    double z = x;
    for (int i = 0; i < 4; ++i) {
      const double error =
          u < 0.5 ? std::erf(z / std::sqrt(2.0)) - inside * u : outside + inside * left - std::erfc(z / std::sqrt(2.0));
      z -= error / (std::sqrt(2 / 3.14159265358979324) * std::exp(-z * z / 2));
    }
    worst = std::max(worst, std::fabs(x - z) / std::ldexp(1.0, std::ilogb(z) - 23));
  };
  for (uint32_t word = 0; word < 50000; ++word) check(word);
  for (uint32_t word = 50000; word < 0x7fffffffu - 50000; word += 9973) check(word);
  for (uint32_t word = 0x7fffffffu - 50000; word <= 0x7fffffffu; ++word) check(word);
  CHECK(worst <= 4);
  CHECK(worst > 0.25);
  CHECK(tg::detail::truncated_normal(0x7fffffffu) <= 3.0f);
  CHECK(tg::detail::truncated_normal(0x7fffffffu) > 2.999999f);
}

TEST_CASE("rng: distribution of truncated normals") {
  const size_t n = 1000000;
  std::vector<float> z(n);
  Rng rng{44, 0};
  rng.fill_truncated_normal(z, 0, 1);
  for (const float x : z) REQUIRE(std::fabs(x) <= 3);
  const Moments m(z);
  // With p = phi(3) and Z = 2 Phi(3) - 1: the variance is 1 - 6 p / Z, the fourth moment 3 - (54 + 18) p / Z.
  const double ratio = std::exp(-4.5) / std::sqrt(2 * 3.14159265358979324) / std::erf(3 / std::sqrt(2.0));
  const double variance = 1 - 6 * ratio, fourth = 3 - 72 * ratio;
  CHECK(variance == doctest::Approx(0.97334).epsilon(1e-5));
  CHECK(std::fabs(m.m1) < 4e-3 * std::sqrt(variance));
  CHECK(std::fabs(m.m2 - variance) < 4e-3 * std::sqrt(fourth - variance * variance));
  CHECK(std::fabs(m.m4 - fourth) < 4e-3 * std::sqrt(96));  // the bound of untruncated normals, which is larger
  CHECK(std::fabs(m.pairs) < 4e-3 * std::sqrt(2));
  const double cut = std::erfc(3 / std::sqrt(2.0)) / 2, inside = 1 - 2 * cut;
  CHECK(ks(z, [&](double x) { return (0.5 * std::erfc(-x / std::sqrt(2)) - cut) / inside; }) < 2.2);
}

TEST_CASE("rng: extreme words") {
  CHECK(tg::detail::uniform(0) == 0.0f);
  CHECK(tg::detail::uniform(~0u) == 1.0f - 0x1p-24f);
  for (uint32_t radius : {0u, 1u, 255u, 256u, ~0u})
    for (uint32_t angle : {0u, 0x40000000u, 0x80000000u, ~0u}) {
      float a, b;
      tg::detail::normal_pair(radius, angle, a, b);
      CHECK(std::isfinite(a));
      CHECK(std::isfinite(b));
      // a^2 + b^2 = -2 log((radius + 1/2) / 2^32)
      const double square = -2 * std::log((radius + 0.5) * 0x1p-32);
      CHECK(std::fabs(double(a) * a + double(b) * b - square) < 1e-6 * square + 1e-7);
    }
}

TEST_CASE("rng: distribution of uniforms") {
  std::vector<float> u(1000000);
  Rng rng{42, 0};
  rng.fill_uniform(u, 0, 1);
  CHECK(*std::min_element(u.begin(), u.end()) >= 0.0f);
  CHECK(*std::max_element(u.begin(), u.end()) < 1.0f);
  CHECK(ks(u, [](double x) { return x; }) < 2.2);  // P(larger) = 1.2e-4
  // Adjacent pairs fill the unit square evenly: 256 cells, mean 255, standard deviation 22.6.
  std::vector<int> cells(256);
  for (size_t i = 0; i + 1 < u.size(); i += 2) ++cells[size_t(u[i] * 16) * 16 + size_t(u[i + 1] * 16)];
  CHECK(std::fabs(chi_squared(cells) - 255) < 4.5 * 22.6);
}

TEST_CASE("rng: distribution of normals") {
  const std::vector<float> z = normals({43, 0}, 1000000);
  const Moments m(z);
  const auto beyond = [&](float x) {
    return double(std::ranges::count_if(z, [&](float y) { return std::fabs(y) > x; }));
  };
  // Standard errors of the moments of n normals: 1, sqrt 2, sqrt 15, sqrt 96 over sqrt n (1e-3).
  CHECK(std::fabs(m.m1) < 4e-3);
  CHECK(std::fabs(m.m2 - 1) < 4e-3 * std::sqrt(2));
  CHECK(std::fabs(m.m3) < 4e-3 * std::sqrt(15));
  CHECK(std::fabs(m.m4 - 3) < 4e-3 * std::sqrt(96));
  CHECK(std::fabs(m.pairs) < 4e-3 * std::sqrt(2));  // the halves of a pair are uncorrelated
  // Two-sided tails: 2699.8 and 63.34 expected per million.
  CHECK(std::fabs(beyond(3) - 2699.8) < 4.5 * std::sqrt(2699.8));
  CHECK(std::fabs(beyond(4) - 63.34) < 4.5 * std::sqrt(63.34));
  CHECK(ks(z, [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2)); }) < 2.2);
}

TEST_CASE("rng: below is unbiased and bounded") {
  Rng rng{5, 0};
  std::vector<int> seen(13);
  for (int i = 0; i < 130000; ++i) ++seen.at(rng.below(13));
  CHECK(chi_squared(seen) < 12 + 4.5 * std::sqrt(24.0));  // 12 degrees of freedom
  CHECK(rng.below(1) == 0);
  CHECK_THROWS_WITH_AS(rng.below(0), doctest::Contains("[rng] below(0)"), tg::Error);
  // For n = 3 * 2^62 a remainder without rejection would give the lowest third twice as often as the others.
  const uint64_t n = uint64_t(3) << 62;
  std::vector<int> thirds(3);
  Rng big{6, 0};
  const int draws = 30000;
  for (int i = 0; i < draws; ++i) ++thirds.at(size_t(big.below(n) >> 62));
  CHECK(chi_squared(thirds) < 2 + 4.5 * 2);  // 2 degrees of freedom
  // A quarter of the tries is rejected: tries per draw are geometric with mean 4/3 and variance 4/9.
  CHECK(std::fabs(double(big.offset) - draws * 4.0 / 3) < 4.5 * std::sqrt(draws * 4.0 / 9));
}

TEST_CASE("rng: permuted") {
  for (const uint64_t n : {1, 2, 3, 4, 5, 16, 17, 63, 1000, 65537}) {
    CAPTURE(n);
    std::vector<bool> seen(n);
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t to = tg::detail::permuted(Rng{7}, i, n);
      REQUIRE(to < n);
      CHECK(!seen[to]);
      seen[to] = true;
    }
  }
  const uint64_t most = ~uint64_t(0);  // no memory has a list of this size
  CHECK(tg::detail::permuted(Rng{1}, most - 1, most) < most);
  CHECK_THROWS_WITH_AS(tg::detail::permuted(Rng{1}, 0, 0), doctest::Contains("[permuted] place 0 is outside of [0, 0)"),
                       tg::Error);
  CHECK_THROWS_AS(tg::detail::permuted(Rng{1}, 3, 3), tg::Error);
  CHECK(tg::detail::permuted(Rng{1}, 0, most) != tg::detail::permuted(Rng{1}, 1, most));
  CHECK(tg::detail::permuted(Rng{1, 5}, 3, 1000) == tg::detail::permuted(Rng{1}, 3, 1000));
  // Each of the 24 orders of 4: 1000 expected, standard deviation 31.
  std::map<uint64_t, int> count;
  for (uint64_t seed = 0; seed < 24'000; ++seed) {
    uint64_t order = 0;
    for (uint64_t i = 0; i < 4; ++i) order = order * 4 + tg::detail::permuted(Rng{seed}, i, 4);
    ++count[order];
  }
  CHECK(count.size() == 24);
  for (const auto& [order, times] : count) CHECK(std::abs(times - 1000) < 155);
}
TEST_CASE("rng: shuffle") {
  std::vector<int64_t> items(1000);
  std::iota(items.begin(), items.end(), 0);
  std::vector<int64_t> a = items, b = items, c = items;
  Rng first{11, 0}, again{11, 0}, other{12, 0};
  first.shuffle(a);
  again.shuffle(b);
  other.shuffle(c);
  CHECK(a == b);
  CHECK(first == again);
  CHECK(a != c);
  CHECK(a != items);
  std::sort(a.begin(), a.end());
  CHECK(a == items);
  // All 24 orders of four items, equally often.
  std::vector<int> orders(24);
  Rng rng{13, 0};
  for (int i = 0; i < 48000; ++i) {
    std::array<int64_t, 4> p{0, 1, 2, 3};
    rng.shuffle(p);
    size_t rank = 0;  // factorial number system
    for (size_t j = 0; j < 4; ++j)
      rank = rank * (4 - j) + size_t(std::count_if(&p[j], p.data() + 4, [&](auto x) { return x < p[j]; }));
    ++orders.at(rank);
  }
  CHECK(chi_squared(orders) < 23 + 4.5 * std::sqrt(46.0));
  const uint64_t offset = rng.offset;
  rng.shuffle({});
  std::array<int64_t, 1> one{7};
  rng.shuffle(one);
  CHECK(one[0] == 7);
  CHECK(rng.offset == offset);
}

TEST_CASE("rng: split") {
  const Rng root{1, 17};
  CHECK(root.split(0) == Rng{1, 0}.split(0));
  CHECK(root.split(0).offset == 0);
  std::vector<uint64_t> seeds{root.seed};
  for (uint64_t s = 0; s < 1000; ++s) seeds.push_back(root.split(s).seed);
  seeds.push_back(root.split(uint64_t(1) << 32).seed);  // the upper half of the stream counts
  seeds.push_back(Rng{2, 0}.split(0).seed);
  std::sort(seeds.begin(), seeds.end());
  CHECK(std::adjacent_find(seeds.begin(), seeds.end()) == seeds.end());
  // The mean product of n uncorrelated pairs has the standard error 1 / sqrt n.
  const size_t n = 100000;
  const std::vector<float> a = normals(root.split(0), n), b = normals(root.split(1), n);
  CHECK(std::fabs(std::inner_product(a.begin(), a.end(), b.begin(), 0.0) / n) < 4.5 / std::sqrt(n));
}

TEST_CASE("rng: refused arguments") {
  Rng rng{1, 0};
  std::vector<float> v(3, 9.0f);
  const float inf = INFINITY, nan = NAN;
  CHECK_THROWS_WITH_AS(rng.fill_uniform(v, 1, 0), doctest::Contains("[rng] fill_uniform from 1 to 0"), tg::Error);
  CHECK_THROWS_AS(rng.fill_uniform(v, -inf, 0), tg::Error);
  CHECK_THROWS_AS(rng.fill_uniform(v, 0, nan), tg::Error);
  CHECK_THROWS_AS(rng.fill_uniform(v, -3e38f, 3e38f), tg::Error);
  CHECK_THROWS_WITH_AS(rng.fill_normal(v, 0, -1), doctest::Contains("standard deviation -1"), tg::Error);
  CHECK_THROWS_AS(rng.fill_normal(v, nan, 1), tg::Error);
  CHECK_THROWS_WITH_AS(rng.fill_truncated_normal(v, 0, -1),
                       doctest::Contains("[rng] fill_truncated_normal with mean 0 and standard deviation -1"),
                       tg::Error);
  CHECK(v == std::vector<float>(3, 9.0f));
  CHECK(rng == Rng{1, 0});  // a refused call draws nothing
  rng.fill_uniform(v, 2, 2);
  CHECK(v == std::vector<float>(3, 2.0f));
  rng.fill_normal(v, -1, 0);
  CHECK(v == std::vector<float>(3, -1.0f));
}
