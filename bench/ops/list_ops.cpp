// Prints the table of linked ops by backend. --update-readme FILE writes it between FILE's two marks; --check-readme
// FILE fails if FILE is outdated. A build without CUDA keeps FILE's cuda column. --kernels lists every kernel with its
// file.
#include <fmt/format.h>
#include <tapegrad/core/backend/registry.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>

#include <map>
#include <ranges>
#include <set>
#include <string>
#include <vector>

namespace {
constexpr std::string_view kBegin = "<!-- ops:begin -->\n", kEnd = "<!-- ops:end -->";

// The cuda column of a table() text, by "| op".
std::map<std::string, std::string, std::less<>> cuda_column(std::string_view text) {
  std::map<std::string, std::string, std::less<>> column;
  for (const auto line : std::views::split(text, '\n')) {
    std::vector<std::string> cells;
    for (const auto cell : std::views::split(line, std::string_view(" | ")))
      cells.emplace_back(cell.begin(), cell.end());
    if (cells.size() > 3) column[cells[0]] = cells[2];
  }
  return column;
}
std::string table(std::string_view before = {}) {
  std::map<std::string_view, std::set<tg::Backend>> kernels;
  bool has_cuda = false;
  for (auto& k : tg::detail::all_kernels()) kernels[k.op].insert(k.backend), has_cuda |= k.backend == tg::Backend::cuda;
  const auto known = cuda_column(before);
  std::string text = "| op | cpu | cuda | gradient |\n|---|---|---|---|\n";
  for (auto& op : tg::detail::all_ops()) {
    const auto cell = [&](tg::Backend b) -> std::string {
      if (op.is_view) return "view";
      if (kernels[op.name].contains(b)) return "kernel";
      if (b == tg::Backend::cuda && !has_cuda) {
        const auto was = known.find(fmt::format("| {}", op.name));
        return was == known.end() ? "" : was->second;
      }
      return op.composes ? "composed" : "";
    };
    text += fmt::format("| {} | {} | {} | {} |\n", op.name, cell(tg::Backend::cpu), cell(tg::Backend::cuda),
                        op.has_vjp    ? "yes"
                        : op.composes ? "composed"
                                      : "");
  }
  return text;
}
int readme(const std::string& path, bool update) {
  const std::string text(tg::MappedFile(path).text());
  const size_t begin = text.find(kBegin), end = text.find(kEnd);
  if (begin == text.npos || end == text.npos || end < begin)
    throw tg::Error(tg::Error::Kind::io, fmt::format("[list_ops] {} has no lines '{}' and '{}' to write between.", path,
                                                     kBegin.substr(0, kBegin.size() - 1), kEnd));
  const std::string want = text.substr(0, begin) + std::string(kBegin) +
                           table(std::string_view(text).substr(begin, end - begin)) + text.substr(end);
  if (want == text) return 0;
  if (!update) {
    fmt::print(stderr, "the table of ops in {} is out of date: run list_ops --update-readme {}\n", path, path);
    return 1;
  }
  tg::detail::write_file_atomically(path, want);
  return 0;
}
}  // namespace

int main(int argc, char** argv) try {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (argc == 3 && (mode == "--update-readme" || mode == "--check-readme"))
    return readme(argv[2], mode == "--update-readme");
  if (argc == 2 && mode == "--kernels") {
    for (auto& k : tg::detail::all_kernels())
      fmt::print("{:<20} {:<5} level {} {}:{}\n", k.op, tg::name_of(k.backend), k.level, k.file, k.line);
    return 0;
  }
  if (argc != 1) {
    fmt::print(stderr, "usage: list_ops [--kernels | --update-readme FILE | --check-readme FILE]\n");
    return 2;
  }
  fmt::print("{}", table());
  return 0;
} catch (const std::exception& e) {
  fmt::print(stderr, "{}\n", e.what());
  return 1;
}
