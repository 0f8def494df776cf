// Ranks are processes of one machine; shared memory has a box per ordered pair, for one segment of a message.
// Operations run when queued: other ranks wait for them. CommAbort and CommGetAsyncError take no lock.
#include <fcntl.h>
#include <sys/mman.h>
#include <tapegrad/emulator/memory.h>
#include <tapegrad/emulator/nccl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <set>
#include <thread>
#include <vector>

using namespace tg::cuda::nccl;
using simt::Fault;
using simt::engine::Access;

namespace simt::engine {
namespace {
constexpr int most_ranks = 16;
constexpr std::size_t piece = 1 << 16;
constexpr char magic[] = "emulated ";
constexpr std::size_t element_bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};  // index: ncclDataType_t

enum class Function : std::uint32_t { point_to_point, all_gather, broadcast };
constexpr const char* names[] = {"ncclSend or ncclRecv", "ncclAllGather", "ncclBroadcast"};

// A segment of a message, if one is present.
struct Box {
  std::atomic<std::uint64_t> sent, taken;
  Function function;  // the segment's message
  std::size_t bytes;
  char data[piece];
};
struct Room {
  std::atomic<int> joined;
  int device[most_ranks];
  Box box[];  // i * n + j: rank i to rank j
};
struct Message {
  char* data;
  std::size_t bytes;
  int rank;  // peer
  bool send;
  Function function;
  std::size_t done = 0;
};

thread_local std::string why;
int version = 22809;
std::atomic<Result> told = kSuccess;  // set by a test
std::atomic<const char*> told_function = "";

Result refuse(Result r, std::string text) {
  why = std::move(text);
  return r;
}
Result answer(const char* function) { return std::strcmp(function, told_function) == 0 ? told.load() : kSuccess; }
}  // namespace
}  // namespace simt::engine

using namespace simt::engine;

struct ncclComm {
  Room* room;
  int rank, size;
  std::atomic<bool> aborted = false;

