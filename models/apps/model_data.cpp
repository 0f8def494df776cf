#include <tapegrad/core/check.h>
#include <tapegrad/models/apps/model_data.h>
#include <tapegrad/models/apps/ranks.h>
#include <tapegrad/models/data/bpe.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

namespace tg::apps {

std::vector<std::string> files_of(const std::vector<std::string>& words) {
  std::vector<std::string> files;
  for (const std::string& word : words)
    for (std::string& file : matching_files(word)) files.push_back(std::move(file));
  return files;
}
bool has_token_file(const std::vector<std::string>& words) {
  return std::ranges::any_of(files_of(words), is_token_file);
}

namespace {
std::vector<double> weights_of(const std::string& words) {
  std::vector<double> weights;
  const char *at = words.data(), *const last = at + words.size();
  while (at != last) {
    const auto [end, error] = std::from_chars(at, last, weights.emplace_back());
    const bool more = end != last && *end == ',' && end + 1 != last;
    TG_CHECK(error == std::errc() && (more || end == last), value,
             "[data] weights are '{}'. They must be numbers with commas: 0.7,0.3.", words);
    at = end + more;
  }
  return weights;
}
TokenData read_group(const Tokenizer* tokenizer, const std::string& word, const DataConfig& how, bool skip_unknown) {
  const std::vector<std::string> files = matching_files(word);
  const auto tokens = std::ranges::count_if(files, is_token_file);
  TG_CHECK(tokens > 0 || tokenizer, value,
           "[data] {} is text, and the vocabulary is not that of the byte tokenizer. Name a tokenizer by --tokenizer.",
           word);
  if (tokens == 0) return encoded(*tokenizer, files, how, skip_unknown);
  TG_CHECK(tokens == std::ssize(files), value,
           "[data] {} has texts and token files. A pattern must match files of one kind. Name it more closely.", word);
  if (tokenizer) check_tokenizer_of(files, *tokenizer);
  std::vector<TokenData> shards;
  for (const std::string& file : files) shards.push_back(TokenData::from_file(file, how.token_type));
  return TokenData::join(shards, name_of_files(files));
}
}  // namespace

TokenData read_tokens(const Tokenizer* tokenizer, const std::vector<std::string>& words, const DataConfig& how,
                      bool skip_unknown) {
  const std::vector<double> weights = weights_of(how.weights);
  if (weights.empty() && !has_token_file(words)) return encoded(*tokenizer, files_of(words), how, skip_unknown);
  std::vector<TokenData> groups;
  for (const std::string& word : words) groups.push_back(read_group(tokenizer, word, how, skip_unknown));
  if (groups.size() == 1 && weights.empty()) return groups[0];
  return weights.empty() ? TokenData::join(groups) : TokenData::mix(groups, weights);
}
TokenData encoded(const Tokenizer& tokenizer, const std::vector<std::string>& paths, const DataConfig& how,
                  bool skip_unknown) {
  const std::string name = paths.size() == 1 ? paths[0] : "the data";
  if (skip_unknown && tokenizer.end_of_text() < 0)
    return TokenData::from_text(tokenizer,
                                known_text(tokenizer, read_texts(paths, how.documents), name_of_files(paths)), name);
  EncodedDocuments read;
  TokenData tokens = TokenData::from_tokens(
      tokenizer.vocab_size(),
      [&](const Tokenizer::Take& take) { read = encode_documents(tokenizer, paths, how, take); }, name);
  note_documents(tokenizer, read, name_of_files(paths));
  return tokens;
}
void note_documents(const Tokenizer& tokenizer, const EncodedDocuments& read, const std::string& name) {
  if (!read.special.empty())
    print_note(
        fmt::format("{} has the special token {} in its text, and it is encoded as text; --special parse makes "
                    "it a token",
                    printable(name), printable(read.special)));
  if (read.documents > 1 && tokenizer.end_of_text() < 0)
    print_note(
        fmt::format("{} has {} documents, and the tokenizer has no end-of-text token: nothing shows where one "
                    "ends",
                    printable(name), read.documents));
}
void add_unknown_option(Command& c, const std::string& otherwise, std::string& to) {
  c.option(
      "--unknown",
      fmt::format("characters that the model's tokenizer does not know: error, or skip them; default: {}", otherwise),
      to, {"error", "skip"});
}
std::string known_text(const Tokenizer& tokenizer, const std::string& text, const std::string& what) {
  KnownText known = tokenizer.known(text);
  if (known.skipped > 0)
    print_note(fmt::format("{} of {} characters of {} are skipped, because the tokenizer does not know them: {}",
                           known.skipped, known.characters, what, known.first));
  return std::move(known.text);
}
std::string name_of_files(const std::vector<std::string>& files) {
  return files.size() == 1 ? files[0] : fmt::format("{} files", files.size());
}

RunData read_data(const ModelOfData& m, const std::vector<std::string>& words, const DataConfig& how,
                  bool skip_unknown) {
  const auto own = [&] { return m.tokenizer ? Tokenizer::from_json(m.tokenizer->to_json()) : nullptr; };
  if (!std::ranges::all_of(files_of(words), is_token_file))
    check_tokenizer(m.tokenizer, m.tokenizer_error,
                    fmt::format("[{}] {} has no tokenizer, and {} is text. Pass token files (.npy or .bin).", m.command,
                                m.folder, name_of_files(words)));
  RunData d{read_tokens(m.tokenizer, words, how, skip_unknown), own()};
  if (has_token_file(words)) d.tokens.check_vocabulary(m.vocab_size);
  return d;
}

std::string tokenizer_setting(const ModelOfData& m) {
  if (dynamic_cast<const CharTokenizer*>(m.tokenizer)) return "char";
  return dynamic_cast<const BpeTokenizer*>(m.tokenizer) ? m.folder + "/tokenizer.json" : "byte";
}

Lora adapted(const std::string& adapter, LoadedModel& m, const std::string& folder) {
  Lora lora = load_adapter(adapter, m);
  const AdapterBase base = adapter_base(adapter);
  const auto last = [](const std::string& path) { return std::filesystem::path(path + "/").parent_path().filename(); };
  if (base.hash.empty() && !base.folder.empty() && last(base.folder) != last(absolute_path(folder)))
    print_note(fmt::format("{} names {} as its base, and is used over {}", adapter, printable(base.folder), folder));
  return lora;
}

std::string about_dropout(const std::optional<Origin>& origin, const std::string& way_out) {
  if (!origin || origin->dropout == 0) return "";
  return fmt::format("dropout is 0: the {} in config.json was for pretraining; {}", origin->dropout, way_out);
}

}  // namespace tg::apps
