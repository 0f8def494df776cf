// A shared library that uses tapegrad.
#include <tapegrad/tapegrad.h>

// The loss of a fit of y = 2 x after `steps` steps, or -1 where tapegrad throws.
extern "C" __attribute__((visibility("default"))) double plugin_fit(int steps) {
  try {
    const tg::Tensor x = tg::tensor({1.f, 2.f, 3.f, 4.f}, {4, 1}), y = x * 2.0;
    tg::Tensor w = tg::zeros({1, 1}).requires_grad_();
    tg::AdamW optimizer({{"w", w}}, tg::AdamWConfig::adam(0.1));
    double loss = 0;
    for (int i = 0; i < steps; ++i) {
      const tg::Tensor error = tg::matmul(x, w) - y, l = tg::mean(error * error);
      optimizer.step(tg::backward(l));
      loss = l.item<double>();
    }
    return loss;
  } catch (const tg::Error&) {
    return -1;
  }
}
