// `tapegrad tokenizer`: trains a BPE tokenizer on texts.
#include <fmt/core.h>
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/apps/model_data.h>
#include <tapegrad/models/apps/output.h>
#include <tapegrad/models/apps/ranks.h>
#include <tapegrad/models/data/bpe_train.h>
#include <tapegrad/models/io/huggingface.h>

#include <algorithm>
#include <memory>

namespace tg::apps {
namespace {

struct TokenizerOptions {
  BpeTraining training;
  std::vector<std::string> train;
  std::string out;
  int64_t threads = 0;
};

int run(const TokenizerOptions& o) {
  if (o.train.empty() || o.out.empty()) throw UsageError("tokenizer needs --train FILE... and --out DIR");
  check_alone("tokenizer");
  if (o.threads != 0) set_num_threads(int(std::clamp<int64_t>(o.threads, INT32_MIN, INT32_MAX)));
  const std::string out = new_output("tokenizer", o.out, "folder");
  int64_t ids = 0;
  write_new_folder(out, [&](const std::string& folder) {
    const BpeTokenizer tokenizer = train_bpe(files_of(o.train), o.training);
    ids = tokenizer.vocab_size();
    save_tokenizer(folder, tokenizer);
  });
  if (ids < o.training.vocab_size)
    print_note(fmt::format("the texts give {} ids, not {}: no other pair of tokens occurs {} times or more", ids,
                           o.training.vocab_size, o.training.min_frequency));
  fmt::print("wrote {}, a tokenizer of {} ids\n", printable(out), ids);
  return 0;
}

}  // namespace

Subcommand tokenizer_command() {
  return {"tokenizer", "train a BPE tokenizer on texts", [](Command& c) -> std::function<int()> {
            auto o = std::make_shared<TokenizerOptions>();
            BpeTraining& t = o->training;
            c.list("--train", "FILE", "texts and .jsonl files, and patterns in quotes", o->train);
            c.option("--vocab", "ids, with the special tokens and the 256 bytes", t.vocab_size);
            c.option("--pattern", "splits the texts before merging, as this family of models does", t.pattern,
                     {"gpt2", "llama3", "qwen2"});
            c.list("--special", "TOKEN", "special tokens; they separate texts in a file", t.special);
            c.option("--min-frequency", "the least count of a pair that is merged", t.min_frequency);
            c.option("--out", "DIR", "the folder to make: tokenizer.json and tokenizer_config.json", o->out);
            c.option("--threads", "threads of the CPU, 0: all", o->threads);
            return [o] { return run(*o); };
          }};
}

}  // namespace tg::apps
