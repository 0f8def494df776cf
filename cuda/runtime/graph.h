// Owners of a CUDA graph, of one that is ready to be launched, and of the capture of a stream. For recording.cpp.
#pragma once
#include <fmt/format.h>
#include <tapegrad/cuda/runtime/errors.h>

#include <shared_mutex>
#include <span>
#include <utility>

namespace tg::cuda {

// Shared by captures; owned alone by who waits for the whole device (cudaDeviceSynchronize, cudaFree): CUDA ends the
// captures of other threads then, whatever their mode.
inline std::shared_timed_mutex& captures() {  // leaked, as the devices are
  static auto& m = *new std::shared_timed_mutex;
  return m;
}

inline constexpr std::string_view kGraphOp = "compile";  // in whose name errors of graphs are

struct RefusedPart : Error {  // what the driver does not take as a child graph may be captured with all the rest
  using Error::Error;
};

class Graph {
 public:
  Graph() { check(cudaGraphCreate(&graph_, 0), kGraphOp, "making a graph"); }
  explicit Graph(cudaGraph_t g) : graph_(g) {}
  ~Graph() {
    if (graph_) (void)cudaGraphDestroy(graph_);
  }
  Graph(Graph&& o) noexcept : graph_(std::exchange(o.graph_, nullptr)) {}
  Graph& operator=(Graph&& o) noexcept { return std::swap(graph_, o.graph_), *this; }
  operator cudaGraph_t() const { return graph_; }
  bool empty() const {
    size_t n = 0;
    check(cudaGraphGetNodes(graph_, nullptr, &n), kGraphOp, "counting the nodes of a graph");
    return n == 0;
  }
  // A node that does what the child does now, after others.
  cudaGraphNode_t add(const Graph& child, std::span<const cudaGraphNode_t> after) {
    cudaGraphNode_t node = nullptr;
    if (const cudaError_t e = cudaGraphAddChildGraphNode(&node, graph_, after.data(), after.size(), child);
        e == cudaErrorInvalidValue || e == cudaErrorNotSupported) {
      (void)cudaGetLastError();
      throw RefusedPart(Error::Kind::cuda,
                        fmt::format("The driver takes no child graph of an op's kernels: {}.", cudaGetErrorString(e)));
    } else {
      check(e, kGraphOp, "adding to a graph");
    }
    return node;
  }

 private:
  cudaGraph_t graph_ = nullptr;
};

// It keeps the graph that it was made of, whose nodes name its own.
class ExecutableGraph {
 public:
  ExecutableGraph() : graph_(nullptr) {}
  explicit ExecutableGraph(Graph g) : graph_(std::move(g)) {
    check(cudaGraphInstantiate(&exec_, graph_, 0), kGraphOp, "instantiating a graph");
  }
  ~ExecutableGraph() {
    if (exec_) (void)cudaGraphExecDestroy(exec_);  // launches go on
  }
  ExecutableGraph(ExecutableGraph&& o) noexcept : graph_(std::move(o.graph_)), exec_(std::exchange(o.exec_, nullptr)) {}
  ExecutableGraph& operator=(ExecutableGraph&& o) noexcept {
    std::swap(graph_, o.graph_), std::swap(exec_, o.exec_);
    return *this;
  }
  // From the next launch on a node of Graph::add() does what the child does; false if that has another form.
  bool replace(cudaGraphNode_t node, const Graph& child) {
    if (cudaGraphExecChildGraphNodeSetParams(exec_, node, child) == cudaSuccess) return true;
    (void)cudaGetLastError();
    return false;
  }
  void launch(cudaStream_t s) { check(cudaGraphLaunch(exec_, s), kGraphOp, "launching a graph"); }

 private:
  Graph graph_;
  cudaGraphExec_t exec_ = nullptr;
};

// During its life, work that the calling thread queues in the stream is kept and not run. Other threads may do as they
// like, but not in this stream.
class Capture {
 public:
  explicit Capture(cudaStream_t s) : stream_(s) {
    check(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), kGraphOp, "beginning a capture");
  }
  ~Capture() {  // of what failed
    cudaGraph_t g = nullptr;
    if (stream_) (void)cudaStreamEndCapture(stream_, &g);
    if (g) (void)cudaGraphDestroy(g);
    if (stream_) (void)cudaGetLastError();
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  Graph end() {
    cudaGraph_t g = nullptr;
    check(cudaStreamEndCapture(std::exchange(stream_, nullptr), &g), kGraphOp, "ending a capture");
    return Graph(g);
  }

 private:
  std::shared_lock<std::shared_timed_mutex> shared_{captures()};
  cudaStream_t stream_;
};

}  // namespace tg::cuda
