// `tapegrad train`: text or token files in, a model folder out, and a checkpoint to go on from after any end.
#include <tapegrad/core/check.h>
#include <tapegrad/models/apps/run_session.h>
#include <tapegrad/models/data/bpe.h>
#include <tapegrad/models/io/model_dir.h>

#include <filesystem>

namespace tg::apps {
namespace {

struct Options : TrainOptions {
  std::string preset, arch;
};

// The tokenizer of a setting; null: "char", which is made of the text.
std::unique_ptr<Tokenizer> named_tokenizer(const std::string& name) {
  if (name == "char") return nullptr;
  if (name == "byte") return std::make_unique<ByteTokenizer>();
  return std::make_unique<BpeTokenizer>(read_tokenizer(name));
}

// Settles the vocabulary of the run as well.
Data read_data(const std::vector<std::string>& paths, RunConfig& run) {
  int64_t& vocabulary = run.model.vocab_size;
  if (run.tokenizer != "byte" && run.tokenizer != "char")  // a resumed run may stand elsewhere
    run.tokenizer = std::filesystem::absolute(run.tokenizer).lexically_normal().string();
  if (has_token_file(paths)) {
    Data d{read_token_file(paths), named_tokenizer(run.tokenizer)};
    TG_CHECK(
        d.tokenizer, value,
        "[data] {} holds token ids, and the tokenizer is \"{}\". Characters come from a text. Pass the text, or use "
        "the byte tokenizer.",
        paths[0], run.tokenizer);
    if (vocabulary == 0) vocabulary = d.tokenizer->vocab_size();
    if (run.tokenizer == "byte" && vocabulary != d.tokenizer->vocab_size()) d.tokenizer.reset();
    d.tokens.check_vocabulary(vocabulary);
    return d;
  }
  const std::string text = read_texts(paths);
  std::unique_ptr<Tokenizer> tokenizer = named_tokenizer(run.tokenizer);
  if (!tokenizer) tokenizer = std::make_unique<CharTokenizer>(CharTokenizer::from_text(text));
  if (vocabulary == 0) vocabulary = tokenizer->vocab_size();
  TG_CHECK(
      vocabulary >= tokenizer->vocab_size(), value,
      "[data] vocab_size is {}, and the {} tokenizer of this text has {} ids. The model must have as many or more. "
      "Pass --vocab-size {}, or leave vocab_size out.",
      vocabulary, run.tokenizer, tokenizer->vocab_size(), tokenizer->vocab_size());
  return {encoded(*tokenizer, text, paths), std::move(tokenizer)};
}

Start start_of(Options& o) {
  if (!o.resume.empty()) {
    if (!o.preset.empty() || !o.arch.empty())
      throw UsageError("--resume takes all settings from the checkpoint; leave --preset and --arch away");
    return resumed_run(o, open_checkpoint(o), read_data);
  }
  if (o.data.empty()) throw UsageError("train needs --data FILE..., or --resume DIR");
  if (o.out.empty()) o.out = "out";
  RunConfig base = o.preset.empty() ? RunConfig() : preset(o.preset);
  if (!o.arch.empty()) base.model = arch(o.arch);
  return new_run(o, run_of(o, base), read_data);
}

int train(Options& o) {
  const Device device = prepare(o);
  Start s = start_of(o);
  return run_training(o, s, device, [&]() -> Trained {
    const Params params(device, s.run.train.seed);
    const Gpt model(params, s.run.model);
    return {.model = model,
            .params = params,
            .title = fmt::format("{} parameters", params.count()),
            .save = [=, &s] { save_model(s.out, model, params, s.data.tokenizer.get(), to_json(s.run.train)); },
            .files = {"model.safetensors", "config.json"},
            .hint = fmt::format("tapegrad generate --model {} --prompt \"...\"", s.out)};
  });
}

}  // namespace

Subcommand train_command() {
  return {"train", "train a GPT on text", [](Command& c) -> std::function<int()> {
            auto o = std::make_shared<Options>();
            o->command = "train", o->result = "model";
            c.option("--preset", "NAME", "a named run: " + preset_names(), o->preset);
            c.option("--arch", "NAME", "a named model: " + arch_names(), o->arch);
            add_train_options(c, *o, "out", [](const std::string&) { return true; });
            return [o] { return train(*o); };
          }};
}

}  // namespace tg::apps
