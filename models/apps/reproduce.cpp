// `tapegrad reproduce`: repeats a run in a scratch folder and compares losses and weights bit for bit.
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/apps/process.h>
#include <tapegrad/models/apps/run.h>
#include <tapegrad/models/io/hash.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

namespace tg::apps {
namespace {
namespace fs = std::filesystem;

struct ReproduceOptions {
  std::vector<std::string> runs, data;
  std::string model, device;
  int64_t threads = 0, steps = 0;
};

// Rank 0's text; all ranks wait for it.
std::string of_main_rank(const std::string& text) {
  Communicator& world = *Communicator::world();
  return world.size() == 1 ? text : world.gather(text)[0];
}

// A new temporary folder, which rank 0 makes and removes, with the run before its first step.
class Scratch {
 public:
  Scratch(const std::string& run, Checkpoint start) {
    if (is_main_rank()) {
      path_ = (fs::temp_directory_path() / "tapegrad_reproduce_XXXXXX").string();
      TG_CHECK(mkdtemp(path_.data()), io,
               "[reproduce] {} cannot be made: {}. The run is repeated there. Set TMPDIR to another folder.", path_,
               std::strerror(errno));
      start.state = {};
      start.kernels.clear();  // the end tells what differs
      save_checkpoint(checkpoint_path(path_), start);
      const std::string chat = "/chat_template.jinja";
      if (detail::path_exists(run + chat)) fs::copy_file(run + chat, path_ + chat);
    }
    path_ = of_main_rank(path_);
  }
  ~Scratch() {
    std::error_code none;
    if (is_main_rank()) fs::remove_all(path_, none);
  }
  Scratch(const Scratch&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The first difference, or "".
std::string difference(const StepRecord& was, const StepRecord& is, const std::string& run) {
  const double none = std::nan("");
  const bool both = was.val_loss && is.val_loss;  // eval_every may change in a resumed run
  const std::tuple<const char*, double, double> values[] = {
      {"lr", was.lr, is.lr},
      {"loss", was.loss, is.loss},
      {"grad_norm", was.grad_norm, is.grad_norm},
      {"val_loss", both ? *was.val_loss : none, both ? *is.val_loss : none}};
  for (const auto& [name, before, here] : values)
    if (before != here && !(std::isnan(before) && std::isnan(here)))
      return fmt::format("{} of step {} is {} in {}, and {} here", name, is.step, before, log_path(run), here);
  return "";
}
std::string difference(const StateDict& was, const StateDict& is, const std::string& path) {
  for (const auto& [name, t] : was) {
    const auto at = is.find(name);
    if (at == is.end()) return fmt::format("{} has the tensor {}, and the repeated run has not", path, name);
    Hash before, here;
    before.add(name, t), here.add(name, at->second);
    if (before.value() != here.value()) return fmt::format("the tensor {} of {} differs", name, path);
  }
  for (const auto& [name, t] : is)
    if (!was.contains(name)) return fmt::format("{} lacks the tensor {}", path, name);
  return "";
}
std::string difference_of_files(const std::string& was, const std::string& is) {
  if (!detail::path_exists(was)) return fmt::format("{} is missing", was);
  if (was.ends_with(".safetensors")) {
    const SafetensorsFile before(was), here(is);
    const std::string found = difference(before.tensors(), here.tensors(), was);
    return found.empty() && before.metadata() != here.metadata() ? fmt::format("the metadata of {} differs", was)
                                                                 : found;
  }
  const MappedFile before(was), here(is);
  const std::string_view a = before.text(), b = here.text();
  if (a == b) return "";
  const auto end = std::ranges::mismatch(a, b).in1;
  return fmt::format("{} differs in line {}", was, 1 + std::count(a.begin(), end, '\n'));
}
std::string difference_at_end(const std::string& run, const Checkpoint& was, const Checkpoint& is,
                              const std::string& scratch) {
  std::set<std::string> names;
  for (const auto& file : fs::directory_iterator(scratch)) names.insert(file.path().filename().string());
  std::string found;
  for (const std::string& name : names)
    if (found.empty() && !name.starts_with(".") && name != "log.jsonl" && name != "checkpoint.safetensors")
      found = difference_of_files(run + "/" + name, scratch + "/" + name);
  return found.empty() ? difference(was.state.tensors, is.state.tensors, checkpoint_path(run)) : found;
}

void check_ranks(const std::string& run, int64_t ranks, int64_t accumulate) {
  const int64_t here = Communicator::world()->size();
  TG_CHECK(ranks == 0 || here == ranks || (here == 1 && accumulate == ranks), comm,
           "[reproduce] {} was computed by {}, and this is {}. Sums of gradients have the same bits only with as many, "
           "or in one process if each rank had one micro-batch of a step. Start {}.",
           run, detail::counted(ranks, "rank"), here, ranks == 1 ? "one process" : fmt::format("mpirun -n {}", ranks));
  if (here != ranks && ranks > 1)
    print_note("{} was computed by {} ranks with one micro-batch each; one process computes the same bits", run, ranks);
}

// Steps of the run; its messages name RUN's folder in place of the scratch folder.
int repeat(const TrainOptions& t, const std::string& model, const std::string& run) {
  try {
    return t.command == "train" ? resume_training(t, model) : resume_finetuning(t, model);
  } catch (const Error& e) {
    std::string text = e.what();
    for (size_t at; (at = text.find(t.resume)) != text.npos;) text.replace(at, t.resume.size(), run);
    throw Error(e.kind(), text, e.scoped());
  }
}

int run(ReproduceOptions& o) {
  refuse(o.runs.size() != 1, "reproduce needs one RUN, the folder of a run");
  const std::string run = fs::path(o.runs[0] + "/").parent_path().string(), path = checkpoint_path(run);
  const Checkpoint was = load_checkpoint(path);
  TG_CHECK(was.program.find(' ') != was.program.npos, value,
           "[reproduce] {} records no commit of the program that wrote it. A run can only be repeated if its program "
           "is known. Run it again with a program that was built in its git repository.",
           path);
  const int64_t steps = was.state.step, last = o.steps == 0 ? steps : o.steps;
  TG_CHECK(steps > 0 && last <= steps, value,
           "[reproduce] {} is of step {}, and {} are compared. They must be from 1 to that step. {}.", path, steps,
           detail::counted(last, "step"), steps > 0 ? "Lower --steps" : "Finish the run");
  const RunMachine machine = machine_of(run);
  check_ranks(run, machine.ranks, run_in(was, path).train.accumulate);
  const std::vector<StepRecord> log = read_log(log_path(run)).steps;

  const Scratch scratch(run, was);
  TrainOptions t;
  t.command = command_of(was);
  t.resume = scratch.path(), t.data = o.data, t.threads = o.threads, t.quiet = true;
  if (!was.kernels.empty()) t.device = was.kernels.substr(0, was.kernels.find(','));
  if (!o.device.empty()) t.device = o.device;
  std::string found;
  t.go_on = [&](const StepRecord& r) {
    const auto at = std::ranges::find(log, r.step, &StepRecord::step);
    const bool torn = was.state.unvalidated && r.step == steps;  // stopped before the line was written
    if (found.empty())
      found = at != log.end() ? difference(*at, r, run)
              : torn          ? difference(*was.state.unvalidated, r, run)
                              : fmt::format("{} lacks step {}", log_path(run), r.step);
    return r.step < last && (found.empty() || Communicator::world()->size() > 1);  // ranks stop together
  };
  if (const int status = repeat(t, o.model, run); status != 0 || !is_main_rank()) return status;
  const Checkpoint is = load_checkpoint(checkpoint_path(scratch.path()));
  if (found.empty() && last == steps) found = difference_at_end(run, was, is, scratch.path());
  std::string equal = "equal: " + detail::counted(last, "step");
  if (last == steps) equal += " and " + detail::counted(std::ssize(was.state.tensors), "tensor");
  fmt::print("{}\n", found.empty() ? equal : "differs: " + found);
  const auto number = [](int64_t n) { return n == 0 ? "" : std::to_string(n); };
  const std::tuple<const char*, std::string, std::string> places[] = {
      {"program", was.program, program_version()},
      {"kernels", was.kernels, is.kernels},
      {"threads", number(machine.threads), number(num_threads())},
      {"ranks", number(machine.ranks), number(Communicator::world()->size())}};
  for (const auto& [name, before, here] : places)
    if (before != here)
      fmt::print("{}: {} in {}, {} here\n", name, before.empty() ? "unknown" : before, printable(run), here);
  return found.empty() ? 0 : 1;
}
void declare(Command& c, ReproduceOptions& o) {
  c.list("RUN", "DIR", "the folder of a run, which is only read", o.runs);
  c.option("--steps", "compare only the losses of the first steps, 0: all steps and the weights", o.steps, 0);
  c.list("--data", "FILE", "where the run's data is now; default: where it was", o.data);
  c.option("--model", "DIR", "where the model that the run began with is now; default: where it was", o.model);
  c.option("--device", "NAME", "that of the run", "cpu or cuda", [&o](const std::string& word) { o.device = word; });
  c.option("--threads", "threads of the CPU, 0: all", o.threads);
}

}  // namespace

Subcommand reproduce_command() {
  return subcommand<ReproduceOptions>("reproduce", "repeat a run, and compare its losses and weights bit for bit", run,
                                      declare);
}

}  // namespace tg::apps
