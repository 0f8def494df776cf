/// @file
/// Documents of text files and JSON lines, and their tokens. Each ends with the end-of-text token.
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

/// A document of a text file: all of it, the "text" of each line of a .jsonl file, or any file's bytes.
enum class DocumentKind { file, line, bytes };
/// Special tokens in documents: text or tokens.
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

/// The documents joined, lines with line breaks, for tokenizers without end_of_text(). Writes their `count`. Errors of
/// for_each_documents(), and for no document.
std::string read_texts(std::span<const std::string> paths, DocumentKind = DocumentKind::file, int64_t* count = nullptr);

/// Result of encode_documents().
struct EncodedDocuments {
  int64_t documents = 0, bytes = 0, tokens = 0;
  int64_t invalid = 0;  ///< invalid UTF-8 bytes
  /// First special token that became text, or "".
  std::string special = "";
};
namespace detail {
/// Opens a text. An Error if missing, a folder, empty or, unless bytes, of another format.
InputFile open_text(const std::string& path, bool bytes_are_meant = false);

// Calls f(line, number from 1) for lines that are not blank until f returns false. Holds the longest line.
void for_each_line(const std::string& path, const std::function<bool(std::string_view line, int64_t number)>& f);
/// Calls f with the documents in order, some megabytes at a time. A document file is read whole; blank lines are
/// skipped. An Error for an empty list, an empty or missing file, another format, a JSON line without "text" (it names
/// the line), and examples of instructions or chats.
void for_each_documents(std::span<const std::string> paths, DocumentKind,
                        const std::function<void(std::span<const std::string_view>)>& f);
/// Passes the documents' ids, ended as by Tokenizer::encode_documents(); without end_of_text(), as by read_texts().
EncodedDocuments encode_documents(const Tokenizer&, std::span<const std::string> paths, const DocumentOptions&,
                                  const Tokenizer::Take& take);
}  // namespace detail

}  // namespace tg
