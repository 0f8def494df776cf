// Tokens per second of decoding in three alternating modes, so that machine noise hits all.
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/io/model_dir.h>
#include <tapegrad/models/train/run_config.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/shape_ops.h>
#include <tapegrad/ops/topk.h>

#include <array>

#include "common/program.h"
#include "common/stats.h"

using namespace tg;
using namespace tg::bench;
namespace {
struct DecodeFlags : SharedFlags {
  std::string arch = "gpt2", model;
  std::vector<std::string> dtypes{"f32", "bf16"};
  std::vector<int64_t> prompts{32, 256, 512, 900};
  int64_t batch = 1, tokens = 32, rounds = 5;
  uint64_t seed = 1;
};
enum class Way { growing, fixed, compiled };
constexpr std::array kWays{Way::growing, Way::fixed, Way::compiled};
constexpr std::array kNames{"growing cache, eager", "fixed cache, eager", "fixed cache, compiled"};

GptConfig config_of(const DecodeFlags& f) {
  GptConfig c = model_preset(f.arch);
  if (c.vocab_size == 0) c.vocab_size = 256;  // 0: the tokenizer decides
  return c;
}
Gpt model_of(const DecodeFlags& f, DType dtype, Device device) {
  if (!f.model.empty()) return load_model(f.model, device, dtype).model;
  return Gpt(Params(device, f.seed, dtype), config_of(f));
}
class Decoding {
 public:
  Decoding(const DecodeFlags& f, const Gpt& model, int64_t prompt) : flags_(f), prompt_(prompt), model_(model) {
    fixed_ = model.make_cache(f.batch, prompt + f.tokens);
    Rng rng{f.seed + 1};
    for (int64_t i = 0; i < f.batch * prompt; ++i)
      ids_.push_back(int64_t(rng.below(uint64_t(model.config().vocab_size))));
    const Tensor tokens = tensor(ids_, {f.batch, prompt}, model.device());
    first_ = next(tokens, grown_);
    next(tokens, fixed_);
  }
  double run(Way way, std::vector<int64_t>& tokens) {
    KvCache growing = grown_;
    KvCache& cache = way == Way::growing ? growing : fixed_;
    fixed_.set_lengths(full({flags_.batch}, double(prompt_), DType::i64, model_.device()));
    std::vector<Tensor> all{first_};  // (B, 1) each
    synchronize(model_.device());
    const double seconds = timed([&] {
      for (int64_t i = 1; i < flags_.tokens; ++i)
        all.push_back(way == Way::compiled ? step_({all.back()})[0] : next(all.back(), cache));
      synchronize(model_.device());
    });
    tokens = concat(all, 1).to_vector<int64_t>();
    return seconds;
  }
  const std::vector<int64_t>& prompt() const { return ids_; }

 private:
  Tensor next(const Tensor& tokens, KvCache& cache) const {
    return argmax(model_.forward(tokens, {.cache = &cache, .last_only = true}), -1);
  }
  DecodeFlags flags_;
  int64_t prompt_;
  NoGradScope off_;
  Gpt model_;
  KvCache grown_, fixed_;  // filled with the prompt
  std::vector<int64_t> ids_;
  Tensor first_;
  Compiled step_{[this](Inputs in) { return std::vector{next(in[0], fixed_)}; }};
};

Json measured(const DecodeFlags& f, const std::string& dtype, const Gpt& model, int64_t prompt) {
  Decoding decoding(f, model, prompt);
  const std::string& name = f.model.empty() ? f.arch : f.model;
  fmt::print("\n{}, {}: {} text(s), {} tokens after a prompt of {}\n", name, dtype, f.batch, f.tokens, prompt);
  std::array<std::vector<double>, 3> seconds;
  std::vector<int64_t> want;
  for (int64_t round = -1; round < f.rounds; ++round)  // the first round warms up and traces
    for (size_t k = 0; k < kWays.size(); ++k) {
      std::vector<int64_t> got;
      const double s = decoding.run(kWays[k], got);
      if (want.empty()) want = got;
      TG_CHECK(got == want, internal, "[bench_decode] {} gives other tokens than {}.", kNames[k], kNames[0]);
      if (round >= 0) seconds[k].push_back(s);
    }
  Json ways = Json::array();
  const auto tokens = double(f.batch * (f.tokens - 1));  // excludes the first new token
  for (size_t k = 0; k < kWays.size(); ++k) {
    const Timing t = summary(seconds[k]);
    fmt::print("{:<24} {:8.2f} tokens/s  (p10 {:.2f}, p90 {:.2f})  {:.3f} of the first\n", kNames[k], tokens / t.median,
               tokens / t.p90, tokens / t.p10, median(seconds[0]) / t.median);
    ways.push_back({{"way", kNames[k]},
                    {"tokens_per_second", tokens / t.median},
                    {"seconds_per_token", json_of(t, 1 / tokens)},
                    {"runs", t.runs}});
  }
  Json all = {
      {"arch", name},       {"dtype", dtype},       {"batch", f.batch},        {"prompt", prompt},
      {"tokens", f.tokens}, {"equal_tokens", true}, {"ways", std::move(ways)},
  };
  const auto first = [](const std::vector<int64_t>& ids, int64_t n) {
    return std::vector(ids.begin(), ids.begin() + n);
  };
  if (!f.model.empty())  // others can load the same model
    all["first_text"] = {{"prompt", first(decoding.prompt(), prompt)}, {"tokens", first(want, f.tokens)}};
  return all;
}
int decode(const DecodeFlags& f, int argc, char** argv) {
  for (const int64_t n : f.prompts) check_within("bench_decode", "prompt", n, 1, 1 << 20);
  Json all = json_of(begin(f, argc, argv)), runs = Json::array();
  for (const std::string& dtype : f.dtypes) {
    const Gpt model = model_of(f, detail::dtype_from_name(dtype), Device::parse(f.device));
    for (const int64_t prompt : f.prompts) runs.push_back(measured(f, dtype, model, prompt));
  }
  all["decoding"] = std::move(runs);
  write_json(f.json, all);
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  const auto declare = [](Command& c, DecodeFlags& f) {
    c.option("--arch", "NAME", "a named architecture; its weights are random", f.arch);
    c.option("--model", "DIR", "a model folder instead, also of Hugging Face", f.model);
    c.option("--dtypes", "of the parameters, a list of f32, bf16", f.dtypes);
    c.option("--batch", "texts at once", f.batch, 1, 1 << 16);
    c.option("--prompt", "tokens of prompts, which are not timed", f.prompts);
    c.option("--tokens", "tokens after each", f.tokens, 2, 1 << 20);
    c.option("--rounds", "times that each way decodes, after one to warm up", f.rounds, 1, 1 << 20);
    c.option("--seed", "of weights and prompt", f.seed);
  };
  return run_benchmark<DecodeFlags>(
      argc, argv, "bench_decode",
      "Tokens per second of decoding with a cache that grows, one of fixed capacity, and that one compiled.",
      kThreads | kCpuTime, declare, decode);
}
