#include <tapegrad/core/error.h>
#include <tapegrad/models/train/log.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace tg {
namespace {
// The shortest text that reads back as x.
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
// The step that this line is about; 0 when it is no line of a log.
int64_t step_of(std::string_view line) {
  const auto j = nlohmann::json::parse(line, nullptr, false);
  const auto step = j.is_object() ? j.find("step") : j.end();
  return step != j.end() && step->is_number_unsigned() ? step->get<int64_t>() : 0;
}
}  // namespace

StepLog StepLog::resume(const std::string& path, int64_t step) {
  int64_t last = 0;
  if (std::filesystem::exists(path)) {
    const MappedFile file(path);
    const std::string_view text = file.text();
    size_t kept = 0;
    for (size_t end; (end = text.find('\n', kept)) != text.npos; kept = end + 1) {
      const int64_t at = step_of(text.substr(kept, end - kept));
      if (at <= last || at > step) break;
      last = at;
    }
    if (kept < text.size()) write_file_atomically(path, text.substr(0, kept));
  }
  return {AppendFile(path, AppendFile::Begin::keep), last};
}

void StepLog::write(const StepRecord& r) {
  file_.append(to_json(r) + "\n");
  last_step_ = r.step;
}

}  // namespace tg
