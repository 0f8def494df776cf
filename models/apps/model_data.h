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
  std::unique_ptr<Tokenizer> tokenizer = nullptr;  // null: ids only
  std::optional<Examples> examples = {};           // instead of tokens
  std::optional<ChatTemplate> chat = {};           // the examples' template
};
inline constexpr const char* kModelPaths =
    "what `train --out DIR` wrote, a folder of Hugging Face, or a GGUF file";  // help of --model
using Words = std::vector<std::string>;                                        // paths or patterns
std::vector<std::string> files_of(const Words& words);
bool has_token_file(const Words& words);
// Texts and token files in order, or a mixture with a group per word. `tokenizer` is null if all are token files.
// `skip_unknown` drops and notes unknown characters.
TokenData read_tokens(const Tokenizer* tokenizer, const Words& words, const DataConfig&, bool skip_unknown);
// Notes special tokens in texts, and documents without an end token.
void note_documents(const Tokenizer&, const EncodedDocuments&, const std::string& name);
using SettingFlags = std::map<std::string, std::string>;
// An Error for file flags that no file uses.
void check_used(std::string_view command, const SettingFlags&, const Words& words);
std::string name_of_files(const Words& files);
// --unknown: its word goes to `to`; `otherwise` is the default.
void add_unknown_option(Command&, const std::string& otherwise, std::string& to);
// Drops characters that the tokenizer lacks; a note counts them as characters of `what`.
std::string known_text(const Tokenizer&, const std::string& text, const std::string& what);

inline constexpr const char* kChatFormats = "chatml, qwen, llama3, zephyr, mistral, alpaca, plain or a FILE.jinja";

struct ModelOptions {
  std::string model, adapter, device = "cpu", dtype = "f32", unknown;
  int64_t threads = 0;
};
void add_model_options(Command&, ModelOptions&);
LoadedModel open_model(const ModelOptions&);
// Weights for a plan, if some stay in blocks; else an empty function.
std::function<TensorSource()> weights_in_blocks(const std::string& folder, DType, Blocks);
// An Error for weights in blocks that are written without a dtype.
void check_dtype_given(std::string_view command, const std::string& model, const std::string& adapter, bool given);
// The model with the values that the adapter was trained over, all of them parameters.
LoadedModel dequantized_model(const std::string& folder, const std::string& adapter);
void check_language_model(const std::string& folder, const GptConfig&);
// Template of the adapter without {% generation %}, else of the model.
std::string chat_template_over(const LoadedModel&, const std::string& model, const std::string& adapter);

// The data's view of a model folder.
struct ModelOfData {
  std::string command;  // starts messages
  std::string folder;
  int64_t vocab_size = 0;
  const Tokenizer* tokenizer = nullptr;  // null: token files only
  std::string tokenizer_error = {};      // why it is null
  std::string adapter = {};              // adapter whose chat template comes first
};
RunData read_data(const ModelOfData&, const Words& paths, const DataConfig&, bool skip_unknown);
// Examples if the files hold them, else read_data(). `window`: most tokens of one. Notes cut, skipped and ignored ones.
RunData read_examples_or_data(const ModelOfData&, const Words& words, DataConfig& how, int64_t window,
                              bool skip_unknown);
std::optional<int64_t> special_token(const Tokenizer&, const std::string& text);
// End tokens of the folder, else of the tokenizer; the token that ends a reply in the template of the adapter or our
// folder.
std::vector<int64_t> ends_of(const LoadedModel&, const std::string& model, const std::string& adapter);
// Chat template `given`, else that of the adapter or the model. An Error or note if the tokenizer lacks its stop.
ChatTemplate chat_template_for(std::string_view command, const std::string& given, const std::string& adapter,
                               const std::string& folder, const Tokenizer&);
RunConfig run_from(const ModelOfData&, const GptConfig&);

// load_adapter(), with a note if an adapter without hash has another base than `folder`.
Lora adapted(const std::string& adapter, LoadedModel&, const std::string& folder);

// A note about dropout in training, or "".
std::string about_dropout(const GptConfig&, const std::string& way_out);

}  // namespace tg::apps
