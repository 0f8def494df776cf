#include <fmt/format.h>
#include <tapegrad/cuda/runtime/allocator.h>
#include <tapegrad/cuda/runtime/graph.h>
#include <tapegrad/cuda/runtime/recording.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace tg::cuda {
namespace {

class StepValues {
 public:
  explicit StepValues(int device)
      : device_(device), memory_(allocator_of(device), stream_of(device), stream_of(device)) {}
  ~StepValues() {
    for (const Block& b : blocks_) memory_.give(b.device, b.bytes);
  }
  StepValues(const StepValues&) = delete;
  StepValues& operator=(const StepValues&) = delete;

  // Recording a call again reuses its memory.
  void begin(size_t call) { call_ = call, next_ = 0; }
  const void* take(const Op& op, size_t bytes, FillValues fill) {
    std::vector<Value>& values = calls_[call_];
    if (next_ == values.size()) values.push_back({});
    Value& v = values[next_++];
    if (v.bytes != bytes) v = place(bytes);
    v.fill = std::move(fill);
    write(v, op);
    return static_cast<std::byte*>(blocks_[v.block].device) + v.at;
  }
  bool update(size_t call, const Op& op) {
    const auto it = calls_.find(call);
    if (it == calls_.end()) return false;
    for (const Value& v : it->second) write(v, op);
    return true;
  }
  void send() {
    BackendRuntime& runtime = tg::detail::runtime_of(Device::cuda(device_));
    for (Block& b : blocks_)
      if (std::exchange(b.changed, false)) runtime.copy_from_host(device_, b.device, b.host.data(), b.host.size());
  }
  size_t bytes() const { return memory_.bytes(); }

 private:
  static constexpr size_t kBlock = 16384, kAligned = 16;
  struct Block {
    void* device;
    size_t bytes;  // capacity
    std::vector<std::byte> host;
    bool changed = false;
  };
  struct Value {
    size_t block = 0, at = 0, bytes = 0;
    FillValues fill = {};
  };
  Value place(size_t bytes) {
    if (blocks_.empty() || blocks_.back().host.size() + bytes > blocks_.back().bytes) {
      const size_t most = std::max(kBlock, bytes);
      blocks_.push_back({memory_.take(most), most, {}});
    }
    std::vector<std::byte>& host = blocks_.back().host;
    const size_t at = host.size();
    host.resize(std::min((at + bytes + kAligned - 1) / kAligned * kAligned, blocks_.back().bytes));
    return {blocks_.size() - 1, at, bytes};
  }
  void write(const Value& v, const Op& op) {
    v.fill(op, blocks_[v.block].host.data() + v.at);
    blocks_[v.block].changed = true;
  }
  int device_;
  HeldMemory memory_;
  std::vector<Block> blocks_;
  std::unordered_map<size_t, std::vector<Value>> calls_;
  size_t call_ = 0, next_ = 0;
};

thread_local HeldMemory* t_held = nullptr;
thread_local StepValues* t_values = nullptr;

class CudaRecording final : public Recording {
 public:
  CudaRecording(int device, std::vector<CallOrder> order, std::function<void(size_t)> call)
      : device_(device), order_(std::move(order)), call_(std::move(call)), values_(device), nodes_(order_.size()) {
    uint8_t most = 0;
    for (const CallOrder& o : order_) most = std::max(most, o.branch);
    for (int b = 0; b <= most; ++b) branches_.emplace_back(device, b > 0);
  }

