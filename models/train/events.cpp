#include <fmt/core.h>
#include <tapegrad/core/error.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/train/events.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <utility>

namespace tg {
namespace {
// CRC-32C (Castagnoli), reflected.
uint32_t crc32c(std::string_view text) {
  uint32_t c = ~0u;
  for (const char x : text) {
    c ^= uint8_t(x);
    for (int bit = 0; bit < 8; ++bit) c = c >> 1 ^ (c & 1 ? 0x82F63B78u : 0);
  }
  return ~c;
}
constexpr std::string_view kEventPrefix = "events.out.tfevents.";

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Wire format of protobuf: a key of field number and type, then the value.
template <class T> std::string bytes_of(T x) { return {reinterpret_cast<const char*>(&x), sizeof x}; }
std::string wire_varint(uint64_t x) {
  std::string bytes;
  for (; x > 127; x >>= 7) bytes += char(x | 128);
  return bytes + char(x);
}
std::string wire_field(uint64_t number, uint64_t x) { return wire_varint(number << 3) + wire_varint(x); }
std::string wire_field(uint64_t number, double x) { return wire_varint(number << 3 | 1) + bytes_of(x); }
std::string wire_field(uint64_t number, float x) { return wire_varint(number << 3 | 5) + bytes_of(x); }
std::string wire_field(uint64_t number, std::string_view bytes) {
  return wire_varint(number << 3 | 2) + wire_varint(bytes.size()) + std::string(bytes);
}

std::string tf_record(std::string_view data) {
  const auto masked = [](std::string_view bytes) { return bytes_of(std::rotr(crc32c(bytes), 15) + 0xA282EAD8u); };
  const std::string length = bytes_of(uint64_t(data.size()));
  return length + masked(length) + std::string(data) + masked(data);
}

// Largest <seconds> of the event files in a folder; 0: there is none.
uint64_t newest_event_file(const std::string& folder) {
  uint64_t newest = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    uint64_t seconds = 1;
    if (!name.starts_with(kEventPrefix)) continue;
    std::from_chars(name.data() + kEventPrefix.size(), name.data() + name.size(), seconds);
    newest = std::max(newest, seconds);
  }
  return newest;
}
// TensorBoard reads files by name: a later process needs a larger number, also within a second.
std::string new_event_path(const std::string& folder) {
  detail::make_folder(folder);
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  return fmt::format("{}/{}{}.{}.{}.0", folder, kEventPrefix,
                     std::max(uint64_t(wall_time()), newest_event_file(folder) + 1), host, getpid());
}
}  // namespace

EventFile::EventFile(const std::string& folder, int64_t first_step)
    : file_(new_event_path(folder), AppendFile::Begin::empty) {
  add(0, wire_field(3, "brain.Event:2"));                      // file_version
  add(first_step, wire_field(7, wire_field(1, uint64_t(1))));  // session_log with status START
  flush();
}
EventFile::~EventFile() {
  try {
    flush();
  } catch (const Error&) {
  }
}

void EventFile::add(int64_t step, const std::string& content) {
  const std::lock_guard lock(turn_);
  buffer_ += tf_record(wire_field(1, wall_time()) + wire_field(2, uint64_t(step)) + content);
  if (std::chrono::steady_clock::now() - flushed_ >= std::chrono::seconds(10)) flush();
}
void EventFile::write(const StepRecord& r) {
  std::string values;
  const auto scalar = [&](std::string_view tag, double x) {
    values += wire_field(1, wire_field(1, tag) + wire_field(2, float(x)));
  };
  scalar("loss/train", r.loss), scalar("lr", r.lr), scalar("grad_norm", r.grad_norm);
  scalar("tokens_per_s", r.tokens_per_s), scalar("memory/peak_bytes", double(r.peak_bytes));
  if (r.val_loss) scalar("loss/val", *r.val_loss), scalar("perplexity/val", std::exp(*r.val_loss));
  if (r.acc) scalar("task/acc", *r.acc), scalar("task/acc_norm", *r.acc_norm);
  add(r.step, wire_field(5, values));
}
void EventFile::write_text(std::string_view tag, int64_t step, const std::string& text) {
  std::string code;  // indented lines are code in Markdown
  for (const char c : detail::own_json(detail::text_of(Json(text))).get<std::string>())
    code += c == '\n' ? "\n    " : std::string(1, c);
  const std::string metadata = wire_field(1, wire_field(1, "text")) + wire_field(4, uint64_t(2));  // DATA_CLASS_TENSOR
  const std::string tensor = wire_field(1, uint64_t(7)) +                                          // DT_STRING
                             wire_field(2, wire_field(2, wire_field(1, uint64_t(1)))) +            // shape (1)
                             wire_field(8, "    " + code);
  add(step, wire_field(5, wire_field(1, wire_field(1, tag) + wire_field(9, metadata) + wire_field(8, tensor))));
}
void EventFile::flush() {
  const std::lock_guard lock(turn_);
  flushed_ = std::chrono::steady_clock::now();
  if (const std::string records = std::exchange(buffer_, {}); !records.empty()) file_.append(records);
}
bool EventFile::any_in(const std::string& folder) { return newest_event_file(folder) > 0; }

}  // namespace tg
