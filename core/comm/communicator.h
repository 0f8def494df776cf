/// @file
/// Communicator: the processes that work on one task, and what they tell each other. There is a world of one in every
/// build, and MPI where TG_MPI found it (cpu/runtime/mpi_comm.cpp). Sums over them are in core/comm/collectives.h. Data
/// parallel training uses it.
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

/// Processes, which are numbered: a process's number is its rank. All of them make the same calls in the same order; a
/// call returns when the others have made it. One thread at a time may use a Communicator, the main thread if MPI
/// allows no other. Buffers are on the host.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// A world of one: this process.
  static const std::shared_ptr<Communicator>& self();
  /// The processes that mpirun or srun started together, or self(). The first call starts MPI. An Error of kind comm if
  /// this process is one of several and this build has no MPI.
  static const std::shared_ptr<Communicator>& world();
  /// A fake communicator of `size` ranks that transfers nothing, for dry runs and for benchmarks of local work. Its
  /// results are meaningless.
  static std::shared_ptr<Communicator> hollow(int size);
  /// Seconds that a call of world() may wait for the other ranks: then it ends the process, with a message that names
  /// the call. TG_COMM_TIMEOUT, or 600, until set_timeout(), which refuses what is not above 0.
  static double timeout();
  static void set_timeout(double seconds);
  /// What world() can use, for --version: "Open MPI v4.1.4" or "no MPI".
  static std::string engine();
  /// What the devices of ranks can use beside it: "NCCL 2.28.9" or "no NCCL". Empty if this build has no CUDA backend.
  /// The first call loads the library.
  static std::string device_engine();

  int rank() const { return rank_; }  ///< in [0, size)
  int size() const { return size_; }
  int local_rank() const { return local_rank_; }  ///< among the processes of this machine
  int local_size() const { return local_size_; }

  /// Bytes for another rank, or from it.
  struct Message {
    int rank;
    std::byte* data;
    size_t bytes;
  };
  /// Sends and receives messages, of which there may be none. Those from one rank to another meet in their order, and
  /// are of equal sizes. `name` is what a watch calls the wait; it lives as long as the process.
  virtual void exchange(const char* name, std::span<const Message> sent, std::span<const Message> received) = 0;
  /// Part r of `to` becomes `from` of rank r, of `bytes` bytes.
  virtual void all_gather(const void* from, void* to, size_t bytes) = 0;
  /// `bytes` bytes become those of rank `root`.
  virtual void broadcast(void* data, size_t bytes, int root) = 0;
  /// Sends part r of `from` to rank r, and gets part r of `to` from it; parts are of `bytes` bytes, and lists do not
  /// overlap.
  void all_to_all(const void* from, void* to, size_t bytes);
  /// Runs a job that makes calls of this Communicator while the caller goes on, behind the jobs before it. Where the
  /// engine takes the calls of one thread alone, and in a world of one, start() itself runs it and throws what it
  /// throws. All ranks start the same jobs in the same order; a call from outside of a job waits for those that were
  /// started. `key` is an address that no other job has which is not finished.
  void start(const void* key, std::function<void()> job);
  /// Returns when the job with this key has run, and throws what it threw.
  void finish(const void* key);
  /// Returns when all jobs that were started have run.
  void wait_for_jobs();
  /// Ends all processes with this status, wherever they are.
  [[noreturn]] virtual void abort(int status) = 0;

  void barrier();                                          ///< returns when all ranks have come here
  int64_t max(int64_t x);                                  ///< the largest x of all ranks
  std::vector<std::string> gather(std::string_view text);  ///< the texts of all ranks
  /// Watches the waits of this rank for the others, from the first call on.
  CommWatch& watch() {
    if (!watch_) watch_ = std::make_unique<CommWatch>(rank_);
    return *watch_;
  }

 protected:
  Communicator(int rank, int size, int local_rank, int local_size)
      : rank_(rank), size_(size), local_rank_(local_rank), local_size_(local_size) {}
  // From here on jobs have a thread of their own, which calls exchange() and the others. The destructor of the class
  // that implements these calls end_jobs().
  void use_thread_for_jobs() { jobs_ = std::make_unique<CommJobs>(); }
  const CommJobs* jobs() const { return jobs_.get(); }
  void end_jobs() { jobs_.reset(); }    // before end_watch()
  void end_watch() { watch_.reset(); }  // when ranks begin to leave

 private:
  int rank_, size_, local_rank_, local_size_;
  std::unique_ptr<CommWatch> watch_;
  std::unique_ptr<CommJobs> jobs_;
};

namespace detail {
// How a build with MPI makes a world: cpu/runtime/mpi_comm.cpp registers it before main().
struct CommunicatorEngine {
  std::string (*name)();
  std::shared_ptr<Communicator> (*world)();
};
bool register_communicators(const CommunicatorEngine&);
// The name of what devices use: cuda/nccl/library.cpp.
bool register_device_engine(std::string (*name)());
}  // namespace detail

}  // namespace tg
