#include <tapegrad/cuda/runtime/allocator.h>
#include <tapegrad/cuda/runtime/graph.h>
#include <tapegrad/cuda/runtime/recording.h>

#include <vector>

namespace tg::cuda {
namespace {

thread_local HeldMemory* t_held = nullptr;

class CudaRecording final : public Recording {
 public:
  CudaRecording(int device, size_t count, std::function<void(size_t)> call)
      : device_(device),
        call_(std::move(call)),
        memory_(allocator_of(device), stream_, stream_of(device)),
        nodes_(count) {}

  void record() override {
    Graph whole;
    std::vector<cudaGraphNode_t> nodes(nodes_.size());
    cudaGraphNode_t last = nullptr;
    for (size_t k = 0; k < nodes.size(); ++k)
      if (const Graph part = captured(k); !part.empty()) nodes[k] = last = whole.add(part, last);
    graph_ = ExecutableGraph(std::move(whole));
    nodes_ = std::move(nodes);
  }
  bool record(size_t k) override {
    const Graph part = captured(k);
    if (part.empty() || !nodes_[k]) return part.empty() && !nodes_[k];
    return graph_.replace(nodes_[k], part);
  }
  bool launch() override {
    const cudaStream_t stream = stream_of(device_);
    if (stream != memory_.order()) return false;
    graph_.launch(stream);
    note_launch(kGraphOp, stream);
    return true;
  }
  size_t bytes() const override { return memory_.bytes(); }

 private:
  Graph captured(size_t k) {
    const struct Held {
      explicit Held(HeldMemory& m) { t_held = &m; }
      ~Held() { t_held = nullptr; }
    } held(memory_);
    const OnStream here(device_, stream_);
    Capture capture(stream_);
    call_(k);
    return capture.end();
  }

  int device_;
  std::function<void(size_t)> call_;
  Stream stream_;  // where calls are captured; nothing runs in it
  HeldMemory memory_;
  ExecutableGraph graph_;
  std::vector<cudaGraphNode_t> nodes_;  // of calls; null: it queues nothing
};

}  // namespace

HeldMemory::~HeldMemory() {
  for (const auto& [p, bytes] : all_) allocator_.give_back(p, bytes);
}
void* HeldMemory::take(size_t bytes) {
  void* p = nullptr;
  if (const auto found = free_.lower_bound(bytes); found != free_.end()) {
    p = found->second;
    free_.erase(found);
  } else {
    p = allocator_.hold(bytes, order_);
    all_.emplace(p, bytes);
    total_ += bytes;
  }
  begin_use(p, bytes, recorded_);
  return p;
}
void HeldMemory::give(void* p, size_t bytes) noexcept {
  free_.emplace(all_.at(p), p);
  end_use(p, bytes, recorded_);
}

HeldMemory* held_memory() { return t_held; }

std::unique_ptr<Recording> record_calls(int device, size_t count, std::function<void(size_t)> call) {
  return std::make_unique<CudaRecording>(device, count, std::move(call));
}

}  // namespace tg::cuda
