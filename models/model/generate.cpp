#include <tapegrad/core/check.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/models/model/generate.h>
#include <tapegrad/ops/shape_ops.h>

#include <algorithm>

namespace tg {
namespace {
struct Text {
  std::vector<int64_t> tokens;
  size_t prompt;  // prompt tokens
  Rng rng;
  bool ended = false;
};

// Logits after each text. Texts within the context share a cache, one row each.
class Decoder {
 public:
  Decoder(Model model, const std::vector<Text>& texts, int64_t max_tokens, const GenerateOptions& how)
      : model_(std::move(model)),
        context_(model_.context() ? model_.context() : INT64_MAX),
        texts_(texts),
        compile_(how.compile) {
    if (!how.use_cache || !model_.support().cache || !model_.context()) return;
    int64_t longest = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
      if (!fits(texts[i])) continue;
      rows_.push_back({i});
      longest = std::max(longest, int64_t(texts[i].tokens.size()));
    }
    const int64_t room = context_ - longest;
    if (!rows_.empty())
      cache_ = model_.make_cache(int64_t(rows_.size()), longest + std::min(room, std::max<int64_t>(0, max_tokens - 1)));
  }
  // Logits of each text; empty for an ended one.
  std::vector<Tensor> operator()() {
    std::vector<Tensor> r(texts_.size());
    drop_rows();
    if (std::ranges::any_of(rows_, &Row::active)) {
      const Tensor all = shared_pass().to(Device::cpu());  // (rows, 1, V)
      for (size_t k = 0; k < rows_.size(); ++k)
        if (rows_[k].active) r[rows_[k].text] = reshape(slice(all, 0, int64_t(k), int64_t(k) + 1), {-1});
    }
    for (size_t i = 0; i < texts_.size(); ++i)
      if (!texts_[i].ended && !r[i]) r[i] = alone(texts_[i].tokens);
    return r;
  }

 private:
  struct Row {
    size_t text;
    bool active = true;
    int64_t held = 0;  // positions in the cache
  };
  bool fits(const Text& t) const { return int64_t(t.tokens.size()) <= context_; }
  Tensor to_device(std::span<const int64_t> v, const Shape& s) const { return tensor(v, s, model_.device()); }

  // Rows of texts that ended or left the context restart empty.
  void drop_rows() {
    bool dropped = false;
    for (Row& row : rows_)
      if (row.active && (texts_[row.text].ended || !fits(texts_[row.text])))
        row.active = false, row.held = 0, dropped = true;
    if (!dropped) return;
    std::vector<int64_t> lengths;
    for (const Row& row : rows_) lengths.push_back(row.held);
    cache_.set_lengths(to_device(lengths, {int64_t(lengths.size())}));
  }
  // Runs uncached tokens: padded prompts, or one token each.
  Tensor shared_pass() {
    const auto b = int64_t(rows_.size());
    std::vector<int64_t> counts;
    for (const Row& row : rows_) counts.push_back(row.active ? int64_t(texts_[row.text].tokens.size()) - row.held : 0);
    const int64_t t = std::ranges::max(counts);
    std::vector<int64_t> tokens(size_t(b * t));
    for (size_t k = 0; k < rows_.size(); ++k) {
      const auto& text = texts_[rows_[k].text].tokens;
      if (rows_[k].active) std::copy(text.end() - counts[k], text.end(), tokens.begin() + int64_t(k) * t);
      rows_[k].held += counts[k];
    }
    const std::vector<Tensor> in{to_device(tokens, {b, t}), to_device(counts, {b})};
    return t == 1 && compile_ ? step_(in)[0] : forward(in);
  }
  Tensor forward(Inputs in) {
    return model_.forward(in[0], {.cache = &cache_, .last_only = true, .lengths = in[1]});  // (B, 1, V)
  }
  Tensor alone(std::span<const int64_t> text) const {
    const auto n = std::min<int64_t>(int64_t(text.size()), context_);
    return reshape(model_.forward(to_device(text.last(size_t(n)), {1, n}), {.last_only = true}).to(Device::cpu()),
                   {-1});
  }

  Model model_;
  int64_t context_;
  const std::vector<Text>& texts_;
  bool compile_;
  std::vector<Row> rows_;
  KvCache cache_;
  Compiled step_{[this](Inputs in) { return std::vector{forward(in)}; }};
};

void check_prompt(const Model& model, std::span<const int64_t> prompt, const std::string& name) {
  TG_CHECK(!prompt.empty(), value, "[generate] {} is empty. Pass at least one token, such as that of a line break.",
           name);
  for (size_t i = 0; i < prompt.size(); ++i)
    TG_CHECK(prompt[i] >= 0 && (model.vocab_size() == 0 || prompt[i] < model.vocab_size()), value,
             "[generate] token {} of {} is {}, and the vocabulary has {}. Tokens are in [0, {}).", i, name, prompt[i],
             model.vocab_size(), model.vocab_size());
}
std::vector<std::vector<int64_t>> continue_all(const Model& model, std::vector<Text> texts, int64_t max_tokens,
                                               const SampleOptions& o, const GenerateOptions& how) {
  o.validate();
  TG_CHECK(max_tokens >= 0, value, "[generate] max_tokens is {}. It must be 0 or more.", max_tokens);
  NoGradScope off;
  Decoder decoder(model, texts, max_tokens, how);
  for (int64_t n = 0; n < max_tokens && !std::ranges::all_of(texts, &Text::ended); ++n) {
    const std::vector<Tensor> logits = decoder();
    for (size_t i = 0; i < texts.size(); ++i) {
      Text& t = texts[i];
      if (t.ended) continue;
      const int64_t token = sample(logits[i].to_vector<float>(), o, t.rng, t.tokens);
      t.tokens.push_back(token);
      t.ended = std::ranges::find(how.stop, token) != how.stop.end();
      if (how.on_logits) how.on_logits(int64_t(i), token, logits[i]);
      if (how.on_token && !how.on_token(token)) t.ended = true;
      if (how.on_row_token && !how.on_row_token(int64_t(i), token)) t.ended = true;
    }
  }
  std::vector<std::vector<int64_t>> r;
  for (const Text& t : texts) r.emplace_back(t.tokens.begin() + ptrdiff_t(t.prompt), t.tokens.end());
  return r;
}
}  // namespace

std::vector<int64_t> generate(const Model& model, std::span<const int64_t> prompt, int64_t max_tokens,
                              const SampleOptions& o, const GenerateOptions& how) {
  check_prompt(model, prompt, "the prompt");
  return continue_all(model, {{{prompt.begin(), prompt.end()}, prompt.size(), Rng{o.seed}}}, max_tokens, o, how)[0];
}
std::vector<std::vector<int64_t>> generate_batch(const Model& model, std::span<const std::vector<int64_t>> prompts,
                                                 int64_t max_tokens, const SampleOptions& o,
                                                 const GenerateOptions& how) {
  TG_CHECK(how.first_row >= 0, value, "[generate] first_row is {}. Rows count from 0.", how.first_row);
  std::vector<Text> texts;
  for (size_t i = 0; i < prompts.size(); ++i) {
    check_prompt(model, prompts[i], fmt::format("prompt {}", i));
    texts.push_back({prompts[i], prompts[i].size(), Rng{o.seed}.split(uint64_t(how.first_row) + i)});
  }
  return continue_all(model, std::move(texts), max_tokens, o, how);
}

}  // namespace tg
