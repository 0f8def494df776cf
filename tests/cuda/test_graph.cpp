// One graph: bits, memory of the recording, reasons for running without.
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/cuda/runtime/runtime.h>
#include <tapegrad/cuda/runtime/stream.h>
#include <tapegrad/ops/indexing.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/softmax.h>
#include <tapegrad/ops/training/dropout.h>
#include <tapegrad/ops/training/optim_step.h>

#include <cstdlib>
#include <memory>

#include "support/alone.h"
#include "support/on_cuda.h"
#include "support/with_env.h"

using namespace tg;
using namespace tg::cuda;
namespace {
Tensor on_gpu(const Shape& s, uint64_t seed) { return random(s, seed).to(kGpu); }
int64_t live() { return memory_stats(kGpu).live; }

struct Copied : OpOf<Copied> {
  static constexpr auto kName = "test_copied";
  using Also = void (*)(const Copied&, Bufs in, Bufs out, Context&);
  Also also;
  std::shared_ptr<int> runs;
  int number;
  Copied(Also a, std::shared_ptr<int> r) : also(a), runs(std::move(r)), number(*runs) {}
  Layouts infer(Inputs in) const override { return {contiguous_like(in[0])}; }
  Traits traits() const override { return {.dynamic_attributes = true}; }
  OpPtr for_next_step(const Rng&) const override {
    ++*runs;
    return make_ref<Copied>(also, runs);
  }
};
void copy(Bufs in, Bufs out, const Context& c) {
  cuda::check(cudaMemcpyAsync(out[0].data<float>(), in[0].data<float>(), out[0].layout->bytes(),
                              cudaMemcpyDeviceToDevice, stream_of(c.device.index)),
              c.op, "a copy");
}
void copied(const Copied& op, Bufs in, Bufs out, Context& c) {
  copy(in, out, c);
  op.also(op, in, out, c);
}
TG_KERNEL(Copied, cuda, copied);

Tensor layers(Tensor x, const Tensor& w) {
  for (int i = 0; i < 4; ++i) x = softmax(matmul(x, w), -1);
  return x;
}
tg::Compiled layers_with(Copied::Also also, const Tensor& w) {
  return compile([=, runs = std::make_shared<int>(1)](Inputs x) {
    return std::vector<Tensor>{layers(emit1(make_ref<Copied>(also, runs), {x[0]}), w)};
  });
}
CompileStats run_layers(const tg::Compiled& f, const Tensor& w, int runs) {
  for (int i = 0; i < runs; ++i) {
    const Tensor x = on_gpu({3, 6}, uint64_t(i));
    CHECK(bits_of(f({x})[0]) == bits_of(layers(x, w)));
  }
  return f.stats();
}
}  // namespace

TEST_CASE("graphs: inputs and kept results lie elsewhere in every run") {
  const Tensor w = on_gpu({6, 6}, 1);
  const TensorFunction f = [&](Inputs x) {
    const Tensor y = layers(x[0], w);
    return std::vector<Tensor>{sum(y), layers(transpose(w, 0, 1), w) + x[1], y};
  };
  const tg::Compiled fast = compile(f);
  std::vector<Tensor> all;
  std::vector<std::vector<std::byte>> want;
  const auto start = live();
  for (uint64_t i = 0; i < 9; ++i) {
    const std::vector<Tensor> x{on_gpu({3, 6}, 10 + i), on_gpu({6}, 30 + i)};
    for (const Tensor& t : f(x)) want.push_back(bits_of(t));
    for (const Tensor& t : fast(x)) all.push_back(t);
    all.insert(all.end(), x.begin(), x.end());
  }
  for (size_t run = 0; run < 9; ++run)
    for (size_t k = 0; k < 3; ++k) CHECK(bits_of(all[5 * run + k]) == want[3 * run + k]);
  CHECK(fast.stats().graph_launches == 7);
  CHECK(fast.stats().why_no_graph.empty());
  CHECK(live() > start);
}

