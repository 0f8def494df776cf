#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/models/apps/run.h>
#include <tapegrad/models/tools/memory_plan.h>

#include <algorithm>

namespace tg::apps {
namespace {

using Peak = std::function<int64_t(const RunConfig&)>;  // bytes

// Halves the batch: more micro-batches (the same step), then smaller steps.
std::vector<Variant> smaller_batches(const RunConfig& run, const Peak& peak, const std::string& flags) {
  std::vector<Variant> list;
  for (const int64_t more : {2, 1}) {
    RunConfig less = run;
    for (TrainConfig& t = less.train; t.batch > 1;) {
      t.accumulate *= t.batch % 2 == 0 ? more : 1;
      t.batch /= 2;
      list.push_back(
          {fmt::format("{}--batch {} --accumulate {}", flags, t.batch, t.accumulate), [=] { return peak(less); }});
    }
  }
  return list;
}
// The nearest settings that need at most `most` bytes.
std::string advice(const TrainOptions& o, const RunConfig& run, const Peak& peak, int64_t most) {
  if (!o.resume.empty()) return "A resumed run keeps its settings: resume it on a device with more memory.";
  RunConfig other = run;
  TrainConfig& t = other.train;
  std::vector<std::vector<Variant>> lists;
  for (const bool narrower : {false, true}) {
    if (narrower && run.train.dtype == DType::bf16) continue;
    if (narrower) t.dtype = DType::bf16;
    for (int r = int(run.train.recompute); r <= int(Recompute::block); ++r) {
      t.recompute = Recompute(r);
      std::string flags = narrower ? "--dtype bf16" : "";
      if (t.recompute != run.train.recompute)
        flags += fmt::format("{}--recompute {}", narrower ? " " : "", name_of(t.recompute));
      if (!flags.empty()) lists.push_back({{flags, [=] { return peak(other); }}});
    }
  }
  lists.push_back(smaller_batches(run, peak, ""));
  std::string fit = detail::what_fits(lists, most);
  if (fit.empty()) fit = detail::what_fits({smaller_batches(other, peak, "--dtype bf16 --recompute block ")}, most);
  return fit.empty() ? "No --batch, --dtype or --recompute is enough for that: make the model or the context smaller."
                     : fit;
}

}  // namespace

void check_sizes(std::string_view command, const RunConfig& run) {
  const GptConfig& m = run.model;
  const double width = double(m.width), hidden = double(m.ff_width ? m.ff_width : 4 * m.width);
  const double row = std::max({double(m.vocab_size), 3 * width, 2 * hidden});
  const double weights = width * std::max(row, double(m.context));
  const double activations = double(run.train.batch) * double(run.train.window_in(m.context)) * row;
  TG_CHECK(std::max(weights, activations) * 8 < 0x1p63, memory,
           "[{}] vocab_size {}, context {}, width {} and batch {} make a tensor of {:.3g} elements. No memory holds "
           "it. Make them smaller.",
           command, m.vocab_size, m.context, m.width, run.train.batch, std::max(weights, activations));
}

int in_memory(const TrainOptions& o, const RunSetup& s, Device device, const std::function<int(int64_t)>& train) {
  check_sizes(o.command, s.run);
  const std::optional<Finetuning>& tuned = s.checkpoint.finetuning;
  const int64_t data = device != Device::cpu() ? 0
                       : s.data.examples       ? s.checkpoint.data.tokens * 8
                                               : s.data.tokens.bytes();
  const auto base = tuned ? weights_in_blocks(tuned->model, tuned->base, tuned->nf4 ? Blocks::nf4 : Blocks::file)
                          : std::function<TensorSource()>();
  const Peak peak = [&](const RunConfig& run) {
    TrainConfig t = run.train;
    if (run.data.objective == Objective::dpo) t.batch *= 2;  // chosen and rejected answers
    return data + plan_memory(run.model, t, device, tuned ? &tuned->lora : nullptr, tuned ? tuned->base : DType::f32,
                              Communicator::world(), base)
                      .peak;
  };
  if (!o.ignore_memory)
    detail::check_fits(
        {fmt::format("[{}] a step of this run", o.command), [&] { return peak(s.run); }}, device,
        [&](int64_t there) { return advice(o, s.run, peak, there) + " To start anyway, pass --ignore-memory."; });
  const int64_t before = memory_stats(device).live;
  const int64_t planned = o.ignore_memory || s.progress.quiet ? 0 : peak(s.run);
  return detail::explained([&] { return train(planned); },
                           [&](const Error& e) -> std::string {
                             if (e.kind() != Error::Kind::memory) return "";
                             const int64_t most =
                                 data + memory_stats(device).peak - before;  // bytes the run could allocate
                             return fmt::format("A step of this run takes {} of memory, and got {} of it. {}",
                                                detail::readable_bytes(peak(s.run)), detail::readable_bytes(most),
                                                advice(o, s.run, peak, most));
                           });
}

}  // namespace tg::apps
