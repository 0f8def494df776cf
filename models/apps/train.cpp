// `tapegrad train`: trains on texts or token files.
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/gguf.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/apps/output.h>
#include <tapegrad/models/apps/run.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/tokenizers/bpe.h>

namespace tg::apps {
namespace {

struct TrainCommandOptions : TrainOptions {
  std::string preset, arch, init, unknown;
};

struct InitialModel {
  std::string folder;
  ModelFile file;
  GptConfig config;

  explicit InitialModel(const std::string& f) : folder(f), file(detail::read_model_file(f)) {
    in_file(f + "/config.json", [&] {
      config = detail::gpt_config_from_json(file.config, {.name = "\"model\"", .every_field = true, .op = "model"});
    });
    check_language_model(f, config);
  }
  ModelOfData of_data() const {
    return {"train", folder, config.vocab_size, file.tokenizer.get(), file.tokenizer_error};
  }
};

// "char" (needs the text): null. `saved`: JSON of a tokenizer whose file may be gone.
std::unique_ptr<Tokenizer> named_tokenizer(const std::string& name, const std::string& saved) {
  if (name == "char") return nullptr;
  if (name == "byte") return std::make_unique<ByteTokenizer>();
  return saved.empty() ? std::make_unique<BpeTokenizer>(read_tokenizer(name)) : Tokenizer::from_json(saved);
}

void refuse_examples(const RunConfig& run) {
  for (const Difference& d : detail::differences(RunConfig(), run))
    TG_CHECK(!detail::is_example_setting(d.name), value,
             "[train] {} is {}. It is for examples, which `tapegrad finetune` reads. Leave it out.", d.name, d.after);
}
RunData read_new_data(const Words& words, RunConfig& run, const std::string& saved = "") {
  refuse_examples(run);
  int64_t& vocabulary = run.model.vocab_size;
  if (run.tokenizer != "char" && run.tokenizer != "byte")  // a resumed run may have another working folder
    run.tokenizer = detail::absolute_path(run.tokenizer);
  const bool ids = has_token_file(words);
  std::unique_ptr<Tokenizer> tokenizer = named_tokenizer(run.tokenizer, saved);
  TG_CHECK(tokenizer || !ids, value,
           "[data] {} holds token ids, and the tokenizer is \"{}\". Characters come from a text. Pass the text, or use "
           "the byte tokenizer.",
           *std::ranges::find_if(words, [](const std::string& word) { return has_token_file({word}); }), run.tokenizer);
  if (!tokenizer)
    tokenizer =
        std::make_unique<CharTokenizer>(CharTokenizer::from_text(read_texts(files_of(words), run.data.documents)));
  if (ids && run.tokenizer == "byte" && vocabulary != 0 && vocabulary != tokenizer->vocab_size()) tokenizer.reset();
  if (vocabulary == 0) vocabulary = tokenizer->vocab_size();
  TG_CHECK(ids || vocabulary >= tokenizer->vocab_size(), value,
           "[data] vocab_size is {}, and the {} tokenizer of this text has {} ids. The model must have at least as "
           "many. Pass --vocab-size {}, or leave vocab_size out.",
           vocabulary, run.tokenizer, tokenizer->vocab_size(), tokenizer->vocab_size());
  if (!ids && vocabulary >= 2 * tokenizer->vocab_size())
    print_note(
        "vocab_size is {0}, and the {1} tokenizer of this text has {2} ids: the other rows of the table are "
        "never used. --vocab-size {2} leaves them out",
        vocabulary, run.tokenizer, tokenizer->vocab_size());
  TokenData tokens = read_tokens(tokenizer.get(), words, run.data, /*skip_unknown=*/false);
  if (ids) tokens.check_vocabulary(vocabulary);
  return {std::move(tokens), std::move(tokenizer)};
}

RunSetup resumed_setup(const TrainCommandOptions& o, std::optional<InitialModel>& init) {
  refuse(!o.preset.empty() || !o.arch.empty(),
         "--resume takes all settings from the checkpoint; omit --preset and --arch");
  RunSetup s = open_checkpoint(o);
  const std::string path = checkpoint_path(s.out), began = s.checkpoint.init, tokenizer = s.checkpoint.tokenizer;
  TG_CHECK(!began.empty() || o.init.empty(), value,
           "[train] {} belongs to a run that began with random weights, and --model is given. Leave it out.", path);
  if (!began.empty())
    explain_missing(path, "model", !o.init.empty(), [&] { init.emplace(o.init.empty() ? began : o.init); });
  return resumed_run(o, std::move(s), [&](const auto& files, RunConfig& run) {
    return init ? read_data(init->of_data(), files, run.data, o.unknown != "error")
                : read_new_data(files, run, tokenizer);
  });
}
RunSetup new_setup(TrainCommandOptions& o, std::optional<InitialModel>& init) {
  refuse(o.data.empty(), "train needs --data FILE..., or --resume DIR");
  if (o.out.empty()) o.out = "out";
  if (o.init.empty()) {
    refuse(!o.unknown.empty(), "--unknown is for the tokenizer of --model DIR; omit it");
    RunConfig base = o.preset.empty() ? RunConfig() : run_preset(o.preset);
    if (!o.arch.empty()) base.model = model_preset(o.arch);
    return new_run(o, run_of(o, base), [](const auto& files, RunConfig& run) { return read_new_data(files, run); });
  }
  refuse(!o.preset.empty() || !o.arch.empty(), "--model takes the model from its folder; omit --preset and --arch");
  check_separate("train", o.init, o.out);
  TG_CHECK(!detail::is_gguf(o.init), value,
           "[train] {0} is a GGUF file, and training changes all weights, which blocks cannot hold. Make a folder: "
           "`tapegrad export --model {0} --dtype f32 --out DIR`, or train an adapter by `tapegrad finetune`.",
           o.init);
  init.emplace(o.init);
  RunConfig run = run_of(o, run_from(init->of_data(), init->config), [&](const Difference& d) {
    TG_CHECK(detail::is_train_setting(d.name) || d.name.ends_with("dropout"), value,
             "[train] {} is {} in {}, and {} is given. A model that was trained before keeps its shape and its "
             "tokenizer. Leave it out.",
             d.name, d.before, o.init, d.after);
  });
  refuse_examples(run);
  RunSetup s = new_run(o, std::move(run), [&](const auto& files, RunConfig& with) {
    return read_data(init->of_data(), files, with.data, o.unknown == "skip");
  });
  s.checkpoint.init = detail::absolute_path(o.init);
  TG_CHECK(detail::own_json(detail::text_of(Json(s.checkpoint.init))) == Json(s.checkpoint.init), value,
           "[train] the path of --model, {}, is not UTF-8, and a checkpoint cannot store it. Rename the folder, or "
           "name it by a link (ln -s) whose path is UTF-8.",
           s.checkpoint.init);
  return s;
}

int run(TrainCommandOptions& o) {
  const Device device = prepare(o);
  std::optional<InitialModel> init;
  RunSetup s = o.resume.empty() ? new_setup(o, init) : resumed_setup(o, init);
  const std::optional<HuggingFaceSource> origin = init ? init->file.origin : std::nullopt;
  return run_training(o, s, device, [&]() -> TrainedModel {
    const bool begins = init && s.checkpoint.state.tensors.empty();
    const Params params = begins ? load_model(init->folder, device).params : Params(device, s.run.train.seed);
    if (begins) check_init(o, s.checkpoint, params);
    const Gpt model(params.shared(), s.run.model);
    return {.model = model,
            .params = params,
            .title = detail::counted(params.numel(), "parameter"),
            .save =
                [=, &s] {
                  origin ? save_huggingface(s.out, s.run.model, params, {.origin = &*origin})
                         : save_model(s.out, model, params, s.data.tokenizer.get(), to_json(s.run.train));
                },
            .files = detail::huggingface_files(s.out),
            .hint = fmt::format("tapegrad generate --model {} {}", s.out,
                                s.data.tokenizer ? "--prompt \"...\"" : "--prompt-ids \"0\""),
            .note = origin ? about_dropout(s.run.model, "flags such as --attn-dropout set others") : ""};
  });
}
void declare(Command& c, TrainCommandOptions& o) {
  o.command = "train";
  c.option("--preset", "NAME", "a named run: " + detail::run_preset_names(), o.preset);
  c.option("--arch", "NAME", "a named model: " + detail::model_preset_names(), o.arch);
  c.option("--model", "DIR",
           "begin with the model in DIR, and keep its tokenizer and folder format: what `train --out DIR` "
           "wrote, or a folder of Hugging Face",
           o.init);
  add_unknown_option(c, "error, and with --resume skip", o.unknown);
  add_train_options(c, o, "out", [](std::string_view name) { return !detail::is_example_setting(name); });
}

}  // namespace

int resume_training(const TrainOptions& resumed, const std::string& model) {
  TrainCommandOptions o;
  static_cast<TrainOptions&>(o) = resumed;
  o.init = model;
  return run(o);
}
Subcommand train_command() { return subcommand<TrainCommandOptions>("train", "train a GPT on text", run, declare); }

}  // namespace tg::apps
