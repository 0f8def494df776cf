#include <tapegrad/core/check.h>
#include <tapegrad/core/profile/profile_tables.h>
#include <tapegrad/models/apps/profile.h>

#include <algorithm>

namespace tg::apps {
namespace {

constexpr int64_t kWarmUp = 3, kSteps = 5;
constexpr size_t kRows = 40;  // of a table: the rest is in the trace
constexpr double kLeast = 1;  // percent

std::string text_of(ProfileTable t, std::string_view title) {
  const size_t rows = t.rows.size();
  t.rows.resize(std::min(rows, kRows));
  std::string s = fmt::format("\n** {} ({}):\n\n{}", title, t.report, to_text(t));
  if (rows > kRows) s += fmt::format(" ... and {} more rows\n", rows - kRows);
  return s;
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

}  // namespace

StepProfile::StepProfile(std::string file, int64_t steps_left)
    : file_(std::move(file)),
      warm_up_(std::min(kWarmUp, steps_left / 2)),
      steps_(std::min(kSteps, steps_left - warm_up_)) {}

void StepProfile::before_step() {
  if (done_ == warm_up_) profiler_.emplace();
}
std::string StepProfile::after_step() { return ++done_ == warm_up_ + steps_ ? end() : ""; }
std::string StepProfile::end() {
  if (!profiler_) return "";
  const Profile p = profiler_->stop();
  profiler_.reset();
  write_trace(p, file_);
  std::string s;
  for (const ProfileTable& t : profile_tables(p)) s += text_of(t, title_of(t.report));
  ProfileTable parts = kernel_time_by_range(p);
  std::erase_if(parts.rows, [](const auto& row) { return std::get<double>(row[0]) < kLeast; });
  s += text_of(std::move(parts), fmt::format("Time of kernels by the range that made them, from {} % on", kLeast));
  for (const std::string& note : p.notes) s += fmt::format("\nnote: {}", note);
  return s + fmt::format("\nprofile of steps {} to {} of this run: wrote {}; open it in https://ui.perfetto.dev\n",
                         warm_up_ + 1, done_, file_);
}

}  // namespace tg::apps
