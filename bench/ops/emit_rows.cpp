#include "ops/op_rows.h"

#include <tapegrad/core/check.h>
#include <tapegrad/tapegrad.h>

#include <thread>

namespace tg::bench {
namespace {
struct Mode {
  RowId id;
  std::vector<double> times{};  // indexed by round; all ops
};
Result row(const Mode& m, double ops) {
  const Timing t = summary(m.times);
  return {m.id, "ns", 1e9 / ops * t.median, 1e9 / ops * t.p10, 1e9 / ops * t.p90, 0, t.median / ops, t.runs};
}

std::vector<Mode> chains(EmitOptions o) {
  NameScope a("gpt"), b("h"), c("mlp");
  const Tensor x = ones({2, 2}).label("x"), w = zeros({2, 2}).label("w").requires_grad_();
  std::vector<Mode> modes;
  for (const char* name : {"emit_eager", "emit_eager_tracked", "emit_backward", "emit_release", "emit_lazy",
                           "emit_lazy_tracked", "emit_replay"})
    modes.push_back({{name, {2, 2}, "f32"}});
  const auto chain = [&](Tensor& y) {
    for (int i = 0; i < o.ops; ++i) y = y + x;
  };
  for (int k = 0; k < o.rounds; ++k) {
    Tensor y = x, loss;
    const auto take = [&](size_t mode, auto f) { modes[mode].times.push_back(timed(f)); };
    take(0, [&] { chain(y); });
    y = w;
    take(1, [&] { chain(y); });
    loss = sum(y), y = Tensor();
    take(2, [&] { backward(loss); });
    loss = Tensor(), y = w;
    chain(y);
    take(3, [&] { y = Tensor(); });
    LazyScope lazy;
    y = x;
    take(4, [&] { chain(y); });
    take(6, [&] { eval({y}); });
    y = w;
    take(5, [&] { chain(y); });
  }
  return modes;
}
// Two threads with separate graphs and as much work each as one thread.
Mode two_threads(EmitOptions o) {
  Mode mode{{"emit_eager_tracked_two_threads", {2, 2}, "f32"}};
  const auto own = [&] {
    const Tensor v = zeros({2, 2});
    Tensor w = zeros({2, 2}).requires_grad_(), y = w;
    for (int i = 0; i < o.ops; ++i) y = i % 1000 ? y + v : w;
  };
  for (int k = 0; k < o.rounds; ++k)
    mode.times.push_back(timed([&] {
      std::thread t(own);
      own();
      t.join();
    }));
  return mode;
}
}  // namespace

std::vector<Result> emit_rows(const std::function<bool(const RowId&)>& wanted, EmitOptions o) {
  std::vector<Mode> modes = chains(o);
  if (num_threads() > 1) modes.push_back(two_threads(o));
  std::vector<Result> rows;
  for (const Mode& m : modes) rows.push_back(row(m, o.ops));
  TorchEmit torch;
  if (torch_emit(torch)) {
    const auto add_torch = [&](const char* name, double ns) {
      rows.push_back(
          {{fmt::format("{}_libtorch_{}", name, torch.version), {2, 2}, "f32"}, "ns", ns, ns, ns, 0, 1e-9 * ns, 1});
    };
    add_torch("emit_eager", torch.untracked);
    add_torch("emit_eager_tracked", torch.tracked);
  }
  std::erase_if(rows, [&](const Result& r) { return !wanted(r.id); });
  return rows;
}

}  // namespace tg::bench