TEST_CASE("graphs: branches that nothing orders run beside each other, in memory of their own") {
  const Tensor a = on_gpu({33, 17}, 1), b = on_gpu({17, 19}, 2), c = on_gpu({19, 5}, 3);
  const TensorFunction f = [&](Inputs in) {
    const Tensor x = matmul(in[0], a), y = matmul(x, b), dz = softmax(matmul(y, c), -1);
    const Tensor dy = matmul(dz, c, {.trans_b = true}), dx = matmul(dy, b, {.trans_b = true});
    const Tensor dc = matmul(y, dz, {.trans_a = true}), db = matmul(x, dy, {.trans_a = true});
    const Tensor da = matmul(in[0], dx, {.trans_a = true});
    return std::vector<Tensor>{sum(dc, {0}), sum(db, {0}), sum(da, {0}), global_norm({da, db, dc}), sum(dx)};
  };
  for (const bool branches : {true, false}) {
    const WithEnv passes("TG_PASSES", branches ? "" : "-branch");
    const tg::Compiled fast = compile(f);
    for (uint64_t i = 0; i < 6; ++i) {
      const std::vector<Tensor> x{on_gpu({9, 33}, 10 + i)};
      check_same_bits(fast(x), f(x));
    }
    CHECK(fast.stats().graph_launches == 4);
  }
}

#ifdef TG_CUDA_EMULATED
TEST_CASE("graphs: where the driver refuses child graphs, all ops are captured at once, in their branches") {
  const Tensor a = on_gpu({33, 17}, 1), b = on_gpu({17, 19}, 2);
  const TensorFunction f = [&](Inputs in) {
    const Tensor x = matmul(in[0], a), y = softmax(matmul(x, b), -1), dx = matmul(y, b, {.trans_b = true});
    return std::vector<Tensor>{matmul(x, y, {.trans_a = true}), matmul(in[0], dx, {.trans_a = true}), sum(dx)};
  };
  const tg::Compiled fast = compile(f);
  simt::set_child_graphs(false);
  std::vector<Tensor> all;
  for (uint64_t i = 0; i < 7; ++i) {
    const std::vector<Tensor> x{on_gpu({9, 33}, 10 + i)}, got = fast(x);
    check_same_bits(got, f(x));
    all.insert(all.end(), got.begin(), got.end()), all.push_back(x[0]);
  }
  simt::set_child_graphs(true);
  CHECK(fast.stats().graph_launches == 5);
  CHECK(fast.stats().recorded_ops <= 2 * fast.stats().ops + 1);  // once more after moves
}
TEST_CASE("graphs: where the driver refuses to update child graphs, all ops are captured again, and run as one") {
  const Tensor w = on_gpu({130, 130}, 1);
  const tg::Compiled f = compile([&](Inputs x) { return std::vector<Tensor>{layers(x[0], w)}; });
  simt::set_child_graphs(true, false);
  std::vector<Tensor> all;
  for (uint64_t i = 0; i < 15; ++i) {
    all.push_back(on_gpu({130, 130}, i)), all.push_back(f({all.back()})[0]);
    CHECK(bits_of(all.back()) == bits_of(layers(all[2 * i], w)));
  }
  simt::set_child_graphs(true);
  CHECK(f.stats().graph_launches == 13);
  CHECK(f.stats().why_no_graph == "");
}
#endif
TEST_CASE("graphs: what fails in the first capture is captured after one more run") {
  static int captures;
  const auto fails = [](const Copied&, Bufs, Bufs, Context& c) {
    cudaStreamCaptureStatus now = cudaStreamCaptureStatusNone;
    cuda::check(cudaStreamIsCapturing(stream_of(0), &now), c.op, "asking");
    if (now != cudaStreamCaptureStatusNone && captures++ == 0) synchronize(kGpu);
  };
  captures = 0;
  const Tensor w = on_gpu({6, 6}, 1);
  const CompileStats stats = run_layers(layers_with(fails, w), w, 6);
  CHECK(stats.graph_launches == 3);
  CHECK(stats.why_no_graph == "");
}
TEST_CASE("graphs: few bytes that move are copied; ops of many that move are recorded again, and no others") {
  const Tensor w = on_gpu({6, 6}, 1);
  const TensorFunction f = [&](Inputs x) {
    Tensor y = w;
    for (int i = 0; i < 6; ++i) y = matmul(y, w);
    return std::vector<Tensor>{matmul(x[0], y)};
  };
  for (const auto& [rows, again] : {std::pair<int64_t, uint64_t>{3, 1}, {2730, 1}, {2731, 6}}) {
    const tg::Compiled fast = compile(f);
    std::vector<Tensor> all;
    for (uint64_t i = 0; i < 9; ++i) {
      const std::vector<Tensor> x{on_gpu({rows, 6}, 10 + i)};
      all.push_back(fast(x)[0]), all.push_back(x[0]);
      CHECK(bits_of(all[2 * i]) == bits_of(f(x)[0]));
    }
    for (uint64_t i = 0; i < 9; ++i) CHECK(bits_of(all[2 * i]) == bits_of(f(std::array{all[2 * i + 1]})[0]));
    CHECK(fast.stats().graph_launches == 7);
    CHECK(fast.stats().recorded_ops == fast.stats().ops + again);
  }
}

