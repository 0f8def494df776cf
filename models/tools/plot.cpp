#include <fmt/core.h>
#include <tapegrad/models/tools/plot.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace tg {
namespace {

struct PlotPoint {
  double x, y;
};
using PlotCurve = std::vector<PlotPoint>;  // y is NaN in gaps

// A linear axis, or a logarithmic one, whose bounds are powers of ten.
struct PlotAxis {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  bool log = false;

  void add(double x) {
    if (std::isfinite(x)) low = std::min(low, x), high = std::max(high, x);
  }
  bool empty() const { return low > high; }
  double at(double x) const { return ((log ? std::log10(x) : x) - low) / (high - low); }
  std::vector<double> ticks(int most) const {
    std::vector<double> all;
    const double least = (high - low) / most, unit = std::pow(10, std::floor(std::log10(least)));
    const double step = unit * (least <= unit ? 1 : least <= 2 * unit ? 2 : least <= 5 * unit ? 5 : 10);
    if (log)
      for (double e = std::floor(low); e <= high; e += std::max(1., std::floor(least)))
        for (const int digit : {1, 2, 5})
          if (digit == 1 || least <= 0.6) all.push_back(digit * std::pow(10., e));
    for (double i = std::ceil(low / step); !log && i * step <= high && all.size() < 100; ++i) all.push_back(i * step);
    std::erase_if(all, [&](double x) { return at(x) < 0 || at(x) > 1; });
    return all;
  }
  // 2000, 12k, 0.001
  std::string text(double x) const {
    if (log || high < 1e4 || x == 0) return fmt::format("{:.6g}", x == 0 ? 0 : x);
    const auto [unit, letter] = high < 1e6   ? std::pair(1e3, 'k')
                                : high < 1e9 ? std::pair(1e6, 'M')
                                             : std::pair(1e9, 'G');
    return fmt::format("{:.6g}{}", x / unit, letter);
  }
};

enum class PlotX { step, tokens, time };
struct PlotPanel {
  std::string_view title;
  double StepRecord::*y;
  PlotX x;
  bool from_zero;  // or log scale beyond a decade
};
constexpr PlotPanel kPanels[] = {{"loss, nats per token", &StepRecord::loss, PlotX::step, false},
                                 {"loss, nats per token", &StepRecord::loss, PlotX::tokens, false},
                                 {"loss, nats per token", &StepRecord::loss, PlotX::time, false},
                                 {"learning rate", &StepRecord::lr, PlotX::step, true},
                                 {"gradient norm", &StepRecord::grad_norm, PlotX::step, false},
                                 {"tokens per second", &StepRecord::tokens_per_s, PlotX::step, true}};

// Beyond these, differences and sums of values are not finite.
double plottable(double x, double otherwise = std::nan("")) { return std::abs(x) < 1e300 ? x : otherwise; }

// A panel's curves: each run's training, then validation.
struct PlotCurves {
  std::vector<PlotCurve> train, val;
  PlotAxis x, y;
  std::string x_title;

