#include <tapegrad/autograd/backward.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/core/observe.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/models/config/suggest.h>
#include <tapegrad/models/tools/compare.h>
#include <tapegrad/ops/loss.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

namespace tg {
namespace {
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double own_tolerance(const Side& s) { return s.compute == DType::bf16 ? 2e-2 : s.weights == DType::f32 ? 1e-5 : 1e-11; }

struct Threads {
  const int before = num_threads();
  explicit Threads(int n) {
    if (n) set_num_threads(n);
  }
  ~Threads() { set_num_threads(before); }
};

// A host copy; 16-bit floats are exact in f32.
Tensor host_copy(const Tensor& t) {
  const bool narrow = is_float(t.dtype()) && t.dtype() != DType::f64;
  return narrow ? tensor(t.to_vector<float>(), t.shape()) : tensor(t.to_vector<double>(), t.shape());
}

// The path without its last `names` components.
std::string_view parent(std::string_view path, int names = 1) {
  for (; names > 0; --names) path = path.substr(0, path.rfind('.') == path.npos ? 0 : path.rfind('.'));
  return path;
}
std::string op_group(std::string_view path, std::string_view op) { return fmt::format("{}|{}", parent(path), op); }
std::string parameter_group(std::string_view name) {
  return fmt::format("{}|{}", parent(name, 2), name.substr(name.rfind('.') + 1));
}

struct Place {
  Stage stage;
  std::string name, group;
};
using See = std::function<void(Place, const Tensor&)>;

// One step on one side. `see` gets its tensors in order; if observed, those of all ops.
void run_step(const MakeModel& make_model, const StateDict& weights, const Batch& batch, const Side& side,
              const CompareOptions& o, bool observed, const See& see) {
  const Threads threads(side.threads);
  const Params params(side.device, 0, side.weights);
  params.load(weights);
  const Model model = make_model(params);
  params.check_all_used();
  const auto see_all = [&](Stage stage) {
    for (const Parameter& p : params.all()) see({stage, p.name, parameter_group(p.name)}, p.tensor.detach());
  };
  std::optional<ObserveScope> watch;
  const auto watch_ops = [&](Stage stage) {
    const auto see_op = [&see, stage](const Observed& x) {
      const std::string output = x.output ? fmt::format("[{}]", x.output) : "";
      const std::string path = x.scope->path(), op = fmt::format("{}{}", x.op, output);
      see({stage, path.empty() ? op : fmt::format("{} {}", path, op), op_group(path, x.op)}, x.value);
    };
    if (observed) watch.emplace(see_op);
  };
  see_all(Stage::weights);
  Rng dropout{o.seed};
  AdamW optimizer(params.trainable(), o.optimizer);
  std::vector<Place> places;  // places of `step`'s results
  const TensorFunction step = [&](Inputs in) {
    std::vector<Tensor> results;
    places.clear();
    const auto add = [&](Place place, const Tensor& t) {
      if (observed) return see(std::move(place), t);
      places.push_back(std::move(place)), results.push_back(t);
    };
    watch_ops(Stage::forward);
    Tensor logits = model.forward(in[0], {.rng = &dropout, .compute = side.compute});  // (B, T, V)
    const Tensor loss = cross_entropy(logits, in[1]);
    watch.reset();
    add({Stage::forward, "logits", ""}, logits.detach());
    add({Stage::forward, "loss", ""}, loss.detach());
    logits = {};
    watch_ops(Stage::backward);
    const GradMap grads = backward(loss, {.create_graph = false}, std::source_location());
    watch.reset();
    for (const Parameter& p : params.trainable())
      if (const Tensor g = grads[p.tensor])  // the optimiser names missing gradients
        add({Stage::gradients, p.name, parameter_group(p.name)}, g);
    if (const Tensor norm = optimizer.step(grads, {.clip_norm = o.clip_norm}))
      add({Stage::gradients, "norm of all gradients", ""}, norm);
    return results;
  };
  const std::vector<Tensor> in{batch.inputs.to(side.device), batch.targets.to(side.device)};
  std::vector<Tensor> results;
  if (side.mode == Side::Mode::compiled) {
    results = compile(step, {.generators = {&dropout}})(in);
  } else {
    std::optional<LazyScope> lazy;
    if (side.mode == Side::Mode::lazy) lazy.emplace();
    results = step(in);
    eval(results);
  }
  for (size_t i = 0; i < results.size(); ++i) see(places[i], results[i]);
  see_all(Stage::update);
}

struct Difference {
  double absolute = 0;          // max |a - b|
  double apart = 0, scale = 0;  // max |a - b| and max |b|, or norm(a - b) and norm(b)
};
// Equal infinities have distance 0. A distance to NaN is infinite.
double distance(double a, double b) {
  if (a == b) return 0;
  return std::isfinite(a) && std::isfinite(b) ? std::abs(a - b) : kInfinity;
}
Difference difference(const Tensor& a, const Tensor& b) {
  const auto x = a.to_vector<double>(), y = b.to_vector<double>();
  Difference d;
  for (size_t i = 0; i < y.size(); ++i) {
    d.absolute = std::max(d.absolute, distance(x[i], y[i]));
    if (std::isfinite(y[i])) d.scale = std::max(d.scale, std::abs(y[i]));
  }
  d.apart = d.absolute;
  return d;
}

// Keeps the reference's tensors, then compares.
class Ledger {
 public:
  Ledger(const Side& reference, const Side& other, const AdamWConfig& optimizer)
      : own_(own_tolerance(reference)), tolerance_(detail::tolerance_of(reference, other)), optimizer_(optimizer) {}

