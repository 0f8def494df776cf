#include <cstring>

#include <tapegrad/emulator/memory.h>

namespace simt::engine {
namespace {

Handles<Stream*, cudaStream_t>& stream_handles = *new Handles<Stream*, cudaStream_t>;
Handles<Event, cudaEvent_t>& event_handles = *new Handles<Event, cudaEvent_t>;

struct Block {  // rows of `width` bytes
  char* to;
  std::size_t to_pitch;
  const char* from;
  std::size_t from_pitch, width, rows;
};

void check_pinned(const void* p, std::size_t n) {
  if (!is_pinned(p, n)) fail(Fault::host_memory, {}, "a copy uses pinned memory at %p that was freed", p);
}

void run_copy(const Block& b, const char* staged, bool to_device, bool from_device, const Operation& op) {
  for (std::size_t r = 0; r < b.rows; ++r) {
    char* const to = b.to + r * b.to_pitch;
    const char* const from = staged ? staged + r * b.width : b.from + r * b.from_pitch;
    if (from_device) global_access(from, b.width, Access::read, op, {});
    if (to_device) global_access(to, b.width, Access::write, op, {});
    if (failed()) return;
    std::memcpy(to, from, b.width);
    if (from_device && to_device)  // unwritten bytes stay unwritten
      std::memcpy(arena.state + (to - arena.base), arena.state + (from - arena.base), b.width);
  }
}

cudaError_t copy(Block b, cudaMemcpyKind kind, Stream* s, bool sync) {
  if (!s) return status();
  const bool to_device = in_arena(b.to), from_device = in_arena(b.from);
  static constexpr bool wants[4][2] = {{false, false}, {true, false}, {false, true}, {true, true}};
  if (kind != cudaMemcpyDefault && (wants[kind][0] != to_device || wants[kind][1] != from_device)) {
    fail(Fault::usage, {}, "a copy of kind %d from %s to %s memory", kind, from_device ? "device" : "host",
         to_device ? "device" : "host");
    return status(cudaErrorInvalidValue);
  }
  if (!b.width || !b.rows) return status();
  // Pageable memory is read now, or complete on return; pinned memory is accessed when the copy runs.
  const std::size_t to_bytes = (b.rows - 1) * b.to_pitch + b.width, from_bytes = (b.rows - 1) * b.from_pitch + b.width;
  const bool late_to = !to_device && is_pinned(b.to, to_bytes);
  const bool late_from = !from_device && is_pinned(b.from, from_bytes);
  const bool pageable = (!to_device && !late_to) || (!from_device && !late_from);
  if (sync || pageable)
    if (const cudaError_t e = forbid_on(*s); e != cudaSuccess) return status(e);
  std::vector<char> staged;
  if (!from_device && !late_from)
    for (std::size_t r = 0; r < b.rows; ++r)
      staged.insert(staged.end(), b.from + r * b.from_pitch, b.from + r * b.from_pitch + b.width);
  Work w{Kind::copy, {}, {}, unsigned{to_device} * 2 + unsigned{from_device}};
  w.bytes = b.width * b.rows;
  w.run = [=, staged = std::move(staged)](const Operation& op) {
    if (late_to) check_pinned(b.to, to_bytes);
    if (late_from) check_pinned(b.from, from_bytes);
    if (!failed()) run_copy(b, staged.empty() ? nullptr : staged.data(), to_device, from_device, op);
  };
  if (late_to)  // the host sees NaNs early
    w.queued = [=] {
      for (std::size_t r = 0; is_pinned(b.to, to_bytes) && r < b.rows; ++r)
        std::memset(b.to + r * b.to_pitch, 0xff, b.width);
    };
  const cudaError_t e = submit(*s, std::move(w));
  if (sync || (!to_device && !late_to)) finish(s->last);
  return status(e);
}

Stream* destroyed_stream() {
  fail(Fault::usage, {}, "use of a stream that was destroyed, or never made");
  return nullptr;
}

}  // namespace

Stream* find(cudaStream_t s) {
  if (!s) return &null_stream();
  Stream** const found = stream_handles.find(s);
  return found ? *found : destroyed_stream();
}
Event* find(cudaEvent_t e) {
  Event* const found = event_handles.find(e);
  if (!found) fail(Fault::usage, {}, "use of an event that was destroyed, or never made");
  return found;
}

cudaError_t launch(Call call, dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream) {
  const Entry entry;
  Stream* const s = find(stream);
  if (!s) return status();
  const std::size_t n = std::size_t{block.x} * block.y * block.z;
  if (!n || n > max_threads || block.z > 64 || !grid.x || !grid.y || !grid.z || grid.x > 0x7fffffff || grid.y > 65535 ||
      grid.z > 65535)
    return status(cudaErrorInvalidConfiguration);
  if (const cudaError_t e = image_status(); e != cudaSuccess) return status(e);
  if (shared_bytes > dynamic_shared_limit(call.kernel)) return status(cudaErrorInvalidValue);
  if (std::size_t{grid.x} * grid.y * grid.z > 0xffffffff) {
    fail(Fault::usage, {}, "a grid of more than 2^32 blocks, which is more than the emulator runs");
    return status();
  }
  const auto work = [=](const Operation& op) { run({call, grid, block, shared_bytes, &op}); };
  return submit(*s, {.kind = Kind::kernel, .run = work, .kernel = call.kernel});
}

void reset_handles() {
  stream_handles.clear();
  event_handles.clear();
}

}  // namespace simt::engine

