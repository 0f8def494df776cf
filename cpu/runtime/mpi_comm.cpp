// The MPI world (TG_MPI). One thread at a time calls it: the caller's or that of jobs.
#include <mpi.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/comm/communicator.h>

#include <chrono>
#include <climits>
#include <cstdlib>
#include <thread>
#include <vector>

namespace tg::cpu {
namespace {
void check(int status, const char* what) {
  if (status == MPI_SUCCESS) [[likely]]
    return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(status, text, &length);
  tg::detail::fail(Error::Kind::comm, fmt::format("[comm] {} failed: {}. Has another process of the run ended?", what,
                                                  std::string_view(text, size_t(length))));
}
int count_of(size_t bytes) {
  TG_CHECK(bytes <= INT_MAX, comm, "[comm] {} bytes for one message. MPI takes at most 2^31 - 1.", bytes);
  return int(bytes);
}

class MpiWorld final : public Communicator {
 public:
  struct Place {
    int rank, size, local_rank, local_size;
    MPI_Comm comm;
    bool ours;  // tapegrad has started MPI
    bool any_thread;
  };
  explicit MpiWorld(const Place& p)
      : Communicator(p.rank, p.size, p.local_rank, p.local_size), comm_(p.comm), ours_(p.ours) {
    if (p.any_thread) use_thread_for_jobs();
  }
  ~MpiWorld() override {
    end_jobs();
    end_watch();
    int ended = 0;
    MPI_Finalized(&ended);
    if (!ended && ours_) MPI_Finalize();
  }

  void exchange(const char* name, std::span<const Message> sent, std::span<const Message> received) override {
    for (const auto list : {sent, received})
      for (const Message& m : list) (void)count_of(m.bytes);  // checks before any message is posted
    meet(name, sent.size() + received.size(), [&](MPI_Request* r) {
      for (const Message& m : received)
        check(MPI_Irecv(m.data, count_of(m.bytes), MPI_BYTE, m.rank, kTag, comm_, r++), name);
      for (const Message& m : sent)
        check(MPI_Isend(m.data, count_of(m.bytes), MPI_BYTE, m.rank, kTag, comm_, r++), name);
    });
  }
  void all_gather(const void* from, void* to, size_t bytes) override {
    const int n = count_of(bytes);
    meet("all_gather", 1,
         [&](MPI_Request* r) { check(MPI_Iallgather(from, n, MPI_BYTE, to, n, MPI_BYTE, comm_, r), "all_gather"); });
  }
  void broadcast(void* data, size_t bytes, int root) override {
    const int n = count_of(bytes);
    meet("broadcast", 1, [&](MPI_Request* r) { check(MPI_Ibcast(data, n, MPI_BYTE, root, comm_, r), "broadcast"); });
  }
  void abort(int status) override {
    MPI_Abort(comm_, status);
    std::_Exit(status);
  }

 private:
  static constexpr int kTag = 0;
  template <class Start> void meet(const char* name, size_t n, Start&& start) {
    wait_for_jobs();
    const CommWatch::Call call(watch(), name);
    std::vector<MPI_Request> all(n, MPI_REQUEST_NULL);
    start(all.data());
    if (!jobs() || !jobs()->in_job()) return check(MPI_Waitall(int(n), all.data(), MPI_STATUSES_IGNORE), name);
    // MPI's waits spin; polling leaves the cpu to the computing thread.
    constexpr int kPolls = 20;
    constexpr std::chrono::microseconds kPause(50);
    int done = 0;
    for (int polls = 0;; ++polls) {
      check(MPI_Testall(int(n), all.data(), &done, MPI_STATUSES_IGNORE), name);
      if (done) return;
      if (polls >= kPolls && !jobs()->awaited()) std::this_thread::sleep_for(kPause);
    }
  }
  MPI_Comm comm_;
  bool ours_;
};

std::shared_ptr<Communicator> world() {
  (void)Communicator::timeout();  // checks TG_COMM_TIMEOUT in this thread
  int there = 0, level = 0;
  MPI_Initialized(&there);
  if (there) {
    check(MPI_Query_thread(&level), "asking MPI for its threads");
  } else {
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "starting MPI");
    TG_CHECK(level >= MPI_THREAD_FUNNELED, comm,
             "[comm] this MPI does not allow threads in a process. Build it with threads.");
  }
  MpiWorld::Place p{};
  p.ours = !there;
  // A program that has started MPI may call it at any time.
  p.any_thread = level >= (there ? MPI_THREAD_MULTIPLE : MPI_THREAD_SERIALIZED);
  MPI_Comm machine = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &p.comm), "starting MPI");
  check(MPI_Comm_set_errhandler(p.comm, MPI_ERRORS_RETURN), "starting MPI");
  check(MPI_Comm_rank(p.comm, &p.rank), "starting MPI");
  check(MPI_Comm_size(p.comm, &p.size), "starting MPI");
  check(MPI_Comm_split_type(p.comm, MPI_COMM_TYPE_SHARED, p.rank, MPI_INFO_NULL, &machine), "starting MPI");
  check(MPI_Comm_rank(machine, &p.local_rank), "starting MPI");
  check(MPI_Comm_size(machine, &p.local_size), "starting MPI");
  MPI_Comm_free(&machine);
  return std::make_shared<MpiWorld>(p);
}
std::string name() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);  // allowed before MPI_Init
  const std::string_view all(text, size_t(length));
  return std::string(all.substr(0, all.find_first_of(",\n")));
}
[[maybe_unused]] const bool registered = tg::detail::register_communicators({name, world});
}  // namespace
}  // namespace tg::cpu
