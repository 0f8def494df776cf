#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

#include "broken.h"
#include "support.h"

using simt::Fault;

namespace {

void finds(std::vector<Fault> kinds, const std::function<void(bool mistake, cudaStream_t)>& run) {
  for (std::uint64_t seed = 0; seed < 6; ++seed)
    for (const bool mistake : {false, true}) {
      INFO("seed ", seed, ", mistake ", mistake);
      simt::reset(seed);
      {
        const Stream s;
        run(mistake, s);
        cudaDeviceSynchronize();
      }
      if (!mistake) {
        CHECK_MESSAGE(simt::reports().empty(), simt::describe());
        continue;
      }
      REQUIRE(!simt::reports().empty());
      CHECK_MESSAGE(std::ranges::count(kinds, simt::reports()[0].fault) == 1, simt::describe());
      CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
    }
  simt::reset();
}

// x is written, y is not.
using OnArrays = std::function<void(bool mistake, cudaStream_t, float* x, float* y)>;
void finds_in(std::vector<Fault> kinds, std::size_t n, const OnArrays& run) {
  finds(std::move(kinds), [&](bool mistake, cudaStream_t s) {
    const Buffer<float> x(noise(n)), y(n);
    check(cudaDeviceSynchronize());
    run(mistake, s, x, y);
    cudaDeviceSynchronize();
  });
}
void finds_copy(std::vector<Fault> kinds, cudaError_t (*kernel)(const float*, float*, bool, cudaStream_t)) {
  finds_in(std::move(kinds), 2048, [=](bool mistake, cudaStream_t s, float* x, float* y) { kernel(x, y, mistake, s); });
}
void finds_write(std::vector<Fault> kinds, cudaError_t (*kernel)(float*, bool, cudaStream_t)) {
  finds_in(std::move(kinds), 64, [=](bool mistake, cudaStream_t s, float* x, float*) { kernel(x, mistake, s); });
}

}  // namespace

