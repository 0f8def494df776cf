#include "lm_profile/flops.h"

#include <fmt/format.h>
#include <tapegrad/core/check.h>

namespace tg::bench {

double flops_of_step(const LmSetup& s, StepType type) {
  const double d = double(s.model.width), ff = double(s.model.ff_width), context = double(s.model.context);
  const double layers = double(s.model.layers), tokens = double(s.batch) * context;
  const double weights = layers * (4 * d * d + 3 * d * ff) + double(s.model.vocab_size) * d;
  const double forward = 2 * tokens * weights + 4 * tokens * context * d * layers;
  return type == StepType::forward ? forward : 3 * forward;
}

std::string utilisation(const LmReport& report) {
  std::string r =
      "Model FLOPs of a forward pass: 2 T (L (4 d^2 + 3 d ff) + V d) + 4 T C d L; of a step with gradients three times "
      "as many. MFU: their rate by the peak that products reach here, measured in this run.\n";
  for (const LmFigures& f : report.runs) {
    const double flops = flops_of_step(f.setup, f.type), rate = 1e-9 * flops / f.step.seconds;
    r += fmt::format("  {:<24} {:>12.6g} GFLOP in {:>10.3f} ms: {:>10.1f} GFLOP/s", label(f), 1e-9 * flops,
                     1e3 * f.step.seconds, rate);
    if (const auto peak = report.peaks.find(f.setup.precision); peak != report.peaks.end())
      r += fmt::format(", {:.1f} % of {:.0f}", 100 * rate / peak->second, peak->second);
    r += "\n";
  }
  return r;
}

}  // namespace tg::bench