  PlotCurves(const std::vector<NamedLog>& runs, const PlotPanel& panel) : train(runs.size()), val(runs.size()) {
    double longest = 0;
    for (size_t i = 0; i < runs.size(); ++i) {
      double tokens = 0, seconds = 0;
      for (const StepRecord& r : runs[i].steps) {
        tokens += plottable(r.tokens_per_s * r.ms / 1e3, 0), seconds += plottable(r.ms / 1e3, 0);
        const double here = panel.x == PlotX::step ? double(r.step) : panel.x == PlotX::tokens ? tokens : seconds;
        train[i].push_back({here, plottable(r.*panel.y)});
        if (panel.y == &StepRecord::loss && r.val_loss) val[i].push_back({here, plottable(*r.val_loss)});
      }
      longest = std::max(longest, seconds);
    }
    x_title = panel.x == PlotX::step ? "step" : "tokens";
    double unit = 1;
    if (panel.x == PlotX::time) {
      unit = longest < 120 ? 1 : longest < 7200 ? 60 : 3600;
      x_title = fmt::format("time of training, {}", unit == 1 ? "seconds" : unit == 60 ? "minutes" : "hours");
    }
    x.add(0);
    for (auto* curves : {&train, &val})
      for (PlotCurve& curve : *curves)
        for (PlotPoint& p : curve) x.add(p.x /= unit), y.add(p.y);
    if (x.high <= x.low) x.high = x.low + 1;
    if (y.empty()) return;
    if (panel.from_zero) y.add(0);
    y.log = !panel.from_zero && y.low > 0 && y.high > 10 * y.low;
    if (y.log) y.low = std::log10(y.low), y.high = std::log10(y.high);
    const double margin = y.high > y.low ? 0.05 * (y.high - y.low) : std::max(std::abs(y.high) * 0.1, 1e-9);
    if (!panel.from_zero) y.low -= margin;
    y.high += margin;
  }
};

// Each column's mean, or its least and largest point. Gaps stay NaN.
PlotCurve sampled(const PlotCurve& curve, const PlotAxis& x, int columns, bool mean) {
  PlotCurve all;
  for (size_t i = 0; i < curve.size();) {
    const auto column = [&](size_t k) { return std::floor(x.at(curve[k].x) * columns); };
    const PlotPoint none{curve[i].x, std::nan("")};
    PlotPoint low = none, high = none;
    double sum = 0;
    int64_t count = 0;
    for (const double here = column(i); i < curve.size() && column(i) == here; ++i) {
      const PlotPoint& p = curve[i];
      if (!std::isfinite(p.y)) continue;
      if (!(p.y >= low.y)) low = p;
      if (!(p.y <= high.y)) high = p;
      sum += p.y, ++count;
    }
    if (mean || low.x == high.x)
      all.push_back({low.x, count ? sum / double(count) : none.y});
    else
      all.insert(all.end(), {low.x < high.x ? low : high, low.x < high.x ? high : low});
  }
  return all;
}

// Runs' colors in SVG and on a terminal.
constexpr std::pair<std::string_view, int> kPlotColors[] = {{"#0072b2", 34}, {"#d55e00", 31}, {"#009e73", 32},
                                                            {"#cc79a7", 35}, {"#8c6d00", 33}, {"#56b4e9", 36},
                                                            {"#7f7f7f", 90}};
auto color_of(size_t run) { return kPlotColors[run % std::size(kPlotColors)]; }

// Safe between tags only.
std::string html_text(std::string_view text) {
  std::string safe;
  for (const char c : text) safe += c == '&' ? "&amp;" : c == '<' ? "&lt;" : std::string(1, c);
  return safe;
}

std::string plot_panel(const std::vector<NamedLog>& runs, const PlotPanel& panel) {
  constexpr int kWidth = 560, kHeight = 320, kLeft = 70, kRight = 20, kTop = 30, kBottom = 48;
  constexpr int w = kWidth - kLeft - kRight, h = kHeight - kTop - kBottom, base = kTop + h, middle = kLeft + w / 2;
  const PlotCurves c(runs, panel);
  const auto px = [&](double x) { return kLeft + c.x.at(x) * w; };
  const auto py = [&](double y) { return base - c.y.at(y) * h; };
  std::string svg = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\">\n", kWidth, kHeight);
  const auto write = [&](std::string_view kind, double x, double y, std::string_view text) {
    svg += fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", kind, x, y, text);
  };
  const auto line = [&](double x, double y, std::string_view to) {
    svg += fmt::format("<path class=\"g\" d=\"M{:.1f} {:.1f}{}\"/>\n", x, y, to);
  };
  write("t", kLeft, 16, fmt::format("{}{}", panel.title, c.y.log ? ", log scale" : ""));
  write("m", middle, base + 40, c.x_title);
  for (const double x : c.x.ticks(w / 90))
    line(px(x), kTop, fmt::format("v{}", h)), write("m", px(x), base + 19, c.x.text(x));
  if (c.y.empty()) write("m", middle, kTop + h / 2, "no finite value");
  for (const double y : c.y.empty() ? std::vector<double>{} : c.y.ticks(h / 40))
    line(kLeft, py(y), fmt::format("h{}", w)), write("e", kLeft - 6, py(y) + 4, c.y.text(y));
  const auto draw = [&](const PlotCurve& curve, size_t run, std::string_view kind, bool marks) {
    const PlotCurve points = sampled(curve, c.x, w, false);
    if (points.empty()) return;
    svg += fmt::format("<path class=\"{}\" stroke=\"{}\" d=\"", kind, color_of(run).first);
    const auto gap = [&](size_t i) { return i >= points.size() || std::isnan(points[i].y); };
    for (size_t i = 0; i < points.size(); ++i) {
      if (gap(i)) continue;
      svg += fmt::format("{}{:.1f} {:.1f}", gap(i - 1) ? 'M' : 'L', px(points[i].x), py(points[i].y));
      if (marks || (gap(i - 1) && gap(i + 1))) svg += "m0 -3v6m0 -3";
    }
    svg += fmt::format("\"><title>{}</title></path>\n", html_text(runs[run].name));
  };
  for (size_t i = 0; i < runs.size(); ++i) draw(c.train[i], i, c.val[i].empty() ? "o" : "o thin", false);
  for (size_t i = 0; i < runs.size(); ++i) draw(c.val[i], i, "o v", c.val[i].size() <= 40);
  return svg + "</svg>\n";
}

std::string legend_of(const NamedLog& run) {
  const StepRecord *last = nullptr, *best = nullptr;
  for (const StepRecord& r : run.steps) {
    last = &r;
    if (r.val_loss && std::isfinite(*r.val_loss) && (!best || *r.val_loss < *best->val_loss)) best = &r;
  }
  return fmt::format("{}: step {}, loss {}, lowest validation loss {}", run.name, last ? last->step : 0,
                     last && std::isfinite(last->loss) ? fmt::format("{:.4g}", last->loss) : "not finite",
                     best ? fmt::format("{:.4g} (step {})", *best->val_loss, best->step) : "none");
}
}  // namespace

