#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/backend/registry.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/profile/work.h>
#include <tapegrad/models/apps/output.h>
#include <tapegrad/models/apps/process.h>
#include <tapegrad/models/apps/run.h>

#include <algorithm>
#include <filesystem>

namespace tg::apps {
namespace {
namespace fs = std::filesystem;
std::string watch_path(const std::string& folder) { return folder + "/.watch"; }
std::string machine_path(const std::string& folder) { return folder + "/.machine"; }
fs::path home_of(const std::string& run) { return fs::path(detail::absolute_path(run + "/.")).parent_path(); }
}  // namespace

bool is_near(const std::string& dir, const std::string& run) {
  std::error_code none;
  const fs::path home = fs::weakly_canonical(home_of(run), none);
  const std::string rest = fs::weakly_canonical(dir, none).lexically_relative(home).string();
  return !rest.empty() && !rest.starts_with(home.parent_path().has_relative_path() ? "../.." : "..");
}
void ProgressOptions::validate() const {
  TG_CHECK(
      sample_every >= 0 && task_every >= 0 && (!quiet || sample_every == 0) && std::ranges::count(kProgress, progress),
      value,
      "[watch] task_every is {}, sample_every {}, quiet {} and progress '{}'. They must be 0 or more, 0 if quiet, "
      "and one of {}.",
      task_every, sample_every, quiet, progress, fmt::join(kProgress, ", "));
}
ProgressOptions saved_progress(const std::string& folder, bool note) {
  const std::string path = watch_path(folder);
  if (!detail::path_exists(path)) return {};
  const MappedFile file(path);
  try {
    ProgressOptions p = detail::config_from_json<ProgressOptions>(file.text());
    if (!p.tensorboard.empty()) p.tensorboard = detail::absolute_path((home_of(folder) / p.tensorboard).string());
    return p;
  } catch (const Error& e) {
    if (note) print_note("{}: {} Progress, samples and event files are as by default.", path, e.what());
    return {};
  }
}
RunMachine machine_of(const std::string& folder) try {
  return detail::config_from_json<RunMachine>(MappedFile(machine_path(folder)).text());
} catch (const Error&) {
  return {};
}
RunConfig run_in(const Checkpoint& c, const std::string& path) {
  return detail::run_config_from_json(c.config, fmt::format("'config' of {}", path));
}
const char* command_of(const Checkpoint& c) { return c.finetuning ? "finetune" : "train"; }
std::string kernels_of(Device d, const TrainConfig& c) {
  const bool narrow = c.dtype == DType::bf16 || c.matmul_precision != MatmulPrecision::highest ||
                      (c.optimizer == OptimizerKind::muon && c.muon_dtype == DType::bf16);
  const std::string_view way = narrow ? detail::runtime_of(d).bf16_method() : "";
  return fmt::format("{}, level {}{}{}", name_of(d.backend), detail::kernel_level(d.backend),
                     way.empty() ? "" : ", bf16 by ", way);
}

FileLock lock_folder(const TrainOptions& o, const std::string& folder) {
  try {
    FileLock lock(folder + "/.lock");
    if (const std::string& why = lock.missing(); !why.empty())
      print_note("{} cannot be locked ({}): see that no other process writes this run at the same time", folder, why);
    return lock;
  } catch (const Error& e) {
    if (e.kind() != Error::Kind::state) throw;
    throw Error(e.kind(), fmt::format("[{}] another process is training in {}. One at a time may write there. Wait "
                                      "until it has ended, end it, or train in another folder.",
                                      o.command, folder));
  }
}

static void check_run(const TrainOptions& o, const std::string& out, const std::string& path) {
  std::optional<Checkpoint> c;
  RunConfig run;
  try {
    c = load_checkpoint(path);
    run = run_in(*c, path);
  } catch (const Error& e) {
    if (o.overwrite) return;
    throw Error(e.kind(),
                fmt::format("{}\nA new run would overwrite it. Choose another --out, or pass --overwrite.", e.what()));
  }
  TG_CHECK(command_of(*c) == o.command, value,
           "[{}] {} belongs to a run of `tapegrad {}`. A run of `tapegrad {}` would overwrite it, but not its other "
           "files. Choose another --out, or remove the folder.",
           o.command, path, command_of(*c), o.command);
  const int64_t step = c->state.step, steps = run.train.max_steps;
  const int64_t logged = StepLog::last_step_of(log_path(out));
  if (o.overwrite || (step == 0 && logged == 0)) return;
  const bool finished = step >= steps && !c->state.unvalidated;
  const std::string what =
      finished        ? fmt::format("a run that is finished, after {} steps", steps)
      : logged > step ? fmt::format("a run that was saved at step {} of {}, and whose log continues to step {}", step,
                                    steps, logged)
                      : fmt::format("a run that stopped at step {} of {}", step, steps);
  throw Error(Error::Kind::value, fmt::format("[{}] {} belongs to {}. A new run would overwrite it. Resume it with "
                                              "`tapegrad {} --resume {}{}`, choose another --out, or pass --overwrite.",
                                              o.command, path, what, o.command, out,
                                              finished ? fmt::format(" --max-steps {}", 2 * steps) : ""));
}
void check_overwritten(const TrainOptions& o, const std::string& out, const std::vector<std::string>& files) {
  const std::string path = checkpoint_path(out);
  const bool begun = detail::path_exists(path);
  std::vector<std::string> own = {"log.jsonl", "checkpoint.safetensors", ".watch", ".machine"},
                           names = {"model.safetensors", "config.json", "adapter_config.json"};
  names.insert(names.end(), files.begin(), files.end());
  if (o.no_save) own.resize(1), names.resize(3);
  check_free(o.command, out, "run", own, true);
  if (begun) check_run(o, out, path);
  check_free(o.command, out, "run", names, o.overwrite);
  if (!begun) check_free(o.command, out, "run", own, o.overwrite);
}

RunFiles::RunFiles(const TrainOptions& o, const RunSetup& s, const TrainedModel& what, const Trainer& trainer)
    : saves_(!o.no_save), start_(s), what_(what), trainer_(trainer) {
  const TrainerState& state = s.checkpoint.state;
  saved_ = state.step;
  if (is_main_rank()) {
    // First: its failure changes no other file.
    if (!s.progress.tensorboard.empty() && !trainer.done()) detail::make_folder(s.progress.tensorboard);
    log_.emplace(open(state.step - (state.unvalidated ? 1 : 0)));
  } else if (!s.resumed) {
    save_checkpoint_only();  // collective
  }
}
void RunFiles::write(const StepRecord& r) {
  if (!log_) return;
  log_->write(r);
  if (start_.progress.tensorboard.empty()) return;
  // A run without a step may start again.
  if (!events_)
    events_.emplace(start_.progress.tensorboard, r.step).write_text("config", r.step, start_.checkpoint.config);
  events_->write(r);
}
void RunFiles::save() {
  if (!saves_) return;
  const WorkScope apart;                 // not in the profile
  start_.data.tokens.check_unchanged();  // a wrong hash would be saved
  if (log_) log_->sync();
  flush();  // a resumed run skips these steps
  save_checkpoint_only();
  if (is_main_rank()) what_.save();
}
void RunFiles::save_checkpoint_only() {
  if (!saves_) return;
  Checkpoint c = start_.checkpoint;
  if (is_main_rank() || start_.run.train.shard_optimizer) c.state = trainer_.state();
  if (is_main_rank()) save_checkpoint(checkpoint_path(start_.out), c);
  saved_ = trainer_.steps();
}
bool RunFiles::is_whole() const {
  std::error_code none;
  const auto written = [&](const std::string& path) { return fs::last_write_time(path, none); };
  const std::string first = start_.out + "/" + what_.files.front();
  return fs::exists(first, none) && written(first) >= written(checkpoint_path(start_.out));
}
StepLog RunFiles::open(int64_t done) {
  const std::string path = log_path(start_.out), watch = watch_path(start_.out);
  for (const std::string& name : what_.files) detail::remove_leftovers(start_.out + "/" + name);
  const std::string machine = machine_path(start_.out);
  for (const std::string& name : {checkpoint_path(start_.out), path, watch, machine}) detail::remove_leftovers(name);
  if (saves_ && !start_.resumed) check_free(command_of(start_.checkpoint), start_.out, "run", what_.files, true);
  if (!start_.resumed) save_checkpoint_only();  // Makes the run resumable; finds a full disk early.
  if (ProgressOptions p = start_.progress; saves_ && (p == ProgressOptions() || p != saved_progress(start_.out))) {
    if (!p.tensorboard.empty() && is_near(p.tensorboard, start_.out))
      p.tensorboard = fs::path(p.tensorboard).lexically_relative(home_of(start_.out)).string();
    p == ProgressOptions() ? detail::remove_file(watch) : detail::write_file_atomically(watch, to_json(p) + "\n");
  }
  if (saves_ && !trainer_.done())
    detail::write_file_atomically(machine, to_json(RunMachine{num_threads(), Communicator::world()->size()}) + "\n");
  if (start_.resumed) return StepLog::resume(path, done);
  StepLog log(path);
  // Files of the overwritten run.
  for (const std::string& name : what_.files)
    if (saves_) detail::remove_file(start_.out + "/" + name);
  return log;
}

}  // namespace tg::apps
