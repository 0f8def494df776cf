#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/ops/ops.h>

#include <algorithm>
#include <cmath>

#include "switchback/switchback.h"

namespace tg::bench {

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
double quantise_share(const OpTimes& ms) {
  return sum_of(ms, {"x_quantize_rowwise", "g_quantize_rowwise", "w_quantize_global", "w_quantize_global_transpose"}) /
         totals(ms).global;
}

SwitchBackOps::SwitchBackOps(const SwitchBackShape& shape, const SwitchBackSetup& setup) : setup_(setup) {
  Rng rng{setup.seed};
  const auto draw = [&](const Shape& s) { return randn(s, rng, 0, 1, setup.dtype, setup.device); };
  x_ = draw({shape.batch, shape.dim_in()});
  g_ = draw({shape.batch, shape.dim_out()});
  w_ = draw({shape.dim_out(), shape.dim_in()});
  x_rows_ = quantize_rowwise(x_), g_rows_ = quantize_rowwise(g_), w_rows_ = quantize_rowwise(w_);
  w_columns_ = quantize_columnwise_transpose(w_);
  w_all_ = quantize_global(w_), w_all_transposed_ = quantize_global_transpose(w_);
}

Tensor SwitchBackOps::run(size_t op) const {
  const auto product = [&](const Quantized& a, const Quantized& b) { return int8_linear(a, b, {}, setup_.dtype); };
  switch (op) {  // the indices of kTimed
    case 0: return linear(x_, w_);
    case 1: return matmul(g_, x_, {.trans_a = true});
    case 2: return matmul(g_, w_);
    case 3: return product(x_rows_, w_rows_);
    case 4: return product(g_rows_, w_columns_);
    case 5: return product(x_rows_, w_all_);
    case 6: return product(g_rows_, w_all_transposed_);
    case 7: return quantize_rowwise(x_).codes;
    case 8: return quantize_rowwise(g_).codes;
    case 9: return quantize_rowwise(w_).codes;
    case 10: return quantize_columnwise_transpose(w_).codes;
    case 11: return quantize_global(w_).codes;
    case 12: return quantize_global_transpose(w_).codes;
    case 13: return x_.to(DType::i8);
    case 14: return g_.to(DType::i8);
    default: return w_.to(DType::i8);
  }
}

OpTimes SwitchBackOps::times() const {
  OpTimes ms{};
  for (size_t op = 0; op < kOps; ++op) {
    for (int64_t i = 0; i < setup_.untimed(); ++i) run(op);
    synchronize(setup_.device);
    const double seconds = timed([&] {
      for (int64_t i = 0; i < setup_.repeat; ++i) run(op);
      synchronize(setup_.device);
    });
    ms[op] = 1e3 * seconds / double(setup_.repeat);
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
  if (kTimed[op].kind == OpKind::product || kTimed[op].kind == OpKind::product_8) {
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

OpTimes predicted_times(const SwitchBackShape& shape, const SwitchBackSetup& setup, const DeviceRates& r) {
  OpTimes ms{};
  for (size_t op = 0; op < kOps; ++op) {
    const OpKind kind = kTimed[op].kind;
    const double products = kind == OpKind::product     ? shape.flop() / r.products
                            : kind == OpKind::product_8 ? shape.flop() / r.products_8
                                                        : 0;
    ms[op] = 1e-9 * std::max(products, op_bytes(shape, setup, op) / r.bytes);
  }
  return ms;
}

std::array<OpRate, kOps> rates(const SwitchBackShape& shape, const SwitchBackSetup& setup, const OpTimes& ms,
                               Peaks& peaks) {
  std::array<OpRate, kOps> r{};
  for (size_t op = 0; op < kOps; ++op) {
    const bool product = kTimed[op].kind == OpKind::product || kTimed[op].kind == OpKind::product_8;
    const double bytes = op_bytes(shape, setup, op), seconds = 1e-3 * ms[op];
    r[op] = {.rate = 1e-9 * (product ? shape.flop() : bytes) / seconds,
             .peak = product ? peaks.gflops(std::string(name_of(setup.dtype))) : peaks.bandwidth(bytes).best()};
  }
  return r;
}

}  // namespace tg::bench
