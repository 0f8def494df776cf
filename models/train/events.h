/// @file
/// Event files of TensorBoard, written without protobuf: records of TFRecord, which frame Event messages
/// (github.com/tensorflow/tensorboard, compat/proto/event.proto and summary.proto).
#pragma once
#include <tapegrad/core/io/file.h>
#include <tapegrad/models/train/log.h>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace tg {

/// A new event file in the folder of a run. Written every 10 seconds and by flush(). TensorBoard skips a torn record.
/// Threads take turns.
class EventFile {
 public:
  /// Makes the folder and events.out.tfevents.SECONDS.HOST.PID.0, which sorts after others; TensorBoard drops their
  /// events from `first_step` on. Errors: kind io.
  [[nodiscard]] EventFile(const std::string& folder, int64_t first_step);
  ~EventFile();  ///< Flushes without an Error: call flush() before.
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// Adds loss/train, lr, grad_norm, tokens_per_s, memory/peak_bytes and, after a validation, loss/val and
  /// perplexity/val, after a task task/acc and task/acc_norm. All become f32. Errors: kind io, also for a removed file.
  void write(const StepRecord&);
  /// Adds a text, shown in a fixed-width font. Bytes that are not UTF-8 become U+FFFD.
  void write_text(std::string_view tag, int64_t step, const std::string& text);
  /// Writes the buffered records. Throws an Error of kind io on failure.
  void flush();
  /// Whether the folder exists and has event files.
  static bool any_in(const std::string& folder);

 private:
  void add(int64_t step, const std::string& content);

  std::recursive_mutex turn_;
  AppendFile file_;
  std::string buffer_;
  std::chrono::steady_clock::time_point flushed_;
};

}  // namespace tg
