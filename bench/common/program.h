// Shared by the benchmark programs: flags, the origin in result files, refusal of impossible runs.
#pragma once
#include "common/harness.h"

#include <fmt/format.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/tools/memory_plan.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <ranges>
#include <set>

namespace tg {
namespace bench {
enum class Word { False, True };  // Python's words in the documents
}
template <> inline constexpr EnumNames<2> kEnumNames<bench::Word>{"word", {"False", "True"}};
}  // namespace tg
namespace tg::bench {

using apps::Command;

struct SharedFlags {
  std::string json, commit, device = "cpu", filter;
  int64_t threads = 0;  // 0: all
  bool cpu_time = false, against_document = false, quick = false;
};
enum Shared { kThreads = 1, kCpuTime = 2, kDocument = 4, kResults = 8, kQuick = 16 };
void declare_shared(Command&, SharedFlags&, int shared);  // a sum of these
template <NamedEnum E> void read_name(std::string_view word, E& value) {
  try {
    from_name(word, value);
  } catch (const Error& e) {
    throw apps::UsageError(e.what());
  }
}
// --flag NAME of an enum, and --flag NAME,NAME of a list.
template <NamedEnum E>
void declare_names(Command& c, const std::string& flag, const std::string& help, std::vector<E>& values) {
  std::string names;
  for (const E x : values) names += fmt::format("{}{}", names.empty() ? "" : ",", name_of(x));
  c.option(flag, "LIST", names, help, [&values](const std::string& words) {
    values.clear();
    for (const auto word : std::views::split(words, ','))
      read_name(std::string_view(word.begin(), word.end()), values.emplace_back());
  });
}
template <NamedEnum E> void declare_name(Command& c, const std::string& flag, const std::string& help, E& value) {
  c.option(flag, "NAME", std::string(name_of(value)), help,
           [&value](const std::string& word) { read_name(word, value); });
}
// The main() of a program with declare(Command&, Flags&), declare_results() and run(Flags&, argc, argv).
template <class Flags, class Declare, class Run>
int run_benchmark(int argc, char** argv, const char* name, const char* about, int shared, Declare declare, Run run) {
  Flags f;
  const auto declare_all = [&](Command& c) {
    declare(c, f), declare_shared(c, f, shared | kResults);
    return [&] { return run(f, argc, argv); };
  };
  return apps::run_program(argc, argv, {name, about, declare_all});
}
void check_within(std::string_view program, std::string_view flag, int64_t x, int64_t least, int64_t most);

// An Error unless all have different names, name(one).
template <class T, class Name> void check_once(std::string_view program, const std::vector<T>& all, Name name) {
  std::set<std::string> seen;
  for (const T& one : all)
    TG_CHECK(seen.emplace(std::invoke(name, one)).second, value,
             "[{}] '{}' comes twice. Name each word of a list once.", program, std::invoke(name, one));
}

struct Origin {  // origin of results
  Machine machine;
  std::string clock, commit, command;  // clock: "wall" or "processor"
};
// Sets clock and threads, prints the machine and `how`. Throws if --json is not writable.
Origin begin(const SharedFlags&, int argc, char** argv, std::string_view how = "");
Json json_of(const Timing&, double by = 1);  // median, p10 and p90, times `by`
Json json_of(const Origin&);                 // includes the date; head of all result files
// One line per key and per object of a list. Nothing without a path. Atomic; throws on failure.
void write_json(const std::string& path, const Json&);

// Lines with columns as wide as needed, the first left-aligned. A | separates columns in `format`, which is fmt's of a
// row, and in `titles`.
class Table {
 public:
  explicit Table(std::string_view format, std::string_view titles = {});
  template <class... T> void row(const T&... cells) { add(fmt::vformat(format_, fmt::make_format_args(cells...))); }
  std::string text(std::string_view head = {}) const;  // empty without rows

 private:
  void add(std::string_view line);
  std::string format_;
  std::vector<std::vector<std::string>> lines_;
  size_t titles_;  // lines of titles
};
// Nothing without runs.
std::string without_figures(std::string_view document, size_t runs, std::string_view has,
                            const Table& shares = Table({}));
// The line of <folder>/document.jsonl, which the programs contain, with these members; else null.
const Json* document_row(std::string_view folder, const Json& members);
struct Span {
  double least = HUGE_VAL, most = -HUGE_VAL;
  void take(double x) { least = std::min(least, x), most = std::max(most, x); }
  std::string text() const { return fmt::format("{:.2f} to {:.2f}", least, most); }
};
inline double number_of(const Json& row, std::string_view key) { return row[key].get<double>(); }
template <class Rows, class F> Json list_of(const Rows& rows, F json_of_row) {
  Json list = Json::array();
  for (const auto& row : rows) list.push_back(json_of_row(row));
  return list;
}

// Throws an Error of kind memory if bytes(batch), from a dry_run() (core/backend/dry_run.h), exceeds the device's
// memory. It suggests the first halved batch and the variants of `others` that fit.
void check_fits(const std::string& run, int64_t batch, const std::function<int64_t(int64_t batch)>& bytes,
                const std::vector<Variant>& others, Device);
// The same for bytes(setup), where setup.batch is the batch.
template <class Setup, class F>
void check_setup_fits(const std::string& run, Setup setup, F bytes, const std::vector<Variant>& others, Device device) {
  const auto of_batch = [=](int64_t batch) mutable { return setup.batch = batch, bytes(setup); };
  check_fits(run, setup.batch, of_batch, others, device);
}

}  // namespace tg::bench
