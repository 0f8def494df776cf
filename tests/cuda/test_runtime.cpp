#include <tapegrad/cuda/runtime/allocator.h>
#include <tapegrad/cuda/runtime/runtime.h>
#include <tapegrad/cuda/runtime/staging.h>

#include <condition_variable>
#include <deque>
#include <thread>

#include "support/alone.h"
#include "support/on_cuda.h"
#include "support/small_training.h"

using namespace tg;
using namespace tg::cuda;
namespace {
std::vector<uint8_t> pattern(size_t n, int seed) {
  std::vector<uint8_t> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = uint8_t((i * 2654435761u + size_t(seed) * 97) >> 7);
  return v;
}
std::vector<float> chain(uint64_t seed, Device d, int steps = 10) {
  const Tensor x = random({50, 7}, seed).to(d), w = random({50, 7}, seed + 1).to(d);
  Tensor h = x;
  for (int i = 0; i < steps; ++i) h = tg::tanh(h * w) + x;
  return values(h);
}
class Worker {
 public:
  template <class F>
  explicit Worker(F f)
      : thread_([this, f] {
          try {
            f();
          } catch (...) {
            failed_ = std::current_exception();
          }
        }) {}
  void join() {
    thread_.join();
    if (failed_) std::rethrow_exception(failed_);
  }

 private:
  std::exception_ptr failed_;
  std::thread thread_;
};
}  // namespace

