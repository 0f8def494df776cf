#include <fmt/core.h>
#include <tapegrad/models/train/plot.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

namespace tg {
namespace {

struct PlotPoint {
  double x, y;
};
using PlotCurve = std::vector<PlotPoint>;

// Beyond these, differences and sums of values are not finite.
double plottable(double x, double otherwise = std::nan("")) { return std::abs(x) < 1e300 ? x : otherwise; }

// A linear or logarithmic axis.
struct PlotAxis {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  bool log = false;

  void add(double x) {
    if (std::isfinite(x)) low = std::min(low, x), high = std::max(high, x);
  }
  bool empty() const { return low > high; }
  // The position of x, in [0, 1].
  double at(double x) const { return log ? std::log(x / low) / std::log(high / low) : (x - low) / (high - low); }
  // Adds a margin of this part at both ends, also where all values are equal.
  void widen(double part) {
    if (log) {
      const double factor = std::pow(high / low, part);
      low /= factor, high *= factor;
      return;
    }
    const double span = high - low, more = span > 0 ? part * span : std::max(std::abs(high) * 0.1, 1e-9);
    low -= more, high += more;
  }
  // At most about `most` round numbers.
  std::vector<double> ticks(int most) const {
    std::vector<double> all;
    if (log) {
      const int first = int(std::floor(std::log10(low))), last = int(std::ceil(std::log10(high)));
      const int every = std::max(1, (last - first) / most);
      for (int e = first; e <= last; e += every)
        for (const int digit : {1, 2, 5})
          if (digit == 1 || 2 * std::log10(high / low) <= most + 1) all.push_back(digit * std::pow(10., e));
    } else {
      const double least = (high - low) / most, unit = std::pow(10, std::floor(std::log10(least)));
      const double step = unit * (least <= unit ? 1 : least <= 2 * unit ? 2 : least <= 5 * unit ? 5 : 10);
      for (double i = std::ceil(low / step); i * step <= high && all.size() < 100; ++i) all.push_back(i * step);
    }
    std::erase_if(all, [&](double x) { return x < low || x > high; });
    return all;
  }
  // 2000, 12k, 0.001
  std::string text(double x, int digits = 6) const {
    constexpr std::pair<double, char> kUnits[] = {{1e12, 'T'}, {1e9, 'G'}, {1e6, 'M'}, {1e3, 'k'}};
    if (high >= 1e4 && !log && x != 0)
      for (const auto& [unit, letter] : kUnits)
        if (high >= unit) return fmt::format("{:.{}g}{}", x / unit, digits, letter);
    return fmt::format("{:.{}g}", std::abs(x) < 1e-12 * high ? 0 : x, digits);
  }
};

// The x of each step of each run.
struct PlotX {
  std::string title;
  std::vector<std::vector<double>> x;
};
std::array<PlotX, 3> steps_tokens_time(const std::vector<NamedLog>& runs) {
  PlotX steps{"step", {}}, tokens{"tokens", {}}, time{"", {}};
  double longest = 0;
  for (const NamedLog& run : runs) {
    double seen = 0, seconds = 0;
    for (PlotX* a : {&steps, &tokens, &time}) a->x.emplace_back().reserve(run.steps.size());
    for (const StepRecord& r : run.steps) {
      seconds += plottable(r.ms / 1e3, 0);
      seen += plottable(r.tokens_per_s * r.ms / 1e3, 0);
      steps.x.back().push_back(double(r.step)), tokens.x.back().push_back(seen), time.x.back().push_back(seconds);
    }
    longest = std::max(longest, seconds);
  }
  const auto [unit, name] = longest < 120      ? std::pair(1., "seconds")
                            : longest < 7200   ? std::pair(60., "minutes")
                            : longest < 259200 ? std::pair(3600., "hours")
                                               : std::pair(86400., "days");
  for (auto& list : time.x)
    for (double& x : list) x /= unit;
  time.title = fmt::format("time of training, {}", name);
  return {steps, tokens, time};
}

struct PlotQuantity {
  std::string title;
  double StepRecord::*value;
  bool validated, scaled, from_zero;
};
// The curves of a panel: training for each run, then validation.
struct PlotCurves {
  std::vector<PlotCurve> train, val;
  PlotAxis x, y;