std::string plot_html(const std::vector<NamedLog>& runs) {
  std::string page = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="generator" content="tapegrad plot">
<meta name="viewport" content="width=device-width"><title>Training runs</title>
<style>
body { font: 14px system-ui, sans-serif; color: #222; background: #fff; max-width: 1140px; margin: auto; padding: 16px }
div { overflow-wrap: anywhere; margin: 4px } main { display: grid; gap: 8px; grid-template-columns: 1fr }
text { font-size: 16px; fill: currentColor; opacity: .8 } .t { font-weight: 600; opacity: 1 }
.m { text-anchor: middle } .e { text-anchor: end } .g { stroke: currentColor; stroke-opacity: .12 }
.o { fill: none; stroke-width: 1.2; stroke-linejoin: round; stroke-linecap: round }
.thin { stroke-width: 1; stroke-opacity: .5 } .v { stroke-width: 2.2 }
@media (min-width: 900px) { main { grid-template-columns: 1fr 1fr } text { font-size: 14px } }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818 } }
</style></head><body><h1>Training runs</h1>
)";
  for (size_t i = 0; i < runs.size(); ++i)
    page += fmt::format(
        "<div><svg width=\"34\" height=\"10\"><path class=\"o v\" stroke=\"{}\" d=\"M2 5h30\"/></svg> {}</div>\n",
        color_of(i).first, html_text(legend_of(runs[i])));
  page += "<p>Loss: thin lines are training, thick lines are validation. Time is without validation.</p>\n";
  page += "<main>\n";
  for (const PlotPanel& panel : kPanels) page += plot_panel(runs, panel);
  return page + "</main></body></html>\n";
}

std::string plot_braille(const std::vector<NamedLog>& runs, int width, bool colors) {
  constexpr int kLabel = 8, kRows = 16;
  const int letters = int(std::min<size_t>(runs.size(), 8)), columns = std::max(width, 40) - kLabel - 2 - letters;
  const int across = 2 * columns - 1, down = 4 * kRows - 1;
  const PlotCurves c(runs, kPanels[0]);
  if (c.y.empty()) return "";
  struct Cell {
    uint8_t dots = 0;
    size_t run = 0;
  };
  std::vector<Cell> cells(size_t(columns * kRows));
  std::vector<std::string> labels(kRows), ends(kRows);
  const auto paint = [&](size_t run, const std::string& text) {
    return colors ? fmt::format("\x1b[{}m{}\x1b[0m", color_of(run).second, text) : text;
  };
  const auto letter = [&](size_t run) { return paint(run, std::string(1, char('a' + run % 26))); };
  const auto height = [&](double y) { return std::round((1 - c.y.at(y)) * down); };
  for (size_t run = 0; run < runs.size(); ++run) {
    double x = 0, y = -1;
    bool gap = true;
    for (const PlotPoint& p : sampled(c.train[run], c.x, across, true)) {
      const double to_x = std::floor(c.x.at(p.x) * across), to_y = height(p.y);
      if (std::exchange(gap, std::isnan(p.y)) && !gap) x = to_x, y = to_y;
      if (gap) continue;
      const double right = to_x - x, below = to_y - y;
      const int parts = int(std::max({1., right, std::abs(below)}));
      for (int i = 1; i <= parts; ++i) {
        constexpr uint8_t kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
        const int dx = int(std::round(x + right * i / parts)), dy = int(std::round(y + below * i / parts));
        Cell& cell = cells[size_t(dy / 4 * columns + dx / 2)];
        cell.dots |= kBits[dy % 4][dx % 2], cell.run = run;
      }
      x += right, y += below;
    }
    if (y >= 0 && int(run) < letters) ends[size_t(y / 4)] += letter(run);
  }
  for (const double tick : c.y.ticks(kRows / 3)) labels[size_t(height(tick) / 4)] = c.y.text(tick);
  std::string text = fmt::format("{:>{}}{}\n", "loss", kLabel, c.y.log ? ", log scale" : " of steps"), line;
  for (size_t row = 0; row < kRows; ++row) {
    text += fmt::format("{:>{}} {}", labels[row], kLabel, labels[row].empty() ? "│" : "┤");
    for (size_t i = 0; i < size_t(columns); ++i) {
      const auto [dots, run] = cells[row * size_t(columns) + i];
      text += dots ? paint(run, {'\xE2', char(0xA0 | dots >> 6), char(0x80 | (dots & 63))}) : " ";
    }
    text += ends[row] + "\n";
  }
  for (int i = 0; i < columns; ++i) line += "─";
  text += fmt::format("{:>{}}└{}\n{:>{}}0{:>{}}\n", "", kLabel + 1, line, "", kLabel + 2, "step " + c.x.text(c.x.high),
                      columns - 1);
  for (size_t i = 0; i < runs.size(); ++i) text += fmt::format("{} {}\n", letter(i), legend_of(runs[i]));
  return text;
}

}  // namespace tg
