#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/gguf.h>
#include <tapegrad/models/apps/model_data.h>
#include <tapegrad/models/apps/process.h>
#include <tapegrad/models/io/checkpoint.h>
#include <tapegrad/models/tokenizers/bpe.h>
#include <tapegrad/models/tokenizers/utf8.h>

#include <algorithm>
#include <filesystem>

namespace tg::apps {

std::vector<std::string> files_of(const Words& words) {
  std::vector<std::string> files;
  for (const std::string& word : words)
    for (std::string& file : detail::matching_files(word)) files.push_back(std::move(file));
  return files;
}
bool has_token_file(const Words& words) { return std::ranges::any_of(files_of(words), detail::is_token_file); }

namespace {
TokenData encoded(const Tokenizer& tokenizer, const Words& paths, const DataConfig& how, bool skip_unknown) {
  const std::string name = paths.size() == 1 ? paths[0] : "the data";
  if (skip_unknown && dynamic_cast<const CharTokenizer*>(&tokenizer))
    return TokenData::from_text(tokenizer,
                                known_text(tokenizer, read_texts(paths, how.documents), name_of_files(paths)), name);
  EncodedDocuments read;
  TokenData tokens = TokenData::from_tokens(
      tokenizer.vocab_size(),
      [&](const Tokenizer::Take& take) { read = detail::encode_documents(tokenizer, paths, how, take); }, name);
  note_documents(tokenizer, read, name_of_files(paths));
  return tokens;
}
TokenData read_group(const Tokenizer* tokenizer, const std::string& word, const DataConfig& how, bool skip_unknown,
                     std::vector<TokenData>& shards) {
  const std::vector<std::string> files = detail::matching_files(word);
  const auto tokens = std::ranges::count_if(files, detail::is_token_file);
  TG_CHECK(tokens > 0 || tokenizer, value,
           "[data] {} is text, and the vocabulary is not that of the byte tokenizer. Name a tokenizer by --tokenizer.",
           word);
  if (tokens == 0) return encoded(*tokenizer, files, how, skip_unknown);
  TG_CHECK(tokens == std::ssize(files), value,
           "[data] {} has texts and token files. A pattern must match files of one kind. Name it more closely.", word);
  const size_t before = shards.size();
  for (const std::string& file : files) shards.push_back(TokenData::from_file(file, how.token_type));
  return TokenData::join(std::span(shards).subspan(before), name_of_files(files));
}
}  // namespace

static TokenData read_all(const Tokenizer* tokenizer, const Words& words, const DataConfig& how, bool skip_unknown) {
  const std::vector<double> weights = detail::mixture_weights(how.weights);
  if (weights.empty() && !has_token_file(words)) return encoded(*tokenizer, files_of(words), how, skip_unknown);
  std::vector<TokenData> groups, shards;
  for (const std::string& word : words) groups.push_back(read_group(tokenizer, word, how, skip_unknown, shards));
  detail::check_shards(shards, tokenizer);
  if (groups.size() == 1 && weights.empty()) return groups[0];
  return weights.empty() ? TokenData::join(groups) : TokenData::mix(groups, weights);
}
TokenData read_tokens(const Tokenizer* tokenizer, const Words& words, const DataConfig& how, bool skip_unknown) {
  TokenData all = read_all(tokenizer, words, how, skip_unknown);
  if (how.val_data.empty()) return all;
  std::vector<TokenData> shards;
  TokenData val = read_group(tokenizer, how.val_data, how, skip_unknown, shards);
  detail::check_shards(shards, tokenizer);
  TG_CHECK(how.val_tokens <= val.size(), value,
           "[data] val_tokens is {}, and {} has {}. It must not be more. Lower it, or pass --val-tokens 0 for all.",
           how.val_tokens, how.val_data, detail::counted(val.size(), "token"));
  return all.with_validation(how.val_tokens == 0 ? val : val.slice(0, how.val_tokens));
}
void check_used(std::string_view command, const SettingFlags& given, const Words& words) {
  const std::vector<std::string> files = files_of(words);
  const auto check = [&](const char* name, const char* what, bool (*uses_it)(const std::string&)) {
    TG_CHECK(!given.contains(name) || std::ranges::any_of(files, uses_it), value,
             "[{}] {} is given, and has no effect: {} has no {}. Leave it out.", command, name, name_of_files(words),
             what);
  };
  check("token_type", "token file without a header", [](const std::string& file) {
    return detail::is_token_file(file) && detail::open_token_file(file).begin == 0;
  });
  check("documents", "text file other than .jsonl",
        [](const std::string& file) { return !detail::is_token_file(file) && !file.ends_with(".jsonl"); });
  check("special", "text", [](const std::string& file) { return !detail::is_token_file(file); });
}
void note_documents(const Tokenizer& tokenizer, const EncodedDocuments& read, const std::string& name) {
  if (const std::string note = detail::note_of_nfc(); !note.empty()) print_note(note);
  if (read.invalid > 0 && dynamic_cast<const BpeTokenizer*>(&tokenizer))
    print_note("{:.3g} % of the bytes of {} are no UTF-8: is it a text?",
               100. * double(read.invalid) / double(read.bytes), printable(name));
  if (!read.special.empty())
    print_note("{} has the special token {} in its text, and it is encoded as text; --special parse makes it a token",
               printable(name), printable(read.special));
  if (read.documents > 1 && tokenizer.end_of_text() < 0)
    print_note("{} has {} documents, and the tokenizer has no end-of-text token: nothing shows where one ends",
               printable(name), read.documents);
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
    print_note("{} of {} of {} are skipped, because the tokenizer does not know them: {}", known.skipped,
               detail::counted(known.characters, "character"), what, known.first);
  return std::move(known.text);
}
std::string name_of_files(const Words& files) {
  return files.size() == 1 ? files[0] : fmt::format("{} files", files.size());
}

RunData read_data(const ModelOfData& m, const Words& words, const DataConfig& how, bool skip_unknown) {
  if (!std::ranges::all_of(files_of(words), detail::is_token_file))
    detail::check_tokenizer(m.tokenizer, m.tokenizer_error,
                            fmt::format("[{}] {} has no tokenizer, and {} is text. Pass token files (.npy or .bin).",
                                        m.command, m.folder, name_of_files(words)));
  RunData d{read_tokens(m.tokenizer, words, how, skip_unknown),
            m.tokenizer ? Tokenizer::from_json(m.tokenizer->to_json()) : nullptr};
  if (has_token_file(words)) d.tokens.check_vocabulary(m.vocab_size);
  return d;
}

std::optional<int64_t> special_token(const Tokenizer& tokenizer, const std::string& text) {
  try {
    const std::vector<int64_t> ids = tokenizer.encode(text, {.parse_special = true});
    return ids.size() == 1 ? std::optional(ids[0]) : std::nullopt;
  } catch (const Error&) {  // unknown character
    return std::nullopt;
  }
}
// The token that ends a reply in a folder's chat template, or -1.
static int64_t reply_end(const Tokenizer& tokenizer, const std::string& model, const std::string& folder) {
  const std::string chat = detail::chat_template_of(folder);
  if (chat.empty()) return -1;
  const ChatTemplate by(chat, "of " + folder, detail::special_tokens_of({model, folder}, tokenizer));
  return special_token(tokenizer, by.stop(tokenizer).token).value_or(-1);
}
std::vector<int64_t> ends_of(const LoadedModel& m, const std::string& model, const std::string& adapter) {
  std::vector<int64_t> ends = m.origin ? m.origin->eos_tokens : std::vector<int64_t>();
  if (!m.tokenizer) return ends;
  if (ends.empty()) ends = {m.tokenizer->end_of_text()};
  for (const std::string& folder : {adapter, m.origin ? "" : model})
    if (const int64_t end = reply_end(*m.tokenizer, model, folder); std::ranges::find(ends, end) == ends.end())
      ends.push_back(end);
  std::erase_if(ends, [&](int64_t id) { return id < 0 || id >= m.model.config().vocab_size; });
  return ends;
}
ChatTemplate chat_template_for(std::string_view command, const std::string& given, const std::string& adapter,
                               const std::string& folder, const Tokenizer& tokenizer) {
  const Json tokens = detail::special_tokens_of({folder, adapter}, tokenizer);
  std::string from = adapter, recorded = detail::chat_template_of(adapter);
  if (recorded.empty()) recorded = detail::chat_template_of(from = folder);
  TG_CHECK(!given.empty() || !recorded.empty(), value,
           "[{}] {} has no chat template. Messages need the one that the model was trained on. Pass --chat-format with "
           "{}.",
           command, folder, kChatFormats);
  ChatTemplate chat = given.empty() ? ChatTemplate(recorded, "of " + from, tokens) : ChatTemplate::named(given, tokens);
  if (!recorded.empty() && detail::without_generation(recorded) != detail::without_generation(chat.text()))
    print_note("the chat template {} replaces that of {}", given, printable(from));
  const std::string missing = chat.stop(tokenizer).missing;
  TG_CHECK(missing.empty() || given.empty(), value,
           "[{}] the chat format {} needs the token {}, which the tokenizer of {} lacks. Pass the --chat-format that "
           "the model was trained on.",
           command, given, missing, folder);
  if (!missing.empty())
    print_note("the chat template of {} ends a reply by {}, which is no special token of the tokenizer",
               printable(from), printable(missing));
  return chat;
}

RunData read_examples_or_data(const ModelOfData& m, const Words& words, DataConfig& how, int64_t window,
                              bool skip_unknown) {
  const std::vector<std::string> files = files_of(words);
  const DataConfig none;
  const bool pairs = how.objective == Objective::dpo;
  if (!std::ranges::any_of(files, detail::holds_examples)) {
    TG_CHECK(
        !pairs && how.loss == none.loss && how.pack == none.pack && how.chat_format.empty() && !how.skip_bad, value,
        "[{}] {} has no examples: lines of a .jsonl file with messages, prompt or instruction; for dpo with prompt, "
        "chosen and rejected. objective, loss, chat-format, pack and skip-bad are for them. Leave them out.",
        m.command, name_of_files(files));
    return read_data(m, words, how, skip_unknown);
  }
  TG_CHECK(how.weights.empty() && how.documents == none.documents && how.special == none.special &&
               how.token_type == none.token_type && how.val_data.empty(),
           value,
           "[{}] weights, documents, special, token-type and val-data are for texts and token files, and {} has "
           "examples. Leave them out.",
           m.command, name_of_files(files));
  detail::check_tokenizer(m.tokenizer, m.tokenizer_error,
                          fmt::format("[{}] {} has no tokenizer, and {} has messages. Name a model with a tokenizer.",
                                      m.command, m.folder, name_of_files(files)));
  const ChatTemplate chat = chat_template_for(m.command, how.chat_format, m.adapter, m.folder, *m.tokenizer);
  ExampleOptions o{.chat = chat, .loss = how.loss, .context = window, .skip_bad = how.skip_bad, .pairs = pairs};
  if (const int64_t end = m.tokenizer->end_of_text(); end >= 0) o.end = m.tokenizer->decode(std::vector{end});
  Examples all = read_examples(files, *m.tokenizer, o);
  for (const Examples::Row& row : all.rows)
    for (const auto& e : row)
      for (const int32_t id : e->tokens)
        TG_CHECK(id < m.vocab_size, value,
                 "[{}] the tokenizer makes the token {} of {}, and the model takes ids in [0, {}). Use the tokenizer "
                 "of the model.",
                 m.command, id, name_of_files(files), m.vocab_size);
  if (all.cut > 0)
    print_note("{} of {} cut at the end, after {}", all.cut, detail::counted(all.size() * (pairs ? 2 : 1), "example"),
               detail::counted(window + 1, "token"));
  if (all.skipped > 0)
    print_note("{} skipped, which no example is on; the first: {}", detail::counted(all.skipped, "line"), all.why);
  if (!all.ignored.empty()) print_note("keys without an effect are ignored: {}", printable(all.ignored));
  return {.tokenizer = Tokenizer::from_json(m.tokenizer->to_json()), .examples = std::move(all), .chat = chat};
}

RunConfig run_from(const ModelOfData& m, const GptConfig& config) {
  RunConfig run;
  run.model = config;
  if (dynamic_cast<const CharTokenizer*>(m.tokenizer)) run.tokenizer = "char";
  if (dynamic_cast<const BpeTokenizer*>(m.tokenizer))
    run.tokenizer = detail::is_gguf(m.folder) ? m.folder : m.folder + "/tokenizer.json";
  return run;
}

Lora adapted(const std::string& adapter, LoadedModel& m, const std::string& folder) {
  const AdapterBase base = detail::adapter_base(adapter);
  std::optional<LoadedModel> in_blocks;  // has the hash
  if (m.params.all_blocks().empty() && (base.nf4 || detail::is_gguf(folder)))
    in_blocks = load_model(folder, {}, DType::f32, base.nf4 ? Blocks::nf4 : Blocks::file);
  Lora lora = load_adapter(adapter, m, in_blocks ? &in_blocks->params : nullptr);
  const auto last = [](const std::string& path) { return std::filesystem::path(path + "/").parent_path().filename(); };
  if (base.hash.empty() && !base.folder.empty() && last(base.folder) != last(detail::absolute_path(folder)))
    print_note("{} names {} as its base, and is used over {}", adapter, printable(base.folder), folder);
  return lora;
}

std::string chat_template_over(const LoadedModel& m, const std::string& model, const std::string& adapter) {
  const std::string chat = detail::without_generation(detail::chat_template_of(adapter));
  return chat.empty() && !m.origin ? detail::chat_template_of(model) : chat;
}

void add_model_options(Command& c, ModelOptions& o) {
  c.option("--model", "DIR", kModelPaths, o.model);
  c.option("--adapter", "DIR", "what `finetune --out DIR` or PEFT wrote over that model", o.adapter);
  add_unknown_option(c, "error", o.unknown);
  c.option("--dtype", "of weights and computation", o.dtype, {"f32", "bf16"});
  c.option("--device", "NAME", "cpu or cuda", o.device);
  c.option("--threads", "threads of the CPU, 0: all", o.threads);
}
void check_language_model(const std::string& folder, const GptConfig& c) {
  TG_CHECK(c.classes == 0, value,
           "[model] {} has a head of {} classes (score). It must be a language model here. See models/reward_model.md.",
           folder, c.classes);
}
void check_dtype_given(std::string_view command, const std::string& model, const std::string& adapter, bool given) {
  const bool nf4 = !adapter.empty() && detail::adapter_base(adapter).nf4;
  TG_CHECK(
      given || !(nf4 || detail::is_gguf(model)), value,
      "[{}] {}, whose blocks cannot hold other weights: they are dequantized. Pass --dtype bf16 or another, or keep "
      "an adapter apart: llama.cpp reads it with --lora.",
      command, nf4 ? adapter + " was trained over weights in nf4" : model + " is a GGUF file");
}
std::function<TensorSource()> weights_in_blocks(const std::string& folder, DType dtype, Blocks blocks) {
  if (blocks == Blocks::file && !detail::is_gguf(folder)) return {};
  const auto file = std::make_shared<const ModelFile>(detail::read_model_file(folder));
  return [=] { return detail::model_weights(folder, *file, dtype, blocks); };
}
LoadedModel dequantized_model(const std::string& folder, const std::string& adapter) {
  const bool nf4 = !adapter.empty() && detail::adapter_base(adapter).nf4;
  return load_model(folder, {}, DType::f32, nf4 ? Blocks::nf4_values : Blocks::none);
}
LoadedModel open_model(const ModelOptions& o) {
  const Device device = Device::parse(o.device);
  detail::runtime_of(device);
  if (o.threads != 0) set_threads(o.threads);  // 0 would wait for other ranks
  const bool nf4 = !o.adapter.empty() && detail::adapter_base(o.adapter).nf4;
  LoadedModel m = load_model(o.model, device, detail::dtype_from_name(o.dtype), nf4 ? Blocks::nf4 : Blocks::file);
  check_language_model(o.model, m.model.config());
  if (!o.adapter.empty()) adapted(o.adapter, m, o.model);
  return m;
}

std::string about_dropout(const GptConfig& c, const std::string& way_out) {
  const double attn = c.dropout_of(c.attn_dropout), resid = c.dropout_of(c.resid_dropout),
               embd = c.dropout_of(c.embd_dropout);
  if (attn == 0 && resid == 0 && embd == 0) return "";
  return fmt::format("dropout: attention weights {}, branches {}, embeddings {}; {}", attn, resid, embd, way_out);
}

}  // namespace tg::apps