  void keep(Place place, const Tensor& t) {
    Occurrences& o = occurrences_[{place.stage, place.name}];
    o.entries.push_back(entries_.size());
    entries_.push_back({std::move(place), o.entries.size(), t.shape(), host_copy(t), {}});
  }
  void compare(const Place& place, const Tensor& t) {
    Occurrences& o = occurrences_[{place.stage, place.name}];
    if (o.others++ >= o.entries.size()) return;  // unpaired
    Entry& e = entries_[o.entries[o.others - 1]];
    const Tensor a = host_copy(t), b = std::exchange(e.reference, {});
    e.difference = a.shape() != b.shape()         ? Difference{kInfinity, kInfinity, 0}
                   : place.stage == Stage::update ? update(place, a, b)
                                                  : difference(a, b);
    double& most = largest_[{place.stage, place.group}];
    most = std::max(most, e.difference.scale);
    if (place.stage == Stage::weights) starts_[place.name] = b;
    if (place.stage == Stage::gradients) gradients_[place.name] = b;
  }
  void fill(Comparison& c) const {
    for (const Entry& e : entries_) {
      const Occurrences& o = occurrences_.at({e.place.stage, e.place.name});
      if (o.entries.size() != o.others) continue;
      const Difference& d = e.difference;
      c.tensors.push_back({.stage = e.place.stage,
                           .name = e.place.name + (e.occurrence > 1 ? fmt::format(" #{}", e.occurrence) : ""),
                           .shape = e.shape,
                           .absolute = d.absolute,
                           .error = d.apart == 0 ? 0 : d.apart / scale(e.place, d.scale),
                           .tolerance = tolerance_});
    }
    for (const auto& [place, o] : occurrences_)
      if (const size_t n = o.entries.size(); n != o.others)
        c.unpaired.push_back(fmt::format("{} {}: {} and {}", name_of(place.first), place.second, n, o.others));
  }

 private:
  struct Occurrences {  // a name in a stage
    std::vector<size_t> entries;
    size_t others = 0;  // count on the other side
  };
  struct Entry {
    Place place;
    size_t occurrence;  // counted from 1
    Shape shape;
    Tensor reference;
    Difference difference;
  };
  // Denominator of an error: the largest element of the tensor, or of its group if that is rounding.
  double scale(const Place& p, double own) const {
    if (p.stage == Stage::update || p.group.empty()) return own;
    const double most = largest_.at({p.stage, p.group});
    return own <= own_ * most ? most : own;
  }
  // Updated parameters: Adam moves an element with a rounding gradient by one learning rate in either direction.
  Difference update(const Place& p, const Tensor& a, const Tensor& b) const {
    const std::string& name = p.name;
    const auto start = starts_.at(name).to_vector<double>(), x = a.to_vector<double>(), y = b.to_vector<double>();
    const auto g = gradients_.contains(name) ? gradients_.at(name).to_vector<double>() : std::vector<double>(y.size());
    double largest = 0;
    for (const double v : g) largest = std::max(largest, std::abs(v));
    if (gradients_.contains(name)) largest = scale({Stage::gradients, name, p.group}, largest);
    const auto free = [&](size_t i) {
      const double reach =
          1.001 * optimizer_.lr + (optimizer_.lr * optimizer_.weight_decay + 1e-6) * std::abs(start[i]);
      return tolerance_ > 0 && std::abs(g[i]) <= tolerance_ * largest && std::abs(x[i] - start[i]) <= reach;
    };
    Difference d;
    for (size_t i = 0; i < y.size(); ++i) {
      d.scale += y[i] * y[i];
      if (free(i)) continue;
      const double by = distance(x[i], y[i]);
      d.absolute = std::max(d.absolute, by);
      d.apart += by * by;
    }
    d.apart = std::sqrt(d.apart), d.scale = std::sqrt(d.scale);
    return d;
  }

