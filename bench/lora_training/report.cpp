#include <algorithm>

#include "lora_training/rows.h"

namespace tg::bench {
namespace {
template <class E> Json interval(const E& e) { return {{"low", e.low}, {"estimate", e.point}, {"high", e.high}}; }
constexpr const char* kVerdicts[] = {"no change", "within noise", "improved", "regressed"};
Json row_json(const Measured& m) {
  const Estimate& t = m.estimates.typical();
  Json row = {{"id", m.id.text()}, {"time", interval(t)}, {"median", interval(m.estimates.median)}};
  for (const char* key : {"verdict", "p", "change", "throughput", "limit"}) row[key] = Json();
  if (m.limit) row["limit"] = *m.limit;
  if (m.elements) {
    const auto n = double(*m.elements);
    row["throughput"] = interval(Estimate{n / t.high, n / t.point, n / t.low, 0});
  }
  if (m.change) {
    row["change"] = interval(m.change->mean);
    row["p"] = m.change->p;
    row["verdict"] = kVerdicts[size_t(verdict(*m.change))];
  }
  const auto of = document_figure(m.id.text());
  row["document"] = of ? interval(*of) : Json();
  row["iterations"] = m.plan.total();
  row["samples"] = m.sample.seconds.size();
  row["sample"] = {{"iterations", m.sample.iterations}, {"seconds", m.sample.seconds}};
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

std::optional<Estimate> document_figure(std::string_view id) {
  const Json* row = document_row("lora_training", {{"id", id}});
  if (!row) return {};
  return Estimate{number_of(*row, "low"), number_of(*row, "point"), number_of(*row, "high"), 0};
}
void write_training_json(const std::string& path, const TrainingReport& r) {
  Json j = json_of(r);
  j["mode"] = name_of(r.mode);
  j["rows"] = list_of(r.rows, row_json);
  write_json(path, j);
}

std::string compare_with_document(const std::vector<Measured>& rows) {
  Table table("{}|[{} {} {}]|{}|[{} {} {}]|{:.2f}", "|ours|limit|document|ratio");
  size_t missing = 0;
  for (const Measured& m : rows) {
    const Estimate& t = m.estimates.typical();
    if (const auto of = document_figure(m.id.text()))
      table.row(m.id.text(), format_time(t.low), format_time(t.point), format_time(t.high),
                m.limit ? format_time(*m.limit) : "", format_time(of->low), format_time(of->point),
                format_time(of->high), of->point / t.point);
    else
      ++missing;
  }
  return table.text(
             "Compared with document 000 (Apple M4 Max, Metal; not synchronised): ratios above 1 are ours faster\n") +
         without_figures("000", missing, "17 ids, such as lora_forward and lora_rank_scaling, and none of cpu_");
}

}  // namespace tg::bench
