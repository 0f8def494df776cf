#include <tapegrad/core/io/file.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>

namespace tg {
namespace {
using namespace std::string_view_literals;

// A '?' is any byte.
struct Format {
  std::string_view is;
  std::initializer_list<std::string_view> starts;
};
constexpr Format kFormats[] = {
    {"a pointer of Git LFS: the file itself was not downloaded. Run `git lfs pull` in its folder",
     {"version https://git-lfs.github.com/spec/v?\n"sv}},
    {"a GGUF file of llama.cpp, which is a model and no text. Pass it to --model", {"GGUF"sv}},
    {"a file of an old llama.cpp, which is not read. Download the GGUF file of the model", {"ggjt"sv, "lmgg"sv}},
    {"a zip file, as PyTorch's checkpoints are, which is not read. Load it in Python, and write it by "
     "save_pretrained() or safetensors.torch.save_file()",
     {"PK\3\4"sv, "PK\5\6"sv}},
    {"a pickle of PyTorch, which only Python can read safely. Load it there, and write it by save_pretrained() or "
     "safetensors.torch.save_file()",
     {"\x80\2}q"sv, "\x80\2]q"sv, "\x80\2(X"sv, "\x80\2\x8a\x0a"sv, "\x80\2\143"sv, "\x80\3}q"sv, "\x80\3]q"sv,
      "\x80\3\143"sv, "\x80\4\x95"sv, "\x80\5\x95"sv}},
    {"an array of NumPy, whose name must end in .npy. Rename it if it holds token ids", {"\x93NUMPY"sv}},
    {"a file of HDF5, which is not read. Write it as safetensors in Python", {"\x89HDF\r\n"sv}},
    {"a compressed file. Unpack it first",
     {"\x1f\x8b\x08"sv, "BZh?1AY&SY"sv, "\3757zXZ"sv, "\x28\xb5\x2f\xfd"sv, "7z\xbc\xaf\x27\x1c"sv, "Rar!\x1a\7"sv,
      "\4\x22M\x18"sv, "]\0\0?\0"sv, "\x1f\x9d?"sv}},
    {"a file of Parquet, which is not read. Write its texts to a .txt or .jsonl file in Python", {"PAR1"sv}},
    {"a token file of llm.c, and no text. Give --data a name that ends in .bin", {"\210\3304\1"sv}},  // 20240520
    {"a model of llm.c, which is not read. Take the model's folder with config.json and safetensors",
     {"\306\3274\1"sv}},
    {"an image, a sound, a film or a font, and no text",
     {"\x89PNG\r\n\x1a\n"sv, "\xff\xd8\xff"sv, "GIF8?a"sv,       "BM????\0\0\0\0"sv, "II*\0"sv,    "MM\0*"sv,
      "RIFF????WEBP"sv,      "RIFF????WAVE"sv, "RIFF????AVI "sv, "ID3?\0"sv,         "\xff\xfb"sv, "\xff\xfa"sv,
      "\xff\xf3"sv,          "\xff\xf2"sv,     "\xff\xf1"sv,     "fLaC\0"sv,         "OggS\0"sv,   "MThd\0"sv,
      "\x1a\x45\xdf\xa3"sv,  "\0???ftyp"sv,    "OTTO\0"sv,       "\0\1\0\0\0"sv}},
    {"a program or a library, and no text", {"\177ELF"sv, "MZ?\0"sv, "\xca\xfe\xba\xbe"sv, "\0asm"sv, "!<arch>\n"sv}},
    {"a document with its layout, and no text. Extract its text",
     {"%PDF-?.?\n"sv, "%PDF-?.?\r"sv, "\xd0\xcf\x11\xe0"sv}},
    {"a table of another program, which is not read. Write its texts to a .jsonl file",
     {"ARROW1\0"sv, "\xff\xff\xff\xff??\0\0"sv, "FEA1"sv, "ORC"sv, "Obj\1"sv, "SQLite format 3\0"sv}},
    {"a file of safetensors, and no text", {"????\0\0\0\0{\""sv}},
    {"text in UTF-16 or UTF-32. Write it as UTF-8", {"\xff\xfe"sv, "\xfe\xff"sv, "\0\0\xfe\xff"sv}},
};
constexpr std::string_view kPage = "a page of HTML or XML, as a failed download leaves it. Download the file again";
}  // namespace

std::string detail::foreign_format(std::string_view first, bool text_is_meant) {
  const bool is_text =
      std::ranges::none_of(first, [](uint8_t c) { return c < 32 && "\b\t\n\v\f\r\x1b"sv.find(char(c)) == ""sv.npos; });
  for (const Format& f : kFormats)
    for (const std::string_view s : f.starts) {
      // Token ids may equal a signature with zero bytes, a text a printable one.
      const bool of_text = s.size() < 3 || s.find('\0') != s.npos;
      const bool spelled = std::ranges::all_of(s, [](char c) { return c >= ' ' && c <= '~'; });
      if ((text_is_meant || !of_text) && !((spelled || s.size() < 3) && is_text) && first.size() >= s.size() &&
          std::ranges::equal(s, first.substr(0, s.size()), [](char a, char b) { return a == '?' || a == b; }))
        return std::string(f.is);
    }
  if (text_is_meant && first.find('\0') != first.npos)
    return first.substr(std::min<size_t>(257, first.size())).starts_with("ustar")
               ? "an archive of tar. Unpack it first"
               : "no text: it has zero bytes. Convert it";
  if (text_is_meant) return "";
  const size_t begin = std::min(first.find_first_not_of(" \t\r\n"), first.size());
  std::string word(first.substr(begin, 14));
  std::ranges::transform(word, word.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
  for (const std::string_view tag : {"<!doctype html", "<html", "<head", "<?xml", "<error"})
    if (word.starts_with(tag)) return std::string(kPage);
  const bool protobuf = first.starts_with('\n') && first.substr(0, 64).find("<unk>") != first.npos;
  return protobuf ? "a tokenizer.model of SentencePiece, which is not read. Write tokenizer.json in Python: "
                    "transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
                  : "";
}

}  // namespace tg
