#include "switchback/switchback.h"

#include <algorithm>
#include <cmath>

namespace tg::bench {

namespace {
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
std::string milliseconds(double x) {  // three digits
  return fmt::format("{:.{}f}", x, x < 0.9995 ? 4 : x < 9.995 ? 2 : x < 99.95 ? 1 : 0);
}

// Rows of one layer and batch, not swapped and swapped.
struct Pair {
  const SwitchBackRow* one;
  const SwitchBackRow* other = nullptr;
  template <class F> double mean(F f) const { return other ? 0.5 * (f(*one) + f(*other)) : f(*one); }
  double total(double Totals::*part) const {
    return mean([&](const SwitchBackRow& r) { return totals(r.ms).*part; });
  }
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
  Json j = document_json(r.shape, r.repeat ? r.repeat : setup.repeat, r.ms);
  j["rates"] = list_of(kTimed, [&](const TimedOp& op) -> Json {
    const OpRate& of = r.rates[size_t(&op - kTimed)];
    return {{"name", op.key},
            {"unit", is_product(op) ? "Gop/s" : "GB/s"},
            {"rate", of.rate},
            {"peak", of.peak},
            {"percent", of.percent()}};
  });
  j["layers"] = list_of(r.layers, [&](const LayerTime& t) -> Json {
    return {{"way", name_of(t.way)}, {"mode", name_of(t.mode)}, {"seconds", t.seconds},
            {"least", t.least},      {"most", t.most},          {"speedup", speedup(r.layers, t)}};
  });
  j["best_speedup"] = r.layers.empty() ? Json() : Json(best_speedup(r.layers));
  j["quantise_share"] = quantize_share(r.ms);
  j["peak_bytes"] = r.peak_bytes;
  return j;
}
}  // namespace

std::optional<SwitchBackFigure> switchback_figure(const SwitchBackShape& s) {
  const Json* row = document_row(
      "switchback",
      {{s.swapped ? "dim_out" : "dim_in", s.dim}, {"wm", s.wm}, {"batch_size", s.batch}, {"switch", s.swapped}});
  if (!row) return {};
  SwitchBackFigure f;
  for (size_t op = 0; op < kOps; ++op) f.ms[op] = number_of(*row, kTimed[op].key);
  f.totals = {number_of(*row, "time_standard"), number_of(*row, "time_rowwise"), number_of(*row, "time_global")};
  return f;
}

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
    line += fmt::format("{}\"{}\": {}", line.empty() ? "{" : ", ", m.key, detail::text_of(m.value));
  return line + "}";
}

std::string rate_lines(const SwitchBackRow& r, const SwitchBackSetup& setup) {
  Table table("rate {}:|{:.1f}|{}|{:.0f} %|of|{:.1f}|{}");
  for (size_t op = 0; op < kOps; ++op) {
    const OpRate& of = r.rates[op];
    const bool product = is_product(kTimed[op]);
    table.row(kTimed[op].key, of.rate, product ? "Gop/s" : "GB/s", of.percent(), of.peak,
              product ? fmt::format("the peak of {}", name_of(setup.dtype)) : "the bandwidth");
  }
  return table.text();
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
  Table table("{}|{}|{:.3f}|{:.3f}|{:.3f}|{:.2f}", "step of the layer, forward and backward||ms|least|most|speedup");
  for (const LayerTime& t : layers)
    table.row(name_of(t.way), name_of(t.mode), 1e3 * t.seconds, 1e3 * t.least, 1e3 * t.most, speedup(layers, t));
  return table.text() + fmt::format("fastest linear over fastest of 8-bit codes: {:.2f}\n", best_speedup(layers));
}

std::string summary(const std::vector<SwitchBackRow>& rows) {
  Table table("{} -> {}|{}|{}|{}|{}|{:.2f}|{:.2f}|{:.1f}|{}",
              "|batch|standard|rowwise|global|s/rowwise|s/global|quantising %|step: best speedup");
  for (const Pair& p : pairs(rows)) {
    const SwitchBackShape& s = p.one->shape;
    const double standard = p.total(&Totals::standard), rowwise = p.total(&Totals::rowwise),
                 global = p.total(&Totals::global);
    const double best = p.mean([](const SwitchBackRow& r) { return best_speedup(r.layers); });
    table.row(s.dim, s.wide(), s.batch, milliseconds(standard), milliseconds(rowwise), milliseconds(global),
              standard / rowwise, standard / global,
              100 * p.mean([](const SwitchBackRow& r) { return quantize_share(r.ms); }),
              p.one->layers.empty() ? "-" : fmt::format("{:.2f}", best));
  }
  return table.text("Sums of parts in ms, means of both layers; above 1 SwitchBack is faster\n");
}

