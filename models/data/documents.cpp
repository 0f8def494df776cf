#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/data/documents.h>
#include <tapegrad/models/tokenizers/utf8.h>

#include <algorithm>
#include <array>
#include <vector>

namespace tg {
InputFile detail::open_text(const std::string& path, bool bytes_are_meant) {
  InputFile file(path);
  TG_CHECK(file.size() > 0, io, "[data] {} is empty. Each text must have content. Leave it out or fill it.", path);
  std::string start(std::min<size_t>(512, file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(start)));
  const std::string other = bytes_are_meant ? "" : foreign_format(start, /*text_is_meant=*/true);
  TG_CHECK(other.empty(), io, "[data] {} is {}. To learn its bytes as they are, pass --documents bytes.", path, other);
  return file;
}
namespace {
constexpr size_t kBatchBytes = 8 << 20;  // bytes of documents: enough for all threads

// An Error if JSON with keys of examples is near the start.
void check_plain(const std::string& path, std::string_view text) {
  text = text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size()), 1 << 16);
  if (!text.starts_with('{') && !text.starts_with('[')) return;
  for (const char* key : {"messages", "conversations", "prompt", "instruction", "text"})
    TG_CHECK(text.find(fmt::format("\"{}\":", key)) == text.npos, value,
             "[data] {} is JSON with \"{}\", and would be learned as text with its braces. Such objects are lines of a "
             ".jsonl file. Convert it, an array by `jq -c '.[]'`, or rename it.",
             path, key);
}
void append_file(const std::string& path, DocumentKind kind, std::string& to) {
  const InputFile file = detail::open_text(path, kind == DocumentKind::bytes);
  const size_t before = to.size();
  to.resize(before + file.size());
  file.read(0, std::as_writable_bytes(std::span(to).subspan(before)));
  if (kind != DocumentKind::bytes) check_plain(path, std::string_view(to).substr(before));
}

constexpr std::string_view kNoText = "[data] no text is named. Training needs at least one file. Pass its path.";
bool is_json_lines(std::string_view path) { return path.ends_with(".jsonl"); }
bool is_whole(std::string_view path, DocumentKind kind) {
  return kind == DocumentKind::bytes || (kind == DocumentKind::file && !is_json_lines(path));
}
void check_any(int64_t documents, std::span<const std::string> paths) {
  TG_CHECK(documents > 0, value,
           "[data] {} has no document: its lines are blank. At least one must have text. Check the file.", paths[0]);
}

std::string text_of_line(std::string_view line, const std::string& place) {
  const Json object = detail::parse_json(line, "data", place);
  const Json* text = object.is_object() ? object.find("text") : nullptr;
  if (text && text->is_string()) return text->get<std::string>();
  std::string what = object.type_name();
  if (text) {
    what = fmt::format("an object whose \"text\" is {}", text->type_name());
  } else if (object.is_object()) {
    what = object.empty() ? "an object without keys" : "an object with the keys";
    for (const auto& [key, x] : object.items()) what += fmt::format(" '{}'", key);
  }
  detail::fail(Error::Kind::value,
               fmt::format("[data] {} is {}. It must be an object with a \"text\", a string. Convert the file; "
                           "`tapegrad finetune` reads messages, prompts and instructions.",
                           place, what));
}
}  // namespace

void detail::for_each_line(const std::string& path, const std::function<bool(std::string_view, int64_t)>& f) {
  const InputFile file = open_text(path);
  std::string open;  // starts with an unfinished line
  int64_t number = 0;
  for (size_t at = 0; at < file.size();) {
    const size_t kept = open.size(), n = std::min(kBatchBytes, file.size() - at);
    open.resize(kept + n);
    file.read(at, std::as_writable_bytes(std::span(open).subspan(kept)));
    at += n;
    if (at == file.size() && !open.ends_with('\n')) open += '\n';
    size_t begin = 0, end;
    for (size_t from = kept; (end = open.find('\n', from)) != open.npos; from = begin = end + 1) {
      std::string_view line = std::string_view(open).substr(begin, end - begin);
      if (line.ends_with('\r')) line.remove_suffix(1);
      ++number;
      if (line.find_first_not_of(" \t") != line.npos && !f(line, number)) return;
    }
    open.erase(0, begin);
  }
}
void detail::for_each_documents(std::span<const std::string> paths, DocumentKind kind,
                                const std::function<void(std::span<const std::string_view>)>& f) {
  TG_CHECK(!paths.empty(), value, "{}", kNoText);
  std::vector<std::string> texts;
  size_t bytes = 0;
  const auto pass = [&] {
    const std::vector<std::string_view> views(texts.begin(), texts.end());
    if (!views.empty()) f(views);
    texts.clear(), bytes = 0;
  };
  const auto add = [&](std::string text) {
    if (text.empty()) return;
    bytes += text.size();
    texts.push_back(std::move(text));
    if (bytes >= kBatchBytes) pass();
  };
  for (const std::string& path : paths) {
    if (is_whole(path, kind)) {
      std::string text;
      append_file(path, kind, text);
      add(std::move(text));
      continue;
    }
    bool first = !is_json_lines(path);
    for_each_line(path, [&](std::string_view line, int64_t number) {
      if (std::exchange(first, false)) check_plain(path, MappedFile(path).text());
      add(is_json_lines(path) ? text_of_line(line, fmt::format("line {} of {}", number, path)) : std::string(line));
      return true;
    });
  }
  pass();
}
std::string read_texts(std::span<const std::string> paths, DocumentKind kind, int64_t* count) {
  std::string all;
  int64_t documents = 0;
  TG_CHECK(!paths.empty(), value, "{}", kNoText);
  for (const std::string& path : paths) {
    if (is_whole(path, kind)) {
      append_file(path, kind, all);
      ++documents;
      continue;
    }
    detail::for_each_documents({&path, 1}, kind, [&](std::span<const std::string_view> some) {
      documents += std::ssize(some);
      for (const std::string_view text : some) all.append(text).push_back('\n');
    });
  }
  check_any(documents, paths);
  if (count) *count = documents;
  return all;
}

EncodedDocuments detail::encode_documents(const Tokenizer& tokenizer, std::span<const std::string> paths,
                                          const DocumentOptions& how, const Tokenizer::Take& take) {
  EncodedDocuments r;
  const bool parse = how.special == SpecialTokens::parse;
  const auto counted = [&](std::span<const int64_t> ids) {
    r.tokens += std::ssize(ids);
    take(ids);
  };
  const auto encode = [&](std::span<const std::string_view> documents) {
    r.documents += std::ssize(documents);
    for (const std::string_view text : documents) {
      r.bytes += std::ssize(text);
      r.invalid += invalid_bytes(text);
      if (!parse && r.special.empty()) r.special = tokenizer.special_in(text);
    }
    tokenizer.encode_documents(documents, {.parse_special = parse}, counted);
  };
  if (tokenizer.end_of_text() >= 0) {
    for_each_documents(paths, how.documents, encode);
    check_any(r.documents, paths);
  } else {
    int64_t count = 0;
    const std::string all = read_texts(paths, how.documents, &count);
    encode(std::array{std::string_view(all)});
    r.documents = count;
  }
  return r;
}

}  // namespace tg
