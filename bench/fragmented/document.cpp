// Exact figures of document 002, and formulas of its memory.
#include <algorithm>
#include <vector>

#include "fragmented/fragmented.h"

namespace tg::bench {
namespace {
constexpr size_t kCells = 9;  // linear; train and inference with 2, 8, 32, 128
// Forward and backward in ms, peak in MiB, per cell.
constexpr double kNumbers[][3 * kCells] = {
    // 2048, batch 1
    {0.12,  1,    96.3, 0.55,  1.55, 133.4, 0.68,  1.18, 133.3, 0.8,   1.66, 133.4, 1.03, 1.22,
     133.3, 1.02, 1.68, 133.4, 1.07, 1.27,  133.4, 0.51, 1.59,  133.6, 0.53, 1.11,  133.6},
    // 2048, batch 8
    {0.12,  0.91, 96.5, 0.54,  1.92, 133.6, 0.62,  1.28, 180.8, 0.5,   1.82, 133.6, 0.54, 1.12,
     133.6, 0.54, 1.56, 133.6, 0.52, 1.1,   133.6, 0.53, 1.63,  133.8, 0.55, 1.09,  133.8},
    // 2048, batch 16
    {0.15,  1.25, 96.8, 0.52,  1.97, 133.8, 0.9,   1.62, 245.4, 0.78,  1.97, 133.8, 1.08, 1.34,
     149.4, 0.85, 1.72, 133.9, 0.6,  1.19,  133.9, 0.87, 1.73,  149.1, 0.8,  1.2,   134},
    // 4096, batch 1
    {0.21,  2.45, 336.4, 0.71,  2.86, 484.5, 0.86,  2.45, 484.4, 0.75, 3.16, 484.5, 0.56, 2.37,
     484.4, 0.49, 2.88,  484.6, 0.66, 2.37,  484.5, 0.89, 3.28,  485,  0.6,  2.36,  484.9},
    // 4096, batch 8
    {0.2,   2.08, 336.8, 0.59, 2.83, 484.9, 1.52, 3.56, 673.4, 0.82,  3.15, 484.9, 0.83, 2.61,
     484.9, 0.58, 3.28,  485,  0.71, 2.58,  485,  0.59, 3.15,  485.4, 0.67, 2.42,  485.3},
    // 4096, batch 16
    {0.23,  2.15, 337.3, 0.82,  2.88, 485.4, 2.5,   4.83, 930.5, 0.55,  2.85, 485.4, 0.91, 2.84,
     546.5, 0.66, 2.91,  485.5, 0.71, 2.43,  485.5, 0.68, 3.65,  485.9, 0.67, 2.61,  485.8},
    // 8192, batch 1
    {0.41,   6.78, 1296.5, 0.77,   8.08, 1888.7, 0.91,   7.94, 1888.5, 0.7,    7.72, 1888.7, 0.6,   7.45,
     1888.6, 0.7,  7.8,    1888.9, 0.76, 7.45,   1888.8, 1.02, 8.24,   1889.7, 1.18, 7.57,   1889.5},
    // 8192, batch 8
    {0.57,   6.89, 1297.4, 0.83,   7.98, 1889.5, 4.98,   12.76, 2642.6, 0.97,   8.16, 1889.6, 1.66,  8.69,
     1889.5, 0.83, 8.11,   1889.8, 0.8,  7.69,   1889.7, 1.05,  8.33,   1890.5, 0.68, 7.37,   1890.4},
    // 8192, batch 16
    {0.46,   6.73, 1298.4, 0.87,   7.89, 1890.5, 9.19,   18,   3668.8, 1.08,   8.04, 1890.6, 2.96,  10.01,
     2132.7, 1.02, 8.3,    1890.8, 0.97, 8.05,   1890.7, 1.03, 9.41,   1891.5, 0.7,  7.52,   1891.4},
};
constexpr double kMiB = 1 << 20;
constexpr double kWorkspaces = 16.25 * kMiB;  // cuBLAS workspaces of forward and backward

double float_bytes(double elements) { return 4 * elements; }
double linear_bytes(int64_t size) { return float_bytes(double(size * size + size)); }
}  // namespace

std::optional<FragmentedFigure> fragmented_figure(const FragmentedCell& cell) {
  static const std::vector<FragmentedCell> grid = fragmented_grid();
  const auto place = size_t(std::ranges::find(grid, cell) - grid.begin());
  if (place == grid.size()) return {};
  const double* of = kNumbers[place / kCells] + 3 * (place % kCells);
  return FragmentedFigure{of[0], of[1], of[2]};
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
