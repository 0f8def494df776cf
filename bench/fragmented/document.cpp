// Formulas of document 002's memory.
#include <algorithm>

#include "fragmented/fragmented.h"

namespace tg::bench {
namespace {
constexpr double kMiB = 1 << 20;
constexpr double kWorkspaces = 16.25 * kMiB;  // cuBLAS workspaces of forward and backward

double float_bytes(double elements) { return 4 * elements; }
double linear_bytes(int64_t size) { return float_bytes(double(size * size + size)); }
}  // namespace

const FragmentedFigure* fragmented_figure(const FragmentedCell& cell) {
  static const Document<FragmentedCell, FragmentedFigure> all("fragmented", [](const Json& j) {
    const auto whole = [&](const char* key) { return j[key].get<int64_t>(); };
    FragmentedCell c{whole("size"), whole("batch"), {}, whole("fragments")};
    from_name(j["mode"].get<std::string>(), c.mode);
    return std::pair{
        c, FragmentedFigure{number_of(j, "forward_ms"), number_of(j, "backward_ms"), number_of(j, "peak_mib")}};
  });
  return all.find(cell);
}

// Weights, gradients, moments and the optimiser's square roots: 5 x the parameters; data and results: 4 x the rows.
// Soft selection computes all fragments, hard selection copies a matrix per row; the layer keeps a mapping and masks.
double fair_bytes(const FragmentedCell& c) {
  const double parameters = float_bytes(double(c.parameters())), rows = float_bytes(double(c.batch * c.size));
  const double in_update = 5 * parameters + 4 * rows;
  if (c.mode == CellMode::linear) return kWorkspaces + in_update;
  const double masks = double(c.fragments * c.size + 8 * c.size);
  const double copies = double(c.batch) * float_bytes(double(c.size * c.size)) / double(c.fragments);
  const double in_backward =
      4 * parameters + (c.mode == CellMode::train ? 2 * double(c.fragments) * rows + 5 * rows : copies + 9 * rows);
  return kWorkspaces + std::max(in_update, in_backward) + masks;
}
double document_bytes(const FragmentedCell& c) {
  return fair_bytes(c) + (c.mode == CellMode::linear ? 0 : 2 * linear_bytes(c.size));
}
int64_t stored_bytes(const FragmentedCell& c) { return 4 * 4 * c.parameters(); }
int64_t folded_bytes(const FragmentedCell& c) { return 3 * 4 * c.parameters(); }

}  // namespace tg::bench
