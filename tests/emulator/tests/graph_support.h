#pragma once
#include <functional>

#include "broken.h"
#include "support.h"

inline constexpr auto thread_local_mode = cudaStreamCaptureModeThreadLocal;

inline cudaGraph_t capture(cudaStream_t s, const std::function<void()>& work) {
  check(cudaStreamBeginCapture(s, thread_local_mode));
  work();
  cudaGraph_t g = nullptr;
  check(cudaStreamEndCapture(s, &g));
  return g;
}
inline cudaGraphExec_t instantiate(cudaGraph_t g) {
  cudaGraphExec_t x = nullptr;
  check(cudaGraphInstantiate(&x, g));
  check(cudaGraphDestroy(g));
  return x;
}
inline std::size_t nodes(cudaGraph_t g) {
  std::size_t n = 0;
  check(cudaGraphGetNodes(g, nullptr, &n));
  return n;
}

struct Events {
  cudaEvent_t e[4];
  Events() {
    for (auto& v : e) check(cudaEventCreateWithFlags(&v, cudaEventDisableTiming));
  }
  ~Events() {
    for (auto v : e) cudaEventDestroy(v);
  }
  cudaEvent_t operator[](int i) const { return e[i]; }
};

// y = x + 1 by halves in two streams, then x = y + 1; `joined`: after both.
inline void fork_and_join(float* x, float* y, cudaStream_t a, cudaStream_t b, const Events& e, bool joined) {
  check(cudaEventRecord(e[0], a));
  check(cudaStreamWaitEvent(b, e[0]));
  check(broken::add_one(x, y, 32, a));
  check(broken::add_one(x + 32, y + 32, 32, b));
  check(cudaEventRecord(e[1], b));
  if (joined) check(cudaStreamWaitEvent(a, e[1]));
  check(broken::add_one(y, x, 64, a));
  if (!joined) check(cudaStreamWaitEvent(a, e[1]));
}
