#include "common/results.h"

#include <fmt/ranges.h>
#include <tapegrad/core/check.h>

#include <cstdlib>

namespace tg::bench {

namespace {
double five_digits(double x) { return std::strtod(fmt::format("{:.5g}", x).c_str(), nullptr); }
}  // namespace

std::string RowId::text() const {
  return fmt::format("{}{}{}{}{}", name, shape.empty() ? "" : " ", fmt::join(shape, "x"), dtype.empty() ? "" : " ",
                     dtype);
}
Result rate(RowId id, std::string unit, double work, const Timing& t, double peak, int repeats) {
  const double all = work * repeats;
  return {std::move(id), std::move(unit), all / t.median, all / t.p90, all / t.p10, peak, t.median / repeats, t.runs};
}

void print_header() {
  fmt::print("{:<44} {:>8} {:>9} {:>9} {:>9} {:>9} {:>5}\n", "", "unit", "median", "p10", "p90", "peak", "%");
}
void print(const Result& r) {
  fmt::print("{:<44} {:>8} {:>9.1f} {:>9.1f} {:>9.1f}", r.id.text(), r.unit, r.median, r.p10, r.p90);
  if (r.peak > 0) fmt::print(" {:>9.1f} {:>5.0f}", r.peak, 100 * r.median / r.peak);
  fmt::print("\n");
  std::fflush(stdout);
}

Json json_of(const Origin& origin, const std::vector<Result>& rows, const Peaks& peaks) {
  Json j = json_of(origin);
  j["bandwidth"] = Json::array();
  for (const auto& [bytes, b] : peaks.bandwidths())
    j["bandwidth"].push_back({{"bytes", bytes},
                              {"copy", five_digits(b.copy)},
                              {"triad", five_digits(b.triad)},
                              {"update", five_digits(b.update)},
                              {"read", five_digits(b.read)}});
  j["rows"] = Json::array();
  for (const Result& r : rows) {
    Json row = {{"name", r.id.name}, {"shape", r.id.shape}, {"dtype", r.id.dtype}, {"unit", r.unit}};
    row["median"] = five_digits(r.median), row["p10"] = five_digits(r.p10), row["p90"] = five_digits(r.p90);
    row["percent"] = Json(), row["peak"] = Json();
    if (r.peak > 0) row["peak"] = five_digits(r.peak), row["percent"] = five_digits(100 * r.median / r.peak);
    row["runs"] = r.runs, row["seconds"] = five_digits(r.seconds);
    j["rows"].push_back(std::move(row));
  }
  return j;
}

}  // namespace tg::bench
