#include "gpt_timeit/timeit.h"

#include <fmt/chrono.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace tg::bench {
namespace {
Json profiler_object(const TimeitRun& r, int64_t steps) {
  return {{"computation", name_of(r.computation)},
          {"warmup_steps", r.warmup},
          {"profile_steps", steps},
          {"mixed_precision", r.mixed}};
}
Json result_object(const TimeitResult& r) {
  return {{"computation", name_of(r.computation)},
          {"times", r.times},
          {"mean_time", r.mean_time},
          {"median_time", r.median_time},
          {"std_dev", r.std_dev},
          {"min_time", r.min_time},
          {"max_time", r.max_time},
          {"total_time", r.total_time},
          {"profile_steps", r.profile_steps}};
}
Json row_object(const std::string& name, const TimeitRow& row, const TimeitSetup& setup) {
  Json j = {{"name", name}, {"size", row.run.size}};
  for (const Json& part : {profiler_object(row.run, setup.steps), result_object(row.result)})
    for (const auto& [key, x] : part.items()) j[key] = x;
  j["peak_bytes"] = row.result.peak_bytes, j["loss"] = row.result.loss;
  return j;
}

constexpr size_t kMostOfList = 50;  // characters; longer lists are truncated
std::string list_text(const std::vector<double>& times) {
  const std::string all = fmt::format("[{}]", fmt::join(times, ", "));
  return all.size() <= kMostOfList ? all : all.substr(0, kMostOfList - 3) + "...";
}
// The run like `like`, but with computation c.
const TimeitRow* find(const std::vector<TimeitRow>& rows, TimeitRun like, Computation c) {
  like.computation = c;
  const auto at = std::ranges::find(rows, like.key(), [](const TimeitRow& r) { return r.run.key(); });
  return at == rows.end() ? nullptr : &*at;
}
std::string standalone_name(const TimeitRun& r) { return "standalone_" + r.key(); }
}  // namespace

const Json* timeit_figure(std::string_view name) { return document_row("gpt_timeit", {{"name", name}}); }
std::string log_line(std::string_view text, std::chrono::system_clock::time_point at) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(at.time_since_epoch()).count() % 1000;
  return fmt::format("{:%Y-%m-%d %H:%M:%S},{:03} - bench_gpt_timeit - INFO - {}\n",
                     fmt::localtime(std::chrono::system_clock::to_time_t(at)), ms, text);
}
std::string model_json(const GptConfig& c) {
  const Json model = {
      {"approximate", c.activation == Activation::gelu_tanh ? Json("tanh") : Json()},
      {"activation_name", "gelu"},
      {"d_model", c.width},
      {"d_ff", c.ff_width ? Json(c.ff_width) : Json()},
      {"num_heads", c.heads},
      {"context_length", c.context},
      {"attn_pdrop", c.dropout_of(c.attn_dropout)},
      {"resid_pdrop", c.dropout_of(c.resid_dropout)},
      {"bias", c.bias},
      {"vocab_size", c.vocab_size},
      {"num_blocks", c.layers},
      {"token_position_pdrop", c.dropout_of(c.embd_dropout)},
      {"weight_tie", c.tied_head},
  };
  return detail::text_of(model, 4);
}
std::string profiler_json(const TimeitRun& r, int64_t steps) { return detail::text_of(profiler_object(r, steps), 4); }
std::string result_json(const TimeitResult& r) { return detail::text_of(result_object(r), 4); }

std::string data_frame(const std::vector<TimeitRow>& rows, const std::vector<size_t>& order) {
  Table table("{}|{}|{}|{}|{:.6f}|{:.6f}|{:.6f}|{:.6f}|{:.6f}|{:.6f}|{}",
              "|name|computation|times|mean_time|median_time|std_dev|min_time|max_time|total_time|profile_steps");
  for (const size_t i : order) {
    const TimeitResult& r = rows[i].result;
    table.row(i, rows[i].run.key(), name_of(r.computation), list_text(r.times), r.mean_time, r.median_time, r.std_dev,
              r.min_time, r.max_time, r.total_time, r.profile_steps);
  }
  return table.text();
}
std::vector<size_t> by_mean_time(const std::vector<TimeitRow>& rows) {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::ranges::stable_sort(order, {}, [&](size_t i) { return rows[i].result.mean_time; });
  return order;
}
std::vector<size_t> warmup_rows(const std::vector<TimeitRow>& rows) {
  std::vector<size_t> found;
  for (size_t i = 0; i < rows.size(); ++i) {
    const TimeitRun& r = rows[i].run;
    if (r.computation == Computation::forward_backward && !r.mixed && r.size == rows.back().run.size)
      found.push_back(i);
  }
  return found;
}

