// Owners of a CUDA graph, an executable graph, and a stream capture.
#pragma once
#include <fmt/format.h>
#include <tapegrad/cuda/runtime/errors.h>

#include <shared_mutex>
#include <span>
#include <utility>

namespace tg::cuda {

// Shared by captures, exclusive for synchronising the device (cudaDeviceSynchronize, cudaFree): CUDA would end other
// threads' captures in any mode.
inline std::shared_timed_mutex& captures() {  // leaked
  static auto& m = *new std::shared_timed_mutex;
  return m;
}

inline constexpr std::string_view kGraphOp = "compile";

// A driver may refuse a child graph, yet accept one capture of all calls.
struct RefusedPart : Error {
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
  cudaGraphNode_t add(const Graph& child, std::span<const cudaGraphNode_t> after) {
    cudaGraphNode_t node = nullptr;
    if (const cudaError_t e = cudaGraphAddChildGraphNode(&node, graph_, after.data(), after.size(), child);
        e == cudaErrorInvalidValue || e == cudaErrorNotSupported) {
      (void)cudaGetLastError();
      throw RefusedPart(Error::Kind::cuda,
                        fmt::format("The driver refuses an op's kernels as a child graph: {}.", cudaGetErrorString(e)));
    } else {
      check(e, kGraphOp, "adding to a graph");
    }
    return node;
  }

 private:
  cudaGraph_t graph_ = nullptr;
};

// Keeps the source graph, whose nodes identify those of the executable.
class ExecutableGraph {
 public:
  ExecutableGraph() : graph_(nullptr) {}
  explicit ExecutableGraph(Graph g) : graph_(std::move(g)) {
    check(cudaGraphInstantiate(&exec_, graph_, 0), kGraphOp, "instantiating a graph");
  }
  ~ExecutableGraph() {
    if (exec_) (void)cudaGraphExecDestroy(exec_);  // launches still complete
  }
  ExecutableGraph(ExecutableGraph&& o) noexcept : graph_(std::move(o.graph_)), exec_(std::exchange(o.exec_, nullptr)) {}
  ExecutableGraph& operator=(ExecutableGraph&& o) noexcept {
    std::swap(graph_, o.graph_), std::swap(exec_, o.exec_);
    return *this;
  }
  // From the next launch on; false if the child's topology differs.
  bool replace(cudaGraphNode_t node, const Graph& child) {
    if (cudaGraphExecChildGraphNodeSetParams(exec_, node, child) == cudaSuccess) return true;
    (void)cudaGetLastError();
    return false;
  }
  // False if the driver refuses.
  bool update(const Graph& g) {
    cudaGraphExecUpdateResultInfo why;
    if (cudaGraphExecUpdate(exec_, g, &why) == cudaSuccess) return true;
    (void)cudaGetLastError();
    return false;
  }
  void launch(cudaStream_t s) { check(cudaGraphLaunch(exec_, s), kGraphOp, "launching a graph"); }

 private:
  Graph graph_;
  cudaGraphExec_t exec_ = nullptr;
};

// Records the thread's work in the stream. Other threads may work, except in this stream.
class Capture {
 public:
  explicit Capture(cudaStream_t s) : stream_(s) {
    check(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), kGraphOp, "beginning a capture");
  }
  ~Capture() {  // a failed capture
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
