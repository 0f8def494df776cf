// Launches queue captured work, so replays get the same checks. Unordered branches become streams. Executable graphs
// hold child graphs inline.
#include <algorithm>
#include <numeric>
#include <span>

#include <tapegrad/emulator/queue.h>

namespace simt::engine {
namespace {

struct Executable {
  cudaGraph_t source = nullptr;   // graph whose nodes identify these
  std::vector<unsigned> first;    // first node per source node; total
  Graph graph;                    // no child graphs
  std::vector<std::size_t> lane;  // lane per node; 0: launch stream
  std::vector<Stream*> lanes;     // lanes from 1 on
  OperationPtr last;              // launches are sequential
};

auto& graphs = *new Handles<Graph, cudaGraph_t>;
auto& executables = *new Handles<Executable, cudaGraphExec_t>;
auto& captures = *new std::vector<std::shared_ptr<Capture>>;
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
bool child_graphs = true, child_updates = true;
constexpr std::size_t none = ~std::size_t{0};

cudaError_t refuse(Capture& c, cudaError_t e) {
  c.valid = false;
  return e;
}

bool forbids(const Capture& c) {
  if (c.mode == cudaStreamCaptureModeRelaxed || thread_mode == cudaStreamCaptureModeRelaxed) return false;
  if (c.owner == std::this_thread::get_id()) return true;
  return c.mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
}

cudaError_t forbid_legacy(const Stream& s) {
  if (s.index != 0) return cudaSuccess;
  for (const auto& o : all_streams())
    if (o && o->blocking && o->capture) return refuse(*o->capture, cudaErrorStreamCaptureImplicit);
  return cudaSuccess;
}

bool is_joined(const Capture& c, const std::vector<unsigned>& tips) {
  std::vector<bool> followed(c.graph.nodes.size());
  for (const unsigned t : tips) followed[t] = true;
  for (const Graph::Node& n : c.graph.nodes)
    for (const unsigned d : n.after) followed[d] = true;
  return std::ranges::all_of(followed, [](bool f) { return f; });
}

void leave(const std::shared_ptr<Capture>& c) {
  for (const auto& s : all_streams())
    if (s && s->capture == c) {
      s->capture = nullptr;
      s->tips.clear();
    }
  std::erase(captures, c);
}

// g's nodes follow `before`, child graphs inline between two empty nodes. `first`: where each node's nodes begin, and
// the end.
void append(Graph& to, const Graph& g, const std::vector<unsigned>& before, std::vector<unsigned>* first = nullptr) {
  const auto size = [&] { return static_cast<unsigned>(to.nodes.size()); };
  std::vector<unsigned> last;  // last node of each
  for (const Graph::Node& n : g.nodes) {
    if (first) first->push_back(size());
    std::vector<unsigned> after;
    for (const unsigned d : n.after) after.push_back(last[d]);
    to.nodes.push_back({n.work, n.after.empty() ? before : std::move(after)});
    if (n.child) {
      const unsigned begin = size() - 1;
      append(to, *n.child, {begin});
      std::vector<unsigned> all(size() - begin);
      std::iota(all.begin(), all.end(), begin);
      to.nodes.push_back({{}, std::move(all)});
    }
    last.push_back(size() - 1);
  }
  if (first) first->push_back(size());
}

cudaGraphExecUpdateResult compare(std::span<const Graph::Node> old, const Graph& now, unsigned at = 0) {
  if (old.size() != now.nodes.size()) return cudaGraphExecUpdateErrorTopologyChanged;
  for (std::size_t i = 0; i < old.size(); ++i) {
    const Graph::Node& n = now.nodes[i];
    if (n.work.kind != old[i].work.kind) return cudaGraphExecUpdateErrorNodeTypeChanged;
    const auto same = [at](unsigned a, unsigned b) { return a == b + at; };
    if ((i || !at) && !std::ranges::equal(old[i].after, n.after, same)) return cudaGraphExecUpdateErrorTopologyChanged;
    if (n.work.detail != old[i].work.detail) return cudaGraphExecUpdateErrorParametersChanged;
  }
  return cudaGraphExecUpdateSuccess;
}

void clone_nodes(Graph& g) {
  for (Graph::Node& n : g.nodes)
    if (n.work.node) n.work.node = clone_of(n.work.node);
}

bool assign_lanes(Executable& x) {
  std::vector<unsigned> tail;  // last node per lane
  for (unsigned i = 0; i < x.graph.nodes.size(); ++i) {
    std::size_t lane = tail.size();
    for (const unsigned d : x.graph.nodes[i].after)
      if (tail[x.lane[d]] == d) lane = x.lane[d];
    if (lane == tail.size()) tail.push_back(i);
    tail[lane] = i;
    x.lane.push_back(lane);
  }
  for (std::size_t l = 1; l < tail.size(); ++l) {
    Stream* const s = new_stream(false);
    if (!s) return false;
    x.lanes.push_back(s);
  }
  return true;
}

void drop(Executable& x) {
  for (Stream* s : x.lanes) retire(s);
}

Graph* find(cudaGraph_t g) {
  Graph* const found = graphs.find(g);
  if (!found) fail(Fault::usage, {}, "use of a graph that was destroyed, or never made");
  return found;
}
cudaGraphNode_t node_of(cudaGraph_t g, std::size_t i) {
  return reinterpret_cast<cudaGraphNode_t>(reinterpret_cast<std::uintptr_t>(g) << 24 | (i + 1));
}
std::size_t find(cudaGraph_t g, cudaGraphNode_t node) {
  const auto h = reinterpret_cast<std::uintptr_t>(node);
  const std::size_t i = (h & 0xffffff) - 1;
  const Graph* const found = h >> 24 == reinterpret_cast<std::uintptr_t>(g) ? graphs.find(g) : nullptr;
  if (found && i < found->nodes.size()) return i;
  fail(Fault::usage, {}, "a node of another graph, or of a graph that was destroyed");
  return none;
}
Executable* find(cudaGraphExec_t g) {
  Executable* const found = executables.find(g);
  if (!found) fail(Fault::usage, {}, "use of an executable graph that was destroyed, or never made");
  return found;
}

}  // namespace

cudaError_t submit(Stream& s, Work w) {
  if (s.capture) {
    if (!s.capture->valid) return status(cudaErrorStreamCaptureInvalidated);
    auto& nodes = s.capture->graph.nodes;
    if (recording_activity) w.node = new_node();
    nodes.push_back({std::move(w), std::move(s.tips)});
    s.tips = {static_cast<unsigned>(nodes.size() - 1)};
    return status();
  }
  if (const cudaError_t e = forbid_legacy(s); e != cudaSuccess) return status(e);
  enqueue(s, std::move(w));
  return status();
}

cudaError_t forbid_while_capturing() {
  cudaError_t e = cudaSuccess;
  for (const auto& c : captures)
    if (forbids(*c)) e = refuse(*c, cudaErrorStreamCaptureUnsupported);
  return e;
}
cudaError_t forbid_device_wide() {
  cudaError_t e = cudaSuccess;
  for (const auto& c : captures) e = refuse(*c, cudaErrorStreamCaptureUnsupported);
  return e;
}
cudaError_t forbid_on(Stream& s) {
  return s.capture ? refuse(*s.capture, cudaErrorStreamCaptureUnsupported) : forbid_legacy(s);
}
cudaError_t forbid_event(const Event& e) { return refuse(*e.capture, cudaErrorCapturedEvent); }

cudaError_t wait_in_capture(Stream& s, const Event& e) {
  if (!e.capture) return e.op ? refuse(*s.capture, cudaErrorStreamCaptureIsolation) : cudaSuccess;
  if (std::ranges::count(captures, e.capture) == 0) return cudaErrorCapturedEvent;  // the capture ended
  if (s.capture && s.capture != e.capture) {
    s.capture->valid = false;
    return refuse(*e.capture, cudaErrorStreamCaptureMerge);
  }
  if (!e.capture->valid) return cudaErrorStreamCaptureInvalidated;
  if (s.index == 0) return refuse(*e.capture, cudaErrorStreamCaptureImplicit);
  s.capture = e.capture;
  for (const unsigned t : e.tips)
    if (std::ranges::count(s.tips, t) == 0) s.tips.push_back(t);
  return cudaSuccess;
}

void graph_reset() {
  graphs.clear();
  executables.clear();
  captures.clear();
  thread_mode = cudaStreamCaptureModeGlobal;
  child_graphs = child_updates = true;
}

}  // namespace simt::engine
void simt::set_child_graphs(bool accepted, bool updated) {
  const engine::Entry entry;
  engine::child_graphs = accepted, engine::child_updates = updated;
}

