// `tapegrad finetune`: trains a LoRA adapter over a model. `tapegrad merge`: merges it into the model.
#include <tapegrad/core/check.h>
#include <tapegrad/models/apps/output.h>
#include <tapegrad/models/apps/process.h>
#include <tapegrad/models/apps/run.h>
#include <tapegrad/models/io/model_dir.h>
#include <tapegrad/models/io/peft.h>
#include <tapegrad/models/tokenizers/bpe.h>

#include <algorithm>
#include <filesystem>

namespace tg::apps {
namespace {
namespace fs = std::filesystem;

struct FinetuneOptions : TrainOptions {
  std::string model, adapter, unknown;
  LoraFlags lora;
};

struct Base {
  std::string folder;
  LoadedModel loaded;
  std::string weights = weights_hash(loaded.params);
  std::optional<Lora> lora = {};  // default: that of --adapter

  Base(const std::string& f, Device device, DType dtype, Blocks blocks)
      : folder(f), loaded(load_model(f, device, dtype, blocks)) {}

  ModelOfData of_data(const std::string& adapter = "") const {
    check_language_model(folder, loaded.model.config());
    return {"finetune", folder, loaded.model.config().vocab_size, loaded.tokenizer.get(), loaded.tokenizer_error,
            adapter};
  }
};

// Flags must agree with the adapter at `path`, which is trained further.
void check_lora(const LoraFlags& o, const LoraConfig& c, DType base, bool nf4, const std::string& path) {
  const auto same = [&](const char* flag, const auto& given, const auto& began) {
    TG_CHECK(given == began, value,
             "[finetune] {} is {} in {}, and {} is given. Training keeps the shape of an adapter. Leave it out.", flag,
             began, path, given);
  };
  if (o.rank) same("rank", *o.rank, c.rank);
  if (o.alpha) same("alpha", *o.alpha, c.alpha);
  if (o.dropout) same("lora-dropout", *o.dropout, c.dropout);
  if (o.rslora) same("rslora", o.rslora, c.rslora);
  if (!o.base_dtype.empty()) same("base-dtype", o.base_dtype, nf4 ? "nf4" : name_of(base));
  TG_CHECK(o.targets.empty() || o.targets == c.targets, value,
           "[finetune] the targets in {} differ from those given. Training keeps the shape of an adapter. Leave "
           "--targets out.",
           path);
}

RunSetup new_setup(FinetuneOptions& o, Device device, std::optional<Base>& base) {
  refuse(o.model.empty() || o.data.empty(), "finetune needs --model DIR and --data FILE..., or --resume DIR");
  if (o.out.empty()) o.out = "adapter";
  check_separate("finetune", o.model, o.out);
  DType dtype = o.lora.base();
  Blocks blocks = o.lora.blocks();
  if (!o.adapter.empty() && o.lora.base_dtype.empty()) {
    const AdapterBase before = detail::adapter_base(o.adapter);
    dtype = before.dtype, blocks = before.nf4 ? Blocks::nf4 : Blocks::file;
  }
  base.emplace(o.model, device, dtype, blocks);
  RunConfig of_model = run_from(base->of_data(), base->loaded.model.config());
  of_model.train.dtype = dtype;
  RunConfig run = run_of(o, of_model, [&](const Difference& d) {
    TG_CHECK(detail::is_train_setting(d.name), value,
             "[finetune] {} is {} in {}, and {} is given. Finetuning keeps the model as it is. Leave it out.", d.name,
             d.before, o.model, d.after);
  });
  TG_CHECK(dtype == DType::f32 || run.train.dtype == dtype, value,
           "[finetune] dtype is {}, and base-dtype is {}. Weights in bf16 need matmuls in bf16. Omit --dtype or "
           "--base-dtype.",
           name_of(*run.train.dtype), o.lora.base_dtype == "nf4" ? "nf4" : "bf16");
  LoraConfig lora;
  if (!o.adapter.empty()) {
    base->lora = adapted(o.adapter, base->loaded, o.model);
    lora = base->lora->config();
    check_lora(o.lora, lora, base->lora->base_dtype(), blocks == Blocks::nf4, o.adapter);
  } else {
    lora = o.lora.config();
    lora.seed = run.train.seed;
    detail::lora_targets(base->loaded.model, lora);  // throws before reading data
  }
  RunSetup s = new_run(o, std::move(run), [&](const auto& files, RunConfig& with) {
    RunData d = read_examples_or_data(base->of_data(o.adapter), files, with.data,
                                      with.train.window_in(with.model.context), o.unknown == "skip");
    if (d.examples) {
      TG_CHECK(
          o.unknown != "skip", value,
          "[finetune] --unknown skip is for texts, and {} has examples. Leave it out; --skip-bad leaves out lines.",
          name_of_files(files));
      TG_CHECK(!o.settings.contains("order") || o.settings.at("order") != "random", value,
               "[finetune] --order random is given, and {} has examples, which come once in each epoch. Leave it out.",
               name_of_files(files));
      with.train.order = SampleOrder::epochs;
    }
    return d;
  });
  if (!o.adapter.empty()) s.checkpoint.init = detail::absolute_path(o.adapter);
  s.checkpoint.finetuning = {detail::absolute_path(o.model), base->weights, lora, dtype, blocks == Blocks::nf4};
  return s;
}

RunSetup resumed_setup(const FinetuneOptions& o, Device device, std::optional<Base>& base) {
  RunSetup opened = open_checkpoint(o);
  const std::string path = checkpoint_path(o.resume);
  const Finetuning began = *opened.checkpoint.finetuning;
  TG_CHECK(o.adapter.empty(), value, "[finetune] a resumed run keeps its adapter. Leave --adapter out.");
  check_lora(o.lora, began.lora, began.base, began.nf4, path);
  const std::string& folder = o.model.empty() ? began.model : o.model;
  explain_missing(path, "model", !o.model.empty(),
                  [&] { base.emplace(folder, device, began.base, began.nf4 ? Blocks::nf4 : Blocks::file); });
  TG_CHECK(base->weights == began.weights, value,
           "[finetune] {} is no longer the model that {} was trained over: the hash of its weights is {}, and was {}. "
           "A run can only resume over the same weights. Restore them, or pass their folder with --model.",
           folder, path, base->weights, began.weights);
  if (opened.checkpoint.state.tensors.empty() && !opened.checkpoint.init.empty())
    base->lora = adapted(opened.checkpoint.init, base->loaded, folder);
  // Skips unknown characters by default: the tokens must be those of the first start.
  return resumed_run(o, std::move(opened), [&](const auto& files, RunConfig& run) {
    if (detail::path_exists(o.resume + "/chat_template.jinja")) run.data.chat_format.clear();
    return read_examples_or_data(base->of_data(o.resume), files, run.data, run.train.window_in(run.model.context),
                                 o.unknown != "error");
  });
}

int run(FinetuneOptions& o) {
  const Device device = prepare(o);
  std::optional<Base> found;
  RunSetup s = o.resume.empty() ? new_setup(o, device, found) : resumed_setup(o, device, found);
  Base& base = *found;
  std::vector<std::string> files = detail::adapter_files();
  files.push_back("chat_template.jinja");
  const std::string chat = s.data.chat ? s.data.chat->text() : "";
  return run_training(o, s, device, [&]() -> TrainedModel {
    Lora lora =
        base.lora ? *base.lora : apply_lora(base.loaded.model, base.loaded.params, s.checkpoint.finetuning->lora);
    if (base.lora) check_init(o, s.checkpoint, lora.params());
    const int64_t trained = lora.params().numel();
    const bool referred =
        std::ranges::any_of(s.checkpoint.state.tensors, [](const auto& t) { return t.first.ends_with("_reference"); });
    if (referred || (base.lora && s.run.data.objective == Objective::dpo)) lora.keep_reference();
    const AdapterOptions options{.layout = adapter_layout(base.loaded.model.config()),
                                 .base = base.weights,
                                 .folder = detail::absolute_path(base.folder),
                                 .chat_template = chat,
                                 .nf4 = s.checkpoint.finetuning->nf4};
    return {
        .model = base.loaded.model,
        .params = lora.params(),
        .title = fmt::format("{} parameters frozen, {} trained (LoRA of rank {} on {})", base.loaded.params.numel(),
                             trained, lora.config().rank, detail::counted(int64_t(lora.modules().size()), "module")),
        .save = [=, &s] { save_adapter(s.out, lora, options); },
        .files = files,
        .hint = fmt::format("tapegrad generate --model {} --adapter {} {}", base.folder, s.out,
                            s.data.chat ? "--chat" : "--prompt \"...\""),
        .note = about_dropout(base.loaded.model.config(), "the config.json of the model has them")};
  });
}

struct MergeOptions {
  std::string model, adapter, out, dtype;
  bool overwrite = false;
};
int run(MergeOptions& o) {
  refuse(o.model.empty() || o.adapter.empty() || o.out.empty(), "merge needs --model DIR, --adapter DIR and --out DIR");
  check_alone("merge");
  check_separate("merge", o.model, o.out);
  TG_CHECK(!detail::path_exists(o.out + "/checkpoint.safetensors"), value,
           "[merge] {} is the folder of a training run, whose files would no longer match. Choose another.", o.out);
  std::error_code none;
  const std::string out =
      detail::path_exists(o.out) ? fs::canonical(o.out).string() : new_output("merge", o.out, "folder");
  TG_CHECK(!detail::path_exists(out) || (detail::is_folder(out) && !fs::equivalent(out, ".", none)), value,
           "[merge] --out {} is the current folder or no folder. A merged model takes the place of a whole folder. "
           "Choose another --out.",
           o.out);
  const std::vector<std::string> former = detail::huggingface_files(out);
  check_free("merge", o.out, "model", former, o.overwrite);
  check_free("merge", o.out, "model", {"adapter_config.json"}, o.overwrite);
  check_dtype_given("merge", o.model, o.adapter, !o.dtype.empty());
  LoadedModel m = dequantized_model(o.model, o.adapter);
  refuse(!o.dtype.empty() && !m.origin && o.dtype != "f32",
         "--dtype is for a folder of Hugging Face or a GGUF file; other models are f32. Leave it out");
  HuggingfaceOptions options{.origin = m.origin ? &*m.origin : nullptr};
  if (!o.dtype.empty()) options.dtype = detail::dtype_from_name(o.dtype);
  Lora lora = adapted(o.adapter, m, o.model);
  lora.merge();
  const std::string chat = chat_template_over(m, o.model, o.adapter);
  check_free("merge", o.out, "model", former, o.overwrite);
  write_new_folder(out, former, [&](const std::string& folder) {
    o.dtype.empty() || !m.origin ? save_model(folder, m)
                                 : save_huggingface(folder, m.model.config(), m.params, options);
    if (!chat.empty()) detail::write_file_atomically(folder + "/chat_template.jinja", chat);
    if (m.origin && m.tokenizer) detail::save_ends(folder, ends_of(m, o.model, o.adapter), *m.tokenizer);
  });
  fmt::print("merged {}\nwrote the model in {}\n", detail::counted(int64_t(lora.modules().size()), "module"), o.out);
  if (!m.model.config().classes) fmt::print("try: tapegrad generate --model {} --prompt \"...\"\n", o.out);
  return 0;
}
void declare(Command& c, FinetuneOptions& o) {
  o.command = "finetune";
  c.option("--model", "DIR", fmt::format("the model, which is not changed: {}", kModelPaths), o.model);
  c.option("--adapter", "DIR", "train this adapter further: what `finetune --out DIR` or PEFT wrote", o.adapter);
  add_lora_options(c, o.lora);
  add_unknown_option(c, "error, and with --resume skip", o.unknown);
  add_train_options(c, o, "adapter", detail::is_train_setting);
}
void declare(Command& c, MergeOptions& o) {
  c.option("--model", "DIR", "the model that the adapter was trained over", o.model);
  c.option("--adapter", "DIR", "what `finetune --out DIR` or PEFT wrote", o.adapter);
  c.option("--out", "DIR", "folder for the merged model", o.out);
  c.option("--dtype", "of the weights; default: those of a folder of Hugging Face", o.dtype, {"f32", "bf16", "f16"});
  c.toggle("--overwrite", "replace the model that is in the folder of --out", o.overwrite);
}

}  // namespace

int resume_finetuning(const TrainOptions& resumed, const std::string& model) {
  FinetuneOptions o;
  static_cast<TrainOptions&>(o) = resumed;
  o.model = model;
  return run(o);
}
Subcommand finetune_command() {
  return subcommand<FinetuneOptions>("finetune", "train a LoRA adapter over a trained model", run, declare);
}
Subcommand merge_command() {
  return subcommand<MergeOptions>("merge", "make a plain model of a model and an adapter", run, declare);
}

}  // namespace tg::apps
