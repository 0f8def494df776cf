#include "switchback/report.h"

#include <fmt/format.h>
#include <tapegrad/core/check.h>

#include <algorithm>
#include <cmath>

namespace tg::bench {
namespace {
bool is_product(const TimedOp& op) { return op.kind == OpKind::product || op.kind == OpKind::product_8; }

Json number(double x) {  // 4, not 4.0, as in the document
  return x == std::floor(x) ? Json(int64_t(x)) : Json(x);
}
Json document_json(const SwitchBackShape& s, int64_t repeat, const OpTimes& ms) {
  Json j = {{"repeat", repeat},     {"batch_size", s.batch}, {"dim_out", s.dim_out()},
            {"dim_in", s.dim_in()}, {"wm", number(s.wm)},    {"switch", s.swapped}};
  for (size_t op = 0; op < kOps; ++op) j[kTimed[op].key] = ms[op];
  const Totals t = totals(ms);
  j["time_standard"] = t.standard, j["time_rowwise"] = t.rowwise, j["time_global"] = t.global;
  return j;
}
std::string fixed(double x, int digits = 3) { return fmt::format("{:.{}f}", x, digits); }
std::string times(double x) { return fixed(x, 2); }
std::string milliseconds(double x) {  // three digits
  return fixed(x, x < 0.9995 ? 4 : x < 9.995 ? 2 : x < 99.95 ? 1 : 0);
}

// Rows of one layer and batch, not swapped and swapped.
struct Pair {
  const SwitchBackRow* one;
  const SwitchBackRow* other = nullptr;
  template <class F> double mean(F f) const { return other ? 0.5 * (f(*one) + f(*other)) : f(*one); }
};
std::vector<Pair> pairs(const std::vector<SwitchBackRow>& rows) {
  std::vector<Pair> found;
  for (const SwitchBackRow& r : rows) {
    const auto at = std::ranges::find_if(found, [&](const Pair& p) {
      SwitchBackShape like = p.one->shape;
      like.swapped = r.shape.swapped;
      return like == r.shape;
    });
    at == found.end() ? void(found.push_back({&r})) : void(at->other = &r);
  }
  return found;
}
Json json_of(const SwitchBackRow& r, const SwitchBackSetup& setup) {
  Json j = document_json(r.shape, setup.repeat, r.ms);
  j["rates"] = Json::array(), j["layers"] = Json::array();
  for (size_t op = 0; op < kOps; ++op)
    j["rates"].push_back({{"name", kTimed[op].key},
                          {"unit", is_product(kTimed[op]) ? "Gop/s" : "GB/s"},
                          {"rate", r.rates[op].rate},
                          {"peak", r.rates[op].peak},
                          {"percent", r.rates[op].percent()}});
  for (const LayerTime& t : r.layers)
    j["layers"].push_back({{"way", name_of(t.way)},
                           {"mode", name_of(t.mode)},
                           {"seconds", t.seconds},
                           {"least", t.least},
                           {"most", t.most},
                           {"speedup", speedup(r.layers, t)}});
  j["best_speedup"] = r.layers.empty() ? Json() : Json(best_speedup(r.layers));
  j["quantise_share"] = quantise_share(r.ms);
  j["peak_bytes"] = r.peak_bytes;
  return j;
}
}  // namespace

std::string document_lines(const OpTimes& ms) {
  std::string r;
  for (size_t op = 0; op < kOps; ++op) r += fmt::format("time {}: {:.3f} ms\n", kTimed[op].key, ms[op]);
  const Totals t = totals(ms);
  return r + fmt::format("TOTAL STANDARD {}\nTOTAL ROWWISE {}\nTOTAL GLOBAL {}\nspeedup {}\n", t.standard, t.rowwise,
                         t.global, t.saved());
}
std::string document_object(const SwitchBackShape& s, int64_t repeat, const OpTimes& ms) {
  const Json object = document_json(s, repeat, ms);
  std::string line;
  for (const Json::Member& m : object.items())
    line += fmt::format("{}\"{}\": {}", line.empty() ? "{" : ", ", m.key, text_of(m.value));
  return line + "}";
}

std::string rate_lines(const SwitchBackRow& r, const SwitchBackSetup& setup) {
  std::vector<Cells> lines;
  for (size_t op = 0; op < kOps; ++op) {
    const OpRate& rate = r.rates[op];
    const bool product = is_product(kTimed[op]);
    lines.push_back({fmt::format("rate {}:", kTimed[op].key), fixed(rate.rate, 1), product ? "Gop/s" : "GB/s",
                     fmt::format("{:.0f} %", rate.percent()), "of", fixed(rate.peak, 1),
                     product ? fmt::format("the peak of {}", name_of(setup.dtype)) : "the bandwidth"});
  }
  return aligned(lines);
}

double speedup(const std::vector<LayerTime>& times, const LayerTime& of) {
  for (const LayerTime& t : times)
    if (t.way == LayerWay::linear && t.mode == of.mode) return t.seconds / of.seconds;
  return 0;
}
double best_speedup(const std::vector<LayerTime>& times) {
  double linear = HUGE_VAL, codes = HUGE_VAL;
  for (const LayerTime& t : times) {
    double& best = t.way == LayerWay::linear ? linear : codes;
    best = std::min(best, t.seconds);
  }
  return linear / codes;
}
std::string layer_lines(const std::vector<LayerTime>& layers) {
  if (layers.empty()) return "";
  std::vector<Cells> lines{{"step of the layer, forward and backward", "", "ms", "least", "most", "speedup"}};
  for (const LayerTime& t : layers)
    lines.push_back({std::string(name_of(t.way)), std::string(name_of(t.mode)), fixed(1e3 * t.seconds),
                     fixed(1e3 * t.least), fixed(1e3 * t.most), times(speedup(layers, t))});
  return aligned(lines) + fmt::format("fastest linear over fastest of 8-bit codes: {:.2f}\n", best_speedup(layers));
}

std::string summary(const std::vector<SwitchBackRow>& rows) {
  std::vector<Cells> lines{
      {"", "batch", "standard", "rowwise", "global", "s/rowwise", "s/global", "quantising %", "step: best speedup"}};
  for (const Pair& p : pairs(rows)) {
    const SwitchBackShape& s = p.one->shape;
    const auto total = [&](double Totals::*part) {
      return p.mean([&](const SwitchBackRow& r) { return totals(r.ms).*part; });
    };
    const double standard = total(&Totals::standard);
    lines.push_back(
        {fmt::format("{} -> {}", s.dim, s.wide()), std::to_string(s.batch), milliseconds(standard),
         milliseconds(total(&Totals::rowwise)), milliseconds(total(&Totals::global)),
         times(standard / total(&Totals::rowwise)), times(standard / total(&Totals::global)),
         fixed(100 * p.mean([](const SwitchBackRow& r) { return quantise_share(r.ms); }), 1),
         p.one->layers.empty() ? "-" : times(p.mean([](const SwitchBackRow& r) { return best_speedup(r.layers); }))});
  }
  return "Sums of parts in ms, means of both layers; above 1 SwitchBack is faster\n" + aligned(lines);
}

std::string compare_with_document(const std::vector<SwitchBackRow>& rows, const std::string& ours) {
  std::vector<Cells> lines{{"", "batch", "ours standard", "rowwise", "global", "s/rowwise", "s/global",
                            "document standard", "rowwise", "global", "s/rowwise", "s/global"}};
  for (const SwitchBackRow& r : rows) {
    const SwitchBackFigure* of = switchback_figure(r.shape);
    if (!of) continue;
    Cells line{fmt::format("{} -> {}", r.shape.dim_in(), r.shape.dim_out()), std::to_string(r.shape.batch)};
    for (const Totals& t : {totals(r.ms), of->totals}) {
      for (const double ms : {t.standard, t.rowwise, t.global}) line.push_back(milliseconds(ms));
      for (const double other : {t.rowwise, t.global}) line.push_back(times(t.standard / other));
    }
    lines.push_back(std::move(line));
  }
  if (lines.size() == 1) return "";
  return fmt::format(
      "Compared with document 001 (fp16, Triton kernels on a GPU that it does not name; means of 64 calls). Ours: {}.\n"
      "Sums of parts in ms; s/rowwise and s/global: how many times as fast as standard.\n{}",
      ours, aligned(lines));
}

void write_switchback_json(const std::string& path, const SwitchBackReport& r, const Peaks& peaks) {
  const SwitchBackSetup& s = r.setup;
  Json j = json_of(r);
  j["repeat"] = s.repeat, j["untimed"] = s.untimed(), j["seed"] = s.seed;
  j["dtype"] = name_of(s.dtype), j["why_dtype"] = r.why;
  j["peak_gflops"] = peaks.products();
  j["grid"] = Json::array();
  for (const SwitchBackRow& row : r.rows) j["grid"].push_back(json_of(row, s));
  write_json(path, j);
}

}  // namespace tg::bench
