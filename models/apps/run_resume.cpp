#include <tapegrad/core/io/json.h>
#include <tapegrad/models/apps/process.h>
#include <tapegrad/models/apps/run.h>
#include <tapegrad/models/io/peft.h>
#include <tapegrad/models/tokenizers/bpe.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace tg::apps {
namespace {

DataIdentity identity_of_data(const RunData& d, std::vector<std::string> files) {
  for (std::string& file : files) file = detail::absolute_pattern(file);
  return d.examples ? DataIdentity::of(*d.examples, std::move(files)) : DataIdentity::of(d.tokens, std::move(files));
}

// Only settings that do not affect past steps may change. A diverged run may resume with another learning rate.
RunConfig resumed_settings(const TrainOptions& o, const Checkpoint& c, const RunConfig& before,
                           const std::string& path) {
  constexpr std::string_view kFree[] = {"max_steps", "eval_every", "checkpoint_every", "compile", "shard_optimizer"},
                             kNoted[] = {"lr", "min_lr", "muon_lr", "warmup", "moments", "split_weights"};
  // The files of tokenizer and validation may move.
  const auto is_same = [&](const Difference& d) {
    if (d.name == "val_data")
      return before.data.val_data.empty() == detail::own_json(d.after).get<std::string>().empty();
    return d.name == "tokenizer" && !c.tokenizer.empty() && d.after.find_first_of("/.") != d.after.npos &&
           detail::tokenizer_hash(read_tokenizer(detail::own_json(d.after).get<std::string>())) ==
               detail::tokenizer_hash(*Tokenizer::from_json(c.tokenizer));
  };
  RunConfig run = run_of(o, before, [&](const Difference& d) {
    TG_CHECK(is_same(d) || std::ranges::count(kFree, d.name) || std::ranges::count(kNoted, d.name), value,
             "[{}] {} is {} in {}, and {} is given. A resumed run keeps its settings; only max_steps, lr, min_lr, "
             "muon_lr, warmup, moments, split_weights, eval_every, checkpoint_every, compile and shard_optimizer may "
             "change. Leave it out.",
             o.command, d.name, d.before, path, d.after);
  });
  for (const Difference& d : detail::differences(before, run))
    if (std::ranges::count(kNoted, d.name))
      print_note("{} was {} and is {} from step {} on", d.name, d.before, d.after, c.state.step + 1);
  TG_CHECK(run.train.max_steps >= c.state.step, value,
           "[{}] {} is of step {}, and max_steps is {}. It must be at least the step. Raise it or leave it out.",
           o.command, path, c.state.step, run.train.max_steps);
  if (run.train.max_steps != before.train.max_steps)
    print_note("max_steps was {} and is {}: from here on the learning rate follows the schedule of {}",
               before.train.max_steps, run.train.max_steps, detail::counted(run.train.max_steps, "step"));
  return run;
}

ProgressOptions progress_of(const TrainOptions& o, ProgressOptions p) {
  p.quiet = p.quiet && o.progress.empty();
  if (o.sample_every) p.sample_every = *o.sample_every;
  if (o.sample_every && *o.sample_every > 0) p.quiet = false;
  if (!o.progress.empty()) p.progress = o.progress;
  if (!o.tensorboard.empty()) p.tensorboard = o.tensorboard == "none" ? "" : detail::absolute_path(o.tensorboard);
  if (!o.task.empty()) p.task = o.task == "none" ? "" : detail::absolute_path(o.task);
  if (o.task_every) p.task_every = *o.task_every;
  if (o.quiet) p.quiet = true, p.sample_every = 0;
  return p;
}
// kernels_of() without what changes no bit: AVX2 and AVX-512 compute the same.
std::string bits_of_kernels(std::string kernels) {
  if (const size_t at = kernels.find("level 4"); at != kernels.npos) kernels.replace(at, 7, "level 3");
  return kernels;
}
void check_bf16_method(const TrainOptions& o, const std::string& path, std::string_view before, std::string_view here) {
  const auto method = [](std::string_view kernels) {
    constexpr std::string_view kBy = "bf16 by ";
    const size_t at = kernels.find(kBy);
    return at == kernels.npos ? std::string_view() : kernels.substr(at + kBy.size());
  };
  const std::string_view was = method(before), is = method(here);
  TG_CHECK(
      was == is || was.empty() || is.empty() || std::getenv("TG_BF16"), value,
      "[{}] {} was computed with bf16 by {}, and this machine multiplies bf16 by {}. Methods differ in last bits. Set "
      "TG_BF16={} to go on as before, or TG_BF16={} to change the method.",
      o.command, path, was, is, was, is);
}
}  // namespace