size_t WarmupClaim::holding() const { return size_t(std::ranges::count_if(pairs, &Pair::holds)); }
WarmupClaim warmup_claim(const std::vector<TimeitRow>& rows) {
  WarmupClaim claim;
  for (const TimeitRow& cold : rows)
    for (const TimeitRow& warm : rows) {
      const TimeitRun &a = cold.run, &b = warm.run;
      if (a.warmup > 0 || b.warmup == 0 || a.size != b.size || a.computation != b.computation || a.mixed != b.mixed)
        continue;
      claim.pairs.push_back({fmt::format("{}_{}_mixed_{}", a.size, name_of(a.computation), name_of(Word(a.mixed))),
                             cold.result.std_dev, warm.result.std_dev});
    }
  return claim;
}
std::string text(const WarmupClaim& claim) {
  if (claim.pairs.empty())
    return "Warm-up claim: not checked, as no two runs differ in nothing but having warm-up steps\n";
  Table table("{}|{:.6f}|{:.6f}|{}", "|without|with|");
  for (const WarmupClaim::Pair& p : claim.pairs) table.row(p.name, p.cold, p.warm, p.holds() ? "less" : "not less");
  return table.text("Warm-up claim: with all else the same, warm-up steps lower the standard deviation (seconds)\n") +
         fmt::format("verdict: {}, in {} of {} pairs\n", claim.holds() ? "it holds" : "it does not hold here",
                     claim.holding(), claim.pairs.size());
}

std::string sums_text(const std::vector<TimeitRow>& rows) {
  Table table("{}_warmup_{}_mixed_{}|{:.6f}|{:.6f}|{:.3f}", "|forward + backward|forward_backward|ratio");
  for (const TimeitRow& row : rows) {
    if (row.run.computation != Computation::forward) continue;
    const TimeitRow *back = find(rows, row.run, Computation::backward),
                    *both = find(rows, row.run, Computation::forward_backward);
    if (!back || !both) continue;
    const double parts = row.result.median_time + back->result.median_time, whole = both->result.median_time;
    table.row(row.run.size, row.run.warmup, name_of(Word(row.run.mixed)), parts, whole, parts / whole);
  }
  return table.text("Consistency: medians of the parts and of the whole (seconds)\n");
}

std::string compare_with_document(const TimeitReport& report) {
  Table table("{}|{:.3f}|{:.3f}|{:.3f}|{:.3f}|{:.3f}|{:.3f}|{:.2f}",
              "|ours ms|median|std|document ms|median|std|ratio");
  const TimeitSetup& s = report.setup;
  const bool same = s.batch == 16 && s.context == 128 && s.vocab == 10'000;
  Table shares("{}|{:.2f}|{}", "|mean by that of forward|document");
  size_t missing = 0;
  const auto take = [&](const std::string& name, const TimeitResult& r) {
    const Json* of = timeit_figure(name);
    if (of && same)
      table.row(name, 1e3 * r.mean_time, 1e3 * r.median_time, 1e3 * r.std_dev, number_of(*of, "mean"),
                number_of(*of, "median"), number_of(*of, "std_dev"), number_of(*of, "mean") / (1e3 * r.mean_time));
    else
      ++missing;
  };
  for (const TimeitRow& row : report.standalone) take(standalone_name(row.run), row.result);
  for (const TimeitRow& row : report.matrix) {
    take(row.run.key(), row.result);
    TimeitRun run = row.run;
    if (run.size != "medium") run.size = "small";
    const Json* of = timeit_figure(run.key());
    run.computation = Computation::forward;
    const Json* forward = timeit_figure(run.key());
    if (const TimeitRow* own = find(report.matrix, row.run, Computation::forward))
      shares.row(
          row.run.key(), row.result.mean_time / own->result.mean_time,
          forward ? fmt::format("{:.2f}, {}", number_of(*of, "mean") / number_of(*forward, "mean"), run.size) : "-");
  }
  return table.text(fmt::format(
             "Compared with document 004 (PyTorch, eager, on a GPU that it does not name; batch 16, context 128, "
             "vocabulary "
             "10000).\n"
             "Ours: {} on {}, batch {}, context {}, vocabulary {}. Ratios of means, above 1 where ours is faster. The "
             "document's mixed\nruns gain so little that its GPU hardly had units for bf16.\n",
             name_of(s.mode), report.machine.device, s.batch, s.context, s.vocab)) +
         without_figures("004", missing, "sizes small and medium at batch 16, context 128, vocabulary 10000", shares);
}

void write_timeit_json(const std::string& path, const TimeitReport& r) {
  const TimeitSetup& s = r.setup;
  Json j = json_of(r);
  j["mode"] = name_of(s.mode);
  j["matmul_precision"] = name_of(s.matmul_precision);
  j["batch"] = s.batch, j["context"] = s.context, j["vocab"] = s.vocab, j["seed"] = s.seed;
  j["backward_is"] = s.mode == RunMode::eager ? "timed alone" : "forward_backward less forward";
  j["rows"] = list_of(r.matrix, [&](const TimeitRow& row) { return row_object(row.run.key(), row, s); });
  j["standalone"] =
      list_of(r.standalone, [&](const TimeitRow& row) { return row_object(standalone_name(row.run), row, s); });
  const WarmupClaim claim = warmup_claim(r.matrix);
  j["warmup_claim"] = {{"pairs", claim.pairs.size()}, {"holding", claim.holding()}};
  write_json(path, j);
}

}  // namespace tg::bench