using namespace simt::engine;
using simt::Fault;

// --- memory
cudaError_t cudaMallocAsync(void** p, std::size_t n, cudaStream_t stream) {
  const Entry entry;
  Stream* const s = find(stream);
  if (!s) return status();
  if (const cudaError_t e = forbid_on(*s); e != cudaSuccess) return status(e);
  char* const m = allocate(n, next_seen(*s));
  if (!m) return status(cudaErrorMemoryAllocation);
  *p = m;
  return submit(*s, {Kind::memory, [=](const Operation& op) { open_memory(m, n, &op); }, {}});
}
cudaError_t cudaFreeAsync(void* p, cudaStream_t stream) {
  const Entry entry;
  Stream* const s = find(stream);
  if (!p || !s) return status();
  if (const cudaError_t e = forbid_on(*s); e != cudaSuccess) return status(e);
  if (!is_allocation(p)) return status(cudaErrorInvalidValue);
  return submit(*s, {Kind::memory, [=](const Operation& op) { close_memory(static_cast<char*>(p), &op); }, {}});
}
cudaError_t cudaMalloc(void** p, std::size_t n) {
  const Entry entry;
  if (const cudaError_t e = forbid_while_capturing(); e != cudaSuccess) return status(e);
  char* const m = allocate(n, host_seen());
  if (!m) return status(cudaErrorMemoryAllocation);
  const Open open;
  open_memory(m, n, nullptr);
  *p = m;
  return status();
}
cudaError_t cudaFree(void* p) {
  const Entry entry;
  if (const cudaError_t e = forbid_device_wide(); e != cudaSuccess) return status(e);
  finish_all();
  if (!p) return status();
  if (!is_allocation(p)) return status(cudaErrorInvalidValue);
  close_memory(static_cast<char*>(p), nullptr);
  return status();
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const Entry entry;
  memory_left(free, total);
  return status();
}
cudaError_t cudaMallocHost(void** p, std::size_t n) {
  const Entry entry;
  if (const cudaError_t e = forbid_while_capturing(); e != cudaSuccess) return status(e);
  *p = allocate_pinned(n);
  return status(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeHost(void* p) {
  const Entry entry;
  if (const cudaError_t e = forbid_device_wide(); e != cudaSuccess) return status(e);
  finish_all();
  free_pinned(p);
  return status();
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t n, cudaMemcpyKind k) {
  const Entry entry;
  if (const cudaError_t e = forbid_device_wide(); e != cudaSuccess) return status(e);
  return copy({static_cast<char*>(to), n, static_cast<const char*>(from), n, n, 1}, k, find(cudaStream_t{}), true);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t n, cudaMemcpyKind k, cudaStream_t s) {
  const Entry entry;
  return copy({static_cast<char*>(to), n, static_cast<const char*>(from), n, n, 1}, k, find(s), false);
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t rows, cudaMemcpyKind k, cudaStream_t s) {
  const Entry entry;
  if (width > to_pitch || width > from_pitch) return status(cudaErrorInvalidPitchValue);
  return copy({static_cast<char*>(to), to_pitch, static_cast<const char*>(from), from_pitch, width, rows}, k, find(s),
              false);
}
cudaError_t cudaMemsetAsync(void* p, int value, std::size_t n, cudaStream_t stream) {
  const Entry entry;
  Stream* const s = find(stream);
  if (!s) return status();
  if (!in_arena(p)) return status(cudaErrorInvalidValue);
  if (!n) return status();
  const auto work = [=](const Operation& op) {
    global_access(p, n, Access::write, op, {});
    if (!failed()) std::memset(p, value, n);
  };
  return submit(*s, {.kind = Kind::set, .run = work, .bytes = n});
}
cudaError_t cudaMemset(void* p, int value, std::size_t n) {
  const Entry entry;
  if (const cudaError_t e = forbid_device_wide(); e != cudaSuccess) return status(e);
  return cudaMemsetAsync(p, value, n, nullptr);
}

// --- streams
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags) {
  const Entry entry;
  Stream* const made = new_stream(flags != cudaStreamNonBlocking);
  if (!made) return status(cudaErrorMemoryAllocation);
  *s = stream_handles.add(made);
  return status();
}
cudaError_t cudaStreamCreate(cudaStream_t* s) { return cudaStreamCreateWithFlags(s, cudaStreamDefault); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Entry entry;
  if (!stream) return status(cudaErrorInvalidResourceHandle);
  Stream* const s = find(stream);
  if (!s) return status();
  if (s->capture) return status(forbid_on(*s));
  stream_handles.erase(stream);
  retire(s);
  return status();
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Entry entry;
  Stream* const s = find(stream);
  if (!s) return status();
  if (const cudaError_t e = forbid_on(*s); e != cudaSuccess) return status(e);
  finish(s->last);
  for (const OperationPtr& op : std::vector(s->waits)) finish(op);
  if (s->index == 0)
    for (const auto& o : all_streams())
      if (o && o->blocking) finish(o->last);
  return status();
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const Entry entry;
  Stream* const s = find(stream);
  if (!s) return status();
  if (const cudaError_t e = forbid_on(*s); e != cudaSuccess) return status(e);
  return poll(s->last) ? status() : cudaErrorNotReady;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*f)(void*), void* data) {
  const Entry entry;
  Stream* const s = find(stream);
  if (!s) return status();
  return submit(*s, {Kind::host, [=](const Operation&) { f(data); }, {}});
}

