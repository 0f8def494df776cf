// Streams as a graph of operations: which are queued, what orders them, and when each runs.
//
// Operation::seen is a vector clock: per stream, the number of operations that come before. It joins those of the
// previous operation, of events that the stream waits for, of the null stream's rule, and of everything that the host
// has waited for.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_map>

#include <tapegrad/emulator/internal.h>

namespace simt::engine {

using Counts = std::vector<std::uint64_t>;  // vector clock: operations per stream
void join(Counts& into, const Counts& from);

struct Operation;
using OperationPtr = std::shared_ptr<Operation>;

enum class Kind { kernel, copy, set, host, memory, empty };
struct Work {
  Kind kind = Kind::empty;
  std::function<void(const Operation&)> run = {};
  std::function<void()> queued = {};
  unsigned detail = 0;  // a copy's sides in device memory
  const void* kernel = nullptr;
  std::size_t bytes = 0;
  std::uint64_t node = 0;  // graph node
  bool meets = false;
};

// A mark of 48 bits, nonzero.
inline std::uint64_t mark_of(unsigned stream, std::uint64_t number) { return std::uint64_t{stream} << 38 | number; }
inline bool comes_before(std::uint64_t mark, const Counts& seen) {
  const std::uint64_t stream = mark >> 38;
  return stream < seen.size() && seen[stream] >= (mark & ((std::uint64_t{1} << 38) - 1));
}

// Forgotten once nothing waits for it; its bytes keep the mark.
struct Operation {
  unsigned stream = 0;
  std::uint64_t number = 0;  // one-based
  Counts seen;               // includes itself
  std::vector<OperationPtr> after;
  Work work;
  std::uint32_t call = 0;  // API call that queued it
  bool done = false;
  std::uint64_t mark() const { return mark_of(stream, number); }
};

struct Capture;
struct Stream {
  unsigned index = 0;
  std::uint64_t count = 0;
  OperationPtr last;
  bool blocking = true;
  std::vector<OperationPtr> waits;
  std::shared_ptr<Capture> capture;
  std::vector<unsigned> tips;  // nodes that precede its next one
};
struct Event {
  bool timed = true;
  OperationPtr op;
  std::shared_ptr<std::chrono::steady_clock::time_point> time;
  std::shared_ptr<Capture> capture;
  std::vector<unsigned> tips;
};

struct Graph {
  struct Node {
    Work work;
    std::vector<unsigned> after;
    std::shared_ptr<const Graph> child = nullptr;  // work of the node
  };
  std::vector<Node> nodes;
};
struct Capture {
  Graph graph;
  Stream* origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id owner;
  bool valid = true;
};

Stream* new_stream(bool blocking);
void retire(Stream*);  // operations of the stream still run
Stream& null_stream();
const std::vector<std::unique_ptr<Stream>>& all_streams();

OperationPtr enqueue(Stream&, Work, std::vector<OperationPtr> after = {});
// Finishes o, so that the host knows its predecessors.
void finish(const OperationPtr&);
void finish_all();
bool poll(const OperationPtr&);  // true: done; the host then knows
const Counts& host_seen();
Counts next_seen(const Stream&);  // predecessors of the next operation
std::uint64_t pending_operations();
void queue_reset();

cudaError_t submit(Stream&, Work);
// An error if captures forbid the thread to synchronise; invalidates them.
cudaError_t forbid_while_capturing();
// Waits for the device: every capture of any thread and mode.
cudaError_t forbid_device_wide();
// An error if the stream captures, or a capture excludes it.
cudaError_t forbid_on(Stream&);
cudaError_t forbid_event(const Event&);  // a captured event
cudaError_t wait_in_capture(Stream&, const Event&);
std::size_t dynamic_shared_limit(const void* kernel);
bool may_share(const void* kernel, std::size_t dynamic_bytes, std::size_t static_bytes);
void graph_reset();
void device_reset();
void reset_handles();

cudaError_t status(cudaError_t e = cudaSuccess);
Stream* find(cudaStream_t);  // null and a fault if absent
Event* find(cudaEvent_t);

// Never reused: destroyed handles are recognised.
template <class T, class Handle> class Handles {
 public:
  Handle add(T v) {
    const auto h = reinterpret_cast<Handle>(next_ += 16);
    live_.emplace(h, std::move(v));
    return h;
  }
  T* find(Handle h) {
    const auto it = live_.find(h);
    return it == live_.end() ? nullptr : &it->second;
  }
  void erase(Handle h) { live_.erase(h); }
  void clear() { live_.clear(); }

 private:
  std::unordered_map<Handle, T> live_;
  std::uintptr_t next_ = 4096;
};

}  // namespace simt::engine
