// The pool of blocks, then the allocator: flat after warm-up, a full card, streams, faults.
#include <tapegrad/cuda/runtime/allocator.h>
#include <tapegrad/cuda/runtime/runtime.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "support/alone.h"
#include "support/on_cuda.h"

using namespace tg;
using namespace tg::cuda;
namespace {
constexpr size_t kMiB = 1 << 20;
DeviceAllocator& allocator() { return allocator_of(0); }
Tensor bytes_on_gpu(size_t n) { return empty(Layout::contiguous({int64_t(n / 4)}, DType::f32, kGpu)); }
std::byte* address(size_t x) { return reinterpret_cast<std::byte*>(x); }
}  // namespace

TEST_CASE("sizes of blocks: 512-byte units, at most an eighth or 2 MiB more than asked for") {
  for (size_t n : {0, 1, 511, 512, 513, 4096, 5000, 100'000, 1'048'576, 1'048'577, 30'000'000, 1'000'000'001}) {
    CAPTURE(n);
    const size_t r = rounded_block(n);
    CHECK(r % kBlockUnit == 0);
    CHECK(r >= std::max<size_t>(n, 1));
    CHECK(r - n <= std::max(kBlockUnit, std::min(n / 8, kSegmentUnit)));
    CHECK(rounded_block(r) == r);
    CHECK(BlockPool::least_segment(n) >= r);
  }
}
TEST_CASE("a pool of blocks splits, merges and prefers the best fit") {
  BlockPool pool;
  const int stream = 0, other = 0;
  CHECK(pool.take(600, &stream) == nullptr);
  CHECK(pool.next_segment(600, &stream) == 2 * kMiB);
  CHECK(pool.next_segment(3 * kMiB, &stream) == 20 * kMiB);
  CHECK(pool.next_segment(50 * kMiB, &stream) == 50 * kMiB);
  pool.add_segment(address(16 * kMiB), 2 * kMiB, 600, &stream);
  Block *a = pool.take(600, &stream), *b = pool.take(512, &stream), *c = pool.take(512, &stream);
  CHECK(a->at == address(16 * kMiB));
  CHECK(b->at == a->at + 1024);
  CHECK(c->at == b->at + 512);
  CHECK(pool.find(b->at) == b);
  CHECK(pool.take(600, &other) == nullptr);
  CHECK(pool.take(2 * kMiB, &stream) == nullptr);  // large blocks: separate segments
  const auto* at_b = b->at;
  pool.give(b);
  CHECK(pool.find(at_b) == nullptr);
  CHECK(pool.release().empty());
  b = pool.take(400, &stream);
  CHECK(b->at == at_b);
  pool.give(a), pool.give(c), pool.give(b);
  CHECK(pool.in_use() == 0);
  CHECK(pool.largest_free() == 2 * kMiB);
  const auto released = pool.release();
  REQUIRE(released.size() == 1);
  CHECK(released[0] == address(16 * kMiB));
  CHECK(pool.reserved() == 0);
  CHECK(pool.segments() == 0);
}
TEST_CASE("segments grow with what a stream holds, up to 1 GiB") {
  BlockPool pool;
  const int stream = 0;
  size_t at = 16 * kMiB;
  for (int i = 0; i < 4000; ++i) {
    const size_t n = pool.next_segment(4 * kMiB, &stream);
    CHECK(n >= std::max<size_t>(20 * kMiB, std::min<size_t>(pool.reserved() / 4, 1024 * kMiB)));
    CHECK(n <= 1024 * kMiB);
    pool.add_segment(address(at), n, 4 * kMiB, &stream);
    at += n;
    if (pool.reserved() > 10'000 * kMiB) break;
  }
  CHECK(pool.segments() < 40);
}
TEST_CASE("random use of a pool: blocks keep apart, and everything comes back") {
  BlockPool pool;
  const int streams[3] = {};
  Rng rng{7};
  std::map<std::byte*, size_t> segments, used;
  std::vector<std::pair<Block*, size_t>> live;
  std::map<std::byte*, Owner> owner;
  size_t next = 64 * kMiB;
  const auto check_apart = [&](std::byte* at, size_t n) {
    auto s = segments.upper_bound(at);
    REQUIRE(s != segments.begin());
    --s;
    CHECK(at + n <= s->first + s->second);
    auto after = used.lower_bound(at);
    if (after != used.end()) CHECK(at + n <= after->first);
    if (after != used.begin()) {
      --after;
      CHECK(after->first + after->second <= at);
    }
  };
  for (int i = 0; i < 20'000; ++i) {
    if (live.size() < 200 && rng.uniform() < 0.55f) {
      const int64_t power = int64_t(rng.uniform() * 24);
      const size_t n = size_t(rng.uniform() * float(int64_t(1) << power));
      const Owner who = &streams[size_t(rng.uniform() * 3)];
      Block* b = pool.take(n, who);
      if (!b) {
        const size_t size = pool.next_segment(n, who);
        pool.add_segment(address(next), size, n, who);
        segments[address(next)] = size;
        next += size + kMiB;
        b = pool.take(n, who);
      }
      REQUIRE(b);
      CHECK(b->bytes >= rounded_block(n));
      CHECK(size_t(b->at) % kBlockUnit == 0);
      const auto [at, fresh] = owner.emplace(std::prev(segments.upper_bound(b->at))->first, who);
      CHECK(at->second == who);
      check_apart(b->at, b->bytes);
      used[b->at] = b->bytes;
      live.emplace_back(b, b->bytes);
    } else if (!live.empty()) {
      std::swap(live[size_t(rng.uniform() * float(live.size()))], live.back());
      Block* b = live.back().first;
      CHECK(b->bytes == live.back().second);
      used.erase(b->at);
      pool.give(b);
      live.pop_back();
    }
    if (i % 1000 == 999)
      for (void* p : pool.release()) {
        owner.erase(static_cast<std::byte*>(p));
        segments.erase(static_cast<std::byte*>(p));
      }
    size_t total = 0, held = 0;
    for (auto& s : segments) total += s.second;
    for (auto& u : used) held += u.second;
    CHECK(pool.reserved() == total);
    CHECK(pool.in_use() == held);
  }
  for (auto& l : live) pool.give(l.first);
  for (void* p : pool.release()) segments.erase(static_cast<std::byte*>(p));
  CHECK(segments.empty());
  CHECK(pool.reserved() == 0);
}

TEST_CASE("after one step, steps make no call of cudaMalloc and hold no more memory") {
  empty_cache(kGpu);
  const auto step = [](int64_t rows) {
    const Tensor x = random({rows, 300}, 1).to(kGpu), w = random({rows, 300}, 2).to(kGpu);
    Tensor h = x;
    for (int i = 0; i < 6; ++i) h = silu(h * w) + x;
    return values(h);
  };
  const auto expected = step(64);
  for (int64_t rows : {1, 64, 7, 33}) step(rows);
  const auto before = allocator().counts();
  const auto memory = memory_stats(kGpu);
  for (int i = 0; i < 5; ++i) {
    for (int64_t rows : {1, 64, 7, 33}) step(rows);
    CHECK(step(64) == expected);
    CHECK(allocator().counts().cuda_calls == before.cuda_calls);
    CHECK(allocator().counts().segments == before.segments);
    CHECK(memory_stats(kGpu).cached == memory.cached);
    CHECK(memory_stats(kGpu).live == memory.live);
  }
  CHECK(memory_stats(kGpu).total > memory.total);
}
TEST_CASE("statistics, and empty_cache gives back whole segments only") {
  empty_cache(kGpu);
  const auto before = memory_stats(kGpu);
  const auto counts = allocator().counts();
  Tensor a = random({1000}, 3).to(kGpu), b = bytes_on_gpu(3 * kMiB), c = bytes_on_gpu(2 * kMiB);
  CHECK(memory_stats(kGpu).live - before.live == 4000 + 5 * int64_t(kMiB));
  reset_peak(kGpu);
  b = {};
  CHECK(memory_stats(kGpu).live - before.live == 4000 + 2 * int64_t(kMiB));
  CHECK(memory_stats(kGpu).peak - before.live == 4000 + 5 * int64_t(kMiB));
  CHECK(memory_stats(kGpu).cached >= 15 * int64_t(kMiB));
  empty_cache(kGpu);
  CHECK(memory_stats(kGpu).cached >= 15 * int64_t(kMiB));
  CHECK(values(a) == values(random({1000}, 3)));
  c = {};
  empty_cache(kGpu);
  CHECK(memory_stats(kGpu).cached < 3 * int64_t(kMiB));
  CHECK(values(a * a) == values(random({1000}, 3) * random({1000}, 3)));
  a = {};
  empty_cache(kGpu);
  CHECK(allocator().counts().segments == counts.segments);
  CHECK(memory_stats(kGpu).live == before.live);
  CHECK(memory_stats(kGpu).cached == before.cached);
}
TEST_CASE("a block that two streams use is not given out before both are done with it") {
  const Stream other;
  const Event ready, done;
  const std::vector<float> first(1000, 1.f), second(1000, 2.f);
  const Tensor copy = bytes_on_gpu(4000);
  for (int i = 0; i < 3; ++i) {
    CAPTURE(i);
    Tensor a = tensor<float>(first, {1000}, kGpu);
    const float* at = a.device_data<float>();
    ready.record(stream_of(0));
    ready.wait_in(other);
    cuda::check(cudaMemcpyAsync(copy.value()->storage->data, at, 4000, cudaMemcpyDeviceToDevice, other), "test",
                "a copy");
    done.record(other);
    allocator().used_on(at, other);
    a = {};
    const Tensor b = tensor<float>(second, {1000}, kGpu);
    CHECK(b.device_data<float>() == at);
    done.wait_in(stream_of(0));
    CHECK(values(copy) == first);
  }
  CHECK_SAYS(allocator().used_on(&copy, other), "no block begins there");
}
TEST_CASE("allocations of a thread on another stream are that stream's") {
  const Stream other;
  const cudaStream_t usual = stream_of(0);
  float *p = nullptr, *q = nullptr;
  {
    const OnStream on(0, other);
    CHECK(stream_of(0) == other);
    const Tensor x = random({100}, 5).to(kGpu);
    CHECK(values(silu(x)).size() == 100);
    p = const_cast<float*>(x.device_data<float>());
  }
  CHECK(stream_of(0) == usual);
  {
    const Tensor x = bytes_on_gpu(400);
    q = const_cast<float*>(x.device_data<float>());
  }
  CHECK(p != q);
  const OnStream on(0, other);
  CHECK(bytes_on_gpu(400).device_data<float>() != q);
  empty_cache(kGpu);
}

TEST_CASE("the cache is given back by one thread while another records") {
  const Tensor x = random({1000}, 1).to(kGpu), y = random({1000}, 2).to(kGpu);
  const auto copy = [&] {
    cuda::check(
        cudaMemcpyAsync(y.value()->storage->data, x.device_data<float>(), 4000, cudaMemcpyDeviceToDevice, stream_of(0)),
        "test", "a copy");
  };
  std::thread other;
  std::atomic<bool> begun = false, done = false;
  std::string refused;
  const auto recording = detail::runtime_of(kGpu).recording(0, {{}}, [&](size_t) {
    copy();
    refused = error_of([] { empty_cache(kGpu); });
    if (!other.joinable())
      other = std::thread([&] {
        bytes_on_gpu(4 * kMiB);
        begun = true;
        begun.notify_one();
        empty_cache(kGpu);
        done = true;
      });
    begun.wait(false);
    for (int ms = 0; ms < 200 && !done; ++ms) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK_FALSE(done);  // empty_cache() would end this capture
    copy();
  });
  REQUIRE(recording);
  recording->record();
  other.join();
  CHECK_HAS(refused, "[empty_cache] waits for the device, but recorded work runs later.");
  CHECK(recording->launch());
  CHECK(values(y) == values(x));
}

#ifdef TG_CUDA_EMULATED
namespace {
struct SmallCard {
  explicit SmallCard(size_t bytes) {
    empty_cache(kGpu);
    size_t free = 0, total = 0;
    cuda::check(cudaMemGetInfo(&free, &total), "test", "memory");
    simt::set_memory(total - free + bytes);
  }
  ~SmallCard() { simt::set_memory(size_t(4) << 30); }
};
}  // namespace

TEST_CASE("a full card: what is said, and that all goes on") {
  CHECK(detail::runtime_of(kGpu).memory(0) == size_t(4) << 30);
  const SmallCard card(24 * kMiB);
  Tensor weights = bytes_on_gpu(10 * kMiB).label("h.0.mlp.w");
  const auto live = memory_stats(kGpu).live;
  const Tensor x = exp(random({300'000}, 1).to(kGpu));
  const std::string message = error_of([] {
    NameScope scope("out of room");
    bytes_on_gpu(12 * kMiB);
  });
  CAPTURE(message);
  CHECK_HAS(message, "[allocate] cuda:0 is out of memory: 12.0 MiB more does not fit. The card has ", " are free; ",
            " are live in tensors of this process, and ", " MiB are cached in blocks of at most ",
            "Lower the batch size or the context length, recompute activations (checkpoint), or compute in bf16",
            "\n    10.0 MiB 'h.0.mlp.w'", "\n    1.1 MiB by exp");
  CHECK(memory_stats(kGpu).live == live + 1'200'000);
  CHECK(distance(x, exp(random({300'000}, 1))) < 1e-6);
  weights = {};
  weights = bytes_on_gpu(11 * kMiB);
  CHECK(weights.device_data<float>() != nullptr);
}
TEST_CASE("a full card: an op that fails says where, and its operands stay") {
  const SmallCard card(22 * kMiB);
  const Tensor x = random({int64_t(kMiB / 2)}, 1).to(kGpu);
  std::vector<Tensor> kept;
  std::string message = "no error";
  for (int i = 0; i < 20 && message == "no error"; ++i)
    message = error_of(Error::Kind::memory, [&] {
      NameScope a("gpt"), b("h.3");
      kept.push_back(exp(x));
    });
  CAPTURE(message);
  CHECK(kept.size() >= 5);
  CHECK_HAS(message, "2.0 MiB more for exp does not fit",
            fmt::format("\n    {} x 2.0 MiB by exp in gpt.h.3", kept.size()), "\n    in gpt.h.3");
  kept.clear();
  CHECK(values(exp(x)) == values(exp(x)));
}
TEST_CASE("a full card: the cache is given back before anything fails, unless nothing could help") {
  const SmallCard card(26 * kMiB);
  bytes_on_gpu(10 * kMiB);
  const auto before = allocator().counts();
  CHECK_SAYS(bytes_on_gpu(size_t(5) << 30), "5.00 GiB more does not fit");
  CHECK(allocator().counts().segments == before.segments);
  const Tensor t = bytes_on_gpu(22 * kMiB);
  CHECK(allocator().counts().cuda_calls == before.cuda_calls + 4);  // refused, refused, free, malloc
  CHECK_SAYS(bytes_on_gpu(size_t(1) << 60), "1073741824.00 GiB more does not fit");
}

namespace {
Tensor widened(const Tensor& x, int64_t n) {
  auto v = make_ref<Value>(Layout::contiguous({n}, x.dtype(), x.device()));
  v->storage = x.value()->storage;
  return Tensor(std::move(v));
}
void fault(const std::function<void()>& f) {
  fmt::print("{}\n", error_of([&] {
               f();
               cuda::check(cudaDeviceSynchronize(), "test", "waiting");
             }));
}
}  // namespace
ALONE_CASE("read of a block that is new") {
  random({100}, 1).to(kGpu);
  fault([] { exp(bytes_on_gpu(400)); });
}
ALONE_CASE("read past the end of a block") {
  const Tensor x = random({128}, 1).to(kGpu), y = random({128}, 1).to(kGpu);
  fault([&] { exp(widened(x, 129)); });
}
ALONE_CASE("read of a block that was freed") {
  Tensor x = random({100'000}, 1).to(kGpu);
  const Tensor y = random({128}, 1).to(kGpu);
  y.value()->storage->data = x.value()->storage->data + 300'000;
  x = {};
  fault([&] { exp(y); });
}
ALONE_CASE("a block freed while another stream uses it") {
  const Stream other;
  const Event ready;
  Tensor x = random({100}, 1).to(kGpu), copy = bytes_on_gpu(400);
  ready.record(stream_of(0));
  ready.wait_in(other);
  fault([&] {
    cuda::check(
        cudaMemcpyAsync(copy.value()->storage->data, x.device_data<float>(), 400, cudaMemcpyDeviceToDevice, other),
        "test", "a copy");
    x = {};
    x = random({100}, 2).to(kGpu);
  });
}
TEST_CASE("the emulator sees misuse of blocks that the allocator reuses") {
  const std::pair<const char*, const char*> cases[] = {
      {ALONE "read of a block that is new", "uninitialised: read of"},
      {ALONE "read past the end of a block", "out of bounds: read of"},
      {ALONE "read of a block that was freed", "out of bounds: read of"},
      {ALONE "a block freed while another stream uses it", "stream order: "},
  };
  for (auto& [name, fault] : cases) {
    const Alone r = run_alone(name);
    CAPTURE_ALL(fault, r.output);
    CHECK_HAS(r.output, fault);
    CHECK(r.status == 0);
  }
}
#endif
