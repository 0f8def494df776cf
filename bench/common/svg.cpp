#include "common/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lora_training/criterion.h"

namespace tg::bench {
namespace {

constexpr double kLeft = 300, kWidth = 420, kRight = 200, kTop = 80, kRow = 34, kBelow = 54;
constexpr const char *kBar = "#4c78a8", *kInterval = "#1b2a41", *kMark = "#d1495b", *kGrid = "#d8dde3";

std::string escaped(const std::string& text) {
  std::string r;
  for (const char c : text)
    if (c == '&')
      r += "&amp;";
    else if (c == '<')
      r += "&lt;";
    else if (c == '>')
      r += "&gt;";
    else if (c == '"')
      r += "&quot;";
    else
      r += c;
  return r;
}
std::string number(double seconds) {  // without the padding of a report
  std::string t = format_time(seconds);
  return t.substr(t.find_first_not_of(' '));
}
std::string short_number(double seconds) {  // of a tick: "20 µs"
  static constexpr std::pair<double, const char*> kUnits[] = {{1e-9, "ns"}, {1e-6, "µs"}, {1e-3, "ms"}, {1, "s"}};
  const auto* unit = &kUnits[0];
  for (const auto& u : kUnits)
    if (seconds >= u.first * 0.9999) unit = &u;
  return fmt::format("{:.3g} {}", seconds / unit->first, unit->second);
}

class Axis {
 public:
  Axis(double least, double most) : log_(most > 30 * least) {
    if (log_) {
      low_ = std::floor(std::log10(least)), high_ = std::ceil(std::log10(most));
      for (double d = low_; d <= high_; ++d) ticks_.push_back(std::pow(10, d));
      return;
    }
    const double rough = most / 5, power = std::pow(10, std::floor(std::log10(rough)));
    const double lead = rough / power, step = power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
    const int n = int(std::ceil(most / step));
    for (int i = 0; i <= n; ++i) ticks_.push_back(i * step);
    low_ = 0, high_ = n * step;
  }
  double operator()(double x) const { return kLeft + kWidth * ((log_ ? std::log10(x) : x) - low_) / (high_ - low_); }
  bool logarithmic() const { return log_; }
  const std::vector<double>& ticks() const { return ticks_; }

 private:
  bool log_;
  double low_, high_;
  std::vector<double> ticks_;
};

std::string label(double x, double y, const char* anchor, const std::string& s, const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                     escaped(s));
}
std::string line(double x1, double y1, double x2, double y2, const char* colour, double width) {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"{}\"/>\n", x1, y1, x2,
      y2, colour, width);
}
std::string row(const Bar& b, double y, const Axis& at) {  // y: the middle
  std::string r = label(kLeft - 10, y + 4, "end", b.name);
  r += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"16\" fill=\"{}\"/>\n", kLeft, y - 8,
                   std::max(0.5, at(b.point) - kLeft), kBar);
  r += line(at(b.low), y, at(b.high), y, kInterval, 1.5);
  for (const double end : {b.low, b.high}) r += line(at(end), y - 5, at(end), y + 5, kInterval, 1.5);
  std::string value = number(b.point);
  if (b.mark) {
    const double x = at(*b.mark);
    r += fmt::format("<path d=\"M {0:.1f} {1:.1f} l 6 6 l -6 6 l -6 -6 z\" fill=\"{2}\"/>\n", x, y - 6, kMark);
    value += fmt::format(" ({})", number(*b.mark));
  }
  return r + label(kLeft + kWidth + 12, y + 4, "start", value);
}

}  // namespace

std::string bar_plot(const PlotText& t, const std::vector<Bar>& bars) {
  double least = bars.at(0).low, most = least;
  bool marked = false;
  for (const Bar& b : bars) {
    least = std::min({least, b.low, b.mark.value_or(b.low)});
    most = std::max({most, b.high, b.mark.value_or(b.high)});
    marked |= b.mark.has_value();
  }
  const Axis at(least, most);
  const double bottom = kTop + kRow * double(bars.size()), width = kLeft + kWidth + kRight;
  std::string r = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"sans-serif\" font-size=\"13\" fill=\"#1b2a41\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"white\"/>\n",
      width, bottom + kBelow);
  r += label(16, 26, "start", t.title, " font-size=\"16\" font-weight=\"bold\"");
  r += label(16, 46, "start", "bars: " + t.bars);
  if (marked) r += label(16, 64, "start", "diamonds: " + t.marks);
  for (const double x : at.ticks())
    r +=
        line(at(x), kTop, at(x), bottom, kGrid, 1) + label(at(x), bottom + 18, "middle", x > 0 ? short_number(x) : "0");
  for (size_t i = 0; i < bars.size(); ++i) r += row(bars[i], kTop + kRow * (double(i) + 0.5), at);
  r += label(kLeft + kWidth / 2, bottom + 40, "middle",
             at.logarithmic() ? "time per iteration, logarithmic" : "time per iteration");
  return r + "</svg>\n";
}

}  // namespace tg::bench
