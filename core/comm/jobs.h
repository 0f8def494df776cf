/// @file
/// CommJobs: Communicator calls on a separate thread while the caller computes, for Communicator::submit().
#pragma once
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

namespace tg {
namespace detail {
// A thread of f(), or an Error of kind comm.
std::thread comm_thread(const std::function<void()>& f);
// Seconds; Communicator::timeout().
std::atomic<double>& comm_timeout();
}  // namespace detail

/// A thread that runs jobs in the order of submit().
class CommJobs {
 public:
  CommJobs();
  ~CommJobs();  ///< runs all jobs first
  CommJobs(const CommJobs&) = delete;
  CommJobs& operator=(const CommJobs&) = delete;

  void submit(const void* key, std::function<void()> job);
  /// Returns when the job has run, and rethrows its Error.
  void wait(const void* key);
  /// Returns when all jobs have run, within a job immediately. Errors remain for wait().
  void wait_for_all();
  bool in_job() const { return std::this_thread::get_id() == thread_.get_id(); }
  /// Whether a thread waits for a job.
  bool awaited() const { return awaited_.load(std::memory_order_relaxed) > 0; }

 private:
  struct Job {
    const void* key;
    std::function<void()> run;  // empty: it has run
    std::exception_ptr error = nullptr;
  };
  void wait(std::unique_lock<std::mutex>&, const std::function<bool()>& until);
  void run_all();

  std::mutex mutex_;
  std::condition_variable started_, ended_;
  std::list<Job> jobs_;  // finished jobs first
  size_t left_ = 0;      // unfinished jobs
  bool leaves_ = false;
  std::atomic<int> awaited_ = 0;
  std::thread thread_;
};

}  // namespace tg