TEST_CASE("graphs: a result that is held while the next run computes costs no recording") {
  const Tensor w = on_gpu({6, 6}, 1), x = on_gpu({3, 6}, 2);
  const tg::Compiled fast = compile([&](Inputs in) { return std::vector<Tensor>{sum(layers(in[0], w))}; });
  Tensor loss;
  uint64_t recorded = 0;
  for (int i = 0; i < 9; ++i) {
    loss = fast({x})[0];
    if (i == 4) recorded = fast.stats().recorded_ops;
  }
  CHECK(bits_of(loss) == bits_of(sum(layers(x, w))));
  CHECK(fast.stats().recorded_ops == recorded);
}

TEST_CASE("graphs: random numbers, the rate and the count of AdamW are those of the step, and a norm reads all of it") {
  const auto train = [&](bool compiled) {
    Tensor w = on_gpu({6, 6}, 1), m = filled({6, 6}, 0.f).to(kGpu), v = filled({6, 6}, 0.f).to(kGpu);
    const Ref<OptimizerClock> count = make_ref<OptimizerClock>(0.1, 0);
    Rng noise{3};
    const TensorFunction step = [&](Inputs x) {
      const Tensor g = matmul(transpose(x[0], 0, 1), dropout(layers(x[0], w), 0.5, noise));
      const Tensor norm = global_norm({g});
      adamw_step({.w = {&w, 1}, .m = {&m, 1}, .v = {&v, 1}, .grad = {&g, 1}}, {}, count->lr, ++count->t, norm, 0.1,
                 count);
      return std::vector<Tensor>{norm};
    };
    const tg::Compiled fast = compile(step, {.generators = {&noise}});
    std::vector<std::vector<std::byte>> r;
    for (uint64_t i = 0; i < 8; ++i) {
      count->lr = 0.1 / double(1 + i);
      const std::vector<Tensor> x{on_gpu({4, 6}, i)};
      r.push_back(bits_of((compiled ? fast(x) : step(x))[0]));
      r.push_back(bits_of(w));
    }
    r.push_back(bits_of(m)), r.push_back(bits_of(v));
    CHECK(count->t == 8);
    if (compiled) CHECK(fast.stats().graph_launches == 6);
    CHECK(fast.stats().why_no_graph.empty());
    return std::pair(r, noise);
  };
  CHECK(train(true) == train(false));
}

TEST_CASE("an op with a kernel for another backend only says which") {
  const auto nothing = [](const Copied&, Bufs, Bufs, Context&) {};
  CHECK_SAYS(emit1(make_ref<Copied>(nothing, std::make_shared<int>(0)), {random({2}, 1)}),
             "[test_copied] has no kernel for backend cpu, only for cuda. Move its inputs with .to(device)");
}

