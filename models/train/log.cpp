#include <tapegrad/core/check.h>
#include <tapegrad/core/error.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/train/log.h>

#include <cmath>

namespace tg {
namespace {
// The shortest text that parses back to x.
std::string number(double x) { return std::isfinite(x) ? fmt::format("{}", x) : "null"; }
}  // namespace

std::string to_json(const StepRecord& r) {
  return fmt::format(
      R"({{"step":{},"loss":{},{}"grad_norm":{},"lr":{},"ms":{:.3f},"tokens_per_s":{:.1f},"peak_bytes":{}}})", r.step,
      number(r.loss), r.val_loss ? fmt::format("\"val_loss\":{},", number(*r.val_loss)) : "", number(r.grad_norm),
      number(r.lr), r.ms, r.tokens_per_s, r.peak_bytes);
}

StepLog::StepLog(const std::string& path) : file_(path, AppendFile::Begin::empty) {}

namespace {
// The step of a log line; 0 if it cannot be read.
int64_t step_of(std::string_view line) {
  const Json j = json_or_null(line);
  const Json* step = j.find("step");
  return step && step->is_number_unsigned() ? step->get<int64_t>() : 0;
}
struct Lines {
  std::string text;
  int64_t count = 0, last = 0, unreadable = 0;
};
// The lines up to `step`, by strictly increasing step, without a torn last line.
Lines lines_of(const std::string& path, int64_t step) {
  Lines r;
  if (!path_exists(path)) return r;
  const MappedFile file(path);
  const std::string_view text = file.text();
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != text.npos; begin = end + 1) {
    const int64_t at = step_of(text.substr(begin, end - begin));
    r.unreadable += at <= 0;
    if (at <= r.last || at > step) continue;
    r.text += text.substr(begin, end + 1 - begin);
    r.last = at;
    ++r.count;
  }
  return r;
}
}  // namespace

int64_t StepLog::last_step_of(const std::string& path) { return lines_of(path, INT64_MAX).last; }
StepLog StepLog::resume(const std::string& path, int64_t step) {
  const Lines kept = lines_of(path, step);
  if (path_exists(path) && MappedFile(path).text().size() != kept.text.size()) write_file_atomically(path, kept.text);
  StepLog log(AppendFile(path, AppendFile::Begin::keep));
  log.last_step_ = kept.last;
  log.missing_ = step - kept.count;
  log.unreadable_ = kept.unreadable;
  return log;
}

void StepLog::write(const StepRecord& r) {
  file_.append(to_json(r) + "\n");
  last_step_ = r.step;
}

}  // namespace tg