TEST_CASE("copies in chunks are exact, whatever their size, and wait for what was queued") {
  constexpr size_t kChunk = 1024;
  Staging staging(kChunk, 3);
  for (size_t n : {0, 1, 1023, 1024, 1025, 2048, 3 * 1024, 3 * 1024 + 1, 7 * 1024 + 13, 12 * 1024}) {
    CAPTURE(n);
    const auto host = pattern(n, 1), other = pattern(n, 2);
    const auto a = tensor<uint8_t>(std::vector<uint8_t>(n), {int64_t(n)}, kGpu),
               b = tensor<uint8_t>(other, {int64_t(n)}, kGpu);
    staging.to_device(a.value()->storage->data, host.data(), n, stream_of(0));
    CHECK(a.to_vector<uint8_t>() == host);
    if (n)
      cuda::check(cudaMemcpyAsync(b.value()->storage->data, a.value()->storage->data, n, cudaMemcpyDeviceToDevice,
                                  stream_of(0)),
                  "test", "a copy");
    staging.to_device(a.value()->storage->data, other.data(), n, stream_of(0));
    std::vector<uint8_t> back(n, 77);
    staging.to_host(back.data(), b.value()->storage->data, n, stream_of(0));
    CHECK(back == host);
    CHECK(a.to_vector<uint8_t>() == other);
  }
}
TEST_CASE("what was given to a copy may be changed at once, however late the copy runs") {
  Staging staging(1024, 3);
  const Stream other;
  for (const cudaStream_t stream : {stream_of(0), cudaStream_t(other)}) {
    const OnStream on(0, stream);
    std::vector<uint8_t> host(2500);
    std::vector<Tensor> there;
    std::vector<std::vector<uint8_t>> sent;
    for (size_t i = 0; i < 300; ++i) {
      const size_t n = i % 7 == 3 ? 1024 + i * 4 : 1 + i * 37 % 900;
      sent.push_back(pattern(n, i));
      there.push_back(empty(Layout::contiguous({int64_t(n)}, DType::u8, kGpu)));
      std::copy(sent[i].begin(), sent[i].end(), host.begin());
      staging.to_device(there[i].value()->storage->data, host.data(), n, stream);
      std::fill(host.begin(), host.end(), uint8_t(0xab));
    }
    for (size_t i = 0; i < sent.size(); ++i) CHECK(there[i].to_vector<uint8_t>() == sent[i]);
  }
  empty_cache(kGpu);
}
#ifdef TG_CUDA_EMULATED
TEST_CASE("small copies to the device do not wait for what is queued") {
  const uint64_t before = simt::schedule();
  synchronize(kGpu);
  simt::set_schedule(1);  // late operations
  const Tensor x = random({1000}, 1).to(kGpu), y = exp(x);
  const uint64_t pending = simt::statistics().pending;
  CHECK(pending > 1);
  const Tensor z = random({1000}, 2).to(kGpu);
  CHECK(simt::statistics().pending > pending);
  CHECK(bits_of(z) == bits_of(random({1000}, 2)));
  CHECK(simt::statistics().pending == 0);
  simt::set_schedule(before);
}
#endif
TEST_CASE("tensors of many chunks go to the device and back, from several threads") {
  const auto round_trip = [](uint64_t seed) {
    const Tensor x = random({2'300'000}, seed);  // three chunks of 4 MiB
    const Tensor y = x.to(kGpu);
    CHECK(y.device() == kGpu);
    CHECK(bits_of(y) == bits_of(x));
  };
  Worker other([&] { round_trip(1); });
  round_trip(2);
  other.join();
}
TEST_CASE("copies between devices: views, empty tensors, the tape") {
  const Tensor x = random({6, 8}, 3);
  CHECK(values(transpose(x, 0, 1).to(kGpu)) == values(transpose(x, 0, 1)));
  const Tensor y = x.to(kGpu);
  CHECK(values(slice(y, 0, 2, 5).to(Device::cpu())) == values(slice(x, 0, 2, 5)));
  CHECK(y.to(kGpu).id() == y.id());
  CHECK(random({0, 3}, 1).to(kGpu).to(Device::cpu()).shape() == Shape{0, 3});
  CHECK_SAYS(Tensor(x.value()).requires_grad_().to(kGpu), "copies between devices are not recorded");
}
TEST_CASE("pointers: the host's to host memory only, the device's to hand to CUDA") {
  const std::vector<float> v{1, 2, 3};
  Tensor x = tensor<float>(v, {3}, kGpu).label("x");
  for (const auto& e : {error_of([&] { (void)x.data<float>(); }), error_of([&] { (void)x.mutable_data<float>(); })}) {
    CHECK_HAS(e, "[data] tensor 'x' (3) f32 on cuda:0 is not in host memory.", "to_vector()", ".to(Device::cpu())",
              "device_data<T>()");
  }
  const Tensor y = x + x;
  std::vector<float> host(3);
  synchronize(kGpu);
  cuda::check(cudaMemcpy(host.data(), y.device_data<float>(), 12, cudaMemcpyDeviceToHost), "test", "a copy");
  CHECK(host == std::vector<float>{2, 4, 6});
  CHECK_SAYS(y.device_data<int32_t>(), "read as i32");
  CHECK(x.to(Device::cpu()).device_data<float>()[2] == 3);
}
TEST_CASE("devices that do not exist, and two devices in one op") {
  const Tensor host = random({3}, 1);
  const int n = detail::runtime_of(kGpu).device_count();
  CHECK_SAYS(host.to(Device::cuda(n)),
             fmt::format("[device] there is no cuda:{}: this machine has {} cuda device(s), numbered from 0.", n, n));
  for (int bad : {-1, 128, 256})
    CHECK_SAYS(Device::cuda(bad), fmt::format("[device] cuda:{} is no device. Numbers go from 0 to 127.", bad));
  const Tensor gpu = host.to(kGpu);
  for (bool lazy : {false, true}) {
    Mode mode(lazy);
    CHECK_SAYS(host + gpu, "[add] inputs are on different devices: input 0 is (3) f32 on cpu");
    CHECK_SAYS(gpu * host, "input 1 is (3) f32 on cpu. Move one with .to(device).");
  }
}