  PlotCurves(const std::vector<NamedLog>& runs, const PlotQuantity& q, const PlotX& against) {
    x.add(0);
    for (size_t i = 0; i < runs.size(); ++i) {
      PlotCurve& t = train.emplace_back();
      PlotCurve& v = val.emplace_back();
      for (size_t k = 0; k < runs[i].steps.size(); ++k) {
        const StepRecord& r = runs[i].steps[k];
        const PlotPoint p{against.x[i][k], plottable(r.*q.value)};
        x.add(p.x), y.add(p.y);
        t.push_back(p);
        if (!q.validated || !r.val_loss) continue;
        v.push_back({p.x, plottable(*r.val_loss)});
        y.add(v.back().y);
      }
    }
    if (x.high <= x.low) x.high = x.low + 1;
    if (y.empty()) return;
    y.log = q.scaled && y.low > 0 && y.high > 10 * y.low;
    const bool from_zero = q.from_zero && !y.log && y.low >= 0;
    if (from_zero) y.low = 0;
    y.widen(0.05);
    if (from_zero) y.low = 0;
  }
};

// The finite points of a column of pixels or dots.
struct PlotColumn {
  bool gap = true;              // the column before has points, and none is finite
  PlotPoint first{}, second{};  // least and largest y, in order
  double sum = 0;
  int64_t count = 0;
};
std::vector<PlotColumn> columns_of(const PlotCurve& curve, const PlotAxis& x, double columns) {
  std::vector<PlotColumn> all;
  bool gap = true;
  for (size_t i = 0; i < curve.size();) {
    const auto column = [&](size_t k) { return std::floor(x.at(curve[k].x) * columns); };
    PlotColumn c{.gap = gap};
    for (const double here = column(i); i < curve.size() && column(i) == here; ++i) {
      const PlotPoint& p = curve[i];
      if (!std::isfinite(p.y)) continue;
      if (c.count++ == 0) c.first = c.second = p;
      c.sum += p.y;
      const bool rises = c.first.y <= c.second.y;
      const PlotPoint low = rises ? c.first : c.second, high = rises ? c.second : c.first;
      if (p.y < low.y) c.first = high, c.second = p;
      if (p.y > high.y) c.first = low, c.second = p;
    }
    gap = c.count == 0;
    if (!gap) all.push_back(c);
  }
  return all;
}

constexpr std::string_view kPlotColors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                            "#8c6d00", "#56b4e9", "#444444"};
constexpr std::string_view kPlotDashes[] = {"", "6 3", "2 3"};  // of runs with the same color
std::string stroke_of(size_t run) {
  const std::string_view dash = kPlotDashes[run / std::size(kPlotColors) % std::size(kPlotDashes)];
  return fmt::format("stroke=\"{}\"{}", kPlotColors[run % std::size(kPlotColors)],
                     dash.empty() ? "" : fmt::format(" stroke-dasharray=\"{}\"", dash));
}

std::string html_text(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&': safe += "&amp;"; break;
      case '<': safe += "&lt;"; break;
      case '>': safe += "&gt;"; break;
      case '"': safe += "&quot;"; break;
      default: safe += c;
    }
  }
  return safe;
}

// A panel of `width` x `height` pixels.
std::string plot_panel(const std::vector<NamedLog>& runs, const PlotQuantity& q, const PlotX& against, int width,
                       int height) {
  constexpr int kLeft = 58, kRight = 20, kTop = 28, kBottom = 40;
  const PlotCurves c(runs, q, against);
  const int w = width - kLeft - kRight, h = height - kTop - kBottom, base = kTop + h;
  const auto px = [&](double x) { return kLeft + c.x.at(x) * w; };
  const auto py = [&](double y) { return base - c.y.at(y) * h; };
  std::string svg = fmt::format(
      "<svg width=\"{}\" height=\"{}\" viewBox=\"0 0 {} {}\" role=\"img\"><text class=\"t\" x=\"{}\" "
      "y=\"16\">{}{}</text>\n",
      width, height, width, height, kLeft, q.title, c.y.log ? ", log scale" : "");
  for (const double x : c.x.ticks(std::max(2, w / 80)))
    svg +=
        fmt::format("<path class=\"g\" d=\"M{0:.1f} {1}V{2}\"/><text x=\"{0:.1f}\" y=\"{3}\" class=\"m\">{4}</text>\n",
                    px(x), kTop, base, base + 16, c.x.text(x));
  svg += fmt::format("<text x=\"{}\" y=\"{}\" class=\"m\">{}</text>\n", kLeft + w / 2, base + 33, against.title);
  if (c.y.empty())
    return svg + fmt::format("<text x=\"{}\" y=\"{}\" class=\"m\">no finite value</text></svg>\n", kLeft + w / 2,
                             kTop + h / 2);
  for (const double y : c.y.ticks(std::max(2, h / 36)))
    svg += fmt::format("<path class=\"g\" d=\"M{} {:.1f}h{}\"/><text x=\"{}\" y=\"{:.1f}\" class=\"e\">{}</text>\n",
                       kLeft, py(y), w, kLeft - 6, py(y) + 4, c.y.text(y));
  const auto path = [&](const PlotCurve& curve, size_t run, std::string_view kind) {
    if (curve.empty()) return;
    svg += fmt::format("<path class=\"{}\" {} d=\"", kind, stroke_of(run));
    const std::vector<PlotColumn> columns = columns_of(curve, c.x, w);
    for (size_t i = 0; i < columns.size(); ++i) {
      const PlotColumn& column = columns[i];
      svg += fmt::format("{}{:.1f} {:.1f}", column.gap ? 'M' : 'L', px(column.first.x), py(column.first.y));
      if (column.count > 1)
        svg += fmt::format("L{:.1f} {:.1f}", px(column.second.x), py(column.second.y));
      else if (column.gap && (i + 1 == columns.size() || columns[i + 1].gap))
        svg += "m-1.5 0h3";  // a point without a line
    }
    svg += fmt::format("\"><title>{}</title></path>\n", html_text(runs[run].name));
  };
  constexpr size_t kMostDots = 40;
  for (size_t i = 0; i < runs.size(); ++i) path(c.train[i], i, c.val[i].empty() ? "o" : "o thin");
  for (size_t i = 0; i < runs.size(); ++i) {
    path(c.val[i], i, "o v");
    for (const PlotPoint& p : c.val[i])
      if (c.val[i].size() <= kMostDots && std::isfinite(p.y))
        svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", px(p.x), py(p.y),
                           kPlotColors[i % std::size(kPlotColors)]);
  }
  return svg + "</svg>\n";
}

