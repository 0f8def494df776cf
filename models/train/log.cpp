#include <tapegrad/core/check.h>
#include <tapegrad/core/error.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/train/log.h>

#include <cmath>

namespace tg {
namespace {
// Shortest text that parses back to x.
std::string json_number(double x) { return std::isfinite(x) ? fmt::format("{}", x) : "null"; }

// Step of a log line; 0 if it cannot be read.
int64_t step_of(const Json& j) {
  const Json* step = j.find("step");
  const uint64_t at = step && step->is_number_unsigned() ? step->get<uint64_t>() : 0;
  return at <= uint64_t(INT64_MAX) ? int64_t(at) : 0;
}
struct Lines {
  std::string text;
  int64_t count = 0, last = 0, unreadable = 0;
};
// Calls f(line, Json) for each line except a torn last one.
template <class F> void each_line(std::string_view text, F f) {
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != text.npos; begin = end + 1) {
    const std::string_view line = text.substr(begin, end - begin);
    const size_t first = line.find_first_not_of(" \t\r");
    const bool is_object = first != line.npos && line[first] == '{' && line[line.find_last_not_of(" \t\r")] == '}';
    f(text.substr(begin, end + 1 - begin), is_object ? detail::json_or_null(line) : Json());
  }
}
// Lines up to `step`, by strictly increasing step.
Lines lines_of(const std::string& path, int64_t step) {
  Lines r;
  if (!detail::path_exists(path)) return r;
  const MappedFile file(path);
  each_line(file.text(), [&](std::string_view line, const Json& j) {
    const int64_t at = step_of(j);
    r.unreadable += at <= 0;
    if (at <= r.last || at > step) return;
    r.text += line;
    r.last = at;
    ++r.count;
  });
  return r;
}
}  // namespace

std::string to_json(const StepRecord& r) {
  return fmt::format(
      R"({{"step":{},"loss":{},{}{}"grad_norm":{},"lr":{},"ms":{:.3f},"tokens_per_s":{:.1f},"peak_bytes":{}}})", r.step,
      json_number(r.loss), r.val_loss ? fmt::format("\"val_loss\":{},", json_number(*r.val_loss)) : "",
      r.acc ? fmt::format(R"("acc":{},"acc_norm":{},)", json_number(*r.acc), json_number(*r.acc_norm)) : "",
      json_number(r.grad_norm), json_number(r.lr), r.ms, r.tokens_per_s, r.peak_bytes);
}

StepLog::StepLog(const std::string& path) : file_(path, AppendFile::Begin::empty) {}

int64_t StepLog::last_step_of(const std::string& path) { return lines_of(path, INT64_MAX).last; }
StepLog StepLog::resume(const std::string& path, int64_t step) {
  const Lines kept = lines_of(path, step);
  if (detail::path_exists(path) && MappedFile(path).text().size() != kept.text.size())
    detail::write_file_atomically(path, kept.text);
  StepLog log(AppendFile(path, AppendFile::Begin::keep));
  log.missing_ = step - kept.count;
  log.unreadable_ = kept.unreadable;
  return log;
}

void StepLog::write(const StepRecord& r) { file_.append(to_json(r) + "\n"); }

LoggedSteps read_log(const std::string& path) {
  LoggedSteps log;
  const MappedFile file(path);
  each_line(file.text(), [&](std::string_view, const Json& j) {
    const int64_t at = step_of(j);
    log.unreadable += at <= 0;
    if (at <= 0 || (!log.steps.empty() && at <= log.steps.back().step)) return;
    const auto of = [&](const char* key) {
      const Json* x = j.find(key);
      return x && x->is_number() ? x->get<double>() : std::nan("");
    };
    StepRecord& r = log.steps.emplace_back();
    r.step = at, r.loss = of("loss"), r.grad_norm = of("grad_norm"), r.lr = of("lr"), r.ms = of("ms");
    r.tokens_per_s = of("tokens_per_s");
    if (j.contains("val_loss")) r.val_loss = of("val_loss");
    if (const double bytes = of("peak_bytes"); bytes >= 0 && bytes < 0x1p63) r.peak_bytes = int64_t(bytes);
  });
  return log;
}

}  // namespace tg