RunSetup new_run(const TrainOptions& o, RunConfig run, const ReadData& read) {
  if (std::string& val = run.data.val_data; !val.empty()) val = detail::absolute_pattern(val);
  RunSetup s{.out = o.out, .data = read(o.data, run), .progress = progress_of(o, {})};
  check_used(o.command, o.settings, o.data);
  s.run = std::move(run);
  s.checkpoint.config = to_json(s.run);
  if (s.data.tokenizer) s.checkpoint.tokenizer = s.data.tokenizer->to_json();
  s.checkpoint.data = identity_of_data(s.data, o.data);
  s.checkpoint.kernels = kernels_of(Device::parse(o.device), s.run.train);
  s.checkpoint.program = program_version();
  return s;
}

RunSetup open_checkpoint(const TrainOptions& o) {
  refuse(!o.out.empty(), "--resume DIR continues in DIR; omit --out");
  RunSetup s{.out = o.resume, .resumed = true};
  const std::string path = checkpoint_path(s.out);
  if (detail::path_exists(path) && is_main_rank()) s.lock = lock_folder(o, s.out);  // no other process may change it
  s.checkpoint = load_checkpoint(path);
  const char* const command = command_of(s.checkpoint);
  TG_CHECK(command == o.command, value,
           "[{}] {} belongs to a run of `tapegrad {}`, not of `tapegrad {}`. Resume it with `tapegrad {} --resume {}`.",
           o.command, path, command, o.command, command, s.out);
  return s;
}

void check_init(const TrainOptions& o, Checkpoint& c, const Params& weights) {
  const std::string hash = weights_hash(weights);
  TG_CHECK(c.init_weights.empty() || c.init_weights == hash, value,
           "[{}] {} is no longer what the run began with: the hash of its weights is {}, and was {}. A run is repeated "
           "from the same weights. Restore them.",
           o.command, c.init, hash, c.init_weights);
  c.init_weights = hash;
}
RunSetup resumed_run(const TrainOptions& o, RunSetup s, const ReadData& read) {
  const std::string path = checkpoint_path(s.out);
  Checkpoint& c = s.checkpoint;
  const RunConfig before = run_in(c, path);
  s.run = resumed_settings(o, c, before, path);
  if (std::string& val = s.run.data.val_data; !val.empty()) val = detail::absolute_pattern(val);
  s.changed = !detail::differences(before, s.run).empty();
  const std::string kernels = std::exchange(c.kernels, kernels_of(Device::parse(o.device), s.run.train));
  check_bf16_method(o, path, kernels, c.kernels);
  if (!kernels.empty() && bits_of_kernels(c.kernels) != bits_of_kernels(kernels))
    print_note(
        "{} was computed by other kernels ({}) than those here ({}): the results are as good, but not "
        "equal bit for bit",
        path, kernels, c.kernels);
  const std::vector<std::string>& files = o.data.empty() ? c.data.files : o.data;
  TG_CHECK(!files.empty(), value, "[{}] {} does not say where its data was. Pass its path with --data.", o.command,
           path);
  RunConfig as_read = s.run;
  if (!c.tokenizer.empty()) as_read.model.vocab_size = 0;  // tokens identify the text below
  s.data = explain_missing(path, "data", !o.data.empty(), [&] { return read(files, as_read); });
  DataIdentity identity = identity_of_data(s.data, files);
  TG_CHECK(identity.same_tokens(c.data) && (s.data.tokenizer ? s.data.tokenizer->to_json() : "") == c.tokenizer, value,
           "[{}] {} is no longer what {} was trained on: it gives {} tokens (hash {:016x}), and there were {} (hash "
           "{:016x}). A run can only resume with the same data. Restore it, or pass its path with --data.",
           o.command, name_of_files(identity.files), path, identity.tokens, identity.hash, c.data.tokens, c.data.hash);
  c.data = std::move(identity);
  c.config = to_json(s.run);
  c.program = program_version();
  ProgressOptions progress = saved_progress(s.out, /*note=*/true);
  if (o.tensorboard.empty() && !progress.tensorboard.empty() && !is_near(progress.tensorboard, s.out))
    print_note("no more event files: {} is neither in {} nor next to it. --tensorboard DIR names a folder",
               std::exchange(progress.tensorboard, ""), s.out);
  s.progress = progress_of(o, std::move(progress));
  return s;
}

}  // namespace tg::apps
