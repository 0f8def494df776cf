// `tapegrad tokenizer` trains a BPE tokenizer on texts. `tapegrad tokenize` writes token files.
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/apps/model_data.h>
#include <tapegrad/models/apps/output.h>
#include <tapegrad/models/apps/process.h>
#include <tapegrad/models/apps/run.h>
#include <tapegrad/models/data/bpe_train.h>
#include <tapegrad/models/data/dataset.h>
#include <tapegrad/models/io/checkpoint.h>
#include <tapegrad/models/io/huggingface.h>

#include <algorithm>
#include <limits>
#include <map>

namespace tg::apps {
namespace {

struct TokenizerOptions {
  BpeTraining training;
  std::vector<std::string> train;
  std::string out;
  int64_t threads = 0;
};

int run(TokenizerOptions& o) {
  refuse(o.train.empty() || o.out.empty(), "tokenizer needs --train FILE... and --out DIR");
  check_alone("tokenizer");
  set_threads(o.threads);
  const std::string out = new_output("tokenizer", o.out, "folder");
  int64_t ids = 0;
  write_new_folder(out, {}, [&](const std::string& folder) {
    const BpeTokenizer tokenizer = train_bpe(files_of(o.train), o.training);
    ids = tokenizer.vocab_size();
    detail::save_tokenizer(folder, tokenizer);
  });
  if (ids < o.training.vocab_size)
    print_note("the texts give {} ids, not {}: no other pair of tokens occurs {} or more", ids, o.training.vocab_size,
               detail::counted(o.training.min_frequency, "time"));
  fmt::print("wrote {}, a tokenizer of {}\n", printable(out), detail::counted(ids, "id"));
  return 0;
}

struct TokenizeOptions {
  std::string tokenizer, pattern, out, format;
  std::vector<std::string> in;
  SettingFlags settings;
  bool overwrite = false;
  int64_t shard_tokens = 0, threads = 0;
};

bool holds_tokens(const std::string& path) {
  try {
    return detail::open_token_file(path).begin > 0;  // begin > 0: has a header
  } catch (const Error&) {
    return false;
  }
}
void check_replaced(const TokenizeOptions& o) {
  check_output("tokenize", "--out", o.out, "token file", [&](std::string_view) {
    const bool ours = o.overwrite || holds_tokens(o.out);
    if (!ours && o.out.ends_with(".bin"))
      throw std::runtime_error(fmt::format(
          "[tokenize] {} exists, and a .bin file does not say what it holds. Name a new file, or pass --overwrite.",
          o.out));
    return ours;
  });
}

// Writes encode()'s ids in shards of at most `most` ids. Holds one shard. Returns counts by file.
std::map<std::string, int64_t> write_shards(const std::string& folder, int64_t vocab_size, TokenFormat format,
                                            int64_t most, const std::function<void(const Tokenizer::Take&)>& encode) {
  std::map<std::string, int64_t> counts;
  std::vector<int32_t> open;
  std::vector<int64_t> wide;
  const auto pass = [&](const Tokenizer::Take& take) {
    for (std::span<const int32_t> rest = open; !rest.empty(); rest = rest.subspan(wide.size())) {
      wide.assign(rest.begin(), rest.begin() + ptrdiff_t(std::min<size_t>(rest.size(), 1 << 14)));
      take(wide);
    }
  };
  const auto write = [&] {
    const std::string name = fmt::format("tokens_{:06}.{}", counts.size(), format == TokenFormat::npy ? "npy" : "bin");
    TokenData::from_tokens(vocab_size, pass, name).write(folder + "/" + name, format);
    counts[name] = std::ssize(open);
    open.clear();
  };
  encode([&](std::span<const int64_t> ids) {
    while (!ids.empty()) {
      const size_t n = std::min(ids.size(), size_t(most) - open.size());
      open.insert(open.end(), ids.begin(), ids.begin() + ptrdiff_t(n));
      ids = ids.subspan(n);
      if (std::ssize(open) == most) write();
    }
  });
  if (!open.empty()) write();
  return counts;
}

int run(TokenizeOptions& o) {
  refuse(o.tokenizer.empty() || o.in.empty() || o.out.empty(),
         "tokenize needs --tokenizer PATH, --in FILE... and --out FILE or DIR");
  check_alone("tokenize");
  refuse(!o.pattern.empty() && !o.tokenizer.ends_with(".tiktoken"),
         "--pattern is for a .tiktoken file, and other tokenizers have their own; omit it");
  const bool shards = o.shard_tokens > 0;
  if (detail::is_token_file(o.out) == shards)
    throw UsageError(shards ? "--shard-tokens makes a folder; --out must not end in .npy or .bin"
                            : "--out must end in .npy or .bin: it is a token file; for a folder of shards pass "
                              "--shard-tokens");
  refuse(shards && o.overwrite, "--shard-tokens makes a new folder; omit --overwrite");
  if (o.out.ends_with(".npy") && !o.format.empty() && o.format != "npy")
    throw UsageError("--out ends in .npy, and --format is " + o.format);
  TokenFormat format = o.out.ends_with(".bin") ? TokenFormat::raw : TokenFormat::npy;
  if (!o.format.empty()) from_name(o.format, format);
  const BpeTokenizer tokenizer = read_tokenizer(o.tokenizer, o.pattern);
  constexpr int64_t kMost = int64_t(std::numeric_limits<uint16_t>::max()) + 1;
  TG_CHECK(tokenizer.vocab_size() <= kMost || format != TokenFormat::raw, value,
           "[tokenize] {} has {} ids. A .bin file without a header holds 16-bit ids, at most {}. Write .npy, or pass "
           "--format llmc.",
           o.tokenizer, tokenizer.vocab_size(), kMost);
  set_threads(o.threads);
  const std::vector<std::string> files = files_of(o.in);
  for (const std::string& in : files) (void)InputFile(in);
  check_used("tokenize", o.settings, o.in);
  EncodedDocuments read;
  const Interrupt interrupt;
  const auto stop = [] {
    if (const int signal = Interrupt::signal()) throw Stopped{signal};
  };
  const auto encode = [&](const Tokenizer::Take& take) {
    read = detail::encode_documents(tokenizer, files, data_config(o.settings), [&](std::span<const int64_t> ids) {
      stop();
      take(ids);
    });
    stop();
  };
  std::string where = o.out;
  if (!shards) {
    check_replaced(o);
    TokenData::from_tokens(tokenizer.vocab_size(), encode, o.out).write(o.out, format);
  } else {
    where = new_output("tokenize", o.out, "folder");
    write_new_folder(where, {}, [&](const std::string& folder) {
      const auto counts = write_shards(folder, tokenizer.vocab_size(), format, o.shard_tokens, encode);
      stop();
      const Json meta = {{"tokenizer_hash", detail::tokenizer_hash(tokenizer)},
                         {"vocab_size", tokenizer.vocab_size()},
                         {"documents", read.documents},
                         {"tokens", read.tokens},
                         {"shards", counts}};
      detail::write_file_atomically(folder + "/meta.json", detail::text_of(meta, 2) + "\n");
    });
  }
  note_documents(tokenizer, read, name_of_files(o.in));
  fmt::print("{} of {} are {} of {}, in {}\n", detail::counted(read.bytes, "byte"),
             detail::counted(read.documents, "document"), detail::counted(read.tokens, "token"), tokenizer.vocab_size(),
             printable(where));
  return 0;
}
void declare(Command& c, TokenizerOptions& o) {
  BpeTraining& t = o.training;
  c.list("--train", "FILE", "texts and .jsonl files, and patterns in quotes", o.train);
  c.option("--vocab", "ids, with the special tokens and the 256 bytes", t.vocab_size);
  c.option("--pattern", "splits the texts before merging, as this family of models does", t.pattern,
           {"gpt2", "llama3", "qwen2"});
  c.list("--special", "TOKEN", "special tokens; they separate texts in a file", t.special);
  c.option("--min-frequency", "the least count of a pair that is merged", t.min_frequency);
  c.option("--out", "DIR", "the folder to make: tokenizer.json and tokenizer_config.json", o.out);
  c.option("--threads", "threads of the CPU, 0: all", o.threads);
}
void declare(Command& c, TokenizeOptions& o) {
  c.option("--tokenizer", "PATH",
           "a tokenizer.json, a .tiktoken file, a GGUF file, or a folder with tokenizer.json or with vocab.json and "
           "merges.txt",
           o.tokenizer);
  c.option("--pattern", "NAME", "of a .tiktoken file: gpt2, llama3 or qwen2", o.pattern);
  c.list("--in", "FILE", "texts, .jsonl files, and patterns in quotes", o.in);
  add_settings(c, o.settings, [](std::string_view name) { return name == "documents" || name == "special"; });
  c.option("--out", "PATH", "a token file, .npy or .bin, or with --shard-tokens a new folder of shards and meta.json",
           o.out);
  c.option("--shard-tokens", "N", "the most tokens of a shard, as 100M; a shard is in memory as a whole",
           o.shard_tokens, {"k", "M", "G"});
  c.option("--format",
           "npy: an array of uint16, or uint32 for more than 65536 ids; llmc: the same, as llm.c writes it; "
           "raw: 16-bit ids without a header; default: npy, and raw for a .bin file",
           o.format, {"npy", "llmc", "raw"});
  c.option("--threads", "threads of the CPU, 0: all", o.threads);
  c.toggle("--overwrite", "replace whatever is at --out", o.overwrite);
}

}  // namespace

Subcommand tokenizer_command() {
  return subcommand<TokenizerOptions>("tokenizer", "train a BPE tokenizer on texts", run, declare);
}
Subcommand tokenize_command() {
  return subcommand<TokenizeOptions>("tokenize", "write a token file of texts", run, declare);
}

}  // namespace tg::apps