TEST_CASE("graphs: memory of a recording is nobody else's until it ends") {
  const Tensor w = on_gpu({6, 6}, 1), ids = tensor<int32_t>({0, 299, 4}, {3}, kGpu);
  const TensorFunction f = [&](Inputs x) {
    const Tensor rows = emit1(make_ref<op::IndexSelectGrad>(0, 300), {ids, layers(x[0], w)});
    return std::vector<Tensor>{global_norm({rows}), rows};
  };
  const std::vector<Tensor> x{on_gpu({3, 6}, 2)};
  const auto want = bits_of(f(x)[1]), norm = bits_of(f(x)[0]);
  const auto before = live();
  {
    const tg::Compiled fast = compile(f);
    fast(x), fast(x);
    const auto unrecorded = live();
    const size_t bytes = fast.stats().bytes;
    fast(x);
    CHECK(fast.stats().bytes > bytes);
    CHECK(live() == unrecorded + int64_t(fast.stats().bytes - bytes));
    for (uint64_t round = 0; round < 3; ++round) {
      std::vector<Tensor> others, copies;
      for (int64_t n = 64; n <= 4096; n *= 2)  // all sizes, to fill holes
        for (uint64_t k = 0; k < 6; ++k) {
          copies.push_back(random({n}, round * 100 + k));
          others.push_back(copies.back().to(kGpu));
        }
      const std::vector<Tensor> y = fast(x);
      CHECK(bits_of(y[1]) == want);
      CHECK(bits_of(y[0]) == norm);
      check_same_bits(others, copies);
      empty_cache(kGpu);
    }
    CHECK(fast.stats().graph_launches == 4);
  }
  CHECK(live() == before);
}

TEST_CASE("graphs: a kernel's scratch memory is its own, and the recording's, until its work is done") {
  const auto through = [](const Copied&, Bufs in, Bufs out, Context& c) {
    const size_t bytes = size_t(in[0].numel()) * sizeof(float);
    float *a = c.scratch<float>(in[0].numel()), *b = c.scratch<float>(in[0].numel());
    CHECK(a != b);
    CHECK(reinterpret_cast<uintptr_t>(a) % 256 == 0);
    const auto queue = [&](void* to, const void* from) {
      cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(c.stream())),
                  c.op, "a copy");
    };
    queue(a, in[0].data<float>()), queue(b, a), queue(out[0].data<float>(), b);
  };
  const Tensor w = on_gpu({6, 6}, 1);
  const auto before = live();
  {
    const tg::Compiled f = layers_with(through, w);
    const CompileStats stats = run_layers(f, w, 6);
    CHECK(stats.graph_launches == 4);
    CHECK(stats.why_no_graph == "");
    synchronize(kGpu);
  }
  CHECK(live() == before);
}

TEST_CASE("graphs: calls with other kernels or arguments lead to a new recording, to a flat one, and to none") {
  const Tensor w = on_gpu({6, 6}, 1);
  const auto sometimes = [](const Copied& op, Bufs in, Bufs out, Context& c) {
    if (op.number > 5) copy(in, out, c);
  };
  const CompileStats once = run_layers(layers_with(sometimes, w), w, 9);
  CHECK(once.graph_launches == 7);
  CHECK(once.why_no_graph == "");
  const auto always = [](const Copied& op, Bufs in, Bufs out, Context& c) {
    if (op.number % 2) copy(in, out, c);
  };
  const CompileStats never = run_layers(layers_with(always, w), w, 12);
  CHECK(never.graph_launches == 8);
  CHECK_HAS(never.why_no_graph, "1 of its 9 ops had other kernels, in 4 of 8 runs");
  const Tensor large = on_gpu({130, 130}, 2);  // too large to copy
  const tg::Compiled two = compile([&](Inputs x) { return std::vector<Tensor>{x[0] * large, x[0] + large}; });
  std::vector<Tensor> all;
  for (uint64_t i = 0; i < 12; ++i) {
    all.push_back(on_gpu({130, 130}, i));
    CHECK(bits_of(two({all.back()})[1]) == bits_of(all.back() + large));
  }
  CHECK(two.stats().graph_launches == 8);
  CHECK_HAS(two.stats().why_no_graph, "2 of its 2 ops had other arguments, in 4 of 8 runs");
}

