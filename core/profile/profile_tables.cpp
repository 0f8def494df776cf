#include <tapegrad/core/check.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/core/profile/profile_tables.h>
#include <tapegrad/core/scope.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <unordered_map>

namespace tg {
namespace {
using Format = ProfileTable::Format;
using Cell = ProfileTable::Cell;
using Column = ProfileTable::Column;

using Samples = std::map<std::string, std::vector<double>, std::less<>>;  // key: name
void add(Samples& all, std::string_view name, double x) {
  auto it = all.find(name);
  if (it == all.end()) it = all.emplace(std::string(name), std::vector<double>()).first;
  it->second.push_back(x);
}

struct Sum {
  std::string name;
  double count, total, average, median, min, max, deviation;
};
Sum sum_of(const std::string& name, std::vector<double> x) {
  std::ranges::sort(x);
  const size_t n = x.size();
  const double total = std::accumulate(x.begin(), x.end(), 0.0), average = total / double(n);
  double squares = 0;
  for (const double v : x) squares += (v - average) * (v - average);
  return {.name = name,
          .count = double(n),
          .total = total,
          .average = average,
          .median = n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2,
          .min = x.front(),
          .max = x.back(),
          .deviation = n > 1 ? std::sqrt(squares / double(n - 1)) : 0};
}
std::vector<Sum> sums_of(const Samples& all) {
  std::vector<Sum> r;
  for (const auto& [name, x] : all) r.push_back(sum_of(name, x));
  std::ranges::stable_sort(r, std::greater<>(), &Sum::total);
  return r;
}

struct Titles {
  std::string report, count, name;
};
ProfileTable time_table(const Titles& titles, const Samples& all, bool styled = false) {
  ProfileTable t;
  t.report = titles.report;
  t.columns = {{"Time (%)", Format::one_decimal}, {"Total Time (ns)", Format::integer}, {titles.count, Format::integer},
               {"Avg (ns)", Format::one_decimal}, {"Med (ns)", Format::one_decimal},    {"Min (ns)", Format::integer},
               {"Max (ns)", Format::integer},     {"StdDev (ns)", Format::one_decimal}};
  if (styled) t.columns.push_back({"Style", Format::text});
  t.columns.push_back({titles.name, Format::text});
  const std::vector<Sum> sums = sums_of(all);
  double whole = 0;
  for (const Sum& s : sums) whole += s.total;
  for (const Sum& s : sums) {
    std::vector<Cell>& row = t.rows.emplace_back(std::vector<Cell>{
        whole > 0 ? 100 * s.total / whole : 0, s.total, s.count, s.average, s.median, s.min, s.max, s.deviation});
    if (styled) row.push_back("PushPop");
    row.push_back(s.name);
  }
  return t;
}
ProfileTable size_table(const Samples& all) {
  ProfileTable t;
  t.report = "cuda_gpu_mem_size_sum";
  t.columns = {{"Total (MB)", Format::three_decimals},  {"Count", Format::integer},
               {"Avg (MB)", Format::three_decimals},    {"Med (MB)", Format::three_decimals},
               {"Min (MB)", Format::three_decimals},    {"Max (MB)", Format::three_decimals},
               {"StdDev (MB)", Format::three_decimals}, {"Operation", Format::text}};
  for (const Sum& s : sums_of(all))
    t.rows.push_back({s.total, s.count, s.average, s.median, s.min, s.max, s.deviation, s.name});
  return t;
}

std::string_view operation(Profile::Copy::Kind k) {
  constexpr std::string_view kNames[] = {"[CUDA memcpy Host-to-Device]", "[CUDA memcpy Device-to-Host]",
                                         "[CUDA memcpy Device-to-Device]", "[CUDA memset]"};
  return kNames[size_t(k)];
}
}  // namespace

double ProfileTable::at(std::string_view name, std::string_view title) const {
  const auto column = std::ranges::find(columns, title, &Column::title);
  const auto row =
      std::ranges::find_if(rows, [&](const std::vector<Cell>& r) { return std::get<std::string>(r.back()) == name; });
  TG_CHECK(column != columns.end() && column->format != Format::text, value,
           "[profiler] {} has no column of numbers '{}'. Titles are those of the table.", report, title);
  TG_CHECK(row != rows.end(), value, "[profiler] {} has no row '{}'. Names are those of the last column.", report,
           name);
  return std::get<double>((*row)[size_t(column - columns.begin())]);
}

std::vector<ProfileTable> profile_tables(const Profile& p) {
  Samples ranges, calls[kBackends], kernels[kBackends], times, sizes;
  for (const Profile::Range& r : p.ranges)
    if (r.kind != RangeKind::op) add(ranges, fmt::format(":{}", r.name), double(r.end - r.begin));
  for (const Profile::Call& c : p.calls) add(calls[size_t(c.backend)], c.name, double(c.end - c.begin));
  for (const Profile::Kernel& k : p.kernels) add(kernels[size_t(k.device.backend)], k.name, double(k.end - k.begin));
  for (const Profile::Copy& c : p.copies) {
    add(times, operation(c.kind), double(c.end - c.begin));
    add(sizes, operation(c.kind), double(c.bytes) / 1e6);
  }
  constexpr auto cpu = size_t(Backend::cpu), cuda = size_t(Backend::cuda);
  std::vector<ProfileTable> r{
      time_table({"nvtx_sum", "Instances", "Range"}, ranges, true),
      time_table({"allocator_sum", "Num Calls", "Name"}, calls[cpu]),
      time_table({"cuda_api_sum", "Num Calls", "Name"}, calls[cuda]),
      time_table({"cpu_kern_sum", "Instances", "Name"}, kernels[cpu]),
      time_table({"cuda_gpu_kern_sum", "Instances", "Name"}, kernels[cuda]),
      time_table({"cuda_gpu_mem_time_sum", "Count", "Operation"}, times),
      size_table(sizes),
  };
  std::erase_if(r, [](const ProfileTable& t) { return t.empty(); });
  return r;
}

namespace {
// A row of kernel_time_by_range() with the rows below.
struct Part {
  std::string name;
  int64_t ns = 0, kernels = 0;
  std::vector<std::unique_ptr<Part>> parts;

