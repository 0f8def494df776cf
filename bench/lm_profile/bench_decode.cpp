// Tokens per second of decoding with a Gpt of random weights: with the cache that grows, with one of fixed capacity,
// and that one compiled. Every way must give the same tokens. The ways take turns, so that a noisy machine disturbs
// all.
#include <fmt/format.h>
#include <tapegrad/core/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/train/run_config.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/shape_ops.h>
#include <tapegrad/ops/topk.h>

#include <array>

#include "common/program.h"

using namespace tg;
using namespace tg::bench;
namespace {
struct DecodeFlags : SharedFlags {
  std::string arch = "gpt2";
  std::vector<std::string> dtypes{"f32", "bf16"};
  int64_t batch = 1, prompt = 32, tokens = 64, rounds = 5, threads = 0;
  uint64_t seed = 1;
};
enum class Way { growing, fixed, compiled };
constexpr std::array kWays{Way::growing, Way::fixed, Way::compiled};
constexpr std::array kNames{"growing cache, eager", "fixed cache, eager", "fixed cache, compiled"};

struct DecodeRun {
  std::string dtype;
  std::array<Timing, 3> seconds;  // of all tokens after the prompt, by Way
};

GptConfig config_of(const DecodeFlags& f) {
  GptConfig c = arch(f.arch);
  if (c.vocab_size == 0) c.vocab_size = 256;  // left to a tokenizer
  return c;
}
class DecodeModel {
 public:
  DecodeModel(const DecodeFlags& f, DType dtype, Device device)
      : flags_(f), params_(device, f.seed, dtype), model_(params_, config_of(f)) {
    fixed_ = model_.fixed_cache(f.batch, f.prompt + f.tokens);
    Rng rng{f.seed + 1};
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < f.batch * f.prompt; ++i)
      ids.push_back(int64_t(rng.below(uint64_t(model_.config().vocab_size))));
    prompt_ = tensor(ids, {f.batch, f.prompt}, device);
  }
  // Decodes greedily; the seconds after the prompt.
  double run(Way way, std::vector<int64_t>& tokens) {
    KvCache growing;
    KvCache& cache = way == Way::growing ? growing : fixed_;
    cache.clear();
    std::vector<Tensor> all{next(prompt_, cache)};  // (B, 1) each
    synchronize(prompt_.device());
    const double seconds = timed([&] {
      for (int64_t i = 1; i < flags_.tokens; ++i)
        all.push_back(way == Way::compiled ? step_({all.back()})[0] : next(all.back(), cache));
      synchronize(prompt_.device());
    });
    tokens = concat(all, 1).to_vector<int64_t>();
    return seconds;
  }
  int64_t parameters() const {
    int64_t n = 0;
    for (const auto& [name, t] : params_.state()) n += t.numel();
    return n;
  }

 private:
  Tensor next(const Tensor& tokens, KvCache& cache) const {
    return argmax(model_.forward(tokens, {.cache = &cache, .last_only = true}));
  }
  DecodeFlags flags_;
  NoGradScope off_;
  Params params_;
  Gpt model_;
  KvCache fixed_;
  Tensor prompt_;  // (B, prompt) i64
  Compiled step_{[this](Inputs in) { return std::vector{next(in[0], fixed_)}; }};
};

DecodeRun measured(const DecodeFlags& f, const std::string& dtype, Device device) {
  DecodeModel model(f, dtype_from_name(dtype), device);
  fmt::print("\n{}, {}: {} parameters, {} text(s), {} tokens after a prompt of {}\n", f.arch, dtype, model.parameters(),
             f.batch, f.tokens, f.prompt);
  std::array<std::vector<double>, 3> seconds;
  std::vector<int64_t> want;
  for (int64_t round = -1; round < f.rounds; ++round)  // the first warms up, and traces
    for (size_t k = 0; k < kWays.size(); ++k) {
      std::vector<int64_t> got;
      const double s = model.run(kWays[k], got);
      if (want.empty()) want = got;
      TG_CHECK(got == want, internal, "[bench_decode] {} gives other tokens than {}.", kNames[k], kNames[0]);
      if (round >= 0) seconds[k].push_back(s);
    }
  DecodeRun r{dtype, {}};
  for (size_t k = 0; k < kWays.size(); ++k) {
    r.seconds[k] = summary(seconds[k]);
    const auto rate = [&](double s) { return double(f.batch * (f.tokens - 1)) / s; };
    fmt::print("{:<24} {:8.2f} tokens/s  (p10 {:.2f}, p90 {:.2f})  {:.3f} of the first\n", kNames[k],
               rate(r.seconds[k].median), rate(r.seconds[k].p90), rate(r.seconds[k].p10),
               r.seconds[0].median / r.seconds[k].median);
  }
  return r;
}
int decode(const DecodeFlags& f, int argc, char** argv) {
  check_within("bench_decode", "batch", f.batch, 1, 1 << 16);
  check_within("bench_decode", "prompt", f.prompt, 1, 1 << 20);
  check_within("bench_decode", "tokens", f.tokens, 2, 1 << 20);
  check_within("bench_decode", "rounds", f.rounds, 1, 1 << 20);
  Json all = json_of(begin(f, argc, argv, "", f.threads)), runs = Json::array();
  for (const std::string& dtype : f.dtypes) {
    const DecodeRun r = measured(f, dtype, Device::parse(f.device));
    Json ways = Json::array();
    for (size_t k = 0; k < kWays.size(); ++k) {
      const Timing& t = r.seconds[k];
      const double per_token = 1.0 / double(f.batch * (f.tokens - 1));
      ways.push_back({{"way", kNames[k]},
                      {"tokens_per_second", 1 / (t.median * per_token)},
                      {"seconds_per_token",
                       {{"median", t.median * per_token}, {"p10", t.p10 * per_token}, {"p90", t.p90 * per_token}}},
                      {"runs", t.runs}});
    }
    runs.push_back({{"arch", f.arch},
                    {"dtype", r.dtype},
                    {"batch", f.batch},
                    {"prompt", f.prompt},
                    {"tokens", f.tokens},
                    {"equal_tokens", true},
                    {"ways", std::move(ways)}});
  }
  all["decoding"] = std::move(runs);
  if (!f.json.empty()) write_json(f.json, all);
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  DecodeFlags f;
  const auto declare = [&](Command& c) {
    c.option("--arch", "NAME", "a named architecture; its weights are random", f.arch);
    c.option("--dtypes", "of the parameters: of f32, bf16", f.dtypes);
    c.option("--batch", "texts at once", f.batch);
    c.option("--prompt", "tokens of the prompt, which are not timed", f.prompt);
    c.option("--tokens", "tokens after it", f.tokens);
    c.option("--rounds", "times that each way decodes, after one to warm up", f.rounds);
    c.option("--threads", "of the CPU backend, 0: all", f.threads);
    c.option("--seed", "of weights and prompt", f.seed);
    declare_results(c, f);
    return [&] { return decode(f, argc, argv); };
  };
  return apps::run_program(
      argc, argv,
      {"bench_decode",
       "Tokens per second of decoding with a cache that grows, one of fixed capacity, and that one "
       "compiled.",
       declare});
}
