/// @file
/// Tables of a Profile: the summaries that NVIDIA's `nsys stats` prints, under its names and in its columns, and the
/// time of kernels by the range that made them. As text, CSV and JSON. For programs that print or check profiles; how
/// records come about is in profiler.h.
#pragma once
#include <tapegrad/core/profile/profiler.h>

#include <variant>

namespace tg {

struct ProfileTable {
  enum class Format : uint8_t { integer, one_decimal, three_decimals, text };  ///< numbers have thousands separators
  struct Column {
    std::string title;
    Format format;
  };
  using Cell = std::variant<double, std::string>;
  std::string report;  ///< "nvtx_sum"
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;

  bool empty() const { return rows.empty(); }
  /// The number under a title, in the first row whose last cell is `name`. An Error when there is no such row or title.
  double at(std::string_view name, std::string_view title) const;
};

/// Those that have rows, in the order of `nsys stats`:
///   nvtx_sum               ranges that programs and layers opened, by name: time from begin to end in their thread
///   allocator_sum          calls of the CPU's allocator, in the columns of the next one
///   cuda_api_sum           calls of the CUDA runtime
///   cpu_kern_sum           kernels of the CPU, in the columns of the next one
///   cuda_gpu_kern_sum      kernels of GPUs
///   cuda_gpu_mem_time_sum  copies and fills by GPUs
///   cuda_gpu_mem_size_sum  their bytes; 1 MB is 10^6 bytes
/// osrt_sum, of calls of the system, is not among them: nothing here traces those. nsys does, and shows our ranges
/// beside them (ProfileOptions::nvtx). Rows by total, largest first; percentages are of the sum of the table, where a
/// nested range counts again; standard deviations are those of a sample (n - 1), 0 of one.
std::vector<ProfileTable> profile_tables(const Profile&);

/// kernel_time_by_range: how long the kernels ran that each range made, on their device and not in the thread that
/// queued them. A tree, depth first: named ranges, in them the parts of the model, in them the ops; a row has what is
/// inside as well. Columns: percentage of all kernel time; time; instances of the outermost range that the row is in;
/// time and kernels for each of them; the row's path, with two spaces for each level. Kernels that run together count
/// each.
ProfileTable kernel_time_by_range(const Profile&);

std::string to_text(const ProfileTable&);  ///< columns aligned as nsys has them; long names are cut
std::string to_csv(const ProfileTable&);
std::string to_json(const ProfileTable&);  ///< {"report": ..., "rows": [{title: value}]}

}  // namespace tg