  void record() override {
    if (!flat_) try {
        return record_parts();
      } catch (const RefusedPart& e) {
        fmt::print(stderr, "tapegrad: [compile] {} All ops are recorded as one graph from now on.\n", e.what());
        flat_ = true;
      }
    graph_ = ExecutableGraph(captured_whole());
  }
  size_t record(std::span<const uint32_t> calls) override {
    if (flat_) return graph_.update(captured_whole()) ? order_.size() : 0;
    const auto replaced = [&](uint32_t k) {
      const Graph part = captured(k);
      if (part.empty() || !nodes_[k]) return part.empty() && !nodes_[k];
      return graph_.replace(nodes_[k], part);
    };
    return std::ranges::all_of(calls, replaced) ? calls.size() : 0;
  }
  bool flatten() override { return !std::exchange(flat_, true); }
  bool update(size_t k, const Op& op) override { return values_.update(k, op); }
  bool launch() override {
    const cudaStream_t stream = stream_of(device_);
    if (stream != branches_[0].memory.order()) return false;
    values_.send();
    graph_.launch(stream);
    note_launch(kGraphOp, stream);
    return true;
  }
  size_t bytes() const override {
    size_t n = values_.bytes();
    for (const Branch& b : branches_) n += b.memory.bytes();
    return n;
  }

 private:
  struct Branch {
    Stream stream;  // captures calls; nothing runs in it
    HeldMemory memory;
    Branch(int device, bool concurrent) : memory(allocator_of(device), stream, stream_of(device), concurrent) {}
  };
  void record_parts() {
    Graph whole;
    std::vector<cudaGraphNode_t> nodes(order_.size());
    std::vector<cudaGraphNode_t> last(nodes.size());  // latest node of each branch
    std::vector<cudaGraphNode_t> newest(branches_.size());
    // Next node's dependencies, per branch.
    std::vector<std::vector<cudaGraphNode_t>> after(branches_.size());
    for (size_t k = 0; k < nodes.size(); ++k) {
      const size_t b = order_[k].branch;
      std::vector<cudaGraphNode_t>& mine = after[b];
      for (const uint32_t d : order_[k].after)
        if (last[d] && std::ranges::find(mine, last[d]) == mine.end()) mine.push_back(last[d]);
      if (const Graph part = captured(k); !part.empty()) {
        nodes[k] = newest[b] = whole.add(part, mine);
        mine = {newest[b]};
      }
      last[k] = newest[b];
    }
    graph_ = ExecutableGraph(std::move(whole));
    nodes_ = std::move(nodes);
  }
  void capture(size_t k) {
    Branch& b = branches_[order_[k].branch];
    const ScopedValue<HeldMemory*> held(t_held, &b.memory);
    const ScopedValue<StepValues*> values(t_values, &values_);
    values_.begin(k);
    const OnStream here(device_, b.stream);
    call_(k);
  }
  Graph captured(size_t k) {
    Capture c(branches_[order_[k].branch].stream);
    capture(k);
    return c.end();
  }
  Graph captured_whole() {
    const Event begin;
    std::vector<std::optional<Event>> done(order_.size());  // ends of calls that other branches follow
    for (const CallOrder& o : order_)
      for (const uint32_t d : o.after)
        if (!done[d]) done[d].emplace();
    Capture c(branches_[0].stream);
    begin.record(branches_[0].stream);
    for (size_t b = 1; b < branches_.size(); ++b) begin.wait_in(branches_[b].stream);
    for (size_t k = 0; k < order_.size(); ++k) {
      const cudaStream_t stream = branches_[order_[k].branch].stream;
      for (const uint32_t d : order_[k].after) done[d]->wait_in(stream);
      capture(k);
      if (done[k]) done[k]->record(stream);
    }
    std::vector<Event> ends(branches_.size());
    for (size_t b = 1; b < branches_.size(); ++b) {
      ends[b].record(branches_[b].stream);
      ends[b].wait_in(branches_[0].stream);
    }
    return c.end();
  }

  int device_;
  std::vector<CallOrder> order_;
  std::function<void(size_t)> call_;
  std::deque<Branch> branches_;
  StepValues values_;
  ExecutableGraph graph_;
  std::vector<cudaGraphNode_t> nodes_;  // null: queues nothing
  bool flat_ = false;                   // one capture, without child graphs
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
const void* recorded_values(const Op& op, size_t bytes, FillValues fill) {
  return t_values ? t_values->take(op, bytes, std::move(fill)) : nullptr;
}

std::unique_ptr<Recording> record_calls(int device, std::vector<CallOrder> order, std::function<void(size_t)> call) {
  return std::make_unique<CudaRecording>(device, std::move(order), std::move(call));
}

}  // namespace tg::cuda