TEST_CASE("a driver from before kernels had many parameters") {
  cuda::check_driver(12010);
  CHECK_SAYS(
      cuda::check_driver(12000),
      "[device] the NVIDIA driver is too old: it supports CUDA 12.0, and kernels with many parameters need 12.1.");
}
TEST_CASE("errors that leave the device alive name the op and are not repeated") {
  const auto e = error_of([] { cuda::check(cudaErrorInvalidConfiguration, "softmax", "launching its kernel"); });
  CHECK(e == "[softmax] launching its kernel failed: invalid configuration argument (cudaErrorInvalidConfiguration).");
  check_alive();
  CHECK(chain(1, kGpu).size() == 350);
}
// A kernel reads an address that was never allocated.
ALONE_CASE("a kernel fails") {
  const Tensor good = random({100}, 1).to(kGpu), bad = random({100}, 2).to(kGpu);
  Tensor kept;
  const Stream stream;
  synchronize(kGpu);
  bad.value()->storage->data = reinterpret_cast<std::byte*>(size_t(4096));
  const auto say = [](const char* what, const std::function<void()>& f) { fmt::print("{}: {}\n", what, error_of(f)); };
  say("first", [&] {
    for (int i = 0; i < 3; ++i) kept = tg::tanh(good);
    kept = exp(bad);
    kept = silu(good);
    synchronize(kGpu);
  });
  say("synchronize", [] { synchronize(kGpu); });
  say("launch", [&] { exp(good); });
  say("allocate", [] { empty(Layout::contiguous({3}, DType::f32, kGpu)); });
  say("to_vector", [&] { good.to_vector<float>(); });
  say("to the device", [] { random({3}, 1).to(kGpu); });
  say("empty_cache", [] { empty_cache(kGpu); });
  fmt::print("cpu: {}\n", values(exp(filled({1}, 0.f)))[0]);
}
TEST_CASE("the error of a kernel: which op it may be, and every later use repeats it") {
  for (bool sync : {false, true}) {
    CAPTURE(sync);
    const Alone r = run_alone(ALONE "a kernel fails", sync ? "TG_SYNC=1" : "TG_SYNC=0");
    CAPTURE(r.output);
    CHECK(r.status == 0);  // tensors were freed
    const size_t at = r.output.find("first: [");
    REQUIRE(at != std::string::npos);
    const std::string first = r.output.substr(at + 7, r.output.find('\n', at) - at - 7);
    CHECK_HAS(first, "restart the process");
    if (sync) {
      CHECK(first.starts_with("[exp] "));
      CHECK_FALSE(has(first, "TG_SYNC=1"));
    } else {
      CHECK_HAS(first, "Launched since the last synchronisation: tanh x3, exp",
                "Run with TG_SYNC=1 to learn which one it was.");
    }
    for (const char* use : {"synchronize", "launch", "allocate", "to_vector", "to the device", "empty_cache"})
      CHECK_HAS(r.output,
                fmt::format("\n{}: [cuda] the device cannot be used any more. A kernel failed earlier: {}", use,
                            first.substr(0, 60)),
                "\ncpu: 1\n");
  }
}
TEST_CASE("TG_SYNC waits after each op") {
  const bool was = sync_after_each();
  set_sync_after_each(true);
  CHECK(chain(1, kGpu) == chain(1, kGpu));
  set_sync_after_each(was);
}