TEST_CASE("a missing __syncthreads") {
  finds_copy({Fault::race, Fault::uninitialised}, broken::missing_barrier);
  finds_write({Fault::race}, broken::in_place);
}
TEST_CASE("a write after reads by several threads, of which the writer is one") {
  finds_copy({Fault::race}, broken::two_readers);
  finds_write({Fault::race}, broken::two_global_readers);
}
TEST_CASE("a missing __syncwarp") { finds_copy({Fault::race, Fault::uninitialised}, broken::missing_syncwarp); }
TEST_CASE("an off-by-one bound") {
  finds_in({Fault::out_of_bounds}, 100,
           [](bool mistake, cudaStream_t s, float* x, float* y) { broken::bound(x, y, 100, mistake, s); });
  finds_copy({Fault::out_of_bounds}, broken::static_index);
  finds_copy({Fault::out_of_bounds}, broken::dynamic_index);
  finds({Fault::out_of_bounds}, [](bool mistake, cudaStream_t) { (void)broken::host_index(mistake ? 4 : 3); });
}
TEST_CASE("a missing cp.async wait or barrier") {
  finds_copy({Fault::async_copy}, broken::missing_copy_wait);
  finds_copy({Fault::race, Fault::async_copy, Fault::uninitialised}, broken::copy_without_barrier);
  finds_copy({Fault::race}, broken::reused_stage);
  finds_copy({Fault::async_copy}, broken::unwaited_copy);
  finds_copy({Fault::async_copy}, broken::one_group_short);
  finds_copy({Fault::misaligned}, broken::misaligned_copy);
}
TEST_CASE("divergent barriers") {
  finds_write({Fault::divergence}, broken::divergent_barrier);
  finds_write({Fault::divergence}, broken::two_barriers);
  finds_in({Fault::divergence}, 64,
           [](bool mistake, cudaStream_t s, float*, float* y) { broken::early_return(y, 50, mistake, s); });
}
TEST_CASE("named barriers") {
  finds_copy({Fault::race, Fault::uninitialised}, broken::arrive);
  finds_write({Fault::divergence}, broken::arrive_twice);
  finds_write({Fault::usage, Fault::divergence}, broken::wrong_count);
}
TEST_CASE("a deadlock") { finds_write({Fault::deadlock}, broken::lonely_named_barrier); }
TEST_CASE("unwritten memory") {
  finds_copy({Fault::uninitialised}, broken::unwritten_shared);
  finds({Fault::uninitialised}, [](bool mistake, cudaStream_t s) {
    const Buffer<float> x(100), y(100);
    if (!mistake) cudaMemset(x, 0, 400);
    check(cudaDeviceSynchronize());
    broken::add_one(x, y, 100, s);
    cudaDeviceSynchronize();
  });
}
TEST_CASE("wrong shuffle masks") {
  finds_copy({Fault::lane_mask}, broken::shuffle_mask);
  finds_copy({Fault::lane_mask}, broken::own_lane);
  finds_copy({Fault::lane_mask}, broken::divergent_shuffle);
  finds_copy({Fault::lane_mask}, broken::shuffle_absent);
}
TEST_CASE("a misaligned vector, and one stored to another memory than it names") {
  finds_copy({Fault::misaligned}, broken::misaligned);
  finds_write({Fault::misaligned}, broken::misaligned_store);
  finds_write({Fault::usage}, broken::global_store);
  finds_write({Fault::usage}, broken::shared_store);
}
TEST_CASE("static and dynamic shared memory of more than 48 KiB, not opted in to") {
  finds_write({Fault::usage}, broken::fixed_and_dynamic_shared);
}
TEST_CASE("a vector is stored by one access") {
  simt::reset();
  {
    const Stream s;
    const Buffer<float> y(4);
    const auto before = simt::statistics().accesses;
    check(broken::shared_store(y, false, s));
    check(cudaDeviceSynchronize());
    CHECK(simt::statistics().accesses == before + 3 + 1);  // kernel and two arguments
  }
  simt::reset();
}
TEST_CASE("blocks without order") {
  finds_write({Fault::block_race}, broken::shared_output);
  finds_in({Fault::block_race, Fault::missing_fence}, 65,
           [](bool mistake, cudaStream_t s, float* x, float*) { broken::neighbour(x, mistake, s); });
  finds({Fault::missing_fence}, [](bool mistake, cudaStream_t s) {
    const Buffer<float> scratch(4), y(1);
    const Buffer<unsigned> ticket(std::vector<unsigned>{0});
    check(cudaDeviceSynchronize());
    broken::missing_fence(scratch, ticket, y, mistake, s);
    cudaDeviceSynchronize();
  });
}
TEST_CASE("a missing event wait between streams") {
  finds_in({Fault::stream_order, Fault::uninitialised}, 64, [](bool mistake, cudaStream_t s, float* x, float* y) {
    const Buffer<float> z(64);
    const Stream other;
    cudaEvent_t e;
    cudaEventCreate(&e);
    broken::add_one(x, y, 64, other);
    cudaEventRecord(e, other);
    if (!mistake) cudaStreamWaitEvent(s, e);
    broken::add_one(y, z, 64, s);
    cudaDeviceSynchronize();
  });
}
TEST_CASE("additions of two streams that nothing orders, and are not atomic") {
  finds({Fault::stream_order}, [](bool mistake, cudaStream_t s) {
    const Buffer<float> y(std::vector<float>{0.0F});
    check(cudaDeviceSynchronize());
    const Stream other;
    broken::atomic_add(y, mistake, s);
    broken::atomic_add(y, false, other);
    cudaDeviceSynchronize();
  });
}
TEST_CASE("memory used before it exists, after it is freed, or of the host") {
  finds_in({Fault::out_of_bounds}, 64, [](bool mistake, cudaStream_t s, float* x, float* y) {
    cudaMallocAsync(&y, 256, s);
    if (mistake) cudaFreeAsync(y, s);
    broken::add_one(x, y, 64, s);
    if (!mistake) cudaFreeAsync(y, s);
  });
  const std::vector<float> h = noise(64);
  finds_in({Fault::host_memory}, 64, [&](bool mistake, cudaStream_t s, float* x, float* y) {
    broken::add_one(mistake ? h.data() : x, y, 64, s);
  });
  finds_in({Fault::usage}, 64, [&](bool mistake, cudaStream_t s, float* x, float*) {
    cudaMemcpyAsync(x, h.data(), 256, mistake ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice, s);
  });
}

