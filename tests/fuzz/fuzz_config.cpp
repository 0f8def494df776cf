// Any text as each kind of user-written JSON. `name=word` is a setting of the command line.
#include "fuzz.h"

#include <tapegrad/core/io/json.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/io/model_dir.h>
#include <tapegrad/models/tokenizers/bpe.h>
#include <tapegrad/models/train/run_config.h>
#include <tapegrad/ops/factories.h>

#include <numeric>

using namespace tg;

namespace {
const GptConfig kTiny{.vocab_size = 256, .context = 4, .layers = 1, .heads = 1, .width = 4, .ff_width = 4};

void check_config(std::string_view text) {
  const auto config = fuzz::accepted([&] { return detail::gpt_config_from_json(text); });
  if (config) TG_FUZZ_CHECK(detail::gpt_config_from_json(to_json(*config)) == *config);
}
void check_same(const RunConfig& a, const RunConfig& b) {  // paths may have bytes that JSON lacks
  TG_FUZZ_CHECK(a.model == b.model && to_json(a.train) == to_json(b.train) &&
                detail::text_of(Json(a.tokenizer)) == detail::text_of(Json(b.tokenizer)));
}
Settings read(std::string_view text) {
  Settings settings;
  settings.read(text, "the text");
  return settings;
}
void check_run(const Settings& settings) {
  const auto run = fuzz::accepted([&] { return settings.run(); });
  if (!run) return;
  const std::string text = R"({"model":)" + to_json(run->model) + R"(,"train":)" + to_json(run->train) +
                           R"(,"tokenizer":)" + detail::text_of(Json(run->tokenizer)) + "}";
  check_same(read(text).run(), *run);
}
void check_word(std::string_view text) {
  const size_t at = text.find('=');
  if (at == text.npos) return;
  const auto settings = fuzz::accepted([&] {
    Settings s;
    s.set(text.substr(0, at), text.substr(at + 1));
    return s;
  });
  if (settings) check_run(*settings);
}
void check_tokenizer(std::string_view text) {
  const auto tokenizer = fuzz::accepted([&] { return Tokenizer::from_json(text); });
  if (!tokenizer) return;
  std::vector<int64_t> ids(size_t((*tokenizer)->vocab_size()));
  std::iota(ids.begin(), ids.end(), 0);
  const std::string all = (*tokenizer)->decode(ids);
  if (dynamic_cast<const BpeTokenizer*>(tokenizer->get())) {  // other ids may give the same text
    fuzz::accepted([&] { return (*tokenizer)->encode(all, {.parse_special = true, .add_special = true}); });
    return;
  }
  TG_FUZZ_CHECK((*tokenizer)->encode(all) == ids);
  TG_FUZZ_CHECK(Tokenizer::from_json((*tokenizer)->to_json())->encode(all) == ids);
}
void check_model(std::string_view text) {
  static const fuzz::Scratch scratch;
  [[maybe_unused]] static const bool saved = [] {
    const Params params;
    save_model(scratch.path(), Gpt(params, kTiny), params, nullptr);
    detail::make_folder(scratch / "again");
    return true;
  }();
  scratch.file("config.json", text);
  const auto model = fuzz::accepted([&] { return load_model(scratch.path()); });
  if (!model) return;
  const NoGradScope off;
  const Tensor tokens = zeros({1, 1}, DType::i32), logits = model->model.forward(tokens);  // (1, 1, V)
  save_model(scratch / "again", model->model, model->params, model->tokenizer.get());
  const LoadedModel again = load_model(scratch / "again");
  TG_FUZZ_CHECK(again.model.config() == model->model.config());
  TG_FUZZ_CHECK(!again.tokenizer == !model->tokenizer);
  TG_FUZZ_CHECK(fuzz::same_bits(again.model.forward(tokens), logits));
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  check_config(text);
  if (const auto settings = fuzz::accepted([&] { return read(text); })) check_run(*settings);
  check_word(text);
  check_tokenizer(text);
  check_model(text);
  return 0;
}