struct PlotSummary {
  double loss = std::nan(""), lowest = std::nan("");
  int64_t lowest_step = 0;
  explicit PlotSummary(const NamedLog& run) {
    for (const StepRecord& r : run.steps) {
      loss = r.loss;
      if (r.val_loss && !(*r.val_loss >= lowest) && std::isfinite(*r.val_loss))
        lowest = *r.val_loss, lowest_step = r.step;
    }
  }
  std::string last() const { return std::isfinite(loss) ? fmt::format("{:.4g}", loss) : "not finite"; }
  std::string validation() const {
    return lowest_step == 0 ? "none" : fmt::format("{:.4g} (step {})", lowest, lowest_step);
  }
};

const PlotQuantity kLossPanel{"loss, nats per token", &StepRecord::loss, true, true, false};
const PlotQuantity kOtherPanels[] = {{"learning rate", &StepRecord::lr, false, false, true},
                                     {"gradient norm", &StepRecord::grad_norm, false, true, true},
                                     {"tokens per second", &StepRecord::tokens_per_s, false, false, true}};
}  // namespace

std::string plot_html(const std::vector<NamedLog>& runs) {
  const auto [steps, tokens, time] = steps_tokens_time(runs);
  std::string rows, names;
  for (size_t i = 0; i < runs.size(); ++i) {
    const PlotSummary s(runs[i]);
    const std::string name = html_text(runs[i].name);
    const bool any = !runs[i].steps.empty();
    const PlotAxis seen{.low = 0, .high = any ? tokens.x[i].back() : 0};
    rows += fmt::format(
        "<tr><td><svg width=\"34\" height=\"10\"><path class=\"o v\" {} d=\"M2 5h30\"/></svg> "
        "{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.3g}</td></tr>\n",
        stroke_of(i), name, any ? runs[i].steps.back().step : 0, s.last(), s.validation(), seen.text(seen.high, 4),
        any ? time.x[i].back() : 0);
    names += (names.empty() ? "" : ", ") + name;
  }
  std::string page = fmt::format(R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="generator" content="tapegrad plot">
<title>{}</title><style>
body {{ font: 14px system-ui, sans-serif; color: #222; background: #fff;
        max-width: 1140px; margin: 20px auto; padding: 0 12px }}
table {{ border-collapse: collapse; margin: 12px 0 }}
td, th {{ text-align: right; padding: 3px 14px; border-bottom: 1px solid #ddd; font-variant-numeric: tabular-nums }}
td:first-child, th:first-child {{ text-align: left; padding-left: 0; overflow-wrap: anywhere; min-width: 7em }}
svg {{ max-width: 100%; height: auto }}
text {{ font-size: 12px; fill: #444 }} .t {{ font-size: 13px; font-weight: 600; fill: #222 }}
.m {{ text-anchor: middle }} .e {{ text-anchor: end }} .g {{ stroke: #e4e4e4 }}
.o {{ fill: none; stroke-width: 1.2; stroke-linejoin: round; stroke-linecap: round }}
.thin {{ stroke-width: 1; stroke-opacity: .5 }} .v {{ stroke-width: 2.2 }}
</style></head><body>
<table><tr><th>run</th><th>step</th><th>last loss</th><th>lowest validation loss</th><th>tokens</th><th>{}</th></tr>
{}</table>
<p>Loss: thin lines are training, thick lines are validation. Time is without validation.</p>
)",
                                 names, time.title, rows);
  page += plot_panel(runs, kLossPanel, steps, 1130, 400) + plot_panel(runs, kLossPanel, tokens, 562, 300) +
          plot_panel(runs, kLossPanel, time, 562, 300);
  for (const PlotQuantity& q : kOtherPanels) page += plot_panel(runs, q, steps, 373, 240);
  return page + "</body></html>\n";
}

std::string plot_braille(const std::vector<NamedLog>& runs, int width, bool colors) {
  constexpr int kLabel = 8, kRows = 16, kColumnsOfTick = 12;
  const int letters = int(std::min<size_t>(runs.size(), 8)), columns = std::max(width, 40) - kLabel - 2 - letters;
  const auto [steps, tokens, time] = steps_tokens_time(runs);
  const PlotCurves c(runs, kLossPanel, steps);
  if (c.y.empty()) return "";
  const int across = 2 * columns, down = 4 * kRows;
  std::vector<uint8_t> dots(size_t(columns) * kRows);
  std::vector<int> owner(dots.size(), -1);
  std::vector<std::string> ends(kRows);
  const auto paint = [&](size_t run, const std::string& text) {
    constexpr int kAnsi[] = {34, 31, 32, 35, 33, 36, 90};  // as kPlotColors
    return colors ? fmt::format("\x1b[{}m{}\x1b[0m", kAnsi[run % std::size(kAnsi)], text) : text;
  };
  const auto letter = [](size_t run) { return std::string(1, char('a' + run % 26)); };
  for (size_t run = 0; run < runs.size(); ++run) {
    double x = 0, y = 0;
    const std::vector<PlotColumn> all = columns_of(c.train[run], c.x, across - 1);
    for (const PlotColumn& column : all) {
      const double to_x = std::floor(c.x.at(column.first.x) * (across - 1));
      const double to_y = std::round((1 - c.y.at(column.sum / double(column.count))) * (down - 1));
      const int parts = column.gap ? 0 : int(std::max(to_x - x, std::abs(to_y - y)));
      for (int i = 0; i <= parts; ++i) {
        const double part = parts ? double(i) / parts : 1;
        const int dx = int(std::round(x + part * (to_x - x))), dy = int(std::round(y + part * (to_y - y)));
        constexpr uint8_t kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
        const size_t cell = size_t(dy / 4 * columns + dx / 2);
        dots[cell] |= kBits[dy % 4][dx % 2];
        owner[cell] = int(run);
      }
      x = to_x, y = to_y;
    }
    if (!all.empty() && int(run) < letters) ends[size_t(y / 4)] += paint(run, letter(run));
  }
  std::vector<std::string> labels(kRows);
  for (const double tick : c.y.ticks(kRows / 3))
    labels[size_t(std::round((1 - c.y.at(tick)) * (down - 1)) / 4)] = c.y.text(tick);
  std::string text = fmt::format("{:>{}}{}\n", "loss", kLabel, c.y.log ? ", log scale" : " of steps");
  for (int row = 0; row < kRows; ++row) {
    text += fmt::format("{:>{}} {}", labels[size_t(row)], kLabel, labels[size_t(row)].empty() ? "│" : "┤");
    for (int i = 0; i < columns; ++i) {
      const size_t cell = size_t(row * columns + i);
      const std::string braille = {'\xE2', char(0xA0 | dots[cell] >> 6), char(0x80 | (dots[cell] & 63))};
      text += owner[cell] < 0 ? " " : paint(size_t(owner[cell]), braille);
    }
    text += ends[size_t(row)] + "\n";
  }
  std::string line, numbers;
  for (int i = 0; i < columns; ++i) line += "─";
  for (const double tick : c.x.ticks(std::max(2, columns / kColumnsOfTick))) {
    const std::string label = c.x.text(tick);
    const auto place = size_t(std::max(0., kLabel + 2 + c.x.at(tick) * (columns - 1) - double(label.size()) / 2));
    if (place < numbers.size() + (numbers.empty() ? 0 : 2)) continue;
    numbers += std::string(place - numbers.size(), ' ') + label;
  }
  text += fmt::format("{:>{}}└{}\n{}\n", "", kLabel + 1, line, numbers);
  for (size_t i = 0; i < runs.size(); ++i) {
    const PlotSummary s(runs[i]);
    text += fmt::format("{} {}: step {}, loss {}, lowest validation loss {}\n", paint(i, letter(i)), runs[i].name,
                        runs[i].steps.empty() ? 0 : runs[i].steps.back().step, s.last(), s.validation());
  }
  return text;
}

}  // namespace tg
