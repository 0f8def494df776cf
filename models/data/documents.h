/// @file
/// Documents of text files and of JSON lines, and their tokens. Each document ends by the tokenizer's end-of-text
/// token, so that a model learns where one ends.
#pragma once
#include <tapegrad/models/config/suggest.h>
#include <tapegrad/models/tokenizers/tokenizer.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace tg {
class InputFile;

/// Opens a text. An Error if it is missing, a folder, empty or, unless bytes are meant, a file of another format.
InputFile open_text(const std::string& path, bool bytes_are_meant = false);

namespace detail {
// Calls f(line, its number from 1) for lines that are not blank until f returns false. Holds the longest line.
void for_each_line(const std::string& path, const std::function<bool(std::string_view line, int64_t number)>& f);
}  // namespace detail

/// A document of a text file. In a .jsonl file each line is one: an object with its "text". With bytes, a file of any
/// format and name is one document.
enum class DocumentKind { file, line, bytes };
/// Whether special tokens that a document spells are text or tokens.
enum class SpecialTokens { text, parse };
/// Names of values.
/// @{
template <> inline constexpr EnumNames<3> kEnumNames<DocumentKind>{"documents", {"file", "line", "bytes"}};
template <> inline constexpr EnumNames<2> kEnumNames<SpecialTokens>{"special", {"text", "parse"}};
/// @}

/// How texts become tokens.
struct DocumentOptions {
  DocumentKind documents = DocumentKind::file;
  SpecialTokens special = SpecialTokens::text;
};

/// Calls f with the documents of the files in order, some megabytes at a time. A text file that is one document is read
/// whole. Blank lines are no documents. An Error for an empty list, an empty or missing file, another format, a line
/// of JSON without a "text" (it names the line), and examples of instructions or chats that would be learned as text.
void for_each_documents(std::span<const std::string> paths, DocumentKind,
                        const std::function<void(std::span<const std::string_view>)>& f);
/// The documents joined, for tokenizers without end_of_text(); those of lines keep a line break. Writes their number to
/// `count`. Errors of for_each_documents(), and one if there is no document.
std::string read_texts(std::span<const std::string> paths, DocumentKind = DocumentKind::file, int64_t* count = nullptr);

/// The result of encode_documents().
struct EncodedDocuments {
  int64_t documents = 0, bytes = 0, tokens = 0;
  int64_t invalid = 0;  ///< bytes that are no UTF-8
  /// The first special token that a document spells and that became text, or "".
  std::string special = "";
};
/// Passes on the ids of the documents, each with the end of Tokenizer::encode_documents(). Without end_of_text() they
/// are the ids of read_texts().
EncodedDocuments encode_documents(const Tokenizer&, std::span<const std::string> paths, const DocumentOptions&,
                                  const Tokenizer::Take& take);

}  // namespace tg
