/// @file
/// DataConfig: how the files of a run become tokens. visit_data_fields() lists its fields once, for JSON, flags and
/// help.
#pragma once
#include <tapegrad/models/data/documents.h>
#include <tapegrad/models/data/examples.h>
#include <tapegrad/models/data/token_file.h>

#include <string>

namespace tg {

/// Language modeling, or DPO on pairs of answers (models/model/dpo.h).
enum class Objective { lm, dpo };
/// Names of values.
template <> inline constexpr EnumNames<2> kEnumNames<Objective>{"objective", {"lm", "dpo"}};

/// How files become tokens, or examples.
struct DataConfig : DocumentOptions {
  TokenType token_type = TokenType::u16;  ///< ids of .bin files without a header
  std::string weights = "";               ///< mixture: numbers with commas; "": none
  std::string val_data = "";              ///< validation file or pattern; "": part of the data
  int64_t val_tokens = 0;                 ///< first tokens of val_data; 0: all

  Objective objective = Objective::lm;
  double beta = 0.1;  ///< DPO's beta
  ExampleLoss loss = ExampleLoss::completion;
  std::string chat_format = "";  ///< ChatTemplate::named(); "": that of the folder
  Packing pack = Packing::none;
  bool skip_bad = false;  ///< drops invalid lines
};
namespace detail {
/// Calls f(name, field, help) for each field about examples, in order.
template <class Config, class F> void visit_example_fields(Config& c, F&& f) {
  f("objective", c.objective,
    "lm, or dpo: prefer the chosen to the rejected answers of the data, without a reward model");
  f("beta", c.beta, "of dpo: how strongly the model is held to the base");
  f("loss", c.loss, "tokens of an example that count: completion (the assistant's), or all");
  f("chat_format", c.chat_format,
    "of messages: chatml, qwen, llama3, zephyr, mistral, alpaca, plain or a FILE.jinja; default: that of the "
    "adapter or model");
  f("pack", c.pack, "none: an example per row, with padding; concat: whole examples share rows");
  f("skip_bad", c.skip_bad, "leave out lines that are no example, and report their number");
}
/// Calls f(name, field, help) for each field, in order.
template <class Config, class F> void visit_data_fields(Config& c, F&& f) {
  f("documents", c.documents,
    "of a text file: file, or line (each line is a document); a .jsonl file has one per line, the \"text\" of its "
    "object; bytes: a file of any format is one");
  f("special", c.special, "special tokens in documents: text, or parse (they are tokens)");
  f("token_type", c.token_type, "of .bin files without a header: u16 or u32");
  f("weights", c.weights,
    "of a mixture: a number for each FILE or pattern of --data, such as 0.7,0.3; windows are drawn in these "
    "proportions");
  f("val_data", c.val_data, "a file or pattern to validate on, in place of a part of the data");
  f("val_tokens", c.val_tokens, "of val_data: its first so many tokens, 0: all");
  visit_example_fields(c, f);
}
}  // namespace detail

}  // namespace tg
