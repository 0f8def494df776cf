#include "common/program.h"

#include <fmt/ranges.h>
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/io/file.h>

namespace tg::bench {
std::string_view embedded_document(std::string_view folder);  // bench/CMakeLists.txt

const Json* document_row(std::string_view folder, const Json& members) {
  static std::map<std::string, std::vector<Json>, std::less<>> documents;
  auto at = documents.find(folder);
  if (at == documents.end()) {
    at = documents.try_emplace(std::string(folder)).first;
    for (const auto line : std::views::split(embedded_document(folder), '\n'))
      if (!line.empty()) at->second.push_back(detail::own_json(std::string_view(line.begin(), line.end())));
  }
  const auto row = std::ranges::find_if(at->second, [wanted = members.items()](const Json& of) {
    return std::ranges::all_of(wanted, [&](const auto& m) { return of[m.key] == m.value; });
  });
  return row == at->second.end() ? nullptr : &*row;
}
void declare_shared(Command& c, SharedFlags& f, int shared) {
  if (shared & kThreads) c.option("--threads", "of the CPU backend, 0: all", f.threads, 0, INT32_MAX);
  if (shared & kCpuTime)
    c.toggle("--cpu-time", "one thread, and its processor time: for a machine busy with other work", f.cpu_time);
  if (shared & kDocument)
    c.toggle("--against-document", "print the document's figures next to ours", f.against_document);
  if (shared & kQuick) c.toggle("--quick", "the smallest sizes, a few times each: seconds, as a test", f.quick);
  if (!(shared & kResults)) return;
  c.option("--device", "NAME", "cpu or cuda", f.device);
  c.option("--json", "FILE", "write machine, date and figures to this file", f.json);
  c.option("--commit", "TEXT", "what was built, kept in the JSON file", f.commit);
}
void check_within(std::string_view program, std::string_view flag, int64_t x, int64_t least, int64_t most) {
  TG_CHECK(x >= least && x <= most, value, "[{}] --{} is {}. It must be from {} to {}.", program, flag, x, least, most);
}

Origin begin(const SharedFlags& f, int argc, char** argv, std::string_view how) {
  if (!f.json.empty()) detail::check_writable(f.json);
  if (f.cpu_time) use_cpu_time();
  if (f.cpu_time || f.threads != 0) set_num_threads(f.cpu_time ? 1 : int(f.threads));
  const Machine m = machine(Device::parse(f.device));
  fmt::print("{}, {} cpu(s), {}: {}, {}{}{}\n", m.cpu, m.cpus, m.device, m.backend, m.compiler, how,
             f.cpu_time ? ", processor time" : "");
  return {m, f.cpu_time ? "processor" : "wall", f.commit, fmt::format("{}", fmt::join(argv, argv + argc, " "))};
}
Json json_of(const Timing& t, double by) {
  return {{"median", t.median * by}, {"p10", t.p10 * by}, {"p90", t.p90 * by}};
}
Json json_of(const Origin& o) {
  const Machine& m = o.machine;
  return {
      {"machine",
       {{"cpu", m.cpu}, {"cpus", m.cpus}, {"threads", m.threads}, {"backend", m.backend}, {"compiler", m.compiler}}},
      {"date", utc_date()},
      {"device", m.device},
      {"clock", o.clock},
      {"commit", o.commit},
      {"command", o.command}};
}
void write_json(const std::string& path, const Json& j) {
  if (path.empty()) return;
  if (!j.is_object()) return detail::write_file_atomically(path, detail::text_of(j) + "\n");
  std::string lines;
  for (const auto& [key, value] : j.items()) {
    std::string of_key = detail::text_of(value);
    if (value.is_array() && !value.empty() && value[0].is_object()) {
      of_key = "[";
      for (const Json& row : value) of_key += (of_key == "[" ? "\n" : ",\n") + detail::text_of(row);
      of_key += "\n]";
    }
    lines += fmt::format("{}{}: {}", lines.empty() ? "" : ",\n", detail::text_of(key), of_key);
  }
  detail::write_file_atomically(path, "{\n" + lines + "\n}\n");
}

Table::Table(std::string_view format, std::string_view titles) : format_(format) {
  if (!titles.empty()) add(titles);
  titles_ = lines_.size();
}
void Table::add(std::string_view line) {
  auto& cells = lines_.emplace_back();
  for (const auto cell : std::views::split(line, '|')) cells.emplace_back(cell.begin(), cell.end());
}
std::string Table::text(std::string_view head) const {
  if (lines_.size() == titles_) return {};
  std::vector<size_t> widths;
  for (const auto& line : lines_) {
    widths.resize(std::max(widths.size(), line.size()));
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string r(head);
  for (const auto& line : lines_) {
    r += fmt::format("{:<{}}", line[0], widths[0]);
    for (size_t i = 1; i < line.size(); ++i) r += fmt::format("  {:>{}}", line[i], widths[i]);
    r += "\n";
  }
  return r;
}

std::string without_figures(std::string_view document, size_t runs, std::string_view has, const Table& shares) {
  if (runs == 0) return {};
  return fmt::format("Runs without figures in document {}: {}. It has {}.\n", document, runs, has) +
         shares.text("Their shares, ours and the document's:\n");
}
void check_fits(const std::string& run, int64_t batch, const std::function<int64_t(int64_t batch)>& bytes,
                const std::vector<Variant>& others, Device device) {
  std::vector<std::vector<Variant>> lists(1);
  for (int64_t less = batch / 2; less > 0; less /= 2)
    lists[0].push_back({fmt::format("--batch {}", less), [=] { return bytes(less); }});
  for (const Variant& v : others) lists.push_back({v});
  detail::check_fits({run, [&] { return bytes(batch); }}, device, [&](int64_t there) {
    const std::string fit = detail::what_fits(lists, there);
    return fit.empty() ? "No --batch is small enough: make the model or the context smaller." : fit;
  });
}

}  // namespace tg::bench