TEST_CASE("graphs: an op that waits for the device, or allocates, is run and not recorded") {
  const Tensor w = on_gpu({6, 6}, 1);
  const auto check_why = [&](const char* why, Copied::Also also) {
    const CompileStats stats = run_layers(layers_with(also, w), w, 5);
    CHECK(stats.graph_launches == 0);
    CHECK_MESSAGE(has(stats.why_no_graph, why), stats.why_no_graph);
  };
  check_why("test_copied cannot be recorded: [synchronize] waiting for kernels failed: ",
            [](const Copied&, Bufs, Bufs, Context&) { synchronize(kGpu); });
  check_why("test_copied cannot be recorded: [copy] copying", [](const Copied&, Bufs in, Bufs, Context& c) {
    float host[1];
    detail::runtime_of(c.device).copy_to_host(0, host, in[0].data<float>(), 4);
  });
  check_why("test_copied cannot be recorded: [copy] from the host while a graph is recorded: ",
            [](const Copied&, Bufs, Bufs, Context& c) {
              const float host[1] = {};
              const Scratch scratch(c, 4);
              detail::runtime_of(c.device).copy_from_host(0, scratch.as<void>(), host, 4);
            });
  check_why("test_copied cannot be recorded: [test_copied] cudaMalloc failed: ",
            [](const Copied&, Bufs, Bufs, Context& c) {
              void* p = nullptr;
              cuda::check(cudaMalloc(&p, 16), c.op, "cudaMalloc");
              cuda::check(cudaFree(p), c.op, "cudaFree");
            });
  check_why("test_copied cannot be recorded: [compile] ending a capture failed: ",
            [](const Copied&, Bufs, Bufs, Context&) {
              (void)cudaStreamSynchronize(stream_of(0));
              (void)cudaGetLastError();
            });
  const auto nothing = [](const Copied&, Bufs, Bufs, Context&) {};
  CHECK(run_layers(layers_with(nothing, w), w, 5).graph_launches == 3);
}

TEST_CASE("graphs: a line on stderr says why there is none, once for each plan") {
  const Alone r = run_alone("graphs: an op that waits*");
  CHECK(r.status == 0);
  CAPTURE(r.output);
  const std::string line = "[compile] 9 ops run one by one, not as one graph: test_copied cannot be recorded: ";
  CHECK(count_of(r.output, line) == 5);
}

TEST_CASE("graphs: an error of the host while a call is recorded is that of the run") {
  const Tensor w = on_gpu({6, 6}, 1);
  static bool failing = false;
  const auto fails = [](const Copied&, Bufs, Bufs, Context& c) { TG_CHECK(!failing, value, "[{}] fails.", c.op); };
  const tg::Compiled f = layers_with(fails, w);
  const Tensor x = on_gpu({3, 6}, 1);
  f({x}), f({x});
  failing = true;
  CHECK_SAYS(f({x}), "[test_copied] fails.\n    compiled at ");
  failing = false;
  CHECK(bits_of(layers(x, w)).size() == 72);
}

TEST_CASE("graphs: TG_CUDA_GRAPHS=0 and TG_SYNC=1 say that they forbid them; the CPU has none") {
  const Tensor w = on_gpu({6, 6}, 1);
  const auto why = [&](const Tensor& x) {
    const tg::Compiled f = compile([&](Inputs in) { return std::vector<Tensor>{layers(in[0], in[0])}; });
    for (int i = 0; i < 4; ++i) f({x});
    CHECK(f.stats().graph_launches == 0);
    return f.stats().why_no_graph;
  };
  setenv("TG_CUDA_GRAPHS", "0", 1);
  CHECK(why(w) == "TG_CUDA_GRAPHS=0 forbids CUDA graphs");
  unsetenv("TG_CUDA_GRAPHS");
  const bool was = sync_after_each();
  set_sync_after_each(true);
  CHECK_HAS(why(w), "TG_SYNC=1");
  set_sync_after_each(was);
  CHECK(why(random({6, 6}, 1)) == "cpu does not record runs");
}

