/// @file
/// CommJobs: calls of a Communicator that a thread of its own makes while the caller computes. Communicator::start()
/// uses it.
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
// A thread that runs f(). An Error of kind comm when the system has none left.
std::thread comm_thread(const std::function<void()>& f);
}  // namespace detail

/// A thread that runs jobs, one after the other, in the order in which they were started.
class CommJobs {
 public:
  CommJobs();
  ~CommJobs();  ///< what was started runs first
  CommJobs(const CommJobs&) = delete;
  CommJobs& operator=(const CommJobs&) = delete;

  /// `key` is an address that no other job has which is not finished.
  void start(const void* key, std::function<void()> job);
  /// Returns when the job has run, and throws what it threw.
  void finish(const void* key);
  /// Returns when all jobs have run, at once in a job. Their results and errors stay.
  void wait_for_all();
  /// Whether the calling thread is the one that runs jobs.
  bool in_job() const { return std::this_thread::get_id() == thread_.get_id(); }
  /// Whether a thread waits for a job, and computes nothing.
  bool awaited() const { return awaited_.load(std::memory_order_relaxed) > 0; }

 private:
  struct Job {
    const void* key;
    std::function<void()> run;  // empty: it has run
    std::exception_ptr error = nullptr;
  };
  class Waiting;
  void run_all();

  std::mutex mutex_;
  std::condition_variable started_, ended_;
  std::list<Job> jobs_;  // those that have run first
  size_t left_ = 0;      // that have not run
  bool leaves_ = false;
  std::atomic<int> awaited_ = 0;
  std::thread thread_;
};

}  // namespace tg
