// Document 002's benchmark of fragmented and linear layers: its 81 cells, timing, memory, by formulas and measured, and
// output.
#pragma once
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/core/tensor.h>
#include <tapegrad/models/nn/fragmented.h>
#include <tapegrad/models/optim/adamw.h>

#include <optional>

#include "common/program.h"

namespace tg {
namespace bench {
// inference: hard selection. Its steps also train, as in the document.
enum class CellMode : uint8_t { linear, train, inference };
// separate: backward() stores all gradients, then the optimiser runs. folded: AdamW::backward_and_step().
enum class StepWay : uint8_t { separate, folded };
}  // namespace bench
template <>
inline constexpr EnumNames<3> kEnumNames<bench::CellMode>{"mode of a cell", {"linear", "train", "inference"}};
template <> inline constexpr EnumNames<2> kEnumNames<bench::StepWay>{"step", {"separate", "folded"}};
}  // namespace tg
namespace tg::bench {

struct FragmentedFlags : SharedFlags {
  std::vector<int64_t> sizes;  // empty: see fragmented_plan()
  std::vector<int64_t> batches{1, 8, 16}, fragments{2, 8, 32, 128};
  std::vector<CellMode> modes{CellMode::linear, CellMode::train, CellMode::inference};
  std::vector<StepWay> step{StepWay::separate, StepWay::folded};
  std::vector<RunMode> run{RunMode::eager};
  std::optional<int64_t> warmup, steps;
  uint64_t seed = 0;
  bool full = false;
};

struct FragmentedCell {  // a layer size -> size, batch rows of x
  int64_t size = 2048, batch = 1;
  CellMode mode = CellMode::linear;
  int64_t fragments = 0;  // 0: linear
  int64_t parameters() const;
  std::string name() const;                             // "2048, batch 1, train, 8 fragments"
  bool same_model(const FragmentedCell& other) const {  // and the same data
    return size == other.size && batch == other.batch && fragments == other.fragments;
  }
  bool operator==(const FragmentedCell&) const = default;
};
std::vector<FragmentedCell> fragmented_grid();  // the document's 81 cells, in its order

struct FragmentedVariant {
  StepWay step = StepWay::separate;
  RunMode run = RunMode::eager;
  std::string name() const;  // "separate, eager"
  bool operator==(const FragmentedVariant&) const = default;
};

struct FragmentedSetup {
  int64_t warmup = 10, steps = 100;  // a compiled step has at least 3 untimed ones
  uint64_t seed = 0;
  Device device = {};
};
struct FragmentedPlan {
  FragmentedSetup setup;
  std::vector<FragmentedCell> cells;
  std::vector<FragmentedVariant> variants;  // each measures all cells
};
// Default: the document's sizes with 10 and 100 steps on a GPU or with --full, else size 2048 with 2 and 5 steps. An
// Error names the first wrong flag, a duplicate cell, or one that exceeds the device's memory.
FragmentedPlan fragmented_plan(const FragmentedFlags&);

struct FragmentedResult {
  double forward_ms = 0, backward_ms = 0;      // means of the timed steps
  int64_t live_bytes = 0, reserved_bytes = 0;  // peak of tensors; held by the allocator
  double first_loss = 0, last_loss = 0;
};

class FragmentedModel {
 public:
  FragmentedModel(const FragmentedCell&, const FragmentedSetup&);
  Tensor forward(CellMode) const;  // (batch, size), on the tape
  Tensor loss(const Tensor& y) const;
  const Params& params() const { return params_; }

 private:
  Params params_;
  nn::Linear linear_;
  nn::FragmentedLinear fragmented_;
  Tensor x_, target_;
};

// A new Adam: lr 1e-3, betas 0.9 and 0.999, eps 1e-8, no decay.
class FragmentedSteps {
 public:
  struct Seconds {
    double forward, backward;
  };
  FragmentedSteps(const FragmentedModel&, CellMode, FragmentedVariant, Device);
  // forward: y, synchronised. backward: gradients and update, synchronised. The loss between is untimed, but its
  // unfinished work counts as backward. Compiled: backward is the time of a step minus that of a forward call.
  Seconds run();
  double loss() const { return loss_.item<float>(); }  // last step, before its update
  // Throws unless the first step moves exactly the expected weights, by about the learning rate.
  void run_first();
  const CompileStats* stats() const { return step_ ? &step_->stats() : nullptr; }

 private:
  void update(const Tensor& loss);
  const FragmentedModel* model_;
  CellMode mode_;
  FragmentedVariant variant_;
  Device device_;
  AdamW adam_;
  std::optional<Compiled> forward_, step_;
  Tensor loss_;
};

FragmentedResult measured_cell(const FragmentedModel&, const FragmentedCell&, FragmentedVariant,
                               const FragmentedSetup&);

// Peak bytes of tensors by a dry_run(): from creating the layer, and in a later step. Exact except for compiled steps'
// buffers.
struct PlannedBytes {
  int64_t all, step;
};
PlannedBytes planned_bytes(const FragmentedCell&, StepWay, const FragmentedSetup&);

double document_bytes(const FragmentedCell&);  // printed figure; its harness keeps a linear layer alive
double fair_bytes(const FragmentedCell&);      // minus that layer and its gradient
int64_t stored_bytes(const FragmentedCell&);   // 4 P: weights, gradients, two moments
int64_t folded_bytes(const FragmentedCell&);   // 3 P: gradients are not stored

const Json* fragmented_figure(const FragmentedCell&);

struct FragmentedRow {
  FragmentedCell cell;
  FragmentedVariant variant;
  FragmentedResult result;
};
struct FragmentedReport : Origin {
  FragmentedSetup setup;
  std::vector<FragmentedRow> rows = {};
};

// "Benchmarking with input_size=2048, ..." and a block per cell: linear, train, inference. Rows have one size, batch
// and variant. MB are 2^20 bytes, as in the document.
std::string document_text(const std::vector<FragmentedRow>&);
std::string memory_table(const std::vector<FragmentedRow>&);
std::string compare_with_document(const std::vector<FragmentedRow>&, const std::string& ours);

void write_fragmented_json(const std::string& path, const FragmentedReport&);

}  // namespace tg::bench
