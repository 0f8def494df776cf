#include "graph_support.h"

TEST_CASE("child graphs: in their order, as they were when they were added, and changed one by one") {
  under_schedules([] {
    const Stream a, b;
    const Events e;
    const Buffer<float> x(std::vector<float>(64, 0.0F)), y(64), z(std::vector<float>(64, 5.0F));
    check(cudaDeviceSynchronize());
    const auto part = [&](const std::function<void()>& work) { return capture(a, work); };
    const cudaGraph_t first = part([&] { fork_and_join(x, y, a, b, e, true); });  // x += 2
    const cudaGraph_t second = part([&] { check(broken::add_one(x, y, 64, a)); });
    cudaGraph_t whole = nullptr;
    check(cudaGraphCreate(&whole, 0));
    cudaGraphNode_t n[2];
    check(cudaGraphAddChildGraphNode(&n[0], whole, nullptr, 0, first));
    check(cudaGraphAddChildGraphNode(&n[1], whole, n, 1, second));
    const cudaGraphNode_t twice[] = {n[0], n[0]};
    cudaGraphNode_t none;
    CHECK(cudaGraphAddChildGraphNode(&none, whole, twice, 2, second) == cudaErrorInvalidValue);
    CHECK(cudaGraphAddChildGraphNode(&none, whole, n, 1, whole) == cudaErrorInvalidValue);
    check(cudaGraphDestroy(first));
    check(cudaGraphDestroy(second));
    CHECK(nodes(whole) == 2);
    cudaGraphExec_t exec = nullptr;
    check(cudaGraphInstantiate(&exec, whole));
    check(cudaGraphLaunch(exec, a));
    check(cudaGraphLaunch(exec, a));
    check(cudaStreamSynchronize(a));
    CHECK(y.host() == std::vector<float>(64, 5.0F));
    const auto change = [&](cudaGraphNode_t node, const std::function<void()>& work) {
      const cudaGraph_t g = capture(a, work);
      const cudaError_t r = cudaGraphExecChildGraphNodeSetParams(exec, node, g);
      check(cudaGraphDestroy(g));
      (void)cudaGetLastError();
      return r;
    };
    check(cudaGraphLaunch(exec, a));
    check(change(n[1], [&] { check(broken::add_one(z, y, 64, a)); }));
    check(cudaStreamSynchronize(a));
    CHECK(y.host()[9] == 7.0F);
    check(change(n[0], [&] { fork_and_join(z, y, a, b, e, true); }));
    for (int i = 0; i < 2; ++i) check(cudaGraphLaunch(exec, a));
    check(cudaStreamSynchronize(a));
    CHECK(x.host()[9] == 6.0F);
    CHECK(y.host() == std::vector<float>(64, 10.0F));
    const auto refuses = [&](cudaGraphNode_t node, const std::function<void()>& work) {
      CHECK(change(node, work) == cudaErrorInvalidValue);
    };
    refuses(n[1], [&] { check(cudaMemsetAsync(y, 0, 4, a)); });
    refuses(n[1], [&] {
      check(broken::add_one(z, y, 64, a));
      check(broken::add_one(z, y, 64, a));
    });
    refuses(n[0], [&] {  // the part has no fork
      for (int i = 0; i < 3; ++i) check(broken::add_one(z, y, 64, a));
    });
    check(cudaGraphLaunch(exec, a));
    check(cudaStreamSynchronize(a));
    CHECK(y.host()[9] == 12.0F);
    check(cudaGraphDestroy(whole));
    check(cudaGraphExecDestroy(exec));
  });
  simt::reset();
  const Stream s;
  const Buffer<float> x(noise(64)), y(64);
  const cudaGraph_t child = capture(s, [&] { check(broken::add_one(x, y, 64, s)); });
  cudaGraph_t whole = nullptr;
  cudaGraphNode_t n;
  cudaGraphExec_t exec = nullptr;
  check(cudaGraphCreate(&whole, 0));
  check(cudaGraphAddChildGraphNode(&n, whole, nullptr, 0, child));
  check(cudaGraphInstantiate(&exec, whole));
  check(cudaGraphDestroy(whole));
  (void)cudaGraphExecChildGraphNodeSetParams(exec, n, child);
  REQUIRE(!simt::reports().empty());
  CHECK(simt::reports()[0].fault == simt::Fault::usage);
  simt::reset();
}
