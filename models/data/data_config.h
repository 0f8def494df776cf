/// @file
/// DataConfig: how the files of a run become tokens. visit_data_fields() lists its fields once, for JSON, flags and
/// help.
#pragma once
#include <tapegrad/models/data/documents.h>
#include <tapegrad/models/data/token_file.h>

#include <string>

namespace tg {

/// How files become tokens.
struct DataConfig : DocumentOptions {
  TokenType token_type = TokenType::u16;  ///< ids of .bin files without a header
  std::string weights = "";               ///< of a mixture: numbers with commas; "": none
};
/// Calls f(name, field, help) for each field, in order.
template <class Config, class F> void visit_data_fields(Config& c, F&& f) {
  f("documents", c.documents,
    "of a text file: file, or line (each line is a document); a .jsonl file has one per line, the \"text\" of its "
    "object");
  f("special", c.special, "special tokens in documents: text, or parse (they are tokens)");
  f("token_type", c.token_type, "of .bin files without a header: u16 or u32");
  f("weights", c.weights,
    "of a mixture: a number for each FILE or pattern of --data, such as 0.7,0.3; windows are drawn in these "
    "proportions");
}

}  // namespace tg
