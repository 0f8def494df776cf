// `tapegrad tokenize`: writes a token file for `train` and `finetune`.
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/apps/output.h>
#include <tapegrad/models/apps/ranks.h>
#include <tapegrad/models/data/bpe.h>
#include <tapegrad/models/data/dataset.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>

namespace tg::apps {
namespace {

struct TokenizeOptions {
  std::string tokenizer, pattern, out;
  std::vector<std::string> in;
  bool parse_special = false, overwrite = false;
  int64_t threads = 0;
};

bool holds_tokens(const std::string& path) {
  try {
    return TokenData::from_file(path).size() > 0;
  } catch (const Error&) {
    return false;
  }
}

int run(const TokenizeOptions& o) {
  if (o.tokenizer.empty() || o.in.empty() || o.out.empty())
    throw UsageError("tokenize needs --tokenizer PATH, --in FILE... and --out FILE");
  check_alone("tokenize");
  if (!o.pattern.empty() && !o.tokenizer.ends_with(".tiktoken"))
    throw UsageError("--pattern is for a .tiktoken file, and other tokenizers have their own; omit it");
  if (!is_token_file(o.out)) throw UsageError("--out must end in .npy or .bin: it is a token file");
  const BpeTokenizer tokenizer = read_tokenizer(o.tokenizer, o.pattern);
  constexpr int64_t kMost = int64_t(std::numeric_limits<uint16_t>::max()) + 1;
  TG_CHECK(tokenizer.vocab_size() <= kMost || !o.out.ends_with(".bin"), value,
           "[tokenize] {} has {} ids. A .bin file holds 16-bit ids, at most {}. Write a .npy file, which holds ids of "
           "32 bits too.",
           o.tokenizer, tokenizer.vocab_size(), kMost);
  if (o.threads != 0) set_num_threads(int(std::clamp<int64_t>(o.threads, INT32_MIN, INT32_MAX)));
  if (path_exists(o.out) && !o.overwrite) {
    for (const std::string& in : o.in) {
      std::error_code none;
      TG_CHECK(!std::filesystem::equivalent(in, o.out, none), value, "[tokenize] --out {} is one of the texts.", o.out);
    }
    TG_CHECK(o.out.ends_with(".npy"), value,
             "[tokenize] {} exists, and a .bin file does not say what it holds. Name a new file, or pass --overwrite.",
             o.out);
    check_output("tokenize", "--out", o.out, "token file", [&](std::string_view) { return holds_tokens(o.out); });
  }
  check_writable(o.out);
  const std::string text = read_texts(o.in);
  const TokenData tokens = TokenData::from_text(tokenizer, text, o.out, {.parse_special = o.parse_special});
  tokens.write(o.out);
  fmt::print("{} bytes are {} tokens of {}, in {}\n", text.size(), tokens.size(), tokenizer.vocab_size(),
             printable(o.out));
  return 0;
}

}  // namespace

Subcommand tokenize_command() {
  return {"tokenize", "write a token file of texts", [](Command& c) -> std::function<int()> {
            auto o = std::make_shared<TokenizeOptions>();
            c.option(
                "--tokenizer", "PATH",
                "a tokenizer.json, a .tiktoken file, or a folder with tokenizer.json or with vocab.json and merges.txt",
                o->tokenizer);
            c.option("--pattern", "NAME", "of a .tiktoken file: gpt2, llama3 or qwen2", o->pattern);
            c.list("--in", "FILE", "texts, one after the other", o->in);
            c.option(
                "--out", "FILE",
                "the token file: .npy, a NumPy array of uint16, or uint32 for more than 65536 ids; or .bin, 16-bit "
                "little-endian ids",
                o->out);
            c.option("--threads", "threads of the CPU, 0: all", o->threads);
            c.toggle("--special", "read special tokens in the texts as tokens, not as text", o->parse_special);
            c.toggle("--overwrite", "replace whatever is at --out", o->overwrite);
            return [o] { return run(*o); };
          }};
}

}  // namespace tg::apps
