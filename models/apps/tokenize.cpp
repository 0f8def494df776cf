// `tapegrad tokenize`: texts to a token file, which `train` and `finetune` read.
#include <tapegrad/core/check.h>
#include <tapegrad/core/file.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/data/bpe.h>
#include <tapegrad/models/data/dataset.h>

#include <cstdio>
#include <limits>
#include <memory>

namespace tg::apps {
namespace {

struct Options {
  std::string tokenizer, pattern, out;
  std::vector<std::string> in;
  bool parse_special = false;
};

int run(const Options& o) {
  if (o.tokenizer.empty() || o.in.empty() || o.out.empty())
    throw UsageError("tokenize needs --tokenizer PATH, --in FILE... and --out FILE");
  const BpeTokenizer tokenizer = read_tokenizer(o.tokenizer, o.pattern);
  constexpr int64_t kMost = int64_t(std::numeric_limits<uint16_t>::max()) + 1;
  TG_CHECK(tokenizer.vocab_size() <= kMost, value,
           "[tokenize] {} has {} ids. A token file holds 16-bit ids, at most {}. Pass the texts themselves to `train` "
           "with --tokenizer.",
           o.tokenizer, tokenizer.vocab_size(), kMost);
  const std::string text = read_texts(o.in);
  int64_t tokens = 0;
  write_file_atomically(o.out, [&](const Sink& sink) {
    std::vector<uint16_t> narrow;
    tokenizer.encode(text, {.parse_special = o.parse_special}, [&](std::span<const int64_t> ids) {
      narrow.assign(ids.begin(), ids.end());
      sink(std::as_bytes(std::span(narrow)));
      tokens += int64_t(ids.size());
    });
  });
  fmt::print("{} bytes are {} tokens of {}, in {}\n", text.size(), tokens, tokenizer.vocab_size(), printable(o.out));
  return 0;
}

}  // namespace

Subcommand tokenize_command() {
  return {"tokenize", "write a token file of texts", [](Command& c) -> std::function<int()> {
            auto o = std::make_shared<Options>();
            c.option(
                "--tokenizer", "PATH",
                "a tokenizer.json, a .tiktoken file, or a folder with tokenizer.json or with vocab.json and merges.txt",
                o->tokenizer);
            c.option("--pattern", "NAME", "of a .tiktoken file: gpt2, llama3 or qwen2", o->pattern);
            c.list("--in", "FILE", "texts, one after the other", o->in);
            c.option("--out", "FILE", "the token file (.bin): 16-bit little-endian ids", o->out);
            c.toggle("--special", "special tokens in the texts are themselves, and not text", o->parse_special);
            return [o] { return run(*o); };
          }};
}

}  // namespace tg::apps