  double own_, tolerance_;  // reference scale; tolerance of both sides
  AdamWConfig optimizer_;
  std::vector<Entry> entries_;
  std::map<std::pair<Stage, std::string>, Occurrences> occurrences_;
  std::map<std::pair<Stage, std::string>, double> largest_;  // max |b| in each group
  StateDict starts_, gradients_;
};

void check_side(const Side& s) {
  TG_CHECK((s.weights == DType::f32 || s.weights == DType::f64) &&
               (!s.compute || s.compute == s.weights || (s.compute == DType::bf16 && s.weights == DType::f32)),
           dtype,
           "[compare] a side has weights of {} and computes in {}. Weights are f32 or f64. A side computes in their "
           "dtype, or in bf16 over f32 weights.",
           s.weights, s.compute.value_or(s.weights));
  detail::runtime_of(s.device);
}

// Error / tolerance; above 1: out of tolerance.
double way(const Compared& t) { return t.error == 0 ? 0 : t.error / t.tolerance; }
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

double detail::tolerance_of(const Side& reference, const Side& other) {
  Side same = other;
  same.threads = reference.threads;
  return same == reference ? 0 : std::max(own_tolerance(reference), own_tolerance(other));
}
const Compared* Comparison::first_apart() const {
  const auto at = std::ranges::find(tensors, false, &Compared::within);
  return at == tensors.end() ? nullptr : &*at;
}

Comparison compare(const MakeModel& make_model, const StateDict& weights, const Batch& batch, const Side& reference,
                   const Side& other, const CompareOptions& o) {
  check_side(reference), check_side(other);
  Ledger ledger(reference, other, o.optimizer);
  const bool observed = reference.mode == Side::Mode::eager && other.mode == Side::Mode::eager;
  run_step(make_model, weights, batch, reference, o, observed,
           [&](Place k, const Tensor& t) { ledger.keep(std::move(k), t); });
  run_step(make_model, weights, batch, other, o, observed,
           [&](const Place& k, const Tensor& t) { ledger.compare(k, t); });
  Comparison c{.reference = reference, .other = other};
  ledger.fill(c);
  return c;
}
Comparison compare(const GptConfig& config, const StateDict& weights, const Batch& batch, const Side& reference,
                   const Side& other, const CompareOptions& o) {
  return compare([&](const Params& params) { return Gpt(params, config); }, weights, batch, reference, other, o);
}

std::string to_string(const Side& s) {
  std::string text = fmt::format("{}/{}", s.device, s.compute.value_or(s.weights));
  if (s.mode != Side::Mode::eager) text += s.mode == Side::Mode::lazy ? "/lazy" : "/compiled";
  if (s.threads) text += fmt::format("/{}", s.threads);
  return text;
}
Side Side::parse(std::string_view text) {
  constexpr std::string_view kTypes[] = {"f32", "f64", "bf16"}, kWays[] = {"eager", "lazy", "compiled"};
  std::string_view word, rest = text;
  const auto next = [&] {
    word = rest.substr(0, rest.find('/'));
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
  };
  Side side;
  next();
  side.device = Device::parse(word);
  next();
  if (std::ranges::count(kTypes, word)) {
    const DType t = detail::dtype_from_name(word);
    if (t == DType::bf16)
      side.compute = t;
    else
      side.weights = t;
    next();
  }
  if (const auto at = std::ranges::find(kWays, word); at != std::end(kWays)) {
    side.mode = Side::Mode(at - kWays);
    next();
  }
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), side.threads);
  const bool threads = error == std::errc() && end == word.data() + word.size() && side.threads > 0;
  TG_CHECK((word.empty() || threads) && rest.empty(), value,
           "[compare] '{}' of the side '{}' is not known. A side is a device, a dtype ({}), a way ({}) and a number of "
           "threads of at least 1, the last three optional: cuda/bf16, cpu/f64, cpu/f32/compiled, cpu/f32/1.",
           word, text, detail::listed(kTypes), detail::listed(kWays));
  return side;
}

std::string to_table(const Comparison& c, int64_t most) {
  std::vector<const Compared*> order;
  for (const Compared& t : c.tensors) order.push_back(&t);
  std::ranges::stable_sort(order, [](auto* a, auto* b) { return way(*a) > way(*b); });
  const auto past = std::ranges::count_if(order, [](auto* t) { return !t->within(); });
  std::string text =
      fmt::format("{} against {}: {} tensors, ", to_string(c.other), to_string(c.reference), order.size());
  const bool exact = detail::tolerance_of(c.reference, c.other) == 0;
  if (const Compared* first = c.first_apart())
    text += fmt::format("{} of them past {}; the first in the order of execution is {} {}\n", past,
                        exact ? "equality" : "their tolerance", name_of(first->stage), first->name);
  else
    text += exact ? "all equal\n" : "all within their tolerance\n";
  const auto apart = std::ranges::find_if(order, [](auto* t) { return t->error == 0; }) - order.begin();
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
  return detail::text_of(all, 2);
}

}  // namespace tg
