#include <tapegrad/models/apps/model_data.h>
#include <tapegrad/models/data/bpe.h>

namespace tg::apps {

Data read_data(const ModelOfData& m, const std::vector<std::string>& paths, bool skip_unknown) {
  const auto own = [&] { return m.tokenizer ? Tokenizer::from_json(m.tokenizer->to_json()) : nullptr; };
  if (has_token_file(paths)) {
    Data d{read_token_file(paths), own()};
    d.tokens.check_vocabulary(m.vocab_size);
    return d;
  }
  check_tokenizer(m.tokenizer, m.tokenizer_error,
                  fmt::format("[{}] {} has no tokenizer, and {} is text. Pass a token file (.npy or .bin).", m.command,
                              m.folder, name_of_files(paths)));
  std::string text = read_texts(paths);
  if (skip_unknown) text = known_text(*m.tokenizer, text, name_of_files(paths));
  return {encoded(*m.tokenizer, text, paths), own()};
}

std::string tokenizer_setting(const ModelOfData& m) {
  if (dynamic_cast<const CharTokenizer*>(m.tokenizer)) return "char";
  return dynamic_cast<const BpeTokenizer*>(m.tokenizer) ? m.folder + "/tokenizer.json" : "byte";
}

std::string about_dropout(const std::optional<Origin>& origin, const std::string& way_out) {
  if (!origin || origin->dropout == 0) return "";
  return fmt::format("dropout is 0: the {} in config.json was for pretraining; {}", origin->dropout, way_out);
}

}  // namespace tg::apps
