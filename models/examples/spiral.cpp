// Classifies points of a spiral's three arms: an MLP with two hidden layers, all points in each step.
//   spiral [STEPS]
#include <tapegrad/tapegrad.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

struct Mlp {
  tg::nn::Linear in, hidden, out;
  explicit Mlp(const tg::Params& p) : in(p.at("in"), 2, 64), hidden(p.at("hidden"), 64, 64), out(p.at("out"), 64, 3) {}
  tg::Tensor forward(const tg::Tensor& x) const {  // (N, 2) -> (N, 3)
    return out.forward(tg::relu(hidden.forward(tg::relu(in.forward(x)))));
  }
};

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 400;
  std::vector<float> points;
  std::vector<int64_t> arms;
  tg::Rng rng{7};
  for (int i = 0; i < 300; ++i) {
    const float r = float(i % 100) / 100, angle = float(i / 100) * 4 + r * 4 + 0.2f * rng.normal();
    points.insert(points.end(), {r * std::sin(angle), r * std::cos(angle)});
    arms.push_back(i / 100);
  }
  const tg::Tensor x = tg::tensor(points, {300, 2}), y = tg::tensor(arms, {300});

  const tg::Params params(tg::Device::cpu(), /*seed=*/1);
  const Mlp model(params);
  tg::AdamW optimizer(params.trainable(), {.lr = 1e-2});
  for (int step = 1; step <= steps; ++step) {
    const tg::Tensor logits = model.forward(x), loss = tg::cross_entropy(logits, y);
    optimizer.step(tg::backward(loss));
    if (step % 100 == 0 || step == steps)
      std::printf("step %d  loss %.4f  accuracy %.3f\n", step, loss.item<double>(),
                  tg::accuracy(logits, y).item<double>());
  }
}
