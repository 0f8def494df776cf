// Event files of TensorBoard, read back by a small parser. tests/clients/event_files.py reads them by TensorBoard.
#include <signal.h>
#include <sys/resource.h>
#include <tapegrad/models/train/events.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "support/helpers.h"

using namespace tg;

namespace {

template <class T> T number_at(std::string_view bytes, size_t at) {
  T x;
  REQUIRE(at + sizeof x <= bytes.size());
  std::memcpy(&x, bytes.data() + at, sizeof x);
  return x;
}
// The fields of a message: integers and floats as their bits.
std::multimap<int, std::string> message_of(std::string_view bytes) {
  std::multimap<int, std::string> fields;
  size_t at = 0;
  const auto varint = [&] {
    uint64_t x = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = number_at<uint8_t>(bytes, at++);
      x |= uint64_t(byte & 127) << shift;
      if (byte < 128) return x;
    }
  };
  while (at < bytes.size()) {
    const uint64_t key = varint();
    std::string value;
    if (const uint64_t type = key & 7; type == 0) {
      const uint64_t x = varint();
      value.assign(reinterpret_cast<const char*>(&x), sizeof x);
    } else {
      const size_t n = type == 1 ? 8 : type == 5 ? 4 : varint();
      REQUIRE(at + n <= bytes.size());
      value = bytes.substr(at, n);
      at += n;
    }
    fields.emplace(int(key >> 3), value);
  }
  return fields;
}
std::string field_of(std::string_view bytes, int number) {
  const auto fields = message_of(bytes);
  REQUIRE(fields.count(number) == 1);
  return fields.find(number)->second;
}

struct Event {
  double time = 0;
  int64_t step = 0;
  std::string version;
  bool starts = false;
  std::map<std::string, float> scalars;
  std::map<std::string, std::string> texts;
};
// CRC-32C, not reflected.
uint32_t crc32c(std::string_view bytes) {
  uint32_t rest = ~0u;
  for (const char byte : bytes)
    for (int i = 0; i < 8; ++i) {
      const bool odd = (rest >> 31 ^ uint32_t(byte) >> i) & 1;
      rest = rest << 1 ^ (odd ? 0x1EDC6F41u : 0);
    }
  uint32_t reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= (~rest >> i & 1) << (31 - i);
  return reversed;
}
uint32_t masked(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u; }
std::vector<Event> events_of(std::string_view file) {
  std::vector<Event> events;
  for (size_t at = 0; at < file.size();) {
    const auto n = size_t(number_at<uint64_t>(file, at));
    CHECK(number_at<uint32_t>(file, at + 8) == masked(file.substr(at, 8)));
    const std::string_view data = file.substr(at + 12, n);
    CHECK(number_at<uint32_t>(file, at + 12 + n) == masked(data));
    at += n + 16;
    Event& e = events.emplace_back();
    for (const auto& [number, value] : message_of(data)) {
      if (number == 1) e.time = number_at<double>(value, 0);
      if (number == 2) e.step = number_at<int64_t>(value, 0);
      if (number == 3) e.version = value;
      if (number == 7) e.starts = number_at<int64_t>(field_of(value, 1), 0) == 1;
      if (number != 5) continue;
      for (const auto& [one, v] : message_of(value)) {
        CHECK(one == 1);
        const std::string tag = field_of(v, 1);
        if (message_of(v).count(2)) {
          e.scalars[tag] = number_at<float>(field_of(v, 2), 0);
        } else {
          CHECK(field_of(field_of(field_of(v, 9), 1), 1) == "text");
          CHECK(number_at<int64_t>(field_of(field_of(v, 8), 1), 0) == 7);
          e.texts[tag] = field_of(field_of(v, 8), 8);
        }
      }
    }
  }
  return events;
}
std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().string());
  std::sort(names.begin(), names.end());
  return names;
}
StepRecord record_of(int64_t step, double loss) {
  return {.step = step,
          .loss = loss,
          .val_loss = {},
          .grad_norm = 0.5,
          .lr = 1e-3,
          .ms = 2,
          .tokens_per_s = 100,
          .peak_bytes = 4096};
}

}  // namespace

