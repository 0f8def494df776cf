// Texts and token files for a model that was trained before, by its own tokenizer. Users: finetune.cpp, train.cpp,
// eval.cpp.
#pragma once
#include <tapegrad/models/apps/run_session.h>
#include <tapegrad/models/io/model_dir.h>

#include <optional>

namespace tg::apps {

// A folder with a model, as far as data depends on it.
struct ModelOfData {
  std::string command;  // opens messages
  std::string folder;
  int64_t vocab_size = 0;
  const Tokenizer* tokenizer = nullptr;  // null: token files only
  std::string tokenizer_error = {};      // why it cannot be read
};
// The data of the files. `skip_unknown` leaves characters out that the tokenizer does not know.
Data read_data(const ModelOfData&, const std::vector<std::string>& paths, bool skip_unknown);
// RunConfig::tokenizer of a run that goes on with the model.
std::string tokenizer_setting(const ModelOfData&);

// Text about a dropout that config.json names and training does not use; "" if there is none.
std::string about_dropout(const std::optional<Origin>&, const std::string& way_out);

}  // namespace tg::apps
