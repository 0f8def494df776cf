#include "dist/fit.h"

#include <algorithm>

namespace tg::bench {

Link fit(const std::vector<Exchange>& all, double messages) {
  // Normal equations of sum ((alpha + bytes beta) messages / seconds - 1)^2.
  double aa = 0, ab = 0, bb = 0, a = 0, b = 0;
  for (const Exchange& e : all) {
    const double x = messages / e.seconds, y = e.bytes * x;
    aa += x * x, ab += x * y, bb += y * y, a += x, b += y;
  }
  const double det = aa * bb - ab * ab;
  Link l;
  if (det > 0) l = {(a * bb - b * ab) / det, (b * aa - a * ab) / det};
  if (det <= 0 || l.beta < 0) return {a / aa, 0};
  if (l.alpha < 0) return {0, b / bb};
  return l;
}

}  // namespace tg::bench