std::string crossover(const std::vector<SwitchBackRow>& rows) {
  std::vector<SwitchBackRow> document;
  for (const SwitchBackShape& shape : switchback_grid()) document.push_back({shape, switchback_figure(shape)->ms});
  const auto from = [](const std::vector<SwitchBackRow>& of, const SwitchBackShape& layer, double Totals::*part) {
    int64_t least = INT64_MAX;
    for (const Pair& p : pairs(of))
      if (const SwitchBackShape& s = p.one->shape; s.dim == layer.dim && s.wm == layer.wm)
        if (p.total(part) < p.total(&Totals::standard)) least = std::min(least, s.batch);
    return least < INT64_MAX ? std::to_string(least) : "-";
  };
  std::string text;
  for (const auto& [name, part] : {std::pair{"rowwise", &Totals::rowwise}, {"global", &Totals::global}}) {
    const auto faster = [part](const std::vector<SwitchBackRow>& of) {
      return std::ranges::count_if(of, [&](const auto& r) { return totals(r.ms).*part < totals(r.ms).standard; });
    };
    Table table("{} -> {}|{}|{}", "|from batch|document");
    std::set<int64_t> seen;
    for (const SwitchBackRow& r : rows)
      if (seen.insert(r.shape.dim << 32 | r.shape.wide()).second)
        table.row(r.shape.dim, r.shape.wide(), from(rows, r.shape, part), from(document, r.shape, part));
    text += table.text(fmt::format("{} takes less time than standard in {} of {} rows (document: {} of {})\n", name,
                                   faster(rows), rows.size(), faster(document), document.size()));
  }
  return text;
}
std::string compare_with_document(const std::vector<SwitchBackRow>& rows, const std::string& ours) {
  Table table("{} -> {}|{}{}{}",
              "|batch|ours standard|rowwise|global|s/rowwise|s/global|document standard|rowwise|global|s/rowwise|"
              "s/global");
  const auto cells = [](const Totals& t) {
    return fmt::format("|{}|{}|{}|{:.2f}|{:.2f}", milliseconds(t.standard), milliseconds(t.rowwise),
                       milliseconds(t.global), t.standard / t.rowwise, t.standard / t.global);
  };
  Span saved, quantising;
  for (const SwitchBackShape& shape : switchback_grid()) {
    const SwitchBackFigure of = *switchback_figure(shape);
    saved.take(of.totals.standard / of.totals.global), quantising.take(100 * quantize_share(of.ms));
  }
  Table shares("{}|{:.2f}|{}|{:.2f}|{}", "|s/global|document|quantising %|document");
  size_t missing = 0;
  for (const SwitchBackRow& r : rows)
    if (const auto of = switchback_figure(r.shape))
      table.row(r.shape.dim_in(), r.shape.dim_out(), r.shape.batch, cells(totals(r.ms)), cells(of->totals));
    else
      ++missing, shares.row(r.shape.name(), totals(r.ms).standard / totals(r.ms).global, saved.text(),
                            100 * quantize_share(r.ms), quantising.text());
  return table.text(fmt::format("Compared with document 001 (fp16, Triton kernels on a GPU that it does not name; "
                                "means of 64 calls). Ours: {}.\n"
                                "Sums of parts in ms; s/rowwise and s/global: how many times as fast as standard. fp16 "
                                "is not measured: f16 is a\n"
                                "dtype of storage here.\n",
                                ours)) +
         without_figures("001", missing, "dims 1024, 1280, 1408, 1664, 2048, 4096 and 8096, batches 1024 to 131072",
                         shares);
}

void write_switchback_json(const std::string& path, const SwitchBackReport& r, const Peaks& peaks) {
  const SwitchBackSetup& s = r.setup;
  Json j = json_of(r);
  j["repeat"] = s.repeat, j["untimed"] = s.untimed(), j["seed"] = s.seed;
  j["dtype"] = name_of(s.dtype), j["why_dtype"] = r.why;
  j["peak_gflops"] = peaks.products();
  j["left_out"] = r.left_out;
  j["grid"] = list_of(r.rows, [&](const SwitchBackRow& row) { return json_of(row, s); });
  write_json(path, j);
}

}  // namespace tg::bench
