#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "switchback/switchback.h"

namespace tg::bench {
namespace {
constexpr std::string_view kProgram = "bench_switchback";
constexpr int64_t kMostWidth = 131071;  // int8_linear()'s limit
constexpr int64_t kSmallestBatch = 1024, kMostBatches = 8;
struct Width {
  int64_t dim;
  double wm;
};
constexpr Width kWidths[] = {{1024, 4},      {1280, 4}, {1408, 4}, {1408, 4.3637}, {1664, 4},
                             {1664, 4.9231}, {2048, 4}, {4096, 4}, {8096, 4}};

std::vector<int64_t> batches_of(int64_t dim) {
  std::vector<int64_t> batches;
  const int64_t n = dim == 8096 ? kMostBatches - 1 : kMostBatches;  // the document's widest has no batch 131072
  for (int64_t i = 0; i < n; ++i) batches.push_back(kSmallestBatch << i);
  return batches;
}
double multiplier(const std::string& word) {
  double x = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), x);
  TG_CHECK(error == std::errc() && end == word.data() + word.size() && x > 0 && std::isfinite(x), value,
           "[bench_switchback] --wm has '{}'. It takes numbers above 0 with commas between them, such as 4,4.3637.",
           word);
  return x;
}
std::vector<double> multipliers(const SwitchBackFlags& f, int64_t dim) {
  std::vector<double> wm;
  for (const std::string& word : f.wm) wm.push_back(multiplier(word));
  if (!wm.empty()) return wm;
  for (const Width& w : kWidths)
    if (w.dim == dim) wm.push_back(w.wm);
  return wm.empty() ? std::vector<double>{4} : wm;
}
std::vector<SwitchBackShape> all_rows(const SwitchBackFlags& f, bool full) {
  std::vector<int64_t> dims = f.dims;
  if (dims.empty()) {
    for (const Width& w : kWidths)
      if ((full || w.dim == 1024 || w.dim == 2048) && (dims.empty() || dims.back() != w.dim)) dims.push_back(w.dim);
  }
  std::vector<SwitchBackShape> rows;
  for (const int64_t dim : dims)
    for (const double wm : multipliers(f, dim))
      for (const int64_t batch : !f.batch.empty() ? f.batch
                                 : full           ? batches_of(dim)
                                                  : std::vector<int64_t>{1024, 2048, 4096})
        for (const Word swapped : f.swapped) rows.push_back({dim, wm, batch, swapped == Word::True});
  return rows;
}
void check_rows(const std::vector<SwitchBackShape>& rows) {
  for (const SwitchBackShape& r : rows)
    TG_CHECK(r.wide() >= 1 && r.wide() <= kMostWidth, value,
             "[bench_switchback] {} times --wm {} is {}. Both sizes of the layer must be from 1 to {}.", r.dim, r.wm,
             r.wide(), kMostWidth);
  check_once(kProgram, rows, &SwitchBackShape::name);
}
double seconds_of(const std::string& word) {
  double x = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), x);
  const std::string_view unit(end, word.data() + word.size());
  const double by = unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : 0;
  TG_CHECK(error == std::errc() && x * by > 0 && std::isfinite(x), value,
           "[bench_switchback] --budget is '{}'. It takes a time above 0, such as 90s, 10m or 2h.", word);
  return x * by;
}
std::vector<SwitchBackShape> chosen(std::vector<SwitchBackShape> rows, const std::vector<int64_t>& places) {
  if (places.empty()) return rows;
  std::vector<SwitchBackShape> some;
  for (const int64_t place : places) {
    check_within(kProgram, "rows", place, 0, int64_t(rows.size()) - 1);
    some.push_back(rows[size_t(place)]);
  }
  return some;
}
SwitchBackSetup setup_of(const SwitchBackFlags& f, std::string& why) {
  const Device device = Device::parse(f.device);
  SwitchBackSetup s{.repeat = f.repeat.value_or(device == Device::cpu() && !f.full && f.budget.empty() ? 4 : 64),
                    .seed = f.seed,
                    .device = device,
                    .layers = !f.parts_only};
  check_within(kProgram, "repeat", s.repeat, 1, 1'000'000);
  const bool fast = device != Device::cpu() ||
                    detail::runtime_of(device).describe(device.index).find("bf16 by ") != std::string::npos;
  const bool chosen = f.dtype != "auto";
  s.dtype = chosen ? detail::dtype_from_name(f.dtype) : fast ? DType::bf16 : DType::f32;
  why = chosen ? "as asked for"
        : fast ? "this device has instructions for its products"
               : "this device has no instructions for products in bf16";
  return s;
}
void check_memory(const SwitchBackShape& row, const SwitchBackSetup& setup) {
  const auto bytes = [=](const SwitchBackShape& with) { return planned_bytes(with, setup); };
  SwitchBackSetup narrow = setup, parts = setup;
  narrow.dtype = DType::bf16, parts.layers = false;
  std::vector<Variant> others;
  if (setup.dtype != narrow.dtype) others.push_back({"--dtype bf16", [=] { return planned_bytes(row, narrow); }});
  if (setup.layers) others.push_back({"--parts-only", [=] { return planned_bytes(row, parts); }});
  check_setup_fits("[bench_switchback] " + row.name(), row, bytes, others, setup.device);
}
}  // namespace

double SwitchBackPlan::seconds(const SwitchBackShape& row, int64_t repeat, double of_flop) const {
  constexpr double kProducts = 7, kChecks = 8, kStep = 6 * std::size(kLayerWays);
  const auto calls = double(SwitchBackSetup{.repeat = repeat}.untimed() + repeat);
  return of_flop * row.flop() * (kChecks + kProducts * calls + (setup.layers ? kStep * (calls + 3) : 0));
}
int64_t SwitchBackShape::wide() const { return std::llround(double(dim) * wm); }
double SwitchBackShape::flop() const { return 2.0 * double(batch) * double(dim_in()) * double(dim_out()); }
std::string SwitchBackShape::name() const { return fmt::format("{} -> {}, batch {}", dim_in(), dim_out(), batch); }

std::vector<SwitchBackShape> switchback_grid() { return all_rows({}, true); }
SwitchBackPlan switchback_plan(const SwitchBackFlags& flags) {
  SwitchBackFlags f = flags;
  if (f.quick) f.dims = {16}, f.batch = {24}, f.repeat = 2;
  SwitchBackPlan plan;
  plan.setup = setup_of(f, plan.why);
  for (const int64_t dim : f.dims) check_within(kProgram, "dims", dim, 1, kMostWidth);
  for (const int64_t batch : f.batch) check_within(kProgram, "batch", batch, 1, INT32_MAX);
  if (!f.budget.empty()) plan.budget = seconds_of(f.budget), plan.setup.layers = false;
  const bool some = f.full || plan.budget > 0;
  plan.rows = chosen(all_rows(f, some || plan.setup.device != Device::cpu()), f.rows);
  check_rows(plan.rows);
  if (plan.budget > 0) std::ranges::stable_sort(plan.rows, {}, &SwitchBackShape::flop);
  std::erase_if(plan.rows, [&](const SwitchBackShape& row) {
    try {
      check_memory(row, plan.setup);
      return false;
    } catch (const Error& e) {
      if (!some || e.kind() != Error::Kind::memory) throw;
      const std::string why = e.what();
      plan.left_out.push_back(why.substr(0, why.find(". ")).substr(why.find("] ") + 2));
      return true;
    }
  });
  return plan;
}

}  // namespace tg::bench
