#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/apps/output.h>
#include <tapegrad/models/apps/process.h>
#include <tapegrad/models/apps/progress.h>
#include <tapegrad/models/apps/run_folder.h>
#include <tapegrad/models/model/dpo.h>
#include <tapegrad/models/model/generate.h>
#include <tapegrad/models/tokenizers/bpe.h>
#include <tapegrad/models/tools/memory_plan.h>
#include <tapegrad/models/train/events.h>
#include <tapegrad/models/train/trainer.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace tg::apps {
namespace {

constexpr int64_t kSampleTokens = 200;

std::string sample_text(const Gpt& model, const Tokenizer& tokenizer, uint64_t seed) {
  const WorkScope apart;                   // a profile of steps is without it
  const std::vector<int64_t> start = {0};  // any token works
  return tokenizer.decode(
      generate(model, start, kSampleTokens, {.temperature = 0.8, .vocabulary = tokenizer.vocab_size(), .seed = seed}));
}

DataIdentity identity_of_data(const RunData& d, std::vector<std::string> files) {
  for (std::string& file : files) file = absolute_pattern(file);
  return d.examples ? DataIdentity::of(*d.examples, std::move(files)) : DataIdentity::of(d.tokens, std::move(files));
}

// Only settings that do not affect past steps may change. A diverged run may resume with another learning rate.
RunConfig resumed_settings(const TrainOptions& o, const Checkpoint& c, const RunConfig& before,
                           const std::string& path) {
  constexpr std::string_view kFree[] = {"max_steps", "eval_every", "checkpoint_every", "compile", "shard_optimizer"},
                             kNoted[] = {"lr", "min_lr", "muon_lr", "warmup", "moments", "split_weights"};
  // A tokenizer may have moved.
  const auto is_same = [&](const Difference& d) {
    return d.name == "tokenizer" && !c.tokenizer.empty() && d.after.find_first_of("/.") != d.after.npos &&
           identity_of(read_tokenizer(own_json(d.after).get<std::string>())) ==
               identity_of(*Tokenizer::from_json(c.tokenizer));
  };
  RunConfig run = run_of(o, before, [&](const Difference& d) {
    TG_CHECK(is_same(d) || std::ranges::count(kFree, d.name) || std::ranges::count(kNoted, d.name), value,
             "[{}] {} is {} in {}, and {} is given. A resumed run keeps its settings; only max_steps, lr, min_lr, "
             "muon_lr, warmup, moments, split_weights, eval_every, checkpoint_every, compile and shard_optimizer may "
             "change. Leave it out.",
             o.command, d.name, d.before, path, d.after);
  });
  for (const Difference& d : differences(before, run))
    if (std::ranges::count(kNoted, d.name))
      print_note("{} was {} and is {} from step {} on", d.name, d.before, d.after, c.state.step + 1);
  TG_CHECK(run.train.max_steps >= c.state.step, value,
           "[{}] {} is of step {}, and max_steps is {}. It must be at least the step. Raise it or leave it out.",
           o.command, path, c.state.step, run.train.max_steps);
  if (run.train.max_steps != before.train.max_steps)
    print_note("max_steps was {} and is {}: from here on the learning rate follows the schedule of {}",
               before.train.max_steps, run.train.max_steps, counted(run.train.max_steps, "step"));
  return run;
}

void print_header(const TrainOptions& o, const RunSetup& s, const TrainTarget& what, int64_t planned) {
  const GptConfig& m = s.run.model;
  const TrainConfig& t = s.run.train;
  fmt::print("model   GPT: {}, {}, width {}, context {}, vocabulary {} ({}); {}\n", counted(m.layers, "layer"),
             counted(m.heads, "head"), m.width, m.context, m.vocab_size, s.data.tokenizer ? s.run.tokenizer : "ids",
             what.title);
  const std::string files = printable(name_of_files(s.identity.files));
  if (s.data.examples) {
    const Examples::Split parts = s.data.examples->split(1 - t.val_fraction);
    fmt::print("data    {}: {} to train on, {} to validate on, in the format {}\n", files,
               counted(parts.train.size(), "example"), parts.val.size(), s.data.chat->name());
  } else {
    const TokenData::Split parts = s.data.tokens.split(1 - t.val_fraction);
    fmt::print("data    {}: {} to train on, {} to validate on\n", files, counted(parts.train.size(), "token"),
               parts.val.size());
  }
  const Device device = what.params.device();
  fmt::print("device  {} ({})\n", o.device, runtime_of(device).describe(device.index));
  if (const Communicator& ranks = *Communicator::world(); ranks.size() > 1)
    fmt::print("ranks   {} ({}), {} on this machine, of {} each\n", ranks.size(), Communicator::engine(),
               ranks.local_size(), counted(num_threads(), "thread"));
  fmt::print("run     {} of {}{} x {}{}{}, seed {}, into {}/\n", counted(t.max_steps, "step"),
             t.accumulate > 1 ? fmt::format("{} x ", t.accumulate) : "", t.batch, s.data.examples ? "up to " : "",
             counted(t.window_in(m.context), "token"),
             t.optimizer == OptimizerKind::adamw ? "" : fmt::format(" by {}", name_of(t.optimizer)), t.seed, s.out);
  if (planned > 0) fmt::print("memory  {} at the peak of a step\n", readable_bytes(planned));
  if (s.state) fmt::print("resume  after step {}\n", s.state->step);
  if (s.state && s.state->step >= t.max_steps)
    fmt::print("note    the run is finished: a larger --max-steps continues it\n");
  if (t.warmup >= t.max_steps)
    fmt::print("note    the run ends within its {} of warm-up: the rate never reaches lr; see --warmup\n",
               counted(t.warmup, "step"));
  if (!what.note.empty()) fmt::print("note    {}\n", what.note);
  fmt::print("\n");
  std::fflush(stdout);
}

std::string recovery_hint(const TrainOptions& o, const RunSetup& s, const Error& e, int64_t steps, int64_t saved) {
  const TrainConfig& t = s.run.train;
  const bool diverged = e.kind() == Error::Kind::non_finite;
  if (diverged && steps == 0)
    return fmt::format("{} has no finished step: begin a new run in {} with other settings.", checkpoint_path(s.out),
                       s.out);
  std::string rate;
  if (diverged) {
    const double lower = t.lr / 10;
    rate = fmt::format(" --lr {:.3g}", lower);
    if (t.schedule == ScheduleKind::cosine && t.min_lr > lower) rate += fmt::format(" --min-lr {:.3g}", lower);
    if (t.optimizer == OptimizerKind::muon) rate += fmt::format(" --muon-lr {:.3g}", t.muon_lr / 10);
  }
  if (diverged && steps == saved)
    return fmt::format(
        "{} holds the weights that cause this, after step {}: a lower rate does not help from there. Begin a new run "
        "with{} --overwrite.",
        checkpoint_path(s.out), saved, rate);
  return fmt::format("{} holds the state after step {}; `tapegrad {} --resume {}{}` resumes from there{}.",
                     checkpoint_path(s.out), saved, o.command, s.out, rate, diverged ? " with a lower rate" : "");
}

// All remaining steps, or until a signal. Returns the exit status.
int run_steps(const TrainOptions& o, const RunSetup& s, const TrainTarget& what, Trainer& trainer, Files& files) {
  const TrainConfig& t = s.run.train;
  Progress progress(t.max_steps, trainer.steps(), s.watch.progress, s.watch.quiet || !is_main_rank());
  const Interrupt interrupt;
  const bool was_done = trainer.done();
  std::optional<StepProfile> profile;
  if (!o.profile.empty() && is_main_rank()) profile.emplace(o.profile, t.max_steps - trainer.steps(), o.machine);
  const auto report = [&](const std::string& text) {
    if (!text.empty()) progress.print(text);
  };
  if (s.changed) files.save_checkpoint_only();  // later resumes keep the changed settings
  bool learns = true;
  while (!trainer.done() && !agreed_signal()) {
    if (profile) profile->before_step();
    const std::optional<StepRecord> r = trainer.step([] { return agreed_signal() != 0; });
    if (!r) break;  // in the validation
    files.write(*r);
    progress.show(*r);
    if (std::exchange(learns, r->grad_norm > 0) && !learns)
      print_note("the gradient's norm of step {} is 0: nothing is learned. Check init_std and norm_eps", r->step);
    if (profile) report(profile->after_step());
    if (t.saves_after(r->step)) files.save();
    if (s.watch.sample_every > 0 && is_main_rank() && r->step % s.watch.sample_every == 0) {
      const Params whole(what.params.device());
      if (t.split_weights) whole.load(what.params.state());
      const Gpt& model = t.split_weights ? Gpt(whole, s.run.model) : what.model;
      const std::string text = sample_text(model, *s.data.tokenizer, t.seed);
      progress.print(fmt::format("--- step {}\n{}\n---", r->step, shown_text(text)));
      files.write_sample(r->step, text);
    }
  }
  if (profile) report(profile->end());
  const bool rewrites = was_done && is_main_rank() && !files.is_whole();
  if (rewrites) what.save();
  if (files.saved_step() != trainer.steps()) files.save();
  files.flush();
  if (const int signal = agreed_signal(); signal && !trainer.done()) {
    progress.print("");
    print_note("stopped after step {} of {}; {}", trainer.steps(), t.max_steps,
               o.no_save ? "nothing was saved" : fmt::format("`tapegrad {} --resume {}` resumes it", o.command, s.out));
    return 128 + signal;
  }
  if (o.no_save) {
    progress.print(fmt::format("\nwrote {}/log.jsonl", s.out));
    return 0;
  }
  if (was_done && !rewrites) {
    progress.print(fmt::format("\n{}/ is a run that is finished; nothing was written\ntry: {}", s.out, what.hint));
    return 0;
  }
  std::string names;
  for (const std::string& name : what.files)
    if (path_exists(s.out + "/" + name)) names += name + ", ";
  progress.print(fmt::format("\nwrote {}/{}log.jsonl and checkpoint.safetensors\ntry: {}", s.out, names, what.hint));
  return 0;
}

BatchSource batches_of(const Examples& all, const RunSetup& s) {
  const TrainConfig& t = s.run.train;
  auto [train, val] = all.split(1 - t.val_fraction);
  if (s.run.data.pack == Packing::concat) train = train.packed();
  const ExampleBatches batches(std::move(train), {.batch = t.batch, .accumulate = t.accumulate});
  if (!s.watch.quiet && is_main_rank())
    print_note("an epoch has {}, with up to {} in a row; {:.1f} % of the inputs is padding",
               counted(batches.per_epoch(), "batch"), counted(batches.lengths().back(), "token"),
               100 * batches.padding());
  return example_batches(batches, std::move(val));
}

int train(const TrainOptions& o, RunSetup& s, const TrainTarget& what, int64_t planned) {
  check_same(o.command, {{"settings", to_json(s.run)},
                         {"data", fmt::format("{} tokens (hash {:016x})", s.identity.tokens, s.identity.hash)},
                         {"steps done", fmt::format("{}", s.state ? s.state->step : 0)},
                         {"kernels", kernels_of(what.params.device(), s.run.train)}});
  const bool dpo = s.run.data.objective == Objective::dpo;
  const Model model = dpo ? Model(DpoModel(what.model, s.run.data.beta)) : Model(what.model);
  Trainer trainer =
      s.data.examples ? Trainer(model, what.params, batches_of(*s.data.examples, s), s.run.train, Communicator::world())
                      : Trainer(model, what.params, s.data.tokens, s.run.train, Communicator::world());
  if (s.state) {
    trainer.load_state(*s.state);
    s.state->tensors.clear();  // the trainer has them
  } else if (is_main_rank()) {
    make_folder(s.out);
    s.lock = lock_folder(o, s.out);
    check_overwritten(o, s.out, what.files);
  }
  Files files(o, s, what, trainer);
  if (s.lock) s.lock->keep();  // a refused run removes its lock file
  if (!s.watch.quiet && is_main_rank()) print_header(o, s, what, planned);
  if (files.log() && files.log()->missing() > 0)
    print_note("{} lacks {} of the steps before {} ({} could not be read and dropped); the run continues",
               log_path(s.out), files.log()->missing(), trainer.steps() + 1,
               counted(files.log()->unreadable(), "line"));
  try {
    return run_steps(o, s, what, trainer, files);
  } catch (const Error& e) {
    const std::string path = checkpoint_path(s.out);
    std::error_code none;
    if (!std::filesystem::is_regular_file(path, none)) throw;
    throw Error(e.kind(), fmt::format("{}\n{}", e.what(), recovery_hint(o, s, e, trainer.steps(), files.saved_step())),
                e.scoped());
  }
}

// Flags override the saved Watch of a resumed run.
Watch watch_of(const TrainOptions& o, Watch w) {
  w.quiet = w.quiet && o.progress.empty();
  if (o.sample_every) w.sample_every = *o.sample_every;
  if (o.sample_every && *o.sample_every > 0) w.quiet = false;
  if (!o.progress.empty()) w.progress = o.progress;
  if (!o.tensorboard.empty()) w.tensorboard = o.tensorboard == "none" ? "" : absolute_path(o.tensorboard);
  if (o.quiet) w.quiet = true, w.sample_every = 0;
  return w;
}
void check_events(const TrainOptions& o, const RunSetup& s) {
  const std::string& dir = s.watch.tensorboard;
  TG_CHECK(!path_exists(dir) || is_folder(dir), value,
           "[{}] --tensorboard {} is a file. It must be a folder, or a new path. Choose another.", o.command, dir);
  const bool own = s.state && saved_watch(s.out).tensorboard == dir;
  TG_CHECK(own || (!s.state && o.overwrite) || !EventFile::any_in(dir), value,
           "[{}] --tensorboard {} has the event files of another run, and TensorBoard would show this one in its "
           "place. Choose another DIR{}.",
           o.command, dir, s.state ? "" : ", or pass --overwrite");
  TG_CHECK(own_json(text_of(Json(dir))) == Json(dir), value,
           "[{}] the path of --tensorboard, {}, is not UTF-8, and a resumed run could not find it. Rename the "
           "folder.",
           o.command, dir);
}
}  // namespace

