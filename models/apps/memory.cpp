#include <tapegrad/core/backend.h>
#include <tapegrad/models/apps/memory.h>

#include <algorithm>

namespace tg::apps {
namespace {

struct Run {
  const TrainOptions& options;
  RunConfig config;
  Device device;
  const LoraConfig* adapters;
  int64_t peak() const { return plan_memory(config.model, config.train, device, adapters).peak; }
};

// Settings by their flags, "--recompute block (3.1 GB), ", if they take at most `most` bytes; else nothing.
std::string if_it_fits(const Run& run, const std::string& flags, int64_t most) {
  try {
    const int64_t peak = run.peak();
    return peak <= most ? fmt::format("{} ({}), ", flags, readable_bytes(peak)) : "";
  } catch (const Error&) {  // sizes beyond all memory
    return "";
  }
}
// The largest of half the batch, a quarter ... that fits: the same step in more micro-batches if that goes.
std::string batch_that_fits(const Run& run, const std::string& flags, int64_t most) {
  for (const int64_t more : {2, 1}) {
    Run less = run;
    for (TrainConfig& t = less.config.train; t.batch > 1;) {
      t.accumulate *= t.batch % 2 == 0 ? more : 1;
      t.batch /= 2;
      const std::string size = fmt::format("{}--batch {} --accumulate {}", flags, t.batch, t.accumulate);
      if (const std::string found = if_it_fits(less, size, most); !found.empty()) return found;
    }
  }
  return "";
}
// The settings next to those of the run that take at most `most` bytes: "These would fit: ..."
std::string what_fits(const Run& run, int64_t most) {
  if (!run.options.resume.empty()) return "A run that goes on keeps its settings: resume it where there is more.";
  const TrainConfig& own = run.config.train;
  Run other = run;
  TrainConfig& t = other.config.train;
  std::string all;
  for (const bool narrower : {false, true}) {
    if (narrower && own.dtype == DType::bf16) continue;
    if (narrower) t.dtype = DType::bf16;
    for (int r = int(own.recompute); r <= int(Recompute::block); ++r) {
      t.recompute = Recompute(r);
      std::string flags = narrower ? "--dtype bf16" : "";
      if (t.recompute != own.recompute)
        flags += fmt::format("{}--recompute {}", narrower ? " " : "", name_of(t.recompute));
      if (!flags.empty()) all += if_it_fits(other, flags, most);
    }
  }
  all += batch_that_fits(run, "", most);
  if (all.empty()) all = batch_that_fits(other, "--dtype bf16 --recompute block ", most);
  if (all.empty())
    return "No --batch, --dtype or --recompute is enough for that: make the model or the context smaller.";
  return fmt::format("These would fit: {}.", all.substr(0, all.size() - 2));
}

void check_plan(const Run& run) {
  const auto there = int64_t(runtime_of(run.device).memory(run.device.index));
  const int64_t peak = run.peak();
  TG_CHECK(there == 0 || peak <= there, memory,
           "[{}] a step of this run takes {} of memory, and {} has {}, which is {} too little. All tensors of a step "
           "must fit. {} To begin all the same, pass --ignore-memory.",
           run.options.command, readable_bytes(peak),
           run.device == Device::cpu() ? "the machine" : to_string(run.device), readable_bytes(there),
           readable_bytes(peak - there), what_fits(run, there));
}

}  // namespace

void check_sizes(std::string_view command, const RunConfig& run) {
  const GptConfig& m = run.model;
  const double width = double(m.width), hidden = double(m.ff_width ? m.ff_width : 4 * m.width);
  const double row = std::max({double(m.vocab_size), 3 * width, 2 * hidden});
  const double weights = width * std::max(row, double(m.context));
  const double activations = double(run.train.batch) * double(m.context) * row;
  TG_CHECK(
      std::max(weights, activations) * 8 < 0x1p63, memory,
      "[{}] vocab_size {}, context {}, width {} and batch {} make a tensor of {:.3g} elements. No memory holds it. "
      "Make them smaller.",
      command, m.vocab_size, m.context, m.width, run.train.batch, std::max(weights, activations));
}

int train_in_memory(const TrainOptions& o, const RunConfig& config, Device device, const LoraConfig* adapters,
                    const std::function<int()>& train) {
  check_sizes(o.command, config);
  const Run run{o, config, device, adapters};
  if (!o.ignore_memory) check_plan(run);
  const int64_t before = memory_stats(device).live;
  try {
    return train();
  } catch (const Error& e) {
    if (e.kind() != Error::Kind::memory) throw;
    const int64_t most = memory_stats(device).peak - before;  // that was there
    throw Error(e.kind(),
                fmt::format("{}\nA step of this run takes {} of memory, of which it got {}. {}", e.what(),
                            readable_bytes(run.peak()), readable_bytes(most), what_fits(run, most)),
                e.scoped());
  }
}

}  // namespace tg::apps