  Box& box(int from, int to) const { return room->box[from * size + to]; }
  bool push(Message& m) {
    Box& b = box(rank, m.rank);
    if (b.sent.load() != b.taken.load()) return false;
    const std::size_t n = std::min(piece, m.bytes - m.done);
    b.function = m.function, b.bytes = m.bytes;
    std::memcpy(b.data, m.data + m.done, n);
    m.done += n;
    ++b.sent;
    return true;
  }
  bool pull(Message& m) {
    Box& b = box(m.rank, rank);
    if (b.sent.load() == b.taken.load()) return false;
    if (b.bytes != m.bytes || b.function != m.function) {
      fail(Fault::usage, {}, "rank %d sends %zu bytes by %s, but rank %d expects %zu by %s", m.rank, b.bytes,
           names[int(b.function)], rank, m.bytes, names[int(m.function)]);
      return false;
    }
    const std::size_t n = std::min(piece, m.bytes - m.done);
    std::memcpy(m.data + m.done, b.data, n);
    m.done += n;
    ++b.taken;
    return true;
  }
  // Sequential per pair of ranks.
  void exchange(std::vector<Message> all, const Operation& op) {
    for (const Message& m : all)
      library_access(m.data, m.bytes, m.send ? Access::read : Access::write, op, names[int(m.function)]);
    for (bool left = true; left && !failed() && !aborted;) {
      bool moved = left = false;
      std::set<std::pair<int, bool>> begun;
      for (Message& m : all) {
        if (m.done == m.bytes) continue;
        left = true;
        if (begun.insert({m.rank, m.send}).second) moved = (m.send ? push(m) : pull(m)) || moved;
      }
      if (left && !moved) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
};

namespace simt::engine {
namespace {
auto& comms_mutex = *new std::mutex;
auto& comms = *new std::set<Comm>;
bool is_live(Comm c) {
  const std::lock_guard lock(comms_mutex);
  return comms.contains(c);
}

struct Group {  // group of the calling thread
  int depth = 0;
  Comm comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<Message> messages;
  Result result = kSuccess;
};
thread_local Group group;

Result end_group() {
  Group g = std::exchange(group, {});
  if (g.result != kSuccess) return g.result;
  if (g.messages.empty()) return kSuccess;
  const auto to_self = [&](const Message& m) { return m.rank == g.comm->rank && m.send; };
  const auto of_self = [&](const Message& m) { return m.rank == g.comm->rank && !m.send; };
  if (std::ranges::count_if(g.messages, to_self) != std::ranges::count_if(g.messages, of_self))
    return refuse(kInvalidUsage, "a rank sends to itself and receives it in one group");
  Stream* const s = find(g.stream);
  const auto work = [comm = g.comm, all = std::move(g.messages)](const Operation& op) { comm->exchange(all, op); };
  const auto* kernel = reinterpret_cast<const void*>(&GroupEnd);
  if (!s || submit(*s, {.kind = Kind::kernel, .run = work, .kernel = kernel, .meets = true}) != cudaSuccess)
    return refuse(kUnhandledCudaError, "the stream refuses the work");
  return kSuccess;
}
// Messages form one group, unless one is open.
Result add(Comm c, cudaStream_t stream, std::vector<Message> messages) {
  Group& g = group;
  if (g.comm && (g.comm != c || g.stream != stream))
    fail(Fault::usage, {}, "a group uses two communicators or streams, and the emulator needs one");
  g.comm = c, g.stream = stream;
  for (Message& m : messages)
    if (m.bytes > 0) g.messages.push_back(m);
  return g.depth == 0 ? end_group() : kSuccess;
}
Result refuse_in_group(Result r, std::string text) {
  if (group.depth > 0) group.result = r;
  return refuse(r, std::move(text));
}
Result check(const char* name, Comm c, DataType type, int rank, std::size_t count, const void* data) {
  if (const Result r = answer(name); r != kSuccess) return refuse_in_group(r, "as a test wants");
  if (!is_live(c)) return refuse_in_group(kInvalidArgument, "no communicator, or one that was aborted");
  if (unsigned(type) >= std::size(element_bytes))
    return refuse_in_group(kInvalidArgument, "data type " + std::to_string(type) + " is unknown");
  if (rank < 0 || rank >= c->size)
    return refuse_in_group(kInvalidArgument, "rank " + std::to_string(rank) + " of " + std::to_string(c->size));
  if (count > 0 && !data) return refuse_in_group(kInvalidArgument, "a buffer is null");
  return kSuccess;
}
bool overlap(const char* a, const char* b, std::size_t n) { return a < b + n && b < a + n; }

std::string path_of(const UniqueId& id) { return "/tapegrad-nccl-" + std::string(id.bytes + sizeof magic - 1); }
Room* join(const UniqueId& id, int size, int rank, int device) {
  const std::size_t bytes = sizeof(Room) + sizeof(Box) * std::size_t(size * size);
  const int file = shm_open(path_of(id).c_str(), O_CREAT | O_RDWR, 0600);
  if (file < 0) return nullptr;
  void* const p = ftruncate(file, off_t(bytes)) == 0 ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                                                     : MAP_FAILED;
  close(file);
  if (p == MAP_FAILED) return nullptr;
  auto* const room = static_cast<Room*>(p);  // zeros
  room->device[rank] = device;
  ++room->joined;
  while (room->joined < size) std::this_thread::sleep_for(std::chrono::microseconds(100));
  shm_unlink(path_of(id).c_str());  // all ranks have mapped it
  return room;
}
}  // namespace
}  // namespace simt::engine

namespace simt {
void set_nccl(Result r, const char* function) {
  told = r;
  told_function = function;
}
void set_nccl_version(int v) { version = v; }
}  // namespace simt

namespace tg::cuda::nccl {
Result GetVersion(int* v) {
  *v = version;
  return kSuccess;
}
Result GetUniqueId(UniqueId* id) {
  *id = {};
  std::random_device random;
  std::snprintf(id->bytes, sizeof id->bytes, "%s%d-%08x%08x", magic, int(getpid()), random(), random());
  return answer("GetUniqueId");
}
Result CommInitRank(Comm* comm, int size, UniqueId id, int rank) {
  if (const Result r = answer("CommInitRank"); r != kSuccess) return refuse(r, "as a test wants");
  if (!comm || size < 1 || size > most_ranks || rank < 0 || rank >= size)
    return refuse(kInvalidArgument, "rank " + std::to_string(rank) + " of " + std::to_string(size));
  if (std::memcmp(id.bytes, magic, sizeof magic - 1) != 0)
    return refuse(kInvalidArgument, "the id is not from ncclGetUniqueId");
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return refuse(kUnhandledCudaError, "there is no device");
  Room* const room = join(id, size, rank, device);
  if (!room) return refuse(kSystemError, "shared memory could not be created");
  if (std::ranges::count(room->device, room->device + size, device) > 1)
    return refuse(kInvalidUsage, "two ranks have device " + std::to_string(device));
  *comm = new ncclComm{room, rank, size};  // leaked: queued work may use it
  const std::lock_guard lock(comms_mutex);
  comms.insert(*comm);
  return kSuccess;
}
Result CommAbort(Comm c) {
  const std::lock_guard lock(comms_mutex);
  if (comms.erase(c) == 0) return kInvalidArgument;
  c->aborted = true;
  return kSuccess;
}
Result CommGetAsyncError(Comm c, Result* r) {
  if (!is_live(c) || !r) return kInvalidArgument;
  *r = answer("CommGetAsyncError");
  return kSuccess;
}
// NCCL's text plus the emulator's reason.
const char* GetErrorString(Result r) {
  constexpr const char* texts[] = {"no error",
                                   "unhandled cuda error",
                                   "unhandled system error",
                                   "internal error",
                                   "invalid argument",
                                   "invalid usage",
                                   "remote process exited or there was a network error",
                                   "NCCL operation in progress"};
  thread_local std::string text;
  text = unsigned(r) < std::size(texts) ? texts[r] : "unknown result code";
  if (r != kSuccess && !why.empty()) text += ": " + why;
  return text.c_str();
}
Result GroupStart() {
  ++group.depth;
  return kSuccess;
}
Result GroupEnd() {
  const Entry entry;
  if (group.depth == 0) return refuse(kInvalidUsage, "no group was begun");
  return --group.depth == 0 ? end_group() : kSuccess;
}
Result Send(const void* from, std::size_t count, DataType type, int rank, Comm c, CudaStream stream) {
  const Entry entry;
  if (const Result r = simt::engine::check("Send", c, type, rank, count, from); r != kSuccess) return r;
  char* const data = static_cast<char*>(const_cast<void*>(from));
  return add(c, stream, {{data, count * element_bytes[type], rank, true, Function::point_to_point}});
}
Result Recv(void* to, std::size_t count, DataType type, int rank, Comm c, CudaStream stream) {
  const Entry entry;
  if (const Result r = simt::engine::check("Recv", c, type, rank, count, to); r != kSuccess) return r;
  return add(c, stream, {{static_cast<char*>(to), count * element_bytes[type], rank, false, Function::point_to_point}});
}
Result AllGather(const void* from, void* to, std::size_t count, DataType type, Comm c, CudaStream stream) {
  const Entry entry;
  if (const Result r = simt::engine::check("AllGather", c, type, 0, count, from); r != kSuccess) return r;
  if (count > 0 && !to) return refuse_in_group(kInvalidArgument, "a buffer is null");
  const std::size_t bytes = count * element_bytes[type];
  char *const mine = static_cast<char*>(const_cast<void*>(from)), *const all = static_cast<char*>(to);
  const bool in_place = mine == all + std::size_t(c->rank) * bytes;
  for (int r = 0; r < c->size && !in_place; ++r)
    if (overlap(mine, all + std::size_t(r) * bytes, bytes))
      fail(Fault::usage, {}, "ncclAllGather in place needs a rank's part at its offset");
  std::vector<Message> messages;
  for (int r = 0; r < c->size; ++r) {
    if (r == c->rank && in_place) continue;
    messages.push_back({mine, bytes, r, true, Function::all_gather});
    messages.push_back({all + std::size_t(r) * bytes, bytes, r, false, Function::all_gather});
  }
  return add(c, stream, std::move(messages));
}
Result Broadcast(const void* from, void* to, std::size_t count, DataType type, int root, Comm c, CudaStream stream) {
  const Entry entry;
  if (const Result r = simt::engine::check("Broadcast", c, type, root, count, to); r != kSuccess) return r;
  if (root == c->rank && count > 0 && !from) return refuse_in_group(kInvalidArgument, "a buffer is null");
  const std::size_t bytes = count * element_bytes[type];
  char *const mine = static_cast<char*>(const_cast<void*>(from)), *const all = static_cast<char*>(to);
  std::vector<Message> messages;
  for (int r = 0; r < c->size && root == c->rank; ++r)
    if (r != root || mine != all) messages.push_back({mine, bytes, r, true, Function::broadcast});
  if (root != c->rank || mine != all) messages.push_back({all, bytes, root, false, Function::broadcast});
  return add(c, stream, std::move(messages));
}
}  // namespace tg::cuda::nccl
