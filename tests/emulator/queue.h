// Streams as a graph of operations: what is queued, what comes before what, and when each operation runs. Captures and
// graphs (graph.cpp) build on it. For the emulator's own sources.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_map>

#include <tapegrad/emulator/internal.h>

namespace simt::engine {

using Counts = std::vector<std::uint64_t>;  // per stream: how many of its operations come before
void join(Counts& into, const Counts& from);

struct Operation;
using OperationPtr = std::shared_ptr<Operation>;

enum class Kind { kernel, copy, set, host, memory, empty };
struct Work {
  Kind kind = Kind::empty;
  std::function<void(const Operation&)> run = {};
  std::function<void()> queued = {};  // when it is queued, at each launch of a graph again; may be empty
  unsigned detail = 0;                // of a copy: which sides are of the device
  const void* kernel = nullptr;       // of a kernel: the function
  std::size_t bytes = 0;              // of a copy or fill
  std::uint64_t node = 0;             // of a graph, that it is the work of
  bool meets = false;                 // other processes in theirs: it runs when it is queued, as they wait
};

// Names an operation by its stream and its number there: 48 bits, not 0.
inline std::uint64_t mark_of(unsigned stream, std::uint64_t number) { return std::uint64_t{stream} << 38 | number; }
inline bool comes_before(std::uint64_t mark, const Counts& seen) {
  const std::uint64_t stream = mark >> 38;
  return stream < seen.size() && seen[stream] >= (mark & ((std::uint64_t{1} << 38) - 1));
}

// An operation is forgotten when nothing waits for it. What it touched remembers only its mark.
struct Operation {
  unsigned stream = 0;
  std::uint64_t number = 0;  // in its stream, from 1
  Counts seen;               // with itself
  std::vector<OperationPtr> after;
  Work work;
  std::uint32_t call = 0;  // of the API, that queued it
  bool done = false;
  std::uint64_t mark() const { return mark_of(stream, number); }
};

struct Capture;
struct Stream {
  unsigned index = 0;
  std::uint64_t count = 0;
  OperationPtr last;
  bool blocking = true;
  std::vector<OperationPtr> waits;  // for its next operation
  std::shared_ptr<Capture> capture;
  std::vector<unsigned> tips;  // nodes of the capture that its next one follows
};
struct Event {
  bool timed = true;
  OperationPtr op;
  std::shared_ptr<std::chrono::steady_clock::time_point> time;
  std::shared_ptr<Capture> capture;  // that it was recorded in
  std::vector<unsigned> tips;
};

struct Graph {
  struct Node {
    Work work;
    std::vector<unsigned> after;
    std::shared_ptr<const Graph> child = nullptr;  // which is the node's work
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
void retire(Stream*);  // its operations go on
Stream& null_stream();
const std::vector<std::unique_ptr<Stream>>& all_streams();

OperationPtr enqueue(Stream&, Work, std::vector<OperationPtr> after = {});
void finish(const OperationPtr&);  // runs it and all before it; the host knows then. Null: nothing to do
void finish_all();
bool poll(const OperationPtr&);  // is it done? then the host knows
const Counts& host_seen();
Counts next_seen(const Stream&);  // what the stream's next operation comes after
std::uint64_t pending_operations();
void queue_reset();

// Queues work on a stream, or records it in the stream's capture.
cudaError_t submit(Stream&, Work);
// Invalidates the captures that forbid the calling thread what could synchronise; an error if there is one.
cudaError_t forbid_while_capturing();
// The same for what waits for the whole device: every capture, of any thread and mode.
cudaError_t forbid_device_wide();
cudaError_t forbid_on(Stream&);          // synchronisation of a stream that captures, or that a capture excludes
cudaError_t forbid_event(const Event&);  // that was captured
cudaError_t wait_in_capture(Stream&, const Event&);
std::size_t dynamic_shared_limit(const void* kernel);
// Static shared memory counts too: whether the kernel may have both.
bool may_share(const void* kernel, std::size_t dynamic_bytes, std::size_t static_bytes);
void graph_reset();
void device_reset();
void reset_handles();

cudaError_t status(cudaError_t e = cudaSuccess);  // to be returned by a call of the API
Stream* find(cudaStream_t);                       // null and a fault if there is none
Event* find(cudaEvent_t);

// Handles are numbers that are never used again, so that one which was destroyed is known as such.
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
