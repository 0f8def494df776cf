// Ranks on one GPU each, real or emulated: exchanges, all-reduce, errors of NCCL.
#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/bf16_copy.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/cuda/nccl/device_comm.h>

#include <chrono>
#include <thread>

#include "dist/rank_values.h"
#ifdef TG_CUDA_EMULATED
#include <tapegrad/emulator/nccl.h>
#endif

using namespace tg;
using cuda::nccl::DeviceComm;

namespace {
// None if there are more ranks than devices.
std::optional<Device> device() {
  Device d = Device::cpu();
  d.backend = Backend::cuda;
  if (!has_device(d) || world()->local_size() > detail::runtime_of(d).device_count()) {
    MESSAGE("skipped: there are fewer devices than ranks");
    return {};
  }
  d.index = world()->local_rank();
  return d;
}
std::byte* data(const Tensor& t) { return t.value()->storage->data; }
// Byte i of the message from rank `from` to rank `to`.
uint8_t byte_of(int from, int to, size_t i) { return uint8_t(from * 91 + to * 37 + int(i % 251) + int(i / 251) * 3); }
}  // namespace

TEST_CASE("all_reduce on devices: the bits of a sum in the order of the ranks, for each dtype and odd sizes") {
  const auto d = device();
  if (!d) return;
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::i64})
    for (const Shape& s : {Shape{}, Shape{0}, Shape{1}, Shape{2}, Shape{3, 5}, Shape{1023}, Shape{100'001}}) {
      CAPTURE(name_of(t));
      CAPTURE(s.product());
      const Tensor x = of_rank(world()->rank(), s, t), y = all_reduce(std::array{x.to(*d)}, world())[0];
      CHECK(y.device() == *d);
      CHECK(y.dtype() == (t == DType::bf16 ? DType::f32 : t));
      CHECK(y.shape() == s);
      CHECK(bits_of(y) == bits_of(serial_sum(s, t)));
    }
}
TEST_CASE("all_reduce on devices of a list: the bits of the CPU; eager, lazy and compiled") {
  const auto d = device();
  if (!d) return;
  std::vector<Tensor> x;  // more than fit in one launch
  for (int i = 0; i < 700; ++i)
    x.push_back(of_rank(world()->rank(), {1 + i * 13 % 40}, i % 3 == 0 ? DType::bf16 : DType::f32));
  for (const DType t : {DType::f64, DType::i64, DType::f32}) x.push_back(of_rank(world()->rank(), {30'001}, t));
  x.push_back(transpose(of_rank(world()->rank(), {40, 30}, DType::f32)));
  x.push_back(slice(x.back(), 0, 3, 9));
  const Tensors want = all_reduce(x, world());
  std::vector<Tensor> on_device;
  for (const Tensor& t : x) on_device.push_back(t.to(*d));
  const auto check = [&](Inputs got) { check_same_bits(got, want); };
  in_all_modes([](Inputs in) { return all_reduce(in, world()); }, on_device, check);
}
TEST_CASE("sums under way on devices: several at once, beside kernels, of values that are written over, or dropped") {
  const auto d = device();
  if (!d) return;
  const int rank = world()->rank();
  const std::vector<Tensor> here = {of_rank(rank, {9'001}, DType::f32), of_rank(rank, {70, 31}, DType::bf16)};
  std::vector<Tensor> there;
  for (const Tensor& t : here) there.push_back(t.to(*d));
  const auto f = [](Inputs x) {
    const Tensor w = x[0] * 1.0;
    PendingSums a = start_all_reduce(x, world()),
                b = start_reduce_scatter(std::array{w}, cuts_of(w.numel())[0], world());
    w.assign(w + 1.0);
    Tensor beside = w;
    for (int i = 0; i < 4; ++i) beside = beside * 0.5 + w;
    std::vector<Tensor> all{beside, b.finish()[0]};
    PendingSums c = start_all_reduce(std::array{all[1] * 2.0}, world());
    for (const Tensor& t : a.finish()) all.push_back(t + t);
    all.push_back(c.finish()[0]);
    return all;
  };
  // Shards of one length for 1 to 4 ranks: their results are all-reduced again.
  const auto equal = [](Inputs x) { return std::vector{slice(x[0], 0, 0, x[0].numel() / 12 * 12), x[1]}; };
  const std::vector<Tensor> want = f(equal(here));
  const auto check = [&](Inputs got) { check_same_bits(got, want); };
  const auto on_device = equal(there);
  { const PendingSums dropped = start_all_reduce(on_device, world()); }
  {
    PendingSums sums = start_all_reduce(on_device, world());
    const LazyScope lazy;
    (void)sums.finish();
  }
  CHECK_HAS(error_of([&] {
              const PendingSums sums = start_all_reduce(on_device, world());
              (void)bits_of(embedding(tensor(std::vector<int64_t>{7}, {1}).to(*d), zeros({2, 2}).to(*d)));
            }),
            "[embedding] id 7 at position");
  in_all_modes(f, on_device, check);
}
TEST_CASE("reduce_scatter and all_gather_parts on devices: the bits of the CPU, and bf16 copies") {
  const auto d = device();
  if (!d) return;
  const auto on_device = [&](const std::vector<Tensor>& all) {
    std::vector<Tensor> r;
    for (const Tensor& t : all) r.push_back(t.to(*d));
    return r;
  };
  const std::vector<Tensor> mine = list_of_rank(world()->rank());
  for (const ShardOffsets& cuts : cuts_of(elements(mine))) {
    const Tensors want = reduce_scatter(mine, cuts, world()), got = reduce_scatter(on_device(mine), cuts, world());
    for (size_t i = 0; i < mine.size(); ++i) {
      CAPTURE(i);
      CHECK(got[i].device() == *d);
      CHECK(bits_of(got[i]) == bits_of(want[i]));
    }
    for (const bool held : {false, true}) {
      std::vector<Tensor> here, there, old;
      for (const Tensor& t : mine) here.push_back(t.contiguous());
      there = on_device(here);
      there.back().requires_grad_();
      (void)detail::cast_parameter(there.back(), DType::bf16);
      if (held) old = {there[0].detach(), there.back().detach()};
      detail::all_gather_parts(here, cuts, world());
      detail::all_gather_parts(there, cuts, world());
      for (size_t i = 0; i < mine.size(); ++i) CHECK(bits_of(there[i]) == bits_of(here[i]));
      if (held) CHECK(bits_of(old[1]) == bits_of(mine.back().contiguous()));
      CHECK(bits_of(detail::cast_parameter(there.back(), DType::bf16)) ==
            bits_of(there.back().detach().to(DType::bf16)));
    }
  }
}
TEST_CASE("all_to_all and all_gather on devices: parts of any sizes") {
  const auto d = device();
  if (!d) return;
  DeviceComm* const comm = DeviceComm::of(*world(), d->index, "test");
  CHECK((comm == nullptr) == (world()->size() == 1));
  if (!comm) return;
  const int ranks = world()->size(), rank = world()->rank();
  CHECK(comm->rank() == rank);
  CHECK(DeviceComm::of(*world(), d->index, "test") == comm);
  for (const std::vector<size_t>& sizes : {std::vector<size_t>(4, 200'000), {70'001, 0, 3, 70'000}, {0, 1, 0, 0}}) {
    const std::vector<size_t> bytes(sizes.begin(), sizes.begin() + ranks);
    const size_t stride = 200'000;
    std::vector<uint8_t> from(stride * size_t(ranks)), gathered(from.size(), 0xee), parts = gathered, row = gathered;
    for (int r = 0; r < ranks; ++r) {
      for (size_t i = 0; i < bytes[size_t(r)]; ++i) {
        from[size_t(r) * stride + i] = byte_of(rank, r, i);
        gathered[size_t(r) * stride + i] = byte_of(r, 7, i);
        if (r == rank) row[size_t(r) * stride + i] = byte_of(r, 7, i);
      }
      for (size_t i = 0; i < bytes[size_t(rank)]; ++i) parts[size_t(r) * stride + i] = byte_of(r, rank, i);
    }
    const Shape s{int64_t(from.size())};
    const Tensor a = tensor(from, s, *d), b = tensor(std::vector<uint8_t>(from.size(), 0xee), s, *d),
                 c = tensor(row, s, *d);
    {
      const DeviceComm::Exchange exchange(comm, "test");
      comm->all_to_all(data(a), data(b), bytes, stride, "test");
      comm->all_gather(data(c), bytes, stride, "test");
    }
    CHECK(values<uint8_t>(b) == parts);
    CHECK(values<uint8_t>(c) == gathered);
  }
}

#ifdef TG_CUDA_EMULATED
namespace {
// A new world, whose devices have not met. Never destroyed, like its DeviceComm.
std::shared_ptr<Communicator> new_world() {
  class Again final : public Communicator {
   public:
    Again() : Communicator(world()->rank(), world()->size(), world()->local_rank(), world()->local_size()) {}
    void exchange(const char* name, std::span<const Message> sent, std::span<const Message> received) override {
      world()->exchange(name, sent, received);
    }
    void all_gather(const void* from, void* to, size_t n) override { world()->all_gather(from, to, n); }
    void broadcast(void* data, size_t n, int root) override { world()->broadcast(data, n, root); }
    void abort(int status) override { world()->abort(status); }
  };
  static auto& all = *new std::vector<std::shared_ptr<Communicator>>;
  return all.emplace_back(std::make_shared<Again>());
}
}  // namespace

TEST_CASE("NCCL is too old or fails: the op, the call and NCCL's words, on all ranks") {
  const auto d = device();
  if (!d || world()->size() == 1) return;
  const auto comm = new_world();
  const auto error = [&](int64_t n = 2400) {  // equal parts for 2, 3 and 4 ranks
    return error_of([&] { all_reduce(std::array{filled({n}, 1.0f).to(*d)}, comm); });
  };
  simt::set_nccl_version(21505);
  CHECK_HAS(error(), "[comm] NCCL 2.15.5 is too old. Several ranks with GPUs need NCCL 2.16 or newer");
  simt::set_nccl_version(22809);
  simt::set_nccl(cuda::nccl::kSystemError, "CommInitRank");
  CHECK_HAS(error(), fmt::format("[all_reduce] NCCL: making a communicator of {} ranks, where rank {} has {}, failed: "
                                 "unhandled system error",
                                 comm->size(), comm->rank(), *d));
  const std::tuple<const char*, const char*, int64_t> calls[] = {{"Send", "sending", 2400},
                                                                 {"Recv", "receiving", 2400},
                                                                 {"AllGather", "gathering", 2400},
                                                                 {"Broadcast", "broadcasting", 2401}};
  for (const auto& [function, what, n] : calls) {
    simt::set_nccl(cuda::nccl::kInternalError, function);
    CHECK_HAS(error(n), fmt::format("[all_reduce] NCCL: {} failed: internal error: as a test wants. NCCL_DEBUG=WARN in "
                                    "the environment says more.",
                                    what));
  }
  simt::set_nccl(cuda::nccl::kSuccess, "");
  const Tensor x = of_rank(world()->rank(), {1001}, DType::f32);
  CHECK(bits_of(all_reduce(std::array{x.to(*d)}, comm)[0]) == bits_of(serial_sum({1001}, DType::f32)));
}
#endif

namespace {
struct Aborts final : CommWatch::OnDevice {  // says that devices are aborted before the process ends
  uint64_t wait() override { return 0; }
  std::string name(uint64_t) override { return {}; }
  std::string failure() override { return {}; }
  void abort() override { std::fputs("aborted\n", stderr); }
};
}  // namespace
// tests/CMakeLists.txt runs these alone, and reads their messages.
TEST_CASE(
    "ends: rank 1 does not come to a sum on devices (skipped, as it ends the process: dist_* of ctest run it alone)" *
    doctest::skip()) {
  const auto d = device();
  if (!d) return;
  const Tensor x = filled({2}, 1.0f).to(*d);
  (void)all_reduce(std::array{x}, world());
  static Aborts aborts;
  world()->watch().add(aborts);
  if (world()->rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(50));
  (void)bits_of(all_reduce(std::array{x}, world())[0]);
}
#ifdef TG_CUDA_EMULATED
TEST_CASE("ends: NCCL reports a failure (skipped, as it ends the process: dist_* of ctest run it alone)" *
          doctest::skip()) {
  const auto d = device();
  if (!d) return;
  (void)all_reduce(std::array{filled({2}, 1.0f).to(*d)}, world());
  static Aborts aborts;
  world()->watch().add(aborts);
  if (world()->rank() == 1) simt::set_nccl(cuda::nccl::kRemoteError, "CommGetAsyncError");
  std::this_thread::sleep_for(std::chrono::seconds(50));
}
#endif
