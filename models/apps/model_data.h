// Texts and token files that commands read, by a new tokenizer or by that of a model that was trained before. Users:
// all commands that read data.
#pragma once
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/data/dataset.h>
#include <tapegrad/models/data/tokenizer.h>
#include <tapegrad/models/io/model_dir.h>

#include <memory>
#include <optional>

namespace tg::apps {

struct RunData {
  TokenData tokens;
  std::unique_ptr<Tokenizer> tokenizer;  // null: token ids with a vocabulary of their own
};
bool has_token_file(const std::vector<std::string>& paths);
TokenData read_token_file(const std::vector<std::string>& paths);  // an Error unless it is the only file
TokenData encoded(const Tokenizer&, const std::string& text, const std::vector<std::string>& paths);
std::string name_of_files(const std::vector<std::string>& files);
// --unknown: a word for `to`, or what `otherwise` says.
void add_unknown_option(Command&, const std::string& otherwise, std::string& to);
// The text `what` without the characters that the tokenizer does not know; a line on stderr says which they were.
std::string known_text(const Tokenizer&, const std::string& text, const std::string& what);

// A folder with a model, as far as data depends on it.
struct ModelOfData {
  std::string command;  // opens messages
  std::string folder;
  int64_t vocab_size = 0;
  const Tokenizer* tokenizer = nullptr;  // null: token files only
  std::string tokenizer_error = {};      // why it cannot be read
};
// The data of the files. `skip_unknown` leaves characters out that the tokenizer does not know.
RunData read_data(const ModelOfData&, const std::vector<std::string>& paths, bool skip_unknown);
// RunConfig::tokenizer of a run that goes on with the model.
std::string tokenizer_setting(const ModelOfData&);

// Text about a dropout that config.json names and training does not use; "" if there is none.
std::string about_dropout(const std::optional<Origin>&, const std::string& way_out);

}  // namespace tg::apps