TEST_CASE("graphs: an index that is out of range in a replay is the Error of the next synchronisation") {
  const Tensor table = on_gpu({5, 6}, 1), w = on_gpu({6, 6}, 2);
  const TensorFunction step = [&](Inputs x) { return std::vector<Tensor>{layers(embedding(x[0], table), w)}; };
  const tg::Compiled f = compile(step);
  const auto ids = [](std::vector<int32_t> v) { return tensor<int32_t>(v, {3}, kGpu); };
  const auto run = [&](auto& g, std::vector<int32_t> v) {
    return error_of([&] { (void)bits_of(g(std::vector<Tensor>{ids(v)})[0]); });
  };
  for (int i = 0; i < 4; ++i) CHECK(run(f, {0, 4, 1}) == "no error");
  const std::string want = run(step, {0, 1, 5});
  CHECK_HAS(want, "[embedding]");
  CHECK(run(f, {0, 1, 5}) == want);
  CHECK(run(f, {0, 6, 5}) == run(step, {0, 6, 5}));
  CHECK(run(f, {0, 1, 4}) == "no error");
  CHECK(bits_of(f({ids({3, 3, 0})})[0]) == bits_of(step(std::vector<Tensor>{ids({3, 3, 0})})[0]));
  CHECK(f.stats().graph_launches == 6);
}

ALONE_CASE("a graph fails") {
  const Tensor w = on_gpu({6, 6}, 1), x = on_gpu({3, 6}, 2);
  const tg::Compiled f = compile([&](Inputs in) { return std::vector<Tensor>{layers(exp(in[0]), w)}; });
  for (int i = 0; i < 4; ++i) f({x});
  synchronize(kGpu);
  x.value()->storage->data = reinterpret_cast<std::byte*>(size_t(4096));
  const auto say = [](const char* what, const std::function<void()>& g) { fmt::print("{}: {}\n", what, error_of(g)); };
  say("first", [&] { f({x}), synchronize(kGpu); });
  say("again", [&] { f({x}); });
  fmt::print("launches: {}\n", f.stats().graph_launches);
}
TEST_CASE("graphs: the error of a kernel in one says that it was a compiled function") {
  const Alone r = run_alone(ALONE "a graph fails");
  CAPTURE(r.output);
  CHECK(r.status == 0);
  for (const char* part :
       {"first: [", "compile", "restart the process", "\nagain: [cuda] the device cannot be used any"})
    CHECK_MESSAGE(has(r.output, part), part);
}

TEST_CASE("graphs: in another stream than that of the recording the calls run one by one") {
  const Tensor w = on_gpu({6, 6}, 1), ids = tensor<int32_t>({0, 4, 4}, {3}, kGpu), x = on_gpu({3, 6}, 2);
  const TensorFunction step = [&](Inputs in) {
    return std::vector<Tensor>{emit1(make_ref<op::IndexSelectGrad>(0, 5), {ids, layers(in[0], w)})};
  };
  const auto want = bits_of(step(std::vector<Tensor>{x})[0]);
  const tg::Compiled f = compile(step);
  for (int i = 0; i < 4; ++i) CHECK(bits_of(f({x})[0]) == want);
  {
    const Stream other;
    const Event done;
    done.record(stream_of(0));
    done.wait_in(other);
    const OnStream on(0, other);
    for (int i = 0; i < 2; ++i) CHECK(bits_of(f({x})[0]) == want);
    synchronize(kGpu);
  }
  for (int i = 0; i < 2; ++i) CHECK(bits_of(f({x})[0]) == want);
  CHECK(f.stats().graph_launches == 2);
  CHECK(f.stats().why_no_graph == "it was recorded for another stream");
}
