// bench/dist/fit.h: links from exchanges that are known.
#include <doctest/doctest.h>

#include "../bench/dist/fit.h"

using namespace tg::bench;
using doctest::Approx;

namespace {
std::vector<Exchange> of(const Link& l, double messages) {
  std::vector<Exchange> all;
  for (double bytes = 8; bytes < 1e8; bytes *= 8) all.push_back({bytes, messages * (l.alpha + bytes * l.beta)});
  return all;
}
}  // namespace

TEST_CASE("fit: the alpha and the beta that the times were made of") {
  for (const double messages : {1., 3., 15.})
    for (const Link& l : {Link{2e-6, 1e-10}, Link{0, 1e-9}, Link{5e-5, 1e-12}}) {
      const Link got = fit(of(l, messages), messages);
      CHECK(got.alpha == Approx(l.alpha).epsilon(1e-6));
      CHECK(got.beta == Approx(l.beta).epsilon(1e-6));
    }
}

TEST_CASE("fit: long and short messages count alike, and an outlier moves it little") {
  std::vector<Exchange> all = of({2e-6, 1e-10}, 1);
  all[3].seconds *= 1.5;
  const Link l = fit(all, 1);
  CHECK(l.alpha == Approx(2e-6).epsilon(0.2));
  CHECK(l.beta == Approx(1e-10).epsilon(0.2));
}

TEST_CASE("fit: what noise makes negative is 0, and the other one is the best without it") {
  // 1 byte in 1 s, 2 bytes in 3 s: a line of -1 + 2 bytes. Without alpha, (b - 1)^2 + (2 b / 3 - 1)^2 is least at
  // 15/13.
  const Link slope = fit({{1, 1}, {2, 3}}, 1);
  CHECK(slope.alpha == 0);
  CHECK(slope.beta == Approx(15. / 13));
  const Link falls = fit({{1, 3}, {2, 1}}, 1);  // (a / 3 - 1)^2 + (a - 1)^2 is least at 6/5
  CHECK(falls.beta == 0);
  CHECK(falls.alpha == Approx(1.2));
  const Link one_size = fit({{5, 2}, {5, 2}}, 2);
  CHECK(one_size.alpha == Approx(1));
}
