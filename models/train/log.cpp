#include <tapegrad/core/error.h>
#include <tapegrad/models/train/log.h>

#include <cerrno>
#include <cmath>
#include <cstring>

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

StepLog::StepLog(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "w")) {
  TG_CHECK(file_, io, "[log] '{}' cannot be written: {}.", path_, std::strerror(errno));
}
void StepLog::write(const StepRecord& r) {
  const std::string line = to_json(r) + "\n";
  const bool done =
      std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size() && std::fflush(file_.get()) == 0;
  TG_CHECK(done, io, "[log] '{}' cannot be written at step {}: {}.", path_, r.step, std::strerror(errno));
}

}  // namespace tg
