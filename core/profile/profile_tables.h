/// @file
/// Tables of a Profile as text, CSV and JSON: the summaries of NVIDIA's `nsys stats`, with its names and columns, and
/// the kernel time of each range.
#pragma once
#include <tapegrad/core/profile/profiler.h>

#include <variant>

namespace tg {

/// A table of numbers and names. The last column is the name of the row.
struct ProfileTable {
  /// Format of a column. Numbers have thousands separators.
  enum class Format : uint8_t { integer, one_decimal, three_decimals, text };
  /// Heading of a column.
  struct Column {
    std::string title;
    Format format;
  };
  /// A number or a text.
  using Cell = std::variant<double, std::string>;
  std::string report;  ///< name of the report: "nvtx_sum"
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;

  bool empty() const { return rows.empty(); }
  /// The number in column `title` of the first row whose last cell is `name`. An Error if missing.
  double at(std::string_view name, std::string_view title) const;
};

/// The tables that have rows, in the order of `nsys stats`:
/// - nvtx_sum: ranges of programs and layers, by name; time from begin to end in their thread
/// - allocator_sum: calls of the CPU's allocator, in the columns of cuda_api_sum
/// - cuda_api_sum: calls of the CUDA runtime
/// - cpu_kern_sum: kernels of the CPU, in the columns of cuda_gpu_kern_sum
/// - cuda_gpu_kern_sum: kernels of GPUs
/// - cuda_gpu_mem_time_sum: copies and fills by GPUs
/// - cuda_gpu_mem_size_sum: their bytes; 1 MB is 10^6 bytes
///
/// There is no osrt_sum, because system calls are not recorded; nsys records them and can show our ranges
/// (ProfileOptions::nvtx). Rows are sorted by total time, largest first. Percentages are of the table's total, which
/// counts nested ranges again. Standard deviations are those of a sample (n - 1), or 0 for one record.
std::vector<ProfileTable> profile_tables(const Profile&);

/// The table kernel_time_by_range: kernel time on the device, by the range, layer and op that issued the kernel,
/// without host time for queueing. Rows form a tree, depth first: named ranges, then parts of the model, then ops. A
/// row includes the rows below it.
///
/// Columns: percentage of all kernel time; time; instances of the row's outermost range; time per instance; kernels per
/// instance; the row's name, indented by two spaces per level. Concurrent kernels count in full.
ProfileTable kernel_time_by_range(const Profile&);

/// Table as text, aligned as in nsys; abridges long names.
std::string to_text(const ProfileTable&);
/// Table as CSV, with a header line.
std::string to_csv(const ProfileTable&);
/// Table as JSON: {"report": ..., "rows": [{title: value}]}.
std::string to_json(const ProfileTable&);

}  // namespace tg
