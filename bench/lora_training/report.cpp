#include <algorithm>

#include "lora_training/rows.h"

namespace tg::bench {
namespace {
// Time of an iteration on an Apple M4 Max, over Metal.
constexpr DocumentFigure kDocument[] = {
    {"lora_forward/forward/small_512x512_r8", 427.63e-6, 436.78e-6, 445.73e-6},
    {"lora_forward/forward/medium_1024x1024_r8", 2.411e-3, 2.502e-3, 2.593e-3},
    {"lora_forward/forward/large_2048x2048_r8", 4.004e-3, 5.658e-3, 7.426e-3},
    {"lora_forward/forward/small_512x512_r16", 4.976e-3, 9.914e-3, 15.67e-3},
    {"gradient_computation/forward_backward", 5.072e-3, 6.483e-3, 8.347e-3},
    {"optimizer_step/adamw_step", 1.385e-3, 1.580e-3, 1.785e-3},
    {"full_training_step/complete_iteration", 3.3281e-3, 3.3319e-3, 3.3341e-3},
    {"layer_operations/softmax_stable", 44.47e-6, 44.74e-6, 44.95e-6},
    {"layer_operations/layer_norm", 47.81e-6, 48.11e-6, 48.35e-6},
    {"layer_operations/rms_norm", 24.86e-6, 24.88e-6, 24.90e-6},
    {"lora_rank_scaling/forward/rank_4", 1.183e-3, 1.226e-3, 1.269e-3},
    {"lora_rank_scaling/forward/rank_8", 2.343e-3, 2.517e-3, 2.683e-3},
    {"lora_rank_scaling/forward/rank_16", 2.237e-3, 2.923e-3, 3.620e-3},
    {"lora_rank_scaling/forward/rank_32", 2.512e-3, 3.571e-3, 4.631e-3},
    {"lora_rank_scaling/forward/rank_64", 4.576e-3, 6.996e-3, 9.430e-3},
    {"lazy_vs_eager_lora/eager_forward", 1.762e-3, 2.116e-3, 2.595e-3},
    {"lazy_vs_eager_lora/lazy_forward_sync", 1.616e-3, 2.220e-3, 2.970e-3},
};
template <class E> Json interval(const E& e) { return {{"low", e.low}, {"estimate", e.point}, {"high", e.high}}; }
constexpr const char* kVerdicts[] = {"no change", "within noise", "improved", "regressed"};
Json row_json(const Measured& m) {
  const Estimate& t = m.estimates.typical();
  Json row = {{"id", m.id.text()}, {"time", interval(t)}, {"median", interval(m.estimates.median)}};
  for (const char* key : {"verdict", "p", "change", "throughput"}) row[key] = Json();
  if (m.elements) {
    const auto n = double(*m.elements);
    row["throughput"] = interval(Estimate{n / t.high, n / t.point, n / t.low, 0});
  }
  if (m.change) {
    row["change"] = interval(m.change->mean);
    row["p"] = m.change->p;
    row["verdict"] = kVerdicts[size_t(verdict(*m.change))];
  }
  const DocumentFigure* of = document_figure(m.id.text());
  row["document"] = of ? interval(*of) : Json();
  row["iterations"] = m.plan.total();
  row["samples"] = m.sample.seconds.size();
  row["sampling"] = m.plan.sampling == Sampling::linear ? "linear" : "flat";
  row["outliers"] = {
      {"low_severe", m.outliers.low_severe},
      {"low_mild", m.outliers.low_mild},
      {"high_mild", m.outliers.high_mild},
      {"high_severe", m.outliers.high_severe},
  };
  return row;
}
}  // namespace

const DocumentFigure* document_figure(std::string_view id) {
  const auto at = std::ranges::find(kDocument, id, &DocumentFigure::id);
  return at == std::end(kDocument) ? nullptr : at;
}
void write_training_json(const std::string& path, const TrainingReport& r) {
  Json j = json_of(r);
  j["mode"] = name_of(r.mode);
  j["rows"] = list_of(r.rows, row_json);
  write_json(path, j);
}

std::string compare_with_document(const std::vector<Measured>& rows) {
  Table table("{}|[{} {} {}]|[{} {} {}]|{:.2f}", "|ours|document|ratio");
  for (const Measured& m : rows) {
    const Estimate& t = m.estimates.typical();
    if (const DocumentFigure* of = document_figure(m.id.text()))
      table.row(m.id.text(), format_time(t.low), format_time(t.point), format_time(t.high), format_time(of->low),
                format_time(of->point), format_time(of->high), of->point / t.point);
  }
  return table.text(
      "Compared with document 000 (Apple M4 Max, Metal; not synchronised): ratios above 1 are ours faster\n");
}

}  // namespace tg::bench
