// Models, texts and token files of the commands.
#pragma once
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/data/chat.h>
#include <tapegrad/models/io/model_dir.h>
#include <tapegrad/models/io/peft.h>
#include <tapegrad/models/train/run_config.h>

#include <map>
#include <memory>
#include <optional>

namespace tg::apps {

inline constexpr const char* kDataFiles =
    "texts, .jsonl files, token files (.npy of NumPy, .bin of llm.c or of ids alone), and patterns such as "
    "'web/*.bin', in quotes";  // help of --data

struct RunData {
  TokenData tokens = TokenData::from_tokens({});
  std::unique_ptr<Tokenizer> tokenizer = nullptr;  // null: ids without a tokenizer
  std::optional<Examples> examples = {};           // in place of tokens
  std::optional<ChatTemplate> chat = {};           // of the examples
};
using Words = std::vector<std::string>;  // paths, or patterns that several files match
std::vector<std::string> files_of(const Words& words);
bool has_token_file(const Words& words);
// Texts and token files, each after the other, or a mixture with a group for each word. `tokenizer` is null if all are
// token files. `skip_unknown` drops and notes characters that it does not know. Calls note_documents().
TokenData read_tokens(const Tokenizer* tokenizer, const Words& words, const DataConfig&, bool skip_unknown);
// Notes special tokens that became text, and documents whose end no token shows.
void note_documents(const Tokenizer&, const EncodedDocuments&, const std::string& name);
using SettingFlags = std::map<std::string, std::string>;  // settings of flags: names and words
// An Error if no file uses one of the flags about files.
void check_used(std::string_view command, const SettingFlags&, const Words& words);
std::string name_of_files(const Words& files);
// --unknown: writes its word to `to`. The help shows the default `otherwise`.
void add_unknown_option(Command&, const std::string& otherwise, std::string& to);
// Without characters unknown to the tokenizer, which a note counts as characters of `what`.
std::string known_text(const Tokenizer&, const std::string& text, const std::string& what);

inline constexpr const char* kChatFormats = "chatml, qwen, llama3, zephyr, mistral, alpaca, plain or a FILE.jinja";

struct ModelOptions {
  std::string model, adapter, device = "cpu", dtype = "f32", unknown;
  int64_t threads = 0;
};
void add_model_options(Command&, ModelOptions&);
LoadedModel open_model(const ModelOptions&);
void check_language_model(const std::string& folder, const GptConfig&);
// The template of an adapter, without {% generation %}, else that of our model's folder.
std::string chat_template_over(const LoadedModel&, const std::string& model, const std::string& adapter);

// A model folder, as far as data depends on it.
struct ModelOfData {
  std::string command;  // opens messages
  std::string folder;
  int64_t vocab_size = 0;
  const Tokenizer* tokenizer = nullptr;  // null: token files only
  std::string tokenizer_error = {};      // why it cannot be read
  std::string adapter = {};              // its chat template goes before the folder's
};
// read_tokens() within the model's vocabulary.
RunData read_data(const ModelOfData&, const Words& paths, const DataConfig&, bool skip_unknown);
// Examples of instructions, chats or preferences if the files hold them, else read_data(). `window`: the most tokens of
// an example. Notes what was cut, skipped and ignored.
RunData read_examples_or_data(const ModelOfData&, const Words& words, DataConfig& how, int64_t window,
                              bool skip_unknown);
std::optional<int64_t> special_token(const Tokenizer&, const std::string& text);
// The token that ends a reply in the chat template of a folder, the model's or an adapter's; or -1.
int64_t reply_end(const Tokenizer&, const std::string& model, const std::string& folder);
// The folder's ends of a text, else the tokenizer's; and reply_end() of the adapter or our folder.
std::vector<int64_t> ends_of(const LoadedModel&, const std::string& model, const std::string& adapter);
// The chat template `given`, else the adapter's or the model's. An Error, or a note, if the tokenizer lacks its stop.
ChatTemplate chat_template_for(std::string_view command, const std::string& given, const std::string& adapter,
                               const std::string& folder, const Tokenizer&);
RunConfig run_from(const ModelOfData&, const GptConfig&);

// load_adapter(). Notes an adapter without hash that names another base than `folder`.
Lora adapted(const std::string& adapter, LoadedModel&, const std::string& folder);

// A note about a dropout in config.json that training does not use, or "".
std::string about_dropout(const std::optional<HuggingFaceSource>&, const std::string& way_out);

}  // namespace tg::apps