using namespace simt::engine;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const Entry entry;
  if (!stream) return status(cudaErrorStreamCaptureUnsupported);
  Stream* const s = find(stream);
  if (!s) return status();
  if (s->capture) return status(cudaErrorIllegalState);
  auto c = std::make_shared<Capture>();
  c->origin = s;
  c->mode = mode;
  c->owner = std::this_thread::get_id();
  s->capture = c;
  s->tips.clear();
  captures.push_back(std::move(c));
  return status();
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Entry entry;
  *graph = nullptr;
  Stream* const s = find(stream);
  if (!s) return status();
  const std::shared_ptr<Capture> c = s->capture;
  if (!c) return status(cudaErrorIllegalState);
  if (c->origin != s) return status(refuse(*c, cudaErrorStreamCaptureUnmatched));
  if (c->mode != cudaStreamCaptureModeRelaxed && c->owner != std::this_thread::get_id())
    return status(refuse(*c, cudaErrorStreamCaptureWrongThread));
  const bool joined = is_joined(*c, s->tips);
  leave(c);
  if (!c->valid) return status(cudaErrorStreamCaptureInvalidated);
  if (!joined) return status(cudaErrorStreamCaptureUnjoined);
  *graph = graphs.add(std::move(c->graph));
  return status();
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* is) {
  const Entry entry;
  const Stream* const s = find(stream);
  if (!s) return status();
  *is = !s->capture          ? cudaStreamCaptureStatusNone
        : !s->capture->valid ? cudaStreamCaptureStatusInvalidated
                             : cudaStreamCaptureStatusActive;
  return status();
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  const Entry entry;
  std::swap(*mode, thread_mode);
  return status();
}

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned flags) {
  const Entry entry;
  if (flags) return status(cudaErrorInvalidValue);
  *graph = graphs.add({});
  return status();
}
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                       std::size_t count, cudaGraph_t child) {
  const Entry entry;
  Graph* const g = find(graph);
  const Graph* const c = g ? find(child) : nullptr;
  if (!c) return status();
  if (g == c || !child_graphs) return status(cudaErrorInvalidValue);
  auto contents = std::make_shared<Graph>(*c);
  if (recording_activity) clone_nodes(*contents);
  Graph::Node n{{}, {}, std::move(contents)};
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t d = find(graph, after[i]);
    if (d == none) return status();
    if (std::ranges::count(n.after, d)) return status(cudaErrorInvalidValue);
    n.after.push_back(static_cast<unsigned>(d));
  }
  g->nodes.push_back(std::move(n));
  *node = node_of(graph, g->nodes.size() - 1);
  return status();
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  const Entry entry;
  const Graph* const g = find(graph);
  if (!g) return status();
  const std::size_t n = g->nodes.size();
  if (nodes)
    for (std::size_t i = 0; i < *count; ++i) nodes[i] = i < n ? node_of(graph, i) : nullptr;
  *count = nodes ? std::min(*count, n) : n;
  return status();
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const Entry entry;
  if (find(graph)) graphs.erase(graph);
  return status();
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  const Entry entry;
  const Graph* const g = find(graph);
  if (!g) return status();
  Executable x;
  x.source = graph;
  append(x.graph, *g, {}, &x.first);
  if (recording_activity) clone_nodes(x.graph);
  if (!assign_lanes(x)) {
    drop(x);
    return status(cudaErrorMemoryAllocation);
  }
  *exec = executables.add(std::move(x));
  return status();
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  const Entry entry;
  Stream* const s = find(stream);
  Executable* const x = s ? find(exec) : nullptr;
  if (!x) return status();
  if (const cudaError_t e = forbid_on(*s); e != cudaSuccess) return status(e);
  const OperationPtr begin = enqueue(*s, {}, x->last ? std::vector{x->last} : std::vector<OperationPtr>{});
  std::vector<OperationPtr> ops;
  for (std::size_t i = 0; i < x->graph.nodes.size(); ++i) {
    const Graph::Node& n = x->graph.nodes[i];
    std::vector<OperationPtr> after;
    for (const unsigned d : n.after) after.push_back(ops[d]);
    if (after.empty()) after.push_back(begin);
    ops.push_back(enqueue(x->lane[i] == 0 ? *s : *x->lanes[x->lane[i] - 1], n.work, std::move(after)));
  }
  x->last = enqueue(*s, {}, std::move(ops));
  return status();
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* info) {
  const Entry entry;
  Executable* const x = find(exec);
  const Graph* const g = x ? find(graph) : nullptr;
  if (!g) return status();
  *info = {};
  Graph now;
  append(now, *g, {});
  info->result = compare(x->graph.nodes, now);
  if (info->result != cudaGraphExecUpdateSuccess) return status(cudaErrorGraphExecUpdateFailure);
  for (std::size_t k = 0; k < now.nodes.size(); ++k) now.nodes[k].work.node = x->graph.nodes[k].work.node;
  x->graph = std::move(now);
  return status();
}
cudaError_t cudaGraphExecChildGraphNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node, cudaGraph_t child) {
  const Entry entry;
  Executable* const x = find(exec);
  const Graph* const c = x ? find(child) : nullptr;
  const std::size_t i = c ? find(x->source, node) : none;
  if (i == none) return status();
  if (i + 1 >= x->first.size()) return status(cudaErrorInvalidValue);  // added after instantiation
  if (!child_updates) return status(cudaErrorGraphExecUpdateFailure);
  Graph part;  // node positions of append()
  append(part, {{{{}, {}, std::make_shared<const Graph>(*c)}}}, {});
  const unsigned begin = x->first[i];
  const std::span old(x->graph.nodes.begin() + begin, x->graph.nodes.begin() + x->first[i + 1]);
  if (compare(old, part, begin) != cudaGraphExecUpdateSuccess) return status(cudaErrorInvalidValue);
  for (std::size_t k = 0; k < old.size(); ++k) {
    part.nodes[k].work.node = old[k].work.node;
    old[k].work = std::move(part.nodes[k].work);
  }
  return status();
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  const Entry entry;
  Executable* const x = find(exec);
  if (!x) return status();
  drop(*x);
  executables.erase(exec);
  return status();
}
