// generate() gives tokens the logits and log-probabilities that training computes, bit for bit.
#include <tapegrad/cpu/runtime/product_path.h>
#include <tapegrad/tapegrad.h>

#include <algorithm>
#include <optional>

#include "support/amx.h"
#include "support/block_weights.h"
#include "support/effort.h"
#include "support/threads.h"
#include "support/tiny_gpt.h"
#include "support/with_env.h"

using namespace tg;
namespace {
using Ids = std::vector<int64_t>;
Ids text(Draw& draw, int64_t n, int64_t vocab) {
  Ids r;
  for (int64_t i = 0; i < n; ++i) r.push_back(draw(0, vocab - 1));
  return r;
}
// Counts rows of logits that differ in a bit, and log-probabilities that differ from the loss.
struct Differences {
  const Model& model;
  Ids text;
  std::vector<std::vector<std::byte>> logits;
  std::vector<double> losses;
  int64_t rows = 0, wrong = 0;

  Differences(const Model& m, Ids all) : model(m), text(std::move(all)) {
    const auto t = int64_t(text.size());
    const Tensor whole = model.forward(tensor(text, {1, t}));
    Ids next(text.begin() + 1, text.end());
    next.push_back(0);
    losses =
        cross_entropy(reshape(whole, {t, -1}), tensor(next, {t}), {.reduction = Reduction::none}).to_vector<double>();
    for (int64_t i = 0; i < t; ++i) logits.push_back(bits_of(slice(whole, 1, i, i + 1)));
  }
  void compare(int64_t at, const Tensor& row) {
    ++rows;
    wrong += bits_of(row) != logits[size_t(at)];
    if (at + 1 < int64_t(text.size())) wrong += logprobs(row, text[size_t(at + 1)])[0].logprob != -losses[size_t(at)];
  }
  // The model's own loss of the token after position `at`.
  void compare_loss(int64_t at, const Tensor& row) {
    const auto t = int64_t(text.size());
    Ids targets(size_t(t), Batch::kIgnoreIndex);
    targets[size_t(at)] = text[size_t(at + 1)];
    const double loss = model.loss({tensor(text, {1, t}), tensor(targets, {1, t})}).to_vector<double>()[0];
    wrong += logprobs(row, text[size_t(at + 1)])[0].logprob != -loss;
  }
};
std::string served(uint64_t seed) {
  Draw draw{Rng{seed}};
  GptConfig config = some_gpt(draw);
  const DType dtype = std::array{DType::f32, DType::bf16, DType::f64}[size_t(draw(0, 2))];
  Ids ways;
  for (const cpu::Bf16Path path : cpu::kBf16Paths)
    if (has(path)) ways.push_back(int64_t(path));
  const WithEnv way("TG_BF16", std::string(name_of(cpu::Bf16Path(ways[size_t(draw(0, int64_t(ways.size()) - 1))]))));
  const EmulatedAmx amx;
  NoGradScope off;
  const bool blocks = draw.chance(4);
  if (blocks) config.width = 32 * draw(1, 3), config.head_dim = 32, config.ff_width = 32 * draw(1, 3);
  const auto [params, gpt] = new_gpt(config, blocks ? params_in_blocks(config, dtype, seed) : Params({}, seed, dtype));
  Model model(gpt);
  std::optional<Lora> lora;
  const bool quantized = !blocks && dtype != DType::f64 && draw.chance(4);
  if (quantized) replace_linears(model, {"h.*"}, LinearKind::switchback);
  if (!quantized && draw.chance(3))
    fill(lora.emplace(
             apply_lora(model, params, {.rank = draw(1, std::min<int64_t>(16, config.head_dim * config.heads))})),
         0.3);
  const ThreadsScope threads(std::array{1, 2, 3, 5}[size_t(draw(0, 3))]);
  std::optional<LazyScope> lazy;
  if (draw.chance(4)) lazy.emplace();
  const int64_t batch = draw.chance(4) ? draw(2, 17) : draw(1, 3), cut = draw.chance(3) ? draw(1, 4) : draw(1, 260);
  const int64_t count = draw(1, std::min<int64_t>(batch > 3 ? 4 : 12, 300 - cut));
  const GenerateOptions how{.use_cache = draw.chance(3) ? false : true, .compile = draw.chance(2)};
  std::vector<Ids> prompts;
  for (int64_t i = 0; i < batch; ++i) prompts.push_back(text(draw, i ? draw(1, cut) : cut, config.vocab_size));
  std::vector<std::vector<Tensor>> rows(prompts.size());
  GenerateOptions kept = how;
  kept.on_logits = [&](int64_t row, int64_t, const Tensor& logits) { rows[size_t(row)].push_back(logits); };
  const auto made = generate_batch(model, prompts, count, {.temperature = 1, .seed = seed}, kept);
  int64_t wrong = 0;
  for (size_t i = 0; i < std::min<size_t>(3, prompts.size()); ++i) {
    Ids all = prompts[i];
    all.insert(all.end(), made[i].begin(), made[i].end());
    Differences d(model, all);
    const auto first = int64_t(prompts[i].size()) - 1;
    for (int64_t j = 0; j < int64_t(made[i].size()); ++j) d.compare(first + j, rows[i][size_t(j)]);
    d.compare_loss(first, rows[i][0]);
    if (i == 0) {  // its prompt in chunks, in a cache of some capacity
      const int64_t chunk = draw.chance(2) ? draw(1, 8) : draw(1, 130), t = int64_t(all.size());
      KvCache cache = model.make_cache(1, draw(t, 300));
      for (int64_t at = 0; at < t; at += chunk) {
        const int64_t n = std::min(chunk, t - at);
        const Tensor some =
            model.forward(tensor(Ids(all.begin() + at, all.begin() + at + n), {1, n}), {.cache = &cache});
        for (int64_t j = 0; j < n; ++j) d.compare(at + j, reshape(slice(some, 1, j, j + 1), {-1}));
      }
    }
    wrong += d.wrong;
  }
  if (wrong == 0) return "";
  return fmt::format(
      "seed {}: {} differ; {}, head size {}, heads {}/{}, TG_BF16={}, cache {}, compiled {}, lora {}, int8 {}, "
      "blocks {}, batch {}, prompt {}",
      seed, wrong, dtype, config.head_dim, config.heads, config.kv_heads, std::getenv("TG_BF16"), how.use_cache,
      how.compile, bool(lora), quantized, blocks, batch, cut);
}
}  // namespace

TEST_CASE("served log-probabilities and logits are those of training, bit for bit, however a text is served") {
  if (tg::detail::kernel_level(Backend::cpu) < 3) return;  // Eigen promises nothing
  const int64_t cases = has_time() ? 100 * test_effort() : 4;
  for (int64_t i = 0; i < cases; ++i) CHECK(served(uint64_t(i)) == "");
}