// --- events
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned flags) {
  const Entry entry;
  Event made;
  made.timed = !(flags & cudaEventDisableTiming);
  *e = event_handles.add(std::move(made));
  return status();
}
cudaError_t cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  const Entry entry;
  if (find(e)) event_handles.erase(e);
  return status();
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Entry entry;
  Stream* const s = find(stream);
  Event* const e = s ? find(event) : nullptr;
  if (!e) return status();
  e->capture = s->capture;
  e->tips = s->tips;
  if (s->capture) return status(s->capture->valid ? cudaSuccess : cudaErrorStreamCaptureInvalidated);
  if (const cudaError_t refused = forbid_on(*s); refused != cudaSuccess) return status(refused);
  e->time = std::make_shared<std::chrono::steady_clock::time_point>();
  e->op = enqueue(*s, {Kind::empty, [t = e->time](const Operation&) { *t = std::chrono::steady_clock::now(); }, {}});
  return status();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Entry entry;
  Stream* const s = find(stream);
  const Event* const e = s ? find(event) : nullptr;
  if (!e) return status();
  if (e->capture || s->capture) return status(wait_in_capture(*s, *e));
  if (e->op) s->waits.push_back(e->op);
  return status();
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Entry entry;
  const Event* const e = find(event);
  if (!e) return status();
  if (e->capture) return status(forbid_event(*e));
  finish(e->op);
  return status();
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Entry entry;
  const Event* const e = find(event);
  if (!e) return status();
  if (e->capture) return status(forbid_event(*e));
  if (const cudaError_t refused = forbid_while_capturing(); refused != cudaSuccess) return status(refused);
  return poll(e->op) ? status() : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  const Entry entry;
  const Event* const a = find(from);
  const Event* const b = a ? find(to) : nullptr;
  if (!b) return status();
  if (a->capture || b->capture) return status(cudaErrorCapturedEvent);
  if (!a->timed || !b->timed || !a->op || !b->op) return status(cudaErrorInvalidResourceHandle);
  if (!a->op->done || !b->op->done) return cudaErrorNotReady;
  *ms = std::chrono::duration<float, std::milli>(*b->time - *a->time).count();
  return status();
}
