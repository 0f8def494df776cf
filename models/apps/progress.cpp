#include <sys/ioctl.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/comm/communicator.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/profile/profile_tables.h>
#include <tapegrad/core/scope.h>
#include <tapegrad/models/apps/output.h>
#include <tapegrad/models/apps/progress.h>
#include <tapegrad/models/config/suggest.h>
#include <unistd.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace tg::apps {
namespace {

std::string duration(double seconds) {
  const int64_t s = std::llround(std::clamp(seconds, 0.0, 8.64e6));
  return s < 3600 ? fmt::format("{}:{:02}", s / 60, s % 60)
                  : fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

constexpr int64_t kWarmUp = 3, kSteps = 5;
constexpr std::string_view kStep = "step";  // range of Trainer::step()
constexpr std::string_view kTablesBegin = "profile of steps ";

std::string tables_path(const std::string& trace) { return trace + ".txt"; }

std::string text_of(const ProfileTable& t, std::string_view title) {
  return fmt::format("\n** {} ({}):\n\n{}", title, t.report, to_text(t));
}
std::string_view title_of(std::string_view report) {
  if (report == "nvtx_sum") return "Ranges, on the host";
  if (report == "allocator_sum") return "Calls of the CPU's allocator";
  if (report == "cuda_api_sum") return "Calls of the CUDA runtime";
  if (report == "cpu_kern_sum") return "Kernels of the CPU";
  if (report == "cuda_gpu_kern_sum") return "Kernels of the GPU";
  if (report == "cuda_gpu_mem_time_sum") return "Copies and fills of the GPU, by time";
  return "Copies and fills of the GPU, by size";
}

std::string kind_of_layer(const Scope* layer) {
  return layer && layer->parent ? detail::block_pattern(layer->path()) : "in no layer";
}
// Range in the step, "forward"; "" outside of one.
std::string phase_of(const Scope* path) {
  std::string inner;
  for (; path && path->parent; path = path->parent) {
    if (!path->parent->parent) return path->name != kStep ? "" : inner.empty() ? "between them" : inner;
    inner = path->name;
  }
  return "";
}

struct Steps {
  int64_t count = 0, ns = 0;
};
Steps steps_of(const Profile& p) {
  Steps s;
  for (const Profile::Range& r : p.ranges)
    if (r.kind == RangeKind::range && r.name == kStep) ++s.count, s.ns += r.end - r.begin;
  return s;
}

using Times = std::map<std::string, int64_t>;  // ns by name
using Share = std::pair<std::string, int64_t>;
// "attention 20 %, linear 16 %, 12 others 9 %"
std::string shares(const Times& times, int64_t whole) {
  constexpr size_t kNamed = 4;
  std::vector<Share> all(times.begin(), times.end());
  std::ranges::stable_sort(all, std::greater<>(), &Share::second);
  if (all.size() > kNamed + 1) {
    int64_t others = 0;
    for (size_t i = kNamed; i < all.size(); ++i) others += all[i].second;
    const std::string name = fmt::format("{} others", all.size() - kNamed);
    all.resize(kNamed);
    all.emplace_back(name, others);
  }
  std::string s;
  for (const auto& [name, ns] : all)
    s += fmt::format("{}{} {:.0f} %", s.empty() ? "" : ", ", name,
                     100 * double(ns) / double(std::max<int64_t>(whole, 1)));
  return s;
}
std::string summary(const Profile& p) {
  const auto [steps, wall] = steps_of(p);
  int64_t kernels = 0;
  Times phases, ops, layers;
  for (const Profile::Kernel& k : p.kernels) {
    const std::string phase = phase_of(k.path);
    const int64_t ns = k.end - k.begin;
    kernels += ns;
    phases[phase] += ns;
    ops[std::string(k.op.empty() ? k.name : k.op)] += ns;
    layers[kind_of_layer(k.layer)] += ns;
  }
  std::string s = fmt::format("{:.3g} ms a step", double(wall) / 1e6 / double(std::max<int64_t>(steps, 1)));
  if (kernels == 0) return s + "; no kernel was recorded\n";
  s += fmt::format(", {:.0f} % of it in kernels, the rest around them; of the time in kernels:\n",
                   100 * double(kernels) / double(std::max<int64_t>(wall, 1)));
  for (const auto& [title, times] :
       {std::pair<const char*, const Times&>("phases", phases), {"layers", layers}, {"ops", ops}})
    s += fmt::format("  {:6}  {}\n", title, shares(times, kernels));
  return s;
}

ProfileTable work_by_op(const Profile& p, const std::vector<WorkOfOp>& work,
                        const std::optional<DeviceRoofline>& machine) {
  using Format = ProfileTable::Format;
  Times times;
  for (const Profile::Kernel& k : p.kernels) times[std::string(k.op.empty() ? k.name : k.op)] += k.end - k.begin;
  struct Sum {
    int64_t calls = 0, bytes = 0;
    double flops = 0, floor = 0;
  };
  std::map<std::string, Sum> sums;
  for (const WorkOfOp& o : work) {
    Sum& s = sums[o.op];
    s.calls += o.calls, s.bytes += o.work.read + o.work.written, s.flops += 2 * o.work.multiply_adds;
    if (machine) s.floor += 1e9 * detail::floor_seconds(o, *machine);
  }
  const auto steps = double(std::max<int64_t>(steps_of(p).ns, 1));
  ProfileTable t;
  t.report = "work_by_op";
  t.columns = {{"Step (%)", Format::one_decimal}, {"Total Time (ns)", Format::integer},
               {"Calls", Format::integer},        {"Moved (MB)", Format::one_decimal},
               {"GB/s", Format::one_decimal},     {"GFLOP/s", Format::one_decimal}};
  if (machine) t.columns.push_back({"Floor (%)", Format::one_decimal});
  t.columns.push_back({"Op", Format::text});
  for (const auto& [op, s] : sums)
    if (const auto ns = double(times[op]); ns > 0) {
      auto& row = t.rows.emplace_back(std::vector<ProfileTable::Cell>{
          100 * ns / steps, ns, double(s.calls), double(s.bytes) / 1e6, double(s.bytes) / ns, s.flops / ns});
      if (machine) row.push_back(100 * s.floor / ns);
      row.push_back(op);
    }
  std::ranges::stable_sort(t.rows, std::greater<>(), [](const auto& row) { return std::get<double>(row[0]); });
  return t;
}

}  // namespace

int terminal_width() {
  const char* const given = std::getenv("COLUMNS");
  if (const long columns = given ? std::strtol(given, nullptr, 10) : 0; columns > 0)
    return int(std::min(columns, 1000L));
  winsize w{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80;
}

Progress::Progress(int64_t steps, int64_t done, std::string_view kind, bool quiet)
    : steps_(steps),
      done_(done),
      quiet_(quiet),
      shows_(!quiet && kind != "none"),
      terminal_(kind == "bar" || (kind != "lines" && isatty(STDOUT_FILENO) && Communicator::world()->size() == 1)),
      val_loss_(std::nan("")) {}
Progress::~Progress() { end_line(); }

std::string Progress::line(const StepRecord& r, int width) const {
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count(),
               rate = tokens_ / std::max(seconds_, 1e-9);
  std::string fields[] = {
      fmt::format("{:>{}}/{}", r.step, std::to_string(steps_).size(), steps_),
      fmt::format("  loss {:.3f}", r.loss),
      (std::isnan(val_loss_) ? "" : fmt::format("  val {:.3f}", val_loss_)) +
          (r.acc ? fmt::format("  acc {:.4f}", *r.acc) : ""),
      fmt::format("  lr {:.1e}", r.lr),
      rate < 1000 ? fmt::format("  {:.0f} tok/s", rate) : fmt::format("  {:.1f}k tok/s", rate / 1000),
      "  ETA " + duration(seconds / double(r.step - done_) * double(steps_ - r.step))};
  const auto length = [&] { return int(fmt::format("{}", fmt::join(fields, "")).size()); };
  for (const size_t least : {3, 4, 2, 5, 1})
    if (width > 0 && length() > width) fields[least].clear();
  if (const int bar = std::min(width - length() - 3, 30); bar > 4) {
    const auto full = size_t(bar * r.step / steps_);
    fields[0] += " [" + std::string(full, '#') + std::string(size_t(bar) - full, '.') + "]";
  }
  return fmt::format("{}", fmt::join(fields, ""));
}

void Progress::show(const StepRecord& r) {
  if (r.val_loss) val_loss_ = *r.val_loss;
  if (!shows_) return;
  tokens_ += r.tokens_per_s * r.ms / 1000, seconds_ += r.ms / 1000;
  const auto now = Clock::now();
  const auto pause = terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(3000);
  if (now - shown_ < pause && !r.val_loss && !r.acc && r.step != steps_ && r.step != done_ + 1) return;
  shown_ = now;
  if (terminal_) {
    put("\r\x1b[K" + line(r, terminal_width() - 1));
    open_ = true;
    if (r.val_loss || r.acc) end_line();  // keeps evaluations visible
  } else {
    put(line(r, 0) + "\n");
  }
  tokens_ = seconds_ = 0;
}

void Progress::print(const std::string& text) {
  if (quiet_) return;
  end_line();
  put(text + "\n");
}

void Progress::put(const std::string& text) {
  if (!broken_) broken_ = std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0;
}
void Progress::end_line() {
  if (open_) put("\n");
  open_ = false;
}

StepProfile::StepProfile(std::string file, int64_t steps_left, const std::string& machine)
    : file_(std::move(file)),
      warm_up_(std::min(kWarmUp, steps_left / 2)),
      steps_(std::min(kSteps, steps_left - warm_up_)) {
  if (!machine.empty()) machine_ = tg::device_roofline(machine);
}

void StepProfile::check(std::string_view command, const std::string& file) {
  check_output(command, "--profile", file, "trace",
               [](std::string_view text) { return text.starts_with("{\"displayTimeUnit\":"); });
  check_output(command, "--profile's file of tables", tables_path(file), "profile",
               [](std::string_view text) { return text.starts_with(kTablesBegin); });
}
void StepProfile::before_step() {
  if (done_ == warm_up_) profiler_.emplace(), work_.emplace();
}
void StepProfile::after_step(Progress& progress) {
  if (++done_ == warm_up_ + steps_) end(progress);
}
void StepProfile::end(Progress& progress) {
  if (!profiler_) return;
  Profile p = profiler_->stop();
  profiler_.reset();
  const std::vector<WorkOfOp> work = work_->ops();
  work_.reset();
  write_trace(p, file_);
  std::erase_if(p.kernels, [](const auto& k) { return phase_of(k.path).empty(); });  // validation, samples, saves
  std::string head = fmt::format("{}{} to {} of this run: {}", kTablesBegin, warm_up_ + 1, done_, summary(p));
  for (const std::string& note : p.notes) head += fmt::format("note: {}\n", note);
  std::string tables = head;
  for (const ProfileTable& t : profile_tables(p)) tables += text_of(t, title_of(t.report));
  tables += text_of(kernel_time_by_range(p), "Time of kernels by the range that launched them");
  ProfileTable by_op = work_by_op(p, work, machine_);
  tables += text_of(by_op, "Bytes and FLOPs of ops, by the time of their kernels");
  detail::write_file_atomically(tables_path(file_), tables);
  std::erase_if(by_op.rows, [](const auto& row) { return std::get<double>(row[0]) < 2; });  // % of the steps
  const std::string roofs = machine_ ? to_text(by_op) + "\n" : "";
  progress.print(fmt::format("{}{}wrote {}, for https://ui.perfetto.dev, and {}, which has the tables", head, roofs,
                             file_, tables_path(file_)));
}

}  // namespace tg::apps
