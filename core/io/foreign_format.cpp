#include <tapegrad/core/io/file.h>

#include <algorithm>

namespace tg {
namespace {
using namespace std::string_view_literals;

struct Format {
  std::string_view start, is;
};
constexpr std::string_view kPickle =
    "a pickle of PyTorch, which only Python can read safely. Load it there, and "
    "write it by save_pretrained() or safetensors.torch.save_file()";
constexpr std::string_view kPacked = "a compressed file. Unpack it first";
constexpr std::string_view kPage = "a page of HTML or XML, as a failed download leaves it. Download the file again";
constexpr Format kFormats[] = {
    {"version https://git-lfs.github.com/spec/"sv,
     "a pointer of Git LFS: the file itself was not downloaded. Run `git lfs pull` in its folder"},
    {"GGUF"sv,
     "a GGUF file of llama.cpp, which `tapegrad export --to gguf` writes and nothing reads. Take the model's folder of "
     "Hugging Face, with config.json and safetensors"},
    {"ggjt"sv, "an old file of llama.cpp, which is not read. Take the model's folder with config.json and safetensors"},
    {"lmgg"sv, "an old file of llama.cpp, which is not read. Take the model's folder with config.json and safetensors"},
    {"PK\3\4"sv,
     "a zip file, as PyTorch's checkpoints are, which is not read. Load it in Python, and write it by "
     "save_pretrained() or safetensors.torch.save_file()"},
    {"\x80\2}q"sv, kPickle},
    {"\x80\2\x8a\x0a"sv, kPickle},
    {"\x80\3}q"sv, kPickle},
    {"\x80\4\x95"sv, kPickle},
    {"\x80\5\x95"sv, kPickle},
    {"\x93NUMPY"sv, "an array of NumPy, whose name must end in .npy. Rename it if it holds token ids"},
    {"\x89HDF\r\n"sv, "a file of HDF5, which is not read. Write it as safetensors in Python"},
    {"\x1f\x8b\x08"sv, kPacked},
    {"BZh91AY&SY"sv, kPacked},
    {"\xfd"
     "7zXZ"sv,
     kPacked},
    {"\x28\xb5\x2f\xfd"sv, kPacked},
    {"7z\xbc\xaf\x27\x1c"sv, kPacked},
    {"PAR1"sv, "a file of Parquet, which is not read. Write its texts to a .txt or .jsonl file in Python"},
    {"\x88\xd8"
     "4\1"sv,  // 20240520
     "a token file of llm.c, and no text. Give --data a name that ends in .bin"},
    {"\xc6\xd7"
     "4\1"sv,
     "a model of llm.c, which is not read. Take the model's folder with config.json and safetensors"},
};
}  // namespace

std::string foreign_format(std::string_view first, bool text_is_meant) {
  for (const Format& f : kFormats)
    if (first.starts_with(f.start)) return std::string(f.is);
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