void add_settings(Command& c, TrainOptions& o, const std::function<bool(const std::string&)>& wanted) {
  c.option("--config", "FILE", "settings as JSON, under the names of the flags below (_ for -)", o.config_file);
  add_settings(c, o.settings, wanted);
}
RunSetup new_run(const TrainOptions& o, RunConfig run, const ReadData& read) {
  RunData data = read(o.data, run);
  check_used(o.command, o.settings, o.data);
  DataIdentity identity = identity_of_data(data, o.data);
  RunSetup s{o.out, std::move(run), std::move(data), std::move(identity)};
  s.watch = watch_of(o, {});
  return s;
}

OpenedCheckpoint open_checkpoint(const TrainOptions& o) {
  if (!o.out.empty()) throw UsageError("--resume DIR continues in DIR; omit --out");
  const std::string path = checkpoint_path(o.resume);
  std::optional<FileLock> lock;
  if (path_exists(path) && is_main_rank()) lock = lock_folder(o, o.resume);  // before another process changes it
  Checkpoint c = load_checkpoint(path);
  TG_CHECK(command_of(c) == o.command, value,
           "[{}] {} belongs to a run of `tapegrad {}`, not of `tapegrad {}`. Resume it with `tapegrad {} --resume {}`.",
           o.command, path, command_of(c), o.command, command_of(c), o.resume);
  return {path, std::move(c), std::move(lock)};
}

