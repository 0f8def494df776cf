#include <tapegrad/core/check.h>
#include <tapegrad/core/comm/jobs.h>
#include <tapegrad/core/engine/run_node.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <set>
#include <system_error>
#include <utility>

namespace tg {
namespace {
// All existing CommJobs, for wait_for_async().
struct JobThreads {
  std::mutex mutex;
  std::set<CommJobs*> all;
};
JobThreads& job_threads() {
  static auto& r = *new JobThreads;
  return r;
}
[[maybe_unused]] const bool waits_for_jobs = detail::on_wait_for_async([]() noexcept {
  const std::lock_guard lock(job_threads().mutex);
  for (CommJobs* const j : job_threads().all) j->wait_for_all();
});
}  // namespace

std::atomic<double>& detail::comm_timeout() {
  static std::atomic<double> seconds = [] {
    const char* word = std::getenv("TG_COMM_TIMEOUT");
    if (!word) return 600.;
    double given = 0;  // independent of the locale
    const char* const last = word + std::strlen(word);
    const auto [end, error] = std::from_chars(word, last, given);
    TG_CHECK(error == std::errc() && end == last && given > 0, value,
             "[comm] TG_COMM_TIMEOUT is '{}'. It must be a number of seconds above 0. Change or unset it.", word);
    return given;
  }();
  return seconds;
}
std::thread detail::comm_thread(const std::function<void()>& f) {
  try {
    return std::thread(f);
  } catch (const std::system_error& e) {
    TG_CHECK(false, comm,
             "[comm] a thread for the messages between ranks does not start: {}. Each rank needs two, and the system "
             "limits their number. Raise the limit (ulimit -u), or start fewer ranks or threads.",
             e.code().message());
  }
}
CommJobs::CommJobs() : thread_(detail::comm_thread([this] { run_all(); })) {
  const std::lock_guard lock(job_threads().mutex);
  job_threads().all.insert(this);
}
CommJobs::~CommJobs() {
  {
    const std::lock_guard lock(job_threads().mutex);
    job_threads().all.erase(this);
  }
  {
    const std::lock_guard lock(mutex_);
    leaves_ = true;
  }
  started_.notify_one();
  thread_.join();
}
void CommJobs::submit(const void* key, std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.remove_if([=](const Job& j) { return j.key == key && !j.run; });  // a finished job with this key
    jobs_.push_back({key, std::move(job)});
    ++left_;
  }
  started_.notify_one();
}
void CommJobs::wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& until) {
  ++awaited_;
  ended_.wait(lock, until);
  --awaited_;
}
void CommJobs::wait(const void* key) {
  std::unique_lock lock(mutex_);
  const auto found = std::ranges::find(jobs_, key, &Job::key);
  if (found == jobs_.end()) return;
  wait(lock, [&] { return !found->run; });
  const std::exception_ptr error = found->error;
  jobs_.erase(found);
  if (error) std::rethrow_exception(error);
}
void CommJobs::wait_for_all() {
  if (in_job()) return;
  std::unique_lock lock(mutex_);
  wait(lock, [&] { return left_ == 0; });
}
void CommJobs::run_all() {
  const detail::DefaultFloatMode mode;
  std::unique_lock lock(mutex_);
  while (true) {
    started_.wait(lock, [&] { return leaves_ || left_ > 0; });
    if (left_ == 0) return;
    Job& job = *std::ranges::find_if(jobs_, [](const Job& j) { return bool(j.run); });
    lock.unlock();
    try {
      job.run();
    } catch (...) {
      job.error = std::current_exception();
    }
    lock.lock();
    job.run = nullptr;
    --left_;
    ended_.notify_all();
  }
}
}  // namespace tg
