#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/run_node.h>
#include <tapegrad/cuda/nccl/device_comm.h>
#include <tapegrad/cuda/nccl/library.h>
#include <tapegrad/cuda/runtime/recording.h>

#include <algorithm>

namespace tg::cuda::nccl {
namespace {
// NCCL calls issued as one match in any order.
class Group {
 public:
  explicit Group(const char* op) : op_(op) { check(GroupStart(), op, "beginning a group"); }
  ~Group() {
    if (open_) (void)GroupEnd();
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  void end() {
    open_ = false;
    check(GroupEnd(), op_, "an exchange with other ranks");
  }

 private:
  const char* op_;
  bool open_ = true;
};
struct Registry {
  std::mutex mutex;
  std::map<std::pair<Communicator*, int>, DeviceComm*> all;
};
Registry& registry() {
  static auto& r = *new Registry;
  return r;
}
[[maybe_unused]] const bool registered = tg::detail::on_wait_for_async(DeviceComm::wait_for_all);

void order(cudaStream_t first, cudaStream_t then) {
  const Event at;
  at.record(first), at.wait_in(then);
}
}  // namespace

DeviceComm* DeviceComm::of(Communicator& comm, int device, const char* op) {
  if (comm.size() == 1) return nullptr;
  TG_CHECK(!held_memory(), state, "[{}] exchanges with other ranks are not captured into CUDA graphs.", op);
  comm.wait_for_jobs();  // creating a communicator exchanges messages
  const std::lock_guard lock(registry().mutex);
  DeviceComm*& found = registry().all[{&comm, device}];
  if (!found) found = new DeviceComm(comm, device, op);
  return found;
}
void DeviceComm::wait_for_all() noexcept {
  const std::lock_guard lock(registry().mutex);
  for (const auto& [of, comm] : registry().all) {
    if (!comm) continue;  // creation of the communicator failed
    const std::lock_guard of_one(comm->mutex_);
    try {
      for (const auto& [ticket, end] : comm->going_on_) end.wait_in(stream_of(comm->device_));
    } catch (const Error&) {
    }
  }
}
void DeviceComm::finish(const void* ticket) {
  const std::lock_guard lock(mutex_);
  const auto end = going_on_.extract(ticket);
  if (end) end.mapped().wait_in(stream_of(device_));
}

DeviceComm::DeviceComm(Communicator& comm, int device, const char* op) : comm_(comm), device_(device) {
  int version = 0;
  check(GetVersion(&version), op, "asking for its version");
  check_version(version);
  round_ = size_t(-comm.max(-int64_t(properties(device).l2_cache))) / 2;
  UniqueId id{};
  if (comm.rank() == 0) check(GetUniqueId(&id), op, "naming a communicator");
  comm.broadcast(&id, sizeof id, 0);
  {
    const CommWatch::Call call(comm.watch(), "making NCCL's communicator");
    check(CommInitRank(&nccl_, comm.size(), id, comm.rank()), op,
          fmt::format("making a communicator of {} ranks, where rank {} has {},", comm.size(), comm.rank(),
                      Device::cuda(device)));
  }
  comm.watch().add(*this);
}

void DeviceComm::all_to_all(const std::byte* from, std::byte* to, Sizes bytes, size_t stride, const char* op) {
  const size_t mine = bytes[size_t(rank())];
  const CommWatch::Call call(comm_.watch(), op);
  Group group(op);
  for (size_t r = 0; r < bytes.size(); ++r) {
    if (bytes[r] > 0) check(Send(from + r * stride, bytes[r], kInt8, int(r), nccl_, stream_), op, "sending");
    if (mine > 0) check(Recv(to + r * stride, mine, kInt8, int(r), nccl_, stream_), op, "receiving");
  }
  group.end();
}
void DeviceComm::all_gather(std::byte* row, Sizes bytes, size_t stride, const char* op) {
  const CommWatch::Call call(comm_.watch(), op);
  if (std::ranges::all_of(bytes, [&](size_t b) { return b == stride; })) {
    check(AllGather(row + size_t(rank()) * stride, row, stride, kInt8, nccl_, stream_), op, "gathering");
    return;
  }
  Group group(op);
  for (size_t r = 0; r < bytes.size(); ++r) {
    std::byte* const part = row + r * stride;
    if (bytes[r] > 0) check(Broadcast(part, part, bytes[r], kInt8, int(r), nccl_, stream_), op, "broadcasting");
  }
  group.end();
}

DeviceComm::Exchange::Exchange(DeviceComm* comm, const char* op) : comm_(comm) {
  if (!comm) return;
  order(stream_of(comm->device_), comm->stream_);
  comm->names_[++comm->waits_ % comm->names_.size()] = op;
  const auto begin = [](void* c) { ++static_cast<DeviceComm*>(c)->begun_; };
  cuda::check(cudaLaunchHostFunc(comm->stream_, begin, comm), op, "queueing a function of the host");
  on_stream_.emplace(comm->device_, comm->stream_);
}
DeviceComm::Exchange::~Exchange() {
  if (!comm_) return;
  const auto end = [](void* c) { ++static_cast<DeviceComm*>(c)->ended_; };
  (void)cudaLaunchHostFunc(comm_->stream_, end, comm_);
  on_stream_.reset();
  if (goes_on_) return;
  try {
    order(comm_->stream_, stream_of(comm_->device_));
  } catch (const Error&) {  // the next launch reports it
  }
}
void DeviceComm::Exchange::go_on(const void* ticket) {
  if (!comm_) return;
  const std::lock_guard lock(comm_->mutex_);
  comm_->going_on_.insert_or_assign(ticket, Event()).first->second.record(comm_->stream_);
  goes_on_ = true;
}
uint64_t DeviceComm::wait() {
  const uint64_t ended = ended_, begun = begun_;
  return begun > ended ? begun : 0;
}
std::string DeviceComm::name(uint64_t wait) {
  return fmt::format("{} on {}", names_[wait % names_.size()].load(), Device::cuda(device_));
}
std::string DeviceComm::failure() {
  Result r = kSuccess;
  const Result asked = CommGetAsyncError(nccl_, &r);
  if (asked != kSuccess) r = asked;
  if (r == kSuccess || r == kInProgress) return {};
  const uint64_t now = wait();
  return fmt::format(
      "{}: NCCL reports that a rank or the network between ranks has failed: {}. NCCL_DEBUG=WARN in the "
      "environment says more.",
      now ? name(now) : fmt::format("{}", Device::cuda(device_)), GetErrorString(r));
}
void DeviceComm::abort() { (void)CommAbort(nccl_); }
}  // namespace tg::cuda::nccl
