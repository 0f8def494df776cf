/// @file
/// Communicator: the processes of one task, and their messages. Every build has a world of one; TG_MPI adds MPI
/// (cpu/runtime/mpi_comm.cpp). core/comm/collectives.h has the reductions.
#pragma once
#include <tapegrad/core/comm/jobs.h>
#include <tapegrad/core/comm/watch.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tg {

/// Processes numbered by rank. All ranks make the same calls in the same order; a call returns when all have made it.
/// One thread at a time uses it: the main thread if MPI allows no other. Buffers are on the host.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// A world of one: this process.
  static const std::shared_ptr<Communicator>& self();
  /// Processes of mpirun or srun, or self(). The first call starts MPI. An Error of kind comm for several processes
  /// without MPI in this build.
  static const std::shared_ptr<Communicator>& world();
  /// A fake communicator of `size` ranks without transfers or valid results, for dry runs and benchmarks.
  static std::shared_ptr<Communicator> fake(int size);
  /// Seconds that a call of world() may wait for other ranks before it ends the process. Initially TG_COMM_TIMEOUT or
  /// 600; set_timeout() rejects values <= 0.
  static double timeout();
  static void set_timeout(double seconds);
  /// Engine of world(), for --version: "Open MPI v4.1.4" or "no MPI".
  static std::string engine();
  /// Engine between devices: "NCCL 2.28.9" or "no NCCL". Empty without the CUDA backend. The first call loads NCCL.
  static std::string device_engine();

  int rank() const { return rank_; }  ///< range [0, size)
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }  ///< rank within this machine
  int local_size() const { return local_size_; }

  /// Bytes to or from another rank.
  struct Message {
    int rank;
    std::byte* data;
    size_t bytes;
  };
  /// Sends and receives messages. Messages between two ranks match in order and size. A watch shows `name`, which must
  /// never be freed.
  virtual void exchange(const char* name, std::span<const Message> sent, std::span<const Message> received) = 0;
  /// `from` of rank r, `bytes` bytes, becomes block r of `to`.
  virtual void all_gather(const void* from, void* to, size_t bytes) = 0;
  /// Copies `bytes` bytes of rank `root` to all ranks.
  virtual void broadcast(void* data, size_t bytes, int root) = 0;
  /// Sends block r of `from` to rank r and receives block r of `to`. Blocks have `bytes` bytes; the lists do not
  /// overlap.
  void all_to_all(const void* from, void* to, size_t bytes);
  /// Runs a job, which calls this Communicator, after earlier jobs while the caller continues. With a single-threaded
  /// engine or one rank, submit() runs it and throws its Errors. All ranks start the same jobs in order; calls outside
  /// of jobs finish earlier ones first. `key` is unique among unfinished jobs.
  void submit(const void* key, std::function<void()> job);
  /// Returns when the job with this key has run, and rethrows its Error.
  void wait(const void* key);
  /// Returns when all started jobs have run.
  void wait_for_jobs();
  /// Ends all processes with this status.
  [[noreturn]] virtual void abort(int status) = 0;

  void barrier();
  int64_t max(int64_t x);                                  ///< maximum over ranks
  std::vector<std::string> gather(std::string_view text);  ///< texts of all ranks
  /// The watch over this rank's waits for other ranks; the first call starts it.
  CommWatch& watch() {
    if (!watch_) watch_ = std::make_unique<CommWatch>(rank_);
    return *watch_;
  }

 protected:
  Communicator(int rank, int size, int local_rank, int local_size)
      : rank_(rank), size_(size), local_rank_(local_rank), local_size_(local_size) {}
  // Starts the thread of jobs, which calls exchange() and the others. The derived destructor calls end_jobs().
  void use_thread_for_jobs() { jobs_ = std::make_unique<CommJobs>(); }
  const CommJobs* jobs() const { return jobs_.get(); }
  void end_jobs() { jobs_.reset(); }    // precedes end_watch()
  void end_watch() { watch_.reset(); }  // ranks begin to leave

 private:
  int rank_, size_, local_rank_, local_size_;
  std::unique_ptr<CommWatch> watch_;
  std::unique_ptr<CommJobs> jobs_;
};

namespace detail {
// The MPI world: cpu/runtime/mpi_comm.cpp registers it before main().
struct CommunicatorEngine {
  std::string (*name)();
  std::shared_ptr<Communicator> (*world)();
};
bool register_communicators(const CommunicatorEngine&);
// Name of the device engine: cuda/nccl/library.cpp.
bool register_device_engine(std::string (*name)());
}  // namespace detail

}  // namespace tg