  Part& part(std::string_view of) {
    const auto at = std::ranges::find_if(parts, [&](const auto& p) { return p->name == of; });
    if (at != parts.end()) return **at;
    parts.push_back(std::make_unique<Part>());
    parts.back()->name = of;
    return *parts.back();
  }
};
std::vector<const Scope*> from_root(const Scope* s) {
  std::vector<const Scope*> r;
  for (; s && s->parent; s = s->parent) r.push_back(s);
  std::ranges::reverse(r);
  return r;
}
using Instances = std::unordered_map<std::string_view, double>;
// `instances`: runs of p's outermost range.
void add_rows(const Part& p, double whole, const Instances& outermost, double instances, size_t depth,
              ProfileTable& t) {
  std::vector<const Part*> in;
  for (const auto& part : p.parts) in.push_back(part.get());
  std::ranges::stable_sort(in, std::greater<>(), &Part::ns);
  for (const Part* part : in) {
    if (depth == 0) {
      const auto n = outermost.find(part->name);
      instances = n == outermost.end() ? 1 : n->second;
    }
    t.rows.push_back({whole > 0 ? 100 * double(part->ns) / whole : 0, double(part->ns), instances,
                      double(part->ns) / instances, double(part->kernels) / instances,
                      std::string(2 * depth, ' ') + part->name});
    add_rows(*part, whole, outermost, instances, depth + 1, t);
  }
}
}  // namespace

ProfileTable kernel_time_by_range(const Profile& p) {
  Part all;
  for (const Profile::Kernel& k : p.kernels) {
    Part* at = &all;
    const auto enter = [&](std::string_view name) {
      at = &at->part(name);
      at->ns += k.end - k.begin;
      ++at->kernels;
    };
    if (!k.path || !k.path->parent) enter("(in no range)");
    for (const Scope* s : from_root(k.path)) enter(s->name);
    for (const Scope* s : from_root(k.layer)) enter(s->path());
    enter(k.op.empty() ? k.name : k.op);
  }
  Instances outermost;
  for (const Profile::Range& r : p.ranges)
    if (r.kind == RangeKind::range && r.path->parent && !r.path->parent->parent) ++outermost[r.name];
  ProfileTable t;
  t.report = "kernel_time_by_range";
  t.columns = {{"Time (%)", Format::one_decimal},
               {"Total Time (ns)", Format::integer},
               {"Instances", Format::integer},
               {"Time/Instance (ns)", Format::one_decimal},
               {"Kernels/Instance", Format::one_decimal},
               {"Range", Format::text}};
  double whole = 0;
  for (const auto& part : all.parts) whole += double(part->ns);
  add_rows(all, whole, outermost, 1, 0, t);
  return t;
}

namespace {
constexpr size_t kLongest = 100;  // most characters

std::string with_separators(std::string digits) {
  const size_t end = std::min(digits.find('.'), digits.size()), begin = digits.starts_with('-');
  for (size_t i = end; i > begin + 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}
std::string plain(const Cell& c, Format f) {
  if (f == Format::text) return std::get<std::string>(c);
  return fmt::format("{:.{}f}", std::get<double>(c), f == Format::integer ? 0 : f == Format::one_decimal ? 1 : 3);
}
size_t width_of(std::string_view text) {  // counts UTF-8 characters
  return size_t(std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}
std::string shown(const Cell& c, Format f) {
  std::string s = plain(c, f);
  if (f != Format::text) return with_separators(std::move(s));
  if (width_of(s) <= kLongest) return s;
  size_t end = 0;
  for (size_t n = 0; n < kLongest - 1; ++n) do
      ++end;
    while (end < s.size() && (static_cast<unsigned char>(s[end]) & 0xc0) == 0x80);
  return s.substr(0, end) + "…";
}
std::string padded(std::string_view text, size_t width, size_t before) {
  return std::string(before, ' ') + std::string(text) + std::string(width - before - width_of(text), ' ');
}
std::string line_of(const std::vector<std::string>& cells) {
  std::string s;
  for (const std::string& c : cells) s += (s.empty() ? " " : "  ") + c;
  s.erase(s.find_last_not_of(' ') + 1);
  return s + "\n";
}
}  // namespace

std::string to_text(const ProfileTable& t) {
  const size_t n = t.columns.size();
  std::vector<size_t> widths;
  for (const Column& c : t.columns) widths.push_back(c.title.size());
  std::vector<std::vector<std::string>> cells;
  for (const auto& row : t.rows) {
    auto& line = cells.emplace_back();
    for (size_t k = 0; k < n; ++k) {
      line.push_back(shown(row[k], t.columns[k].format));
      widths[k] = std::max(widths[k], width_of(line[k]));
    }
  }
  std::vector<std::string> titles, rules;
  for (size_t k = 0; k < n; ++k) {
    titles.push_back(padded(t.columns[k].title, widths[k], (widths[k] - t.columns[k].title.size()) / 2));
    rules.push_back(std::string(widths[k], '-'));
  }
  std::string s = line_of(titles) + line_of(rules);
  for (auto& line : cells) {
    for (size_t k = 0; k < n; ++k)
      line[k] = padded(line[k], widths[k], t.columns[k].format == Format::text ? 0 : widths[k] - width_of(line[k]));
    s += line_of(line);
  }
  return s;
}
std::string to_csv(const ProfileTable& t) {
  const auto quoted = [](const std::string& text) {
    if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
    std::string s = "\"";
    for (const char c : text) s += c == '"' ? "\"\"" : std::string(1, c);
    return s + "\"";
  };
  std::string s;
  for (size_t k = 0; k < t.columns.size(); ++k) s += (k ? "," : "") + quoted(t.columns[k].title);
  s += "\n";
  for (const auto& row : t.rows) {
    for (size_t k = 0; k < row.size(); ++k) s += (k ? "," : "") + quoted(plain(row[k], t.columns[k].format));
    s += "\n";
  }
  return s;
}
std::string to_json(const ProfileTable& t) {
  Json rows = Json::array();
  for (const auto& row : t.rows) {
    Json& r = rows.push_back({});
    for (size_t k = 0; k < row.size(); ++k) std::visit([&](const auto& cell) { r[t.columns[k].title] = cell; }, row[k]);
  }
  return detail::text_of({{"report", t.report}, {"rows", std::move(rows)}}, 2) + "\n";
}

}  // namespace tg
