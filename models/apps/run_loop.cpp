#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/apps/process.h>
#include <tapegrad/models/apps/progress.h>
#include <tapegrad/models/apps/run.h>
#include <tapegrad/models/apps/task.h>
#include <tapegrad/models/model/dpo.h>
#include <tapegrad/models/model/generate.h>
#include <tapegrad/models/tools/memory_plan.h>
#include <tapegrad/models/train/trainer.h>

#include <filesystem>
#include <utility>

namespace tg::apps {
namespace {

void print_header(const TrainOptions& o, const RunSetup& s, const TrainedModel& what, int64_t planned) {
  const GptConfig& m = s.run.model;
  const TrainConfig& t = s.run.train;
  fmt::print("model   GPT: {}, {}, width {}, context {}, vocabulary {} ({}); {}\n", detail::counted(m.layers, "layer"),
             detail::counted(m.heads, "head"), m.width, m.context, m.vocab_size,
             s.data.tokenizer ? s.run.tokenizer : "ids", what.title);
  const std::string files = printable(name_of_files(s.checkpoint.data.files));
  if (s.data.examples) {
    const Examples::Split parts = s.data.examples->split(1 - t.val_fraction);
    fmt::print("data    {}: {} to train on, {} to validate on, in the format {}\n", files,
               detail::counted(parts.train.size(), "example"), parts.val.size(), s.data.chat->name());
  } else {
    const TokenData::Split parts = s.data.tokens.split(1 - t.val_fraction);
    fmt::print("data    {}: {} to train on, {} to validate on\n", files, detail::counted(parts.train.size(), "token"),
               parts.val.size());
  }
  const Device device = what.params.device();
  fmt::print("device  {} ({})\n", o.device, detail::runtime_of(device).describe(device.index));
  if (const Communicator& ranks = *Communicator::world(); ranks.size() > 1)
    fmt::print("ranks   {} ({}), {} on this machine, of {} each\n", ranks.size(), Communicator::engine(),
               ranks.local_size(), detail::counted(num_threads(), "thread"));
  fmt::print("run     {} of {}{} x {}{}{}, seed {}, into {}/\n", detail::counted(t.max_steps, "step"),
             t.accumulate > 1 ? fmt::format("{} x ", t.accumulate) : "", t.batch, s.data.examples ? "up to " : "",
             detail::counted(t.window_in(m.context), "token"),
             t.optimizer == OptimizerKind::adamw ? "" : fmt::format(" by {}", name_of(t.optimizer)), t.seed, s.out);
  if (planned > 0) fmt::print("memory  {} at the peak of a step\n", detail::readable_bytes(planned));
  const int64_t done = s.checkpoint.state.step;
  if (s.resumed) fmt::print("resume  after step {}\n", done);
  if (s.resumed && done >= t.max_steps) fmt::print("note    the run is finished: a larger --max-steps continues it\n");
  if (t.warmup >= t.max_steps)
    fmt::print("note    the run ends within its {} of warm-up: the rate never reaches lr; see --warmup\n",
               detail::counted(t.warmup, "step"));
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
    const std::string lower = fmt::format("{:.3g}", t.lr / 10);
    rate = " --lr " + lower;
    if (t.schedule != ScheduleKind::constant && t.min_lr > std::stod(lower)) rate += " --min-lr " + lower;
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

// Split weights cannot generate.
Gpt whole_model(const RunSetup& s, const TrainedModel& what) {
  if (!s.run.train.split_weights) return what.model;
  const Params whole(what.params.device());
  whole.load(what.params.state());
  return Gpt(whole, s.run.model);
}
void show_sample(const RunSetup& s, const TrainedModel& what, int64_t step, Progress& progress, RunFiles& files) {
  const WorkScope apart;                   // not in the profile
  const std::vector<int64_t> start = {0};  // any token
  const int64_t ids = s.data.tokenizer->vocab_size();
  const std::string text = s.data.tokenizer->decode(generate(
      whole_model(s, what), start, /*count=*/200, {.temperature = 0.8, .vocabulary = ids, .seed = s.run.train.seed}));
  progress.print(fmt::format("--- step {}\n{}\n---", step, shown_text(text)));
  files.write_sample(step, text);
}

int end_run(const TrainOptions& o, const RunSetup& s, const TrainedModel& what, const Trainer& trainer, bool was_done,
            Progress& progress, RunFiles& files) {
  const bool rewrites = was_done && is_main_rank() && !files.is_whole();
  if (rewrites) what.save();
  if (files.saved_step() != trainer.steps()) files.save();
  files.flush();
  if (const int signal = agreed_signal(); signal && !trainer.done()) {
    progress.print("");
    print_note("stopped after step {} of {}; {}", trainer.steps(), s.run.train.max_steps,
               o.no_save || o.go_on ? "nothing was saved"
                                    : fmt::format("`tapegrad {} --resume {}` resumes it", o.command, s.out));
    return 128 + signal;
  }
  std::string names;
  for (const std::string& name : what.files)
    if (detail::path_exists(s.out + "/" + name)) names += name + ", ";
  progress.print(
      o.no_save ? fmt::format("\nwrote {}/log.jsonl", s.out)
      : was_done && !rewrites
          ? fmt::format("\n{}/ is a run that is finished; nothing was written\ntry: {}", s.out, what.hint)
          : fmt::format("\nwrote {}/{}log.jsonl and checkpoint.safetensors\ntry: {}", s.out, names, what.hint));
  return 0;
}

// Sets the record's scores; a signal leaves them out.
void score(const Task& task, const RunSetup& s, const TrainedModel& what, StepRecord& r) {
  const WorkScope apart;
  const MatmulPrecisionScope precision(s.run.train.matmul_precision);
  const auto found = score_task(task, whole_model(s, what), s.run.train.batch, s.run.train.dtype,
                                *Communicator::world(), [](int64_t, int64_t) { return agreed_signal() == 0; });
  if (!found) return print_note("the scores of step {} are left out: a signal came", r.step);
  r.acc = found->acc, r.acc_norm = found->acc_norm;
}

int run_steps(const TrainOptions& o, const RunSetup& s, const TrainedModel& what, Trainer& trainer, RunFiles& files,
              const std::optional<Task>& task) {
  const TrainConfig& t = s.run.train;
  Progress progress(t.max_steps, trainer.steps(), s.progress.progress, s.progress.quiet || !is_main_rank());
  const Interrupt interrupt;
  const bool was_done = trainer.done();
  std::optional<StepProfile> profile;
  if (!o.profile.empty() && is_main_rank()) profile.emplace(o.profile, t.max_steps - trainer.steps(), o.machine);
  if (s.changed) files.save_checkpoint_only();  // later resumes keep these settings
  bool learns = true;
  while (!trainer.done() && !agreed_signal()) {
    if (profile) profile->before_step();
    std::optional<StepRecord> r = trainer.step([] { return agreed_signal() != 0; });
    if (!r) break;  // signal in the validation
    if (task && (trainer.done() || (s.progress.task_every > 0 && r->step % s.progress.task_every == 0)))
      score(*task, s, what, *r);
    files.write(*r);
    progress.show(*r);
    if (std::exchange(learns, r->grad_norm > 0) && !learns)
      print_note("the gradient's norm of step {} is 0: nothing is learned. Check init_std and norm_eps", r->step);
    if (profile) profile->after_step(progress);
    if (t.saves_after(r->step)) files.save();
    if (o.go_on && !o.go_on(*r)) break;
    if (s.progress.sample_every > 0 && is_main_rank() && r->step % s.progress.sample_every == 0)
      show_sample(s, what, r->step, progress, files);
  }
  if (profile) profile->end(progress);
  return end_run(o, s, what, trainer, was_done, progress, files);
}

BatchSource batches_of(const Examples& all, const RunSetup& s) {
  const TrainConfig& t = s.run.train;
  auto [train, val] = all.split(1 - t.val_fraction);
  if (s.run.data.pack == Packing::concat) train = train.packed();
  const ExampleBatches batches(std::move(train), {.batch = t.batch, .accumulate = t.accumulate});
  if (!s.progress.quiet && is_main_rank())
    print_note("an epoch has {}, with up to {} in a row; {:.1f} % of the inputs is padding",
               detail::counted(batches.per_epoch(), "batch"), detail::counted(batches.lengths().back(), "token"),
               100 * batches.padding());
  return example_batches(batches, std::move(val));
}

int train(const TrainOptions& o, RunSetup& s, const TrainedModel& what, int64_t planned) {
  Checkpoint& c = s.checkpoint;
  check_same(o.command, {{"settings", c.config},
                         {"data", fmt::format("{} tokens (hash {:016x})", c.data.tokens, c.data.hash)},
                         {"steps done", fmt::format("{}", c.state.step)},
                         {"kernels", c.kernels}});
  std::optional<Task> task;
  refuse(o.task_every && s.progress.task.empty(), "--task-every is for --task FILE; omit it");
  if (!s.progress.task.empty())
    task = read_task({o.command, s.out, s.run.model.vocab_size, s.data.tokenizer.get()}, s.progress.task,
                     s.run.model.context);
  const bool dpo = s.run.data.objective == Objective::dpo;
  const Model model = dpo ? Model(DpoModel(what.model, s.run.data.beta)) : Model(what.model);
  Trainer trainer =
      s.data.examples ? Trainer(model, what.params, batches_of(*s.data.examples, s), s.run.train, Communicator::world())
                      : Trainer(model, what.params, s.data.tokens, s.run.train, Communicator::world());
  if (!c.state.tensors.empty()) {
    trainer.load_state(c.state);
    c.state.tensors.clear();  // the trainer has them
  } else if (!s.resumed && is_main_rank()) {
    detail::make_folder(s.out);
    s.lock = lock_folder(o, s.out);
    check_overwritten(o, s.out, what.files);
  }
  RunFiles files(o, s, what, trainer);
  if (s.lock) s.lock->keep();  // otherwise the destructor removes the file
  if (!s.progress.quiet && is_main_rank()) print_header(o, s, what, planned);
  if (files.log() && files.log()->missing() > 0)
    print_note("{} lacks {} of the steps before {} ({} could not be read and dropped); the run continues",
               log_path(s.out), files.log()->missing(), trainer.steps() + 1,
               detail::counted(files.log()->unreadable(), "line"));
  return detail::explained([&] { return run_steps(o, s, what, trainer, files, task); },
                           [&](const Error& e) {
                             std::error_code none;
                             const bool saved =
                                 !o.go_on && std::filesystem::is_regular_file(checkpoint_path(s.out), none);
                             return saved ? recovery_hint(o, s, e, trainer.steps(), files.saved_step()) : "";
                           });
}

void check_events(const TrainOptions& o, const RunSetup& s) {
  const std::string& dir = s.progress.tensorboard;
  TG_CHECK(!detail::path_exists(dir) || detail::is_folder(dir), value,
           "[{}] --tensorboard {} is a file. It must be a folder, or a new path. Choose another.", o.command, dir);
  const bool own = s.resumed && saved_progress(s.out).tensorboard == dir;
  TG_CHECK(own || (!s.resumed && o.overwrite) || !EventFile::any_in(dir), value,
           "[{}] --tensorboard {} has the event files of another run, and TensorBoard would show this one in its "
           "place. Choose another DIR{}.",
           o.command, dir, s.resumed ? "" : ", or pass --overwrite");
  TG_CHECK(detail::own_json(detail::text_of(Json(dir))) == Json(dir), value,
           "[{}] the path of --tensorboard, {}, is not UTF-8, and a resumed run could not find it. Rename the folder.",
           o.command, dir);
}
}  // namespace

int run_training(const TrainOptions& o, RunSetup& s, Device device, const std::function<TrainedModel()>& make) {
  TG_CHECK(s.progress.sample_every == 0 || s.data.tokenizer, value,
           "[{}] --sample-every needs a tokenizer, and {} holds token ids only. Leave it out.", o.command,
           name_of_files(s.checkpoint.data.files));
  if (!o.profile.empty()) StepProfile::check(o.command, o.profile);
  if (is_main_rank() && !s.progress.tensorboard.empty()) check_events(o, s);
  if (s.run.train.compile) detail::check_planner();
  return in_memory(o, s, device, [&](int64_t planned) { return train(o, s, make(), planned); });
}

}  // namespace tg::apps
