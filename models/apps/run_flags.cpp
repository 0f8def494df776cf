#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/models/apps/process.h>
#include <tapegrad/models/apps/run.h>
#include <tapegrad/models/apps/task.h>
#include <tapegrad/models/tools/roofline.h>

#include <algorithm>

namespace tg::apps {

DataConfig data_config(const SettingFlags& flags) {
  Settings all;
  for (const auto& [name, word] : flags) all.set(name, word);
  return all.unchecked().data;
}
void add_settings(Command& c, SettingFlags& to, WantedSetting wanted) {
  for (const RunField& f : detail::run_fields()) {
    if (!wanted(f.name)) continue;
    std::string flag = "--" + f.name;
    std::ranges::replace(flag, '_', '-');
    c.option(flag, f.kind, f.value, f.help, [&to, name = f.name](const std::string& word) {
      try {
        Settings().set(name, word);
        to[name] = word;
      } catch (const Error& e) {
        throw UsageError(e.what());
      }
    });
  }
}

void add_settings(Command& c, TrainOptions& o, WantedSetting wanted) {
  c.option("--config", "FILE", "settings as JSON, under the names of the flags below (_ for -)", o.config_file);
  add_settings(c, o.settings, wanted);
}

LoraConfig LoraFlags::config() const {
  LoraConfig c;
  c.rank = rank.value_or(c.rank);
  c.alpha = alpha.value_or(2 * double(c.rank));
  c.dropout = dropout.value_or(c.dropout);
  c.rslora = rslora;
  if (!targets.empty()) c.targets = targets;
  return c;
}
void add_lora_options(Command& c, LoraFlags& o) {
  const LoraConfig lora;
  c.option("--rank", "of the adapters", o.rank, lora.rank);
  c.option("--alpha", "the adapters are scaled by alpha / rank; default: twice the rank", o.alpha, std::nullopt);
  c.toggle("--rslora", "scale the adapters by alpha / sqrt(rank)", o.rslora);
  c.option("--lora-dropout", "part of the adapters' inner activations dropped in training", o.dropout, lora.dropout);
  c.option(
      "--base-dtype",
      "of the frozen weights: f32; bf16 for half the memory, and --dtype is bf16 too; or nf4, 4.5 bits for those of "
      "the blocks' Linear layers, and bf16 for others; a GGUF file keeps its blocks; default: f32",
      o.base_dtype, {"f32", "bf16", "nf4"});
  c.list("--targets", "PATTERN",
         "modules that get an adapter, * for any characters: '*.attn.qkv' '*.attn.proj' '*.mlp.fc' '*.mlp.proj' "
         "lm_head, with rope '*.attn.q' '*.attn.k' '*.attn.v', with swiglu '*.mlp.gate' '*.mlp.up'; default: " +
             lora.targets.front(),
         o.targets);
}

void add_train_options(Command& c, TrainOptions& o, const char* out, WantedSetting wanted) {
  c.option("--out", "DIR", out,
           fmt::format("folder for the checkpoint, the {} and the log", o.command == "train" ? "model" : "adapter"),
           [&o](const std::string& word) { o.out = word; });
  c.option("--resume", "DIR",
           "resume the run in DIR with its data and settings; max-steps, lr, min-lr, muon-lr, warmup, moments, "
           "split-weights, eval-every, checkpoint-every, compile and shard-optimizer may change",
           o.resume);
  c.list("--data", "FILE", kDataFiles, o.data);
  c.option("--threads", "threads of the CPU, 0: all", o.threads);
  c.option("--global-batch", "windows in a step, of all ranks: a multiple of --batch, in place of --accumulate",
           o.global_batch, std::nullopt);
  c.option("--comm-timeout",
           "seconds that a rank waits for the others before it ends the run; TG_COMM_TIMEOUT changes the default",
           o.comm_timeout, 600);
  c.option("--sample-every", "steps between samples of text, 0: none", o.sample_every, 0);
  c.option("--task", "FILE",
           fmt::format("score the model on {}; acc and acc_norm, as eval --task defines them, go to the log and to "
                       "TensorBoard; a resumed run keeps it; none: stop",
                       kTaskFile),
           o.task);
  c.option("--task-every", "steps between scores of --task, and after the last step; 0: only there", o.task_every, 250);
  c.option("--progress", "bar, lines every few seconds, none, or auto, the default: a bar of one process on a terminal",
           o.progress, {std::begin(kProgress), std::end(kProgress)});
  c.option("--tensorboard", "DIR",
           "write TensorBoard's event files into DIR, a folder for this run alone; a resumed run continues there, or "
           "in another DIR if it is given; none: stop",
           o.tensorboard);
  c.option("--profile", "FILE", "record some steps: a trace for ui.perfetto.dev, tables in FILE.txt, and a summary",
           o.profile);
  c.option("--machine", "FILE",
           "with --profile: what this machine sustains (`bench_ops --machine FILE`, h100 or h200), for each op's share",
           o.machine);
  c.toggle("--quiet", "print nothing but errors and notes", o.quiet);
  c.toggle("--overwrite", "begin a new run that replaces the run or the model in the folder of --out", o.overwrite);
  c.toggle("--no-save", "write only the log, no checkpoint: the run cannot be resumed", o.no_save);
  c.toggle("--ignore-memory", "begin a run even if a step needs more memory than the device has", o.ignore_memory);
  c.option("--device", "NAME", "cpu or cuda", o.device);
  add_settings(c, o, wanted);
}

Device prepare(const TrainOptions& o) {
  refuse(!o.resume.empty() && o.overwrite, "--resume DIR continues in DIR; omit --overwrite");
  refuse(o.no_save && !o.resume.empty(), "--resume DIR continues from the checkpoint in DIR; omit --no-save");
  refuse(o.no_save && o.settings.contains("checkpoint_every"),
         "--no-save writes no checkpoint; omit --checkpoint-every");
  refuse(o.quiet && o.sample_every.value_or(0) > 0, "--quiet prints no samples; omit it or --sample-every");
  if (o.comm_timeout) Communicator::set_timeout(*o.comm_timeout);
  (void)Communicator::timeout();
  const Device named = Device::parse(o.device);
  detail::runtime_of(named);
  const Device device = device_of_rank(o.command, named);
  set_threads(o.threads);
  // Reads environment variables before any write.
  (void)detail::runtime_of(Device::cpu()).describe(0);
  refuse(!o.machine.empty() && o.profile.empty(), "--machine is for the tables of --profile FILE");
  if (!o.machine.empty()) (void)device_roofline(o.machine);
  for (const auto& [flag, n] : {std::pair("sample", o.sample_every), {"task", o.task_every}})
    TG_CHECK(n.value_or(0) >= 0, value, "[{}] --{}-every is {}. It must be 0 or more.", o.command, flag, *n);
  return device;
}

RunConfig run_of(const TrainOptions& o, const RunConfig& base,
                 const std::function<void(const Difference&)>& may_differ) {
  Settings settings(base, !o.resume.empty());
  if (!o.config_file.empty()) settings.read(MappedFile(o.config_file).text(), o.config_file);
  for (const auto& [name, word] : o.settings)
    settings.set(name,
                 name == "chat_format" && word.find_first_of("./") != word.npos ? detail::absolute_path(word) : word);
  if (o.global_batch) {
    refuse(o.settings.contains("accumulate"),
           "--global-batch says how many batches are accumulated; leave out --accumulate");
    const int64_t batch = settings.unchecked().train.batch;
    TG_CHECK(*o.global_batch > 0 && batch > 0 && *o.global_batch % batch == 0, value,
             "[{}] --global-batch is {}, and batch is {}. It must be a multiple of batch, and above 0. Change one.",
             o.command, *o.global_batch, batch);
    settings.set("accumulate", std::to_string(*o.global_batch / batch));
  }
  if (may_differ)
    for (const Difference& d : detail::differences(base, settings.unchecked())) may_differ(d);
  return settings.run();
}

}  // namespace tg::apps
