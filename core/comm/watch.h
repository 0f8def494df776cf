/// @file
/// CommWatch: ends the process when other ranks do not respond. Each Communicator of several ranks has one.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tg {

/// A thread that limits waits for other ranks, on host and devices. It ends the process with a message (call, rank)
/// when a wait exceeds Communicator::timeout() or an exchange fails. The launcher then ends the other ranks.
class CommWatch {
 public:
  explicit CommWatch(int rank);
  ~CommWatch();
  CommWatch(const CommWatch&) = delete;
  CommWatch& operator=(const CommWatch&) = delete;

  /// Scope of a wait for other ranks in call `name`, which is never freed. One at a time.
  class Call {
   public:
    Call(CommWatch&, const char* name);
    ~Call() { watch_.call_ = nullptr; }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    CommWatch& watch_;
  };

  /// A device whose ranks wait for each other while their hosts continue. The watching thread calls these.
  class OnDevice {
   public:
    virtual ~OnDevice() = default;
    /// A different number for each wait that has not ended; 0 if there is none.
    virtual uint64_t wait() = 0;
    /// The wait in words: "all_reduce on cuda:0".
    virtual std::string name(uint64_t wait) = 0;
    /// Why exchanges failed, or empty.
    virtual std::string failure() = 0;
    /// Frees waiting kernels, before the process ends.
    virtual void abort() = 0;
  };
  /// The device must live until the process ends.
  void add(OnDevice&);

 private:
  using Clock = std::chrono::steady_clock;
  struct Seen {  // the device's wait
    OnDevice* device;
    uint64_t wait = 0;
    Clock::time_point since;
  };
  void watch();
  void look();
  [[noreturn]] void end(const std::string& what);
  void end_if_late(Clock::time_point since, const std::string& name);

  int rank_;
  std::mutex mutex_;
  std::condition_variable ends_;
  bool done_ = false;
  std::vector<Seen> devices_;
  std::atomic<const char*> call_ = nullptr;
  std::atomic<Clock::rep> since_ = 0;
  std::thread thread_;
};

}  // namespace tg