TEST_CASE("events: records have TFRecord's frame, and every field comes back") {
  CHECK(crc32c("123456789") == 0xE3069283u);  // the check value of CRC-32C
  Folder folder;
  const std::string dir = folder / "a/b";
  CHECK(!EventFile::any_in(dir));
  {
    EventFile file(dir, 1);
    CHECK(EventFile::any_in(dir));
    StepRecord r = record_of(1, 2.5);
    file.write(r);
    r = record_of(300, std::nan(""));
    r.val_loss = 2;
    file.write(r);
    file.write_text("samples", 300, "a\n**b**\xff");
    CHECK(events_of(read_file(files_in(dir).at(0))).size() == 2);  // the others wait
    file.flush();
    CHECK(events_of(read_file(files_in(dir).at(0))).size() == 5);
    file.write(record_of(301, 1));
  }
  REQUIRE(files_in(dir).size() == 1);
  CHECK_HAS(files_in(dir)[0], "/a/b/events.out.tfevents.");
  CHECK(files_in(dir)[0].ends_with(fmt::format(".{}.0", getpid())));
  const auto e = events_of(read_file(files_in(dir)[0]));
  REQUIRE(e.size() == 6);
  CHECK(e[0].version == "brain.Event:2");
  CHECK(e[0].step == 0);
  CHECK(e[0].time > 1.7e9);
  CHECK(e[1].starts);
  CHECK(e[1].step == 1);
  CHECK(e[2].step == 1);
  using Scalars = std::map<std::string, float>;
  CHECK(e[2].scalars == Scalars{{"loss/train", 2.5f},
                                {"lr", 1e-3f},
                                {"grad_norm", 0.5f},
                                {"tokens_per_s", 100},
                                {"memory/peak_bytes", 4096}});
  CHECK(e[3].step == 300);
  CHECK(std::isnan(e[3].scalars.at("loss/train")));
  CHECK(e[3].scalars.at("loss/val") == 2);
  CHECK(e[3].scalars.at("perplexity/val") == float(std::exp(2.)));
  CHECK(e[4].texts == std::map<std::string, std::string>{{"samples", "    a\n    **b**\xef\xbf\xbd"}});
  CHECK(e[5].step == 301);  // the destructor flushes
}

TEST_CASE("events: a later file sorts after the former ones, and tells TensorBoard its first step") {
  Folder folder;
  write_file_atomically(folder / "events.out.tfevents.3000000000.host.1.0", "");
  write_file_atomically(folder / "other", "");
  { EventFile first(folder.path, 6); }
  { EventFile second(folder.path, 8); }
  const auto files = files_in(folder.path);
  REQUIRE(files.size() == 4);
  CHECK_HAS(files[1], "events.out.tfevents.3000000001.");
  CHECK(fs::path(files[1]).filename() > fs::path(files[0]).filename());
  CHECK(events_of(read_file(files[1])).at(1).step == 6);
  CHECK_HAS(files[2], "events.out.tfevents.3000000002.");
}

TEST_CASE("events: a folder that cannot be written, a full disk and a removed file are errors") {
  Folder folder;
  write_file_atomically(folder / "file", "");
  CHECK_SAYS((void)EventFile(folder / "file", 1), "file");
  CHECK_SAYS((void)EventFile(folder / "file/below", 1), "Not a directory");
  EventFile events(folder / "events", 1);
  events.write(record_of(1, 1));
  fs::remove_all(folder / "events");
  CHECK_SAYS_OF(io, events.flush(), "was removed while it was being written");
  events.flush();  // the failed records are dropped
  EventFile full(folder / "full", 1);
  for (int i = 1; i < 20; ++i) full.write(record_of(i, 1));
  rlimit before;
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  const std::string message = error_of(Error::Kind::io, [&] { full.flush(); });
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  signal(SIGXFSZ, handler);
  CHECK_HAS(message, "cannot be appended to: File too large. Free space");
}
