// Document 001's benchmark of SwitchBack, a linear layer in 8-bit integers: the layers of its grid, the 16 ops that it
// times of each, its totals and figures; and the step of the layer as a whole, which it does not time. What is printed
// is report.h's. Users: bench_switchback.
#pragma once
#include <tapegrad/core/tensor.h>
#include <tapegrad/ops/quantized/quantize.h>
#include <tapegrad/ops/quantized/switchback.h>

#include <array>
#include <optional>

#include "common/peak.h"
#include "common/program.h"

namespace tg::bench {

struct SwitchBackFlags : SharedFlags {     // words as they were given
  std::vector<int64_t> dims, batch, rows;  // empty: see switchback_plan()
  std::optional<int64_t> repeat;
  std::vector<std::string> wm, swapped{"False", "True"};
  std::vector<std::string> predict;
  std::string dtype = "auto", jsonl;
  int64_t seed = 0, threads = 0;  // threads 0: all
  bool full = false, parts_only = false, quick = false;
};

// One of the two linear layers of an MLP: dim -> dim wm, or swapped, back from it.
struct SwitchBackShape {
  int64_t dim = 1024;
  double wm = 4;
  int64_t batch = 1024;  // rows of x: sequences times tokens
  bool swapped = false;
  int64_t wide() const;  // dim wm, rounded
  int64_t dim_in() const { return swapped ? wide() : dim; }
  int64_t dim_out() const { return swapped ? dim : wide(); }
  double flop() const;       // of one of the products; they are equal
  std::string name() const;  // "1024 -> 4096, batch 8192"
  bool operator==(const SwitchBackShape&) const = default;
};
std::vector<SwitchBackShape> switchback_grid();  // the document's 142 rows, by dim, wm, batch

struct SwitchBackSetup {  // of all rows
  int64_t repeat = 64;    // timed calls of each op; before them half as many that are not
  uint64_t seed = 0;
  DType dtype = DType::f32;
  Device device = {};
  bool layers = true;  // whether the layers as a whole are timed as well
  int64_t untimed() const { return repeat / 2; }
};
struct SwitchBackPlan {
  SwitchBackSetup setup;
  std::vector<SwitchBackShape> rows;
  std::string why;  // this dtype
};
// What the flags ask for. By default the document's grid on a GPU or with --full, and dims 1024 and 2048 with batches
// 1024 to 4096 on a CPU; bf16 where the device has instructions for its products, else f32. An Error names the first
// flag that is wrong, a row that comes twice, and a row that needs more memory than the device has.
SwitchBackPlan switchback_plan(const SwitchBackFlags&);

// The ops, in the order of the document's keys.
inline constexpr int64_t kOps = 16;
enum class OpKind : uint8_t { product, product_8, quantise, cast };  // product_8: of codes, dequantised
struct TimedOp {
  const char* key;
  OpKind kind;
};
inline constexpr TimedOp kTimed[kOps] = {{"standard_fwd", OpKind::product},
                                         {"standard_gw", OpKind::product},
                                         {"standard_gx", OpKind::product},
                                         {"rowwise_fwd", OpKind::product_8},
                                         {"rowwise_bwd", OpKind::product_8},
                                         {"global_fwd", OpKind::product_8},
                                         {"global_bwd", OpKind::product_8},
                                         {"x_quantize_rowwise", OpKind::quantise},
                                         {"g_quantize_rowwise", OpKind::quantise},
                                         {"w_quantize_rowwise", OpKind::quantise},
                                         {"w_quantize_colwise_transpose", OpKind::quantise},
                                         {"w_quantize_global", OpKind::quantise},
                                         {"w_quantize_global_transpose", OpKind::quantise},
                                         {"cast_x", OpKind::cast},
                                         {"cast_g", OpKind::cast},
                                         {"cast_w", OpKind::cast}};
size_t op_place(std::string_view key);
using OpTimes = std::array<double, kOps>;  // in milliseconds
// The document's sums of what each layer runs.
struct Totals {
  double standard = 0, rowwise = 0, global = 0;
  double saved() const { return -100 * (global - standard) / standard; }  // percent of the time
};
Totals totals(const OpTimes&);
double quantise_share(const OpTimes&);  // of the total `global`

// The tensors of a row, N(0, 1), and its ops: x (batch, in), gradient g (batch, out), weight w (out, in).
class SwitchBackOps {
 public:
  SwitchBackOps(const SwitchBackShape&, const SwitchBackSetup&);
  Tensor run(size_t op) const;  // of the codes and not of their scales
  OpTimes times() const;        // the mean of the timed calls, synchronised before the first and after the last
  // Of each product of codes, relative_distance() from the product of what they stand for (distance.h).
  std::vector<std::pair<std::string, double>> distances() const;

 private:
  SwitchBackSetup setup_;
  Tensor x_, g_, w_;
  Quantized x_rows_, g_rows_, w_rows_, w_columns_, w_all_, w_all_transposed_;
};

// A forward and a backward pass of a layer, quantising included.
enum class LayerWay : uint8_t { linear, global, vector_wise, memory_efficient };
inline constexpr std::string_view kLayerWays[] = {"linear", "global", "vector_wise", "memory_efficient"};
struct LayerTime {
  LayerWay way;
  RunMode mode;
  double seconds, least, most;  // of a step: the median of rounds, each a mean of steps
};
// All ways, eager and compiled, in turn; at least two rounds. An Error when a way's results are far from those of the
// linear layer.
std::vector<LayerTime> layer_times(const SwitchBackShape&, const SwitchBackSetup&);

// By a dry_run(): the most bytes of tensors on the device at one time; exact but for what compiled steps hold.
int64_t planned_bytes(const SwitchBackShape&, const SwitchBackSetup&);

// An op's time beside what the device can do.
struct OpRate {
  double rate, peak;  // Gop/s of products, else GB/s; a product's peak is that of the dtype's, also with codes
  double percent() const { return 100 * rate / peak; }
};
double op_bytes(const SwitchBackShape&, const SwitchBackSetup&, size_t op);  // what it reads and writes, each once
std::array<OpRate, kOps> rates(const SwitchBackShape&, const SwitchBackSetup&, const OpTimes&, Peaks&);

// What a device does in a second, in multiples of 10^12: products in the dtype and of codes, and bytes.
struct DeviceRates {
  double products, products_8, bytes;
};
// The rates of --predict. An Error unless they are three numbers above 0.
DeviceRates device_rates(const std::vector<std::string>& words);
// Each op by what takes longer, its products or its bytes.
OpTimes predicted_times(const SwitchBackShape&, const SwitchBackSetup&, const DeviceRates&);

struct SwitchBackRow {
  SwitchBackShape shape;
  OpTimes ms;
  std::array<OpRate, kOps> rates = {};
  std::vector<LayerTime> layers = {};
  int64_t peak_bytes = 0;  // of tensors on the device
};
SwitchBackRow measured_row(const SwitchBackShape&, const SwitchBackSetup&, Peaks&);

// Of document 001, whose data are fp16 on a GPU. Null for a layer that is not in its grid.
struct SwitchBackFigure {
  OpTimes ms;
  Totals totals;  // as the document has them
};
const SwitchBackFigure* switchback_figure(const SwitchBackShape&);

}  // namespace tg::bench