TEST_CASE("locals of another thread") { finds_write({Fault::host_memory}, broken::locals_of_another); }
TEST_CASE("a write that comes after one of two readers in other streams") {
  finds_in({Fault::stream_order}, 64, [](bool mistake, cudaStream_t s, float* x, float* y) {
    const Buffer<float> z(64);
    const Stream other;
    cudaEvent_t a, b;
    check(cudaEventCreate(&a));
    check(cudaEventCreate(&b));
    broken::add_one(x, y, 64, other);
    cudaEventRecord(a, other);
    broken::add_one(x, z, 64, s);
    cudaEventRecord(b, s);
    const Stream third;
    if (!mistake) cudaStreamWaitEvent(third, a);
    cudaStreamWaitEvent(third, b);
    cudaMemsetAsync(x, 0, 256, third);
    cudaDeviceSynchronize();
  });
}
TEST_CASE("handles that were destroyed") {
  finds({Fault::usage}, [](bool mistake, cudaStream_t) {
    cudaStream_t t;
    check(cudaStreamCreate(&t));
    if (mistake) cudaStreamDestroy(t);
    cudaStreamSynchronize(t);
    if (!mistake) cudaStreamDestroy(t);
  });
  finds({Fault::usage}, [](bool mistake, cudaStream_t s) {
    cudaEvent_t e;
    check(cudaEventCreate(&e));
    if (mistake) cudaEventDestroy(e);
    cudaEvent_t other;
    check(cudaEventCreate(&other));
    cudaEventRecord(e, s);
    if (!mistake) cudaEventDestroy(e);
  });
  finds({Fault::usage}, [](bool mistake, cudaStream_t s) {
    cudaGraph_t g;
    cudaGraphExec_t x;
    check(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    check(cudaStreamEndCapture(s, &g));
    check(cudaGraphInstantiate(&x, g));
    check(cudaGraphDestroy(g));
    if (mistake) cudaGraphExecDestroy(x);
    cudaGraphLaunch(x, s);
    if (!mistake) cudaGraphExecDestroy(x);
  });
}
TEST_CASE("a function of the stream that calls the API, and pinned memory that is gone") {
  finds({Fault::usage}, [](bool mistake, cudaStream_t s) {
    cudaLaunchHostFunc(
        s, mistake ? [](void*) { (void)cudaDeviceSynchronize(); } : [](void*) {}, nullptr);
    cudaDeviceSynchronize();
  });
  finds({Fault::host_memory}, [](bool mistake, cudaStream_t s) {
    const Buffer<float> x(noise(64));
    float* pinned = nullptr;
    check(cudaMallocHost(&pinned, 256));
    cudaGraph_t g;
    cudaGraphExec_t exec;
    check(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    check(cudaMemcpyAsync(pinned, x, 256, cudaMemcpyDeviceToHost, s));
    check(cudaStreamEndCapture(s, &g));
    check(cudaGraphInstantiate(&exec, g));
    if (mistake) check(cudaFreeHost(pinned));
    cudaGraphLaunch(exec, s);
    cudaDeviceSynchronize();
    if (!mistake) check(cudaFreeHost(pinned));
  });
}
TEST_CASE("more meetings of warps than the emulator can order") {
  simt::reset();
  check(broken::many_warp_barriers(60000, nullptr));
  CHECK(broken::many_warp_barriers(70000, nullptr) == cudaErrorLaunchFailure);
  CHECK(simt::reports().at(0).fault == Fault::usage);
  simt::reset();
}

TEST_CASE("mistakes with TMA, mbarriers and wgmma") {
  using broken::Hopper;
  std::vector<__nv_bfloat16> x, identity;
  for (const float f : noise(128 * 64)) x.emplace_back(f);
  for (int i = 0; i < 64 * 64; ++i) identity.emplace_back(i % 65 == 0 ? 1.0F : 0.0F);
  const auto with = [&](Hopper wrong, std::vector<Fault> kinds) {
    CAPTURE(int(wrong));
    finds(std::move(kinds), [&](bool mistake, cudaStream_t s) {
      const Buffer<__nv_bfloat16> dx(x), di(identity);
      const Buffer<float> y(128 * 64);
      check(cudaDeviceSynchronize());
      broken::hopper(dx, di, y, mistake ? wrong : Hopper::none, s);
      if (cudaDeviceSynchronize() != cudaSuccess) return;
      const auto got = y.host();
      CHECK(std::ranges::equal(x, got, {}, __bfloat162float));
    });
  };
  with(Hopper::no_full_wait, {Fault::async_copy, Fault::uninitialised, Fault::race});
  with(Hopper::no_empty_wait, {Fault::async_copy, Fault::race, Fault::usage});
  with(Hopper::early_release, {Fault::async_copy, Fault::race, Fault::deadlock});
  with(Hopper::no_arrive, {Fault::deadlock});
  with(Hopper::few_bytes, {Fault::async_copy, Fault::race, Fault::uninitialised, Fault::usage, Fault::deadlock});
  with(Hopper::no_product_wait, {Fault::async_copy});
  with(Hopper::other_registers, {Fault::usage});
  with(Hopper::no_init_fence, {Fault::usage});
  finds({Fault::missing_fence}, [](bool mistake, cudaStream_t s) {
    const Buffer<float> y(64 * 64);
    broken::stored_operand(y, mistake, s);
    if (cudaDeviceSynchronize() != cudaSuccess) return;
    const auto got = y.host();
    for (std::size_t i = 0; i < got.size(); ++i) REQUIRE(got[i] == (i % 65 == 0 ? 1.0F : 0.0F));
  });
}