#ifdef TG_CUDA_EMULATED
TEST_CASE("machines without a device: what they lack and the way out") {
  const std::tuple<cudaError_t, const char*, const char*> cases[] = {
      {cudaErrorInsufficientDriver, "the NVIDIA driver is too old: it supports CUDA 11.4, and this build needs 13.0",
       "update the driver, or build with an older toolkit"},
      {cudaErrorNoDevice, "the driver finds no GPU", "CUDA_VISIBLE_DEVICES"},
      {cudaErrorSystemDriverMismatch, "of different versions", "restart the machine"},
      {cudaErrorDevicesUnavailable, "the GPU is busy or closed to other processes", "nvidia-smi"},
      {cudaErrorInitializationError, "could not be initialised", "nvidia-smi"},
      {cudaErrorInvalidValue, "CUDA reports: invalid argument (cudaErrorInvalidValue)", "invalid"},
  };
  for (auto& [error, lacks, way_out] : cases) {
    const Alone r = run_alone("*", fmt::format("TG_EMULATE_NO_DEVICE={}", int(error)));
    CAPTURE(r.output);
    CHECK(r.status == 77);
    CHECK_HAS(r.output, "[device] cuda:0 was asked for, and there is none: ", lacks, way_out, ". Use the device cpu.");
  }
}
TEST_CASE("a GPU without kernels in this build is an Error of the first use, which says what the build is for") {
  const Alone r = run_alone("*", "TG_EMULATE_CAPABILITY=120");
  CAPTURE(r.output);
  CHECK(r.status == 77);
  CHECK_HAS(r.output,
            "skipped: [device] cuda:0 has compute capability 12.0, and this build has kernels for 80-real, 90a-real. "
            "CUDA reports: no kernel image is available for execution on the device (cudaErrorNoKernelImageForDevice). "
            "Build with -DCMAKE_CUDA_ARCHITECTURES=120-real, or use another device.");
}
ALONE_CASE("blocks have little shared memory") {
  const Tensor x = random({1, 1, 3, 512}, 1).to(kGpu), codes = filled<int8_t>({1000, 1000}, 1).to(kGpu);
  CHECK_SAYS(values(attention(x, x, x)),
             "[attention] a head size of 512 in f32 takes 67328 bytes of shared memory per block, and cuda:0 has "
             "65536. Use more and smaller heads, or Device::cpu().");
  CHECK_SAYS(int8_linear(codes, codes), "[int8_linear] its kernel takes 98304 bytes of shared memory per block, and");
}
TEST_CASE("blocks with less shared memory than any tile takes: an Error with the bytes") {
  for (const char* bytes : {"1000", "99999999"})
    CHECK_HAS(run_alone("*", fmt::format("TG_EMULATE_SHARED_BYTES={}", bytes)).output, "a number from 49152 to 232448");
  const Alone r = run_alone(ALONE "blocks have little shared memory", "TG_EMULATE_SHARED_BYTES=65536");
  CAPTURE(r.output);
  CHECK(r.status == 0);
}
TEST_CASE("the emulated device says what it is") {
  const std::string text = detail::runtime_of(kGpu).describe(0);
  CHECK_HAS(text, fmt::format("emulated GPU (schedule {}; results prove logic, never speed)", simt::schedule()));
}
#endif

TEST_CASE("CPU training, a CUDA thread and a thread that loads, at once") {
  const auto trained = train_small(false, 3), on_gpu = chain(5, kGpu);
  std::deque<Tensor> queue;
  std::mutex mutex;
  std::condition_variable filled_one;
  constexpr int kBatches = 12;
  Worker cpu([&] { CHECK(train_small(false, 3) == trained); });
  Worker gpu([&] {
    for (int i = 0; i < 3; ++i) CHECK(chain(5, kGpu) == on_gpu);
  });
  Worker loader([&] {
    for (uint64_t i = 0; i < kBatches; ++i) {
      const Tensor t = random({40}, i).to(kGpu);
      const std::lock_guard lock(mutex);
      queue.push_back(t);
      filled_one.notify_one();
    }
  });
  for (uint64_t i = 0; i < kBatches; ++i) {
    std::unique_lock lock(mutex);
    filled_one.wait(lock, [&] { return !queue.empty(); });
    const Tensor t = std::move(queue.front());
    queue.pop_front();
    lock.unlock();
    CHECK(values(t + t) == values(random({40}, i) + random({40}, i)));
  }
  loader.join(), gpu.join(), cpu.join();
}
TEST_CASE("threads on one device allocate, compute and free side by side") {
  const auto expected = chain(9, kGpu);
  const auto live = memory_stats(kGpu).live;
  std::deque<Worker> workers;
  for (int i = 0; i < 4; ++i)
    workers.emplace_back([&] {
      for (int k = 0; k < 3; ++k) CHECK(chain(9, kGpu) == expected);
    });
  for (auto& w : workers) w.join();
  CHECK(memory_stats(kGpu).live == live);
}

ALONE_CASE("tensors outlive main") {
  static Tensor kept = random({100}, 1).to(kGpu);
  thread_local Tensor of_thread = exp(kept);
  static std::vector<Tensor> list(3, exp(of_thread));
  static const Stream stream;
  CHECK(list.size() == 3);
}
TEST_CASE("tensors in static storage end with the process") {
  const Alone r = run_alone(ALONE "tensors outlive main");
  CAPTURE(r.output);
  CHECK(r.status == 0);
  CHECK_HAS(r.output, "SUCCESS");
}
TEST_CASE("owners of streams and events move") {
  Stream a, b = std::move(a);
  CHECK(cudaStream_t(a) == nullptr);
  a = Stream();
  Event e, f = std::move(e);
  f.record(b);
  f.wait_in(a);
  f.synchronize();
  a.synchronize();
}
