#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/ops/ops.h>

#include <algorithm>

#include "switchback/switchback.h"

namespace tg::bench {
namespace {
using Ops = const SwitchBackOps&;
template <Quantized SwitchBackOps::*a, Quantized SwitchBackOps::*b> Tensor product(Ops o) {
  return int8_linear(o.*a, o.*b, {}, o.setup.dtype);
}
template <Tensor SwitchBackOps::*t, Quantized (*f)(const Tensor&, DType)> Tensor codes(Ops o) {
  return f(o.*t, DType::f32).values;
}
template <Tensor SwitchBackOps::*t> Tensor cast(Ops o) { return (o.*t).to(DType::i8); }
}  // namespace
using O = SwitchBackOps;
const TimedOp kTimed[kOps] = {
    {"standard_fwd", OpKind::product, [](Ops o) { return linear(o.x, o.w); }},
    {"standard_gw", OpKind::product, [](Ops o) { return matmul(o.g, o.x, {.trans_a = true}); }},
    {"standard_gx", OpKind::product, [](Ops o) { return matmul(o.g, o.w); }},
    {"rowwise_fwd", OpKind::product_8, product<&O::x_rows, &O::w_rows>},
    {"rowwise_bwd", OpKind::product_8, product<&O::g_rows, &O::w_columns>},
    {"global_fwd", OpKind::product_8, product<&O::x_rows, &O::w_all>},
    {"global_bwd", OpKind::product_8, product<&O::g_rows, &O::w_all_transposed>},
    {"x_quantize_rowwise", OpKind::quantize, codes<&O::x, quantize_rowwise>},
    {"g_quantize_rowwise", OpKind::quantize, codes<&O::g, quantize_rowwise>},
    {"w_quantize_rowwise", OpKind::quantize, codes<&O::w, quantize_rowwise>},
    {"w_quantize_colwise_transpose", OpKind::quantize, codes<&O::w, quantize_columnwise_transpose>},
    {"w_quantize_global", OpKind::quantize, codes<&O::w, quantize_global>},
    {"w_quantize_global_transpose", OpKind::quantize, codes<&O::w, quantize_global_transpose>},
    {"cast_x", OpKind::cast, cast<&O::x>},
    {"cast_g", OpKind::cast, cast<&O::g>},
    {"cast_w", OpKind::cast, cast<&O::w>},
};
size_t op_place(std::string_view key) {
  const auto at = std::ranges::find(kTimed, key, &TimedOp::key);
  TG_CHECK(at != std::end(kTimed), value, "[bench_switchback] there is no op '{}'.", key);
  return size_t(at - std::begin(kTimed));
}

namespace {
double sum_of(const OpTimes& ms, std::initializer_list<const char*> keys) {
  double sum = 0;
  for (const char* key : keys) sum += ms[op_place(key)];
  return sum;
}
}  // namespace
Totals totals(const OpTimes& ms) {
  // Summed in the document's order, to match its last digits.
  return {.standard = sum_of(ms, {"standard_fwd", "standard_gx", "standard_gw"}),
          .rowwise = sum_of(ms, {"x_quantize_rowwise", "g_quantize_rowwise", "w_quantize_colwise_transpose",
                                 "w_quantize_rowwise", "standard_gw", "rowwise_fwd", "rowwise_bwd"}),
          .global = sum_of(ms, {"x_quantize_rowwise", "g_quantize_rowwise", "w_quantize_global",
                                "w_quantize_global_transpose", "standard_gw", "global_fwd", "global_bwd"})};
}
double quantize_share(const OpTimes& ms) {
  return sum_of(ms, {"x_quantize_rowwise", "g_quantize_rowwise", "w_quantize_global", "w_quantize_global_transpose"}) /
         totals(ms).global;
}

SwitchBackOps::SwitchBackOps(const SwitchBackShape& shape, const SwitchBackSetup& of) : setup(of) {
  Rng rng{setup.seed};
  const auto draw = [&](const Shape& s) { return randn(s, rng, 0, 1, setup.dtype, setup.device); };
  x = draw({shape.batch, shape.dim_in()});
  g = draw({shape.batch, shape.dim_out()});
  w = draw({shape.dim_out(), shape.dim_in()});
  x_rows = quantize_rowwise(x), g_rows = quantize_rowwise(g), w_rows = quantize_rowwise(w);
  w_columns = quantize_columnwise_transpose(w);
  w_all = quantize_global(w), w_all_transposed = quantize_global_transpose(w);
}

OpTimes SwitchBackOps::times() const {
  OpTimes ms{};
  for (size_t op = 0; op < kOps; ++op) {
    // Passes: new memory would count.
    for (int64_t i = is_product(kTimed[op]) ? 0 : -1; i < setup.untimed(); ++i) run(op);
    synchronize(setup.device);
    const double seconds = timed([&] {
      for (int64_t i = 0; i < setup.repeat; ++i) run(op);
      synchronize(setup.device);
    });
    ms[op] = 1e3 * seconds / double(setup.repeat);
  }
  return ms;
}

std::vector<std::pair<std::string, double>> SwitchBackOps::distances() const {
  std::vector<std::pair<std::string, double>> found;
  for (const auto& [codes, exact] : {std::pair{"rowwise_fwd", "standard_fwd"},
                                     {"global_fwd", "standard_fwd"},
                                     {"rowwise_bwd", "standard_gx"},
                                     {"global_bwd", "standard_gx"}})
    found.emplace_back(codes, relative_distance(run(op_place(codes)), run(op_place(exact))));
  return found;
}

double op_bytes(const SwitchBackShape& shape, const SwitchBackSetup& setup, size_t op) {
  const auto wide = double(size_of(setup.dtype)), scale = double(size_of(DType::f32));
  const auto b = double(shape.batch), in = double(shape.dim_in()), out = double(shape.dim_out());
  const std::string_view key = kTimed[op].key;
  const auto is = [&](std::string_view part) { return key.find(part) != std::string_view::npos; };
  if (is_product(kTimed[op])) {
    const bool forward = is("fwd"), of_weight = is("gw");
    const double one = kTimed[op].kind == OpKind::product ? wide : 1;
    const double result = of_weight ? in * out : b * (forward ? out : in);
    return one * (b * in + b * out + in * out - result) + wide * result;
  }
  const double rows = key.starts_with("w") || key == "cast_w" ? out : b;
  const double columns = key.starts_with("g") || key == "cast_g" ? out : in;
  const double scales = kTimed[op].kind == OpKind::cast ? 0 : is("global") ? 1 : is("colwise") ? columns : rows;
  return rows * columns * (wide + 1) + scale * scales;
}

std::array<OpRate, kOps> rates(const SwitchBackShape& shape, const SwitchBackSetup& setup, const OpTimes& ms,
                               Peaks& peaks) {
  std::array<OpRate, kOps> r{};
  for (size_t op = 0; op < kOps; ++op) {
    const bool product = is_product(kTimed[op]);
    const double bytes = op_bytes(shape, setup, op), seconds = 1e-3 * ms[op];
    r[op] = {.rate = 1e-9 * (product ? shape.flop() : bytes) / seconds,
             .peak = product ? peaks.gflops(std::string(name_of(setup.dtype))) : peaks.bandwidth(bytes).best()};
  }
  return r;
}

}  // namespace tg::bench