RunSetup resumed_run(const TrainOptions& o, OpenedCheckpoint saved, const ReadData& read) {
  const auto& [path, c, lock] = saved;
  const RunConfig before = run_in(c, path);
  RunConfig run = resumed_settings(o, c, before, path);
  if (const std::string here = kernels_of(Device::parse(o.device), run.train); !c.kernels.empty() && c.kernels != here)
    print_note(
        "{} was computed by other kernels ({}) than those here ({}): the results are as good, but not "
        "equal bit for bit",
        path, c.kernels, here);
  const std::vector<std::string>& files = o.data.empty() ? c.data.files : o.data;
  TG_CHECK(!files.empty(), value, "[{}] {} does not say where its data was. Pass its path with --data.", o.command,
           path);
  RunConfig as_read = run;
  if (!c.tokenizer.empty()) as_read.model.vocab_size = 0;  // another text is found below, by its tokens
  RunData data = explain_missing(path, "data", !o.data.empty(), [&] { return read(files, as_read); });
  DataIdentity identity = identity_of_data(data, files);
  TG_CHECK(identity.same_tokens(c.data) && (data.tokenizer ? data.tokenizer->to_json() : "") == c.tokenizer, value,
           "[{}] {} is no longer what {} was trained on: it gives {} tokens (hash {:016x}), and there were {} (hash "
           "{:016x}). A run can only resume with the same data. Restore it, or pass its path with --data.",
           o.command, name_of_files(identity.files), path, identity.tokens, identity.hash, c.data.tokens, c.data.hash);
  const bool changed = !differences(before, run).empty();
  Watch watch = saved_watch(o.resume, /*note=*/true);
  if (o.tensorboard.empty() && !watch.tensorboard.empty() && !is_near(watch.tensorboard, o.resume))
    print_note("no more event files: {} is neither in {} nor next to it. --tensorboard DIR names a folder",
               std::exchange(watch.tensorboard, ""), o.resume);
  return {o.resume,
          std::move(run),
          std::move(data),
          std::move(identity),
          std::move(saved.checkpoint.finetuning),
          std::move(saved.checkpoint.init),
          std::move(saved.checkpoint.state),
          std::move(saved.lock),
          changed,
          watch_of(o, std::move(watch))};
}

int run_training(const TrainOptions& o, RunSetup& s, Device device, const std::function<TrainTarget()>& make) {
  TG_CHECK(s.watch.sample_every == 0 || s.data.tokenizer, value,
           "[{}] --sample-every needs a tokenizer, and {} holds token ids only. Leave it out.", o.command,
           name_of_files(s.identity.files));
  if (!o.profile.empty()) StepProfile::check(o.command, o.profile);
  if (is_main_rank() && !s.watch.tensorboard.empty()) check_events(o, s);
  if (s.run.train.compile) detail::check_planner();
  return in_memory(o, s, device, [&](int64_t planned) { return train(o, s, make(), planned); });
}

}  // namespace tg::apps
