// Document 001's benchmark of SwitchBack, a linear layer in int8: the layers of its grid, the 16 ops timed for each,
// totals, figures and output; and the whole layer's step, which the document does not time.
#pragma once
#include <tapegrad/core/tensor.h>
#include <tapegrad/ops/quantized/quantize.h>
#include <tapegrad/ops/quantized/switchback.h>

#include <array>
#include <optional>

#include "common/peak.h"
#include "common/program.h"

namespace tg {
namespace bench {
enum class LayerWay : uint8_t { linear, global, vector_wise, memory_efficient };
}
template <>
inline constexpr EnumNames<4> kEnumNames<bench::LayerWay>{"way",
                                                          {"linear", "global", "vector_wise", "memory_efficient"}};
}  // namespace tg
namespace tg::bench {

struct SwitchBackFlags : SharedFlags {
  std::vector<int64_t> dims, batch, rows;  // empty: see switchback_plan()
  std::optional<int64_t> repeat;
  std::vector<std::string> wm;
  std::vector<Word> swapped{Word::False, Word::True};
  std::string dtype = "auto", jsonl, budget;
  uint64_t seed = 0;
  bool full = false, parts_only = false;
};

// A linear layer of an MLP: dim -> dim wm; swapped: dim wm -> dim.
struct SwitchBackShape {
  int64_t dim = 1024;
  double wm = 4;
  int64_t batch = 1024;  // rows of x: sequences times tokens
  bool swapped = false;
  int64_t wide() const;  // dim wm, rounded
  int64_t dim_in() const { return swapped ? wide() : dim; }
  int64_t dim_out() const { return swapped ? dim : wide(); }
  double flop() const;       // FLOP of one GEMM; all three are equal
  std::string name() const;  // "1024 -> 4096, batch 8192"
  bool operator==(const SwitchBackShape&) const = default;
};
std::vector<SwitchBackShape> switchback_grid();  // the document's 142 rows, by dim, wm, batch

struct SwitchBackSetup {
  int64_t repeat = 64;  // timed calls of each op, after repeat / 2 untimed ones
  uint64_t seed = 0;
  DType dtype = DType::f32;
  Device device = {};
  bool layers = true;
  int64_t untimed() const { return repeat / 2; }
};
struct SwitchBackPlan {
  SwitchBackSetup setup;
  std::vector<SwitchBackShape> rows;
  std::string why;
  double budget = 0;                       // seconds; 0: none
  std::vector<std::string> left_out = {};  // rows with reasons
  double seconds(const SwitchBackShape&, int64_t repeat, double of_flop) const;
};
// An Error names the first wrong flag, a duplicate row, or one that exceeds the device's memory; --full and --budget
// leave it out.
SwitchBackPlan switchback_plan(const SwitchBackFlags&);

// Ops, in the order of the document's keys.
inline constexpr int64_t kOps = 16;
enum class OpKind : uint8_t { product, product_8, quantize, cast };  // product_8: int8 GEMM, dequantised
struct SwitchBackOps;
struct TimedOp {
  const char* key;
  OpKind kind;
  Tensor (*run)(const SwitchBackOps&);  // quantized values without their scales
};
extern const TimedOp kTimed[kOps];
inline bool is_product(const TimedOp& op) { return op.kind == OpKind::product || op.kind == OpKind::product_8; }
size_t op_place(std::string_view key);
using OpTimes = std::array<double, kOps>;  // milliseconds
struct Totals {
  double standard = 0, rowwise = 0, global = 0;
  double saved() const { return -100 * (global - standard) / standard; }
};
Totals totals(const OpTimes&);
double quantize_share(const OpTimes&);  // share of the total `global`

// Tensors of a row, N(0, 1), and its ops: x (batch, in), gradient g (batch, out), weight w (out, in).
struct SwitchBackOps {
  SwitchBackOps(const SwitchBackShape&, const SwitchBackSetup&);
  Tensor run(size_t op) const { return kTimed[op].run(*this); }
  OpTimes times() const;  // means of the timed calls, synchronised around them
  // For each int8 GEMM, its relative_distance() from the full-precision one.
  std::vector<std::pair<std::string, double>> distances() const;

  SwitchBackSetup setup;
  Tensor x, g, w;
  Quantized x_rows, g_rows, w_rows, w_columns, w_all, w_all_transposed;
};

// A forward and a backward pass of a layer, including quantising.
inline constexpr LayerWay kLayerWays[] = {LayerWay::linear, LayerWay::global, LayerWay::vector_wise,
                                          LayerWay::memory_efficient};
struct LayerTime {
  LayerWay way;
  RunMode mode;
  double seconds, least, most;  // seconds of a step: median of rounds, each a mean of steps
};
// All methods, eager and compiled, alternating over at least two rounds. Throws if results are far from linear.
std::vector<LayerTime> layer_times(const SwitchBackShape&, const SwitchBackSetup&);

// Int8 results against full precision: |a - b| / |b| by Euclidean norms, over the first rows of two equal shapes.
double relative_distance(const Tensor& a, const Tensor& b);
void check_near(std::string_view what, double distance);

// Peak bytes of tensors by a dry_run(); exact except for compiled steps' buffers.
int64_t planned_bytes(const SwitchBackShape&, const SwitchBackSetup&);

struct OpRate {
  double rate, peak;  // Gop/s or GB/s; GEMM peak: dtype's, also for int8
  double percent() const { return 100 * rate / peak; }
};
double op_bytes(const SwitchBackShape&, const SwitchBackSetup&, size_t op);  // reads and writes, once each
std::array<OpRate, kOps> rates(const SwitchBackShape&, const SwitchBackSetup&, const OpTimes&, Peaks&);

struct SwitchBackRow {
  SwitchBackShape shape;
  OpTimes ms;
  std::array<OpRate, kOps> rates = {};
  std::vector<LayerTime> layers = {};
  int64_t peak_bytes = 0;  // tensors on the device
  int64_t repeat = 0;
};
SwitchBackRow measured_row(const SwitchBackShape&, const SwitchBackSetup&, Peaks&);

struct SwitchBackFigure {
  OpTimes ms;
  Totals totals;  // the document's figures
};
std::optional<SwitchBackFigure> switchback_figure(const SwitchBackShape&);

struct SwitchBackReport : Origin {
  SwitchBackSetup setup;
  std::string why;  // reason for this dtype
  std::vector<SwitchBackRow> rows = {};
  std::vector<std::string> left_out = {};
};

std::string document_lines(const OpTimes&);
std::string document_object(const SwitchBackShape&, int64_t repeat, const OpTimes&);
std::string rate_lines(const SwitchBackRow&, const SwitchBackSetup&);
// Linear layer's time over this method's time, in one mode; 1 for the linear layer.
double speedup(const std::vector<LayerTime>&, const LayerTime&);
double best_speedup(const std::vector<LayerTime>&);
std::string layer_lines(const std::vector<LayerTime>&);

// A line per layer and batch, averaged over swapped and unswapped layers: totals, speedups, the share of quantising.
std::string summary(const std::vector<SwitchBackRow>&);
std::string crossover(const std::vector<SwitchBackRow>&);
std::string compare_with_document(const std::vector<SwitchBackRow>&, const std::string& ours);

void write_switchback_json(const std::string& path, const SwitchBackReport&, const Peaks&);

}  // namespace tg::bench
