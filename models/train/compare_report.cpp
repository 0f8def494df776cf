// Results of compare() as text and JSON; sides by name.
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/config/suggest.h>
#include <tapegrad/models/train/compare.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace tg {
namespace {
// Error relative to tolerance; above 1 is out of tolerance.
double way(const Compared& t) {
  if (t.error == 0) return 0;
  return t.error / t.tolerance;  // infinite for tolerance 0
}
Json number(double x) { return std::isfinite(x) ? Json(x) : Json(); }
Json json_of(const Compared& t) {
  return {{"stage", name_of(t.stage)},
          {"name", t.name},
          {"shape", std::vector<int64_t>(t.shape.begin(), t.shape.end())},
          {"absolute", number(t.absolute)},
          {"error", number(t.error)},
          {"tolerance", t.tolerance},
          {"within", t.within()}};
}
}  // namespace

std::string to_string(const Side& s) {
  std::string text = fmt::format("{}/{}", s.device, s.compute.value_or(s.weights));
  if (s.way != Side::Way::eager) text += s.way == Side::Way::lazy ? "/lazy" : "/compiled";
  if (s.threads) text += fmt::format("/{}", s.threads);
  return text;
}
Side Side::parse(std::string_view text) {
  constexpr std::string_view kTypes[] = {"f32", "f64", "bf16"};
  Side side;
  std::string_view rest = text;
  const auto next = [&rest] {
    const std::string_view word = rest.substr(0, rest.find('/'));
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    return word;
  };
  side.device = Device::parse(next());
  bool type = false, way = false;
  while (!rest.empty()) {
    const std::string_view word = next();
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), side.threads);
    if (error == std::errc() && end == word.data() + word.size() && side.threads > 0 && rest.empty()) return side;
    constexpr std::string_view kWays[] = {"eager", "lazy", "compiled"};
    if (const auto at = std::ranges::find(kWays, word); at != std::end(kWays) && !way) {
      side.way = Side::Way(at - kWays);
      way = true;
      continue;
    }
    TG_CHECK(!type && !way && std::find(std::begin(kTypes), std::end(kTypes), word) != std::end(kTypes), value,
             "[compare] '{}' of the side '{}' is not known. A side is a device, a dtype ({}), a way ({}) and a number "
             "of threads of at least 1, the last three optional: cuda/bf16, cpu/f64, cpu/f32/compiled, cpu/f32/1.",
             word, text, listed(kTypes), listed(kWays));
    const DType t = dtype_from_name(word);
    type = true;
    if (t == DType::bf16)
      side.compute = t;
    else
      side.weights = t;
  }
  return side;
}

std::string to_table(const Comparison& c, int64_t most) {
  std::vector<const Compared*> order;
  for (const Compared& t : c.tensors) order.push_back(&t);
  std::stable_sort(order.begin(), order.end(), [](auto* a, auto* b) { return way(*a) > way(*b); });
  const auto past = std::count_if(order.begin(), order.end(), [](auto* t) { return !t->within(); });
  std::string text =
      fmt::format("{} against {}: {} tensors, ", to_string(c.other), to_string(c.reference), order.size());
  const bool exact = tolerance_of(c.reference, c.other) == 0;
  if (const Compared* first = c.first_apart())
    text += fmt::format("{} of them past {}; the first in the order of execution is {} {}\n", past,
                        exact ? "equality" : "their tolerance", name_of(first->stage), first->name);
  else
    text += exact ? "all equal\n" : "all within their tolerance\n";
  const auto apart = std::find_if(order.begin(), order.end(), [](auto* t) { return t->error == 0; }) - order.begin();
  const size_t shown = most < 0 ? order.size() : size_t(std::min<int64_t>(most, apart));
  size_t width = 4, shape_width = 5;
  for (size_t i = 0; i < shown; ++i) {
    width = std::max(width, order[i]->name.size());
    shape_width = std::max(shape_width, to_string(order[i]->shape).size());
  }
  if (shown > 0)
    text += fmt::format("  {:9}  {:{}}  {:{}}  {:>9}  {:>9}  {:>9}\n", "stage", "tensor", width, "shape", shape_width,
                        "max |a-b|", "error", "tolerance");
  for (size_t i = 0; i < shown; ++i) {
    const Compared& t = *order[i];
    text +=
        fmt::format("  {:9}  {:{}}  {:{}}  {:9.2g}  {:9.2g}  {:9.2g}{}\n", name_of(t.stage), t.name, width,
                    to_string(t.shape), shape_width, t.absolute, t.error, t.tolerance, t.within() ? "" : "  past it");
  }
  if (shown > 0 && shown < order.size())
    text += fmt::format("  and {} more, closer to each other\n", order.size() - shown);
  if (!c.unpaired.empty())
    text += fmt::format("  not compared: {} ops that the sides use in unequal numbers\n", c.unpaired.size());
  return text;
}

std::string to_json(const Comparison& c) {
  Json tensors = Json::array();
  for (const Compared& t : c.tensors) tensors.push_back(json_of(t));
  const Compared* first = c.first_apart();
  const Json all{{"reference", to_string(c.reference)},
                 {"other", to_string(c.other)},
                 {"within", c.within()},
                 {"first_apart", first ? json_of(*first) : Json()},
                 {"tensors", std::move(tensors)},
                 {"unpaired", c.unpaired}};
  return text_of(all, 2);
}

}  // namespace tg
