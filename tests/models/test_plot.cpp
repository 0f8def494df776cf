// Plots of logs: the page and the braille characters. Event files of TensorBoard, compared by bytes.
// tests/clients/event_files.py reads them by TensorBoard.
#include <tapegrad/models/tools/plot.h>
#include <tapegrad/models/train/events.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "support/helpers.h"
#include "support/limit.h"

using namespace tg;

namespace {

NamedLog log_of(const std::string& name, int64_t steps, const std::function<double(int64_t)>& loss) {
  NamedLog log{name, {}};
  for (int64_t i = 1; i <= steps; ++i)
    log.steps.push_back(
        {.step = i, .loss = loss(i), .val_loss = {}, .grad_norm = 1, .lr = 1e-3, .ms = 100, .tokens_per_s = 1000});
  return log;
}
// The d="..." of the curve of a run in the first panel.
std::string curve_in(const std::string& page, const std::string& kind) {
  const size_t panels = page.find("<p>"), at = page.find(fmt::format("<path class=\"{}\" stroke", kind), panels);
  REQUIRE(at != page.npos);
  const size_t begin = page.find(" d=\"", at) + 4;
  return page.substr(begin, page.find('"', begin) - begin);
}

}  // namespace

TEST_CASE("plot: a page has six panels, all runs in each, and neither script nor link") {
  NamedLog one = log_of("one", 40, [](int64_t i) { return 4 - double(i) / 20; });
  one.steps[19].val_loss = 3.25, one.steps[39].val_loss = 3.5;
  const std::string page = plot_html({one, log_of("<b>&\"", 20, [](int64_t) { return 3; })});
  CHECK(page.starts_with("<!DOCTYPE html>"));
  CHECK(count_of(page, "<svg") == count_of(page, "</svg>"));
  CHECK(count_of(page, "role=\"img\"") == 6);
  for (const char* title : {">step<", ">tokens<", ">time of training, seconds<", ">learning rate<", ">gradient norm<",
                            ">tokens per second<", "<h1>", "prefers-color-scheme: dark", ">loss, nats per token<",
                            "one: step 40, loss 2, lowest validation loss 3.25 (step 20)</div>",
                            "loss 3, lowest validation loss none</div>"})
    CHECK_HAS(page, title);
  for (const char* none : {"<script", "http:", "https:", "href", "<b>", "nan", "inf"})
    CHECK_MESSAGE(page.find(none) == page.npos, none);
  CHECK_HAS(page, "&lt;b>&amp;\"");
  CHECK(count_of(page, "<title>one</title>") == 6 + 3);  // the validation has a curve in three panels
  CHECK(count_of(page, "<title>&lt;b>&amp;\"</title>") == 6);
  CHECK(count_of(page, "m0 -3v6m0 -3") == 3 * 2);
  CHECK(count_of(page, "log scale") == 0);
}

TEST_CASE("plot: numbers that are not finite leave gaps, and a point without a line is visible") {
  const auto gaps = [](int64_t i) { return i >= 10 && i < 20 && i != 15 ? std::nan("") : 4 - double(i) / 20; };
  NamedLog log = log_of("gaps", 40, gaps);
  const std::string curve = curve_in(plot_html({log}), "o");
  CHECK(count_of(curve, "M") == 3);
  CHECK(count_of(curve, "m0 -3v6m0 -3") == 1);
  CHECK(curve.find("nan") == curve.npos);
  const std::string empty = plot_html({log_of("empty", 3, [](int64_t) { return std::nan(""); })});
  CHECK(count_of(empty, "no finite value") == 3);
  CHECK_HAS(empty, "loss not finite, ");
  CHECK(plot_braille({log_of("empty", 3, [](int64_t) { return std::nan(""); })}, 80, false).empty());
  const auto huge = [](int64_t i) { return i % 2 ? 1.7e308 : -1e299; };
  CHECK(plot_html({log_of("huge", 9, huge)}).find("inf") == std::string::npos);
  CHECK_HAS(plot_braille({log_of("huge", 9, huge)}, 80, false), "a huge");
  CHECK(plot_html({log_of("single", 1, [](int64_t) { return 0; })}).find("nan") == std::string::npos);
}

TEST_CASE("plot: the loss has a log scale if it spans more than a decade") {
  const std::string page = plot_html({log_of("wide", 50, [](int64_t i) { return 12 / double(i); })});
  CHECK(count_of(page, ">loss, nats per token, log scale<") == 3);
  for (const char* tick : {">10<", ">5<", ">2<", ">1<", ">0.5<"}) CHECK_HAS(page, tick);
  CHECK(count_of(plot_html({log_of("zero", 50, [](int64_t i) { return i - 1; })}), "log scale") == 0);
}

TEST_CASE("plot: a million steps fit into a page below 1 MB, with the least and largest of each pixel") {
  const int64_t steps = kSanitized ? 50'000 : 1'000'000;
  const auto noise = [&](int64_t i) {
    return i == steps / 2 ? 9.0 : i == steps / 2 + 1 ? 1.0 : 3 + double(i * 37 % 100) / 100;
  };
  const std::string page = plot_html({log_of("long", steps, noise), log_of("again", steps, noise)});
  CHECK(page.size() < 1'000'000);
  const std::string curve = curve_in(page, "o");
  CHECK(count_of(curve, "L") < 2 * 560);
  CHECK(count_of(curve, "M") == 1);
  // the extremes decide the axis, and both are on the curve
  const size_t top = curve.find(fmt::format(" {:.1f}", 30 + 242 * 0.05 / 1.1));
  CHECK(top != curve.npos);
  CHECK(curve.find(fmt::format(" {:.1f}", 30 + 242 * 1.05 / 1.1)) != curve.npos);
  CHECK_HAS(page, kSanitized ? ">50k<" : ">1M<");
}

TEST_CASE("plot: braille has the width that is asked for, labels, and a line for each run") {
  const auto falls = [](int64_t i) { return 4 - double(i) / 50; };
  const std::vector<NamedLog> runs = {log_of("first", 100, falls), log_of("second", 60, [](int64_t) { return 3.5; })};
  for (const int width : {1, 60, 133}) {
    CAPTURE(width);
    const std::string text = plot_braille(runs, width, false);
    CHECK(count_of(text, "\n") == 1 + 16 + 2 + 2);
    size_t begin = 0, widest = 0;
    for (int line = 0; line < 19; ++line) {
      const size_t end = text.find('\n', begin);
      size_t columns = 0;
      for (size_t i = begin; i < end; ++i) columns += (text[i] & 0xC0) != 0x80;
      widest = std::max(widest, columns);
      begin = end + 1;
    }
    CHECK(widest <= size_t(std::max(width, 40)));
    CHECK(widest >= size_t(std::max(width, 40) - 2));
    CHECK_HAS(text, "\na first: step 100, loss 2, lowest validation loss none\nb second: step 60, loss 3.5,", "3.5 ┤");
    CHECK(text.find('\x1b') == text.npos);
  }
  CHECK_HAS(plot_braille(runs, 80, true), "\x1b[34ma\x1b[0m first");
}

TEST_CASE("log: read_log gives the steps, counts lines that it cannot read, and leaves out a torn one") {
  Folder folder;
  const std::string path = folder / "log.jsonl";
  StepRecord r{.step = 2, .loss = 0.1, .val_loss = 0.3, .grad_norm = 2, .lr = 1e-3, .ms = 1.5};
  r.tokens_per_s = 7, r.peak_bytes = 9;
  StepRecord lost = r;
  lost.step = 3, lost.loss = std::nan(""), lost.val_loss.reset();
  detail::write_file_atomically(path, "\n{\"step\":1}\n" + to_json(r) +
                                          "\nx\n{\"step\":\"3\"}\n{\"step\":18446744073709551615}\n" + to_json(r) +
                                          "\n" + to_json(lost) + "\n{\"step\":4");
  const LoggedSteps log = read_log(path);
  CHECK(log.unreadable == 4);
  REQUIRE(log.steps.size() == 3);
  CHECK(std::isnan(log.steps[0].loss));
  CHECK(to_json(log.steps[1]) == to_json(r));
  CHECK(to_json(log.steps[2]) == to_json(lost));
  CHECK_SAYS_OF(io, read_log(folder / "none"), "none: No such file");
  for (const std::string line : {"\n", "x\n", "}\n"}) {  // 14 us for each would be seconds
    std::string text;
    for (int i = 0; i < 500'000; ++i) text += line;
    detail::write_file_atomically(path, text);
    const auto start = std::chrono::steady_clock::now();
    CHECK(read_log(path).unreadable == 500'000);
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(3));
  }
}
namespace {

template <class T> T number_at(std::string_view bytes, size_t at) {
  T x;
  REQUIRE(at + sizeof x <= bytes.size());
  std::memcpy(&x, bytes.data() + at, sizeof x);
  return x;
}
// CRC-32C as TFRecord masks it.
uint32_t crc32c(std::string_view bytes) {
  uint32_t rest = ~0u;
  for (const char byte : bytes)
    for (int i = 0; i < 8; ++i) rest = rest >> 1 ^ ((rest ^ uint32_t(uint8_t(byte)) >> i) & 1 ? 0x82F63B78u : 0);
  return ~rest;
}
uint32_t masked(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u; }
// The events of a file without the times that they begin with.
std::vector<std::string> events_of(std::string_view file) {
  std::vector<std::string> events;
  for (size_t at = 0; at < file.size();) {
    const auto n = size_t(number_at<uint64_t>(file, at));
    CHECK(number_at<uint32_t>(file, at + 8) == masked(file.substr(at, 8)));
    const std::string_view data = file.substr(at + 12, n);
    CHECK(number_at<uint32_t>(file, at + 12 + n) == masked(data));
    at += n + 16;
    CHECK(data[0] == '\x09');
    CHECK(number_at<double>(data, 1) > 1.7e9);
    events.emplace_back(data.substr(9));
  }
  return events;
}
// Such messages as protobuf writes them.
std::string varint(uint64_t x) { return x < 128 ? std::string(1, char(x)) : char(x | 128) + varint(x >> 7); }
std::string field(int number, const std::string& bytes) { return char(number << 3 | 2) + varint(bytes.size()) + bytes; }
std::string event(uint64_t step, const std::string& content) { return "\x10" + varint(step) + content; }
std::string scalar(const std::string& tag, double value) {
  const auto x = float(value);
  return field(1, field(1, tag) + "\x15" + std::string(reinterpret_cast<const char*>(&x), sizeof x));
}
const std::string kStart = field(7, "\x08\x01");
std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().string());
  std::sort(names.begin(), names.end());
  return names;
}
StepRecord record_of(int64_t step, double loss) {
  StepRecord r{.step = step, .loss = loss, .val_loss = {}, .grad_norm = 0.5, .lr = 1e-3, .ms = 2};
  r.tokens_per_s = 100, r.peak_bytes = 4096;
  return r;
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
    CHECK(events_of(read_file(files_in(dir).at(0))).size() == 2);  // the other events are buffered
    file.flush();
    CHECK(events_of(read_file(files_in(dir).at(0))).size() == 5);
    file.write(record_of(301, 1));
  }
  REQUIRE(files_in(dir).size() == 1);
  CHECK_HAS(files_in(dir)[0], "/a/b/events.out.tfevents.");
  CHECK(files_in(dir)[0].ends_with(fmt::format(".{}.0", getpid())));
  const auto e = events_of(read_file(files_in(dir)[0]));
  REQUIRE(e.size() == 6);
  const std::string rest =
      scalar("lr", 1e-3) + scalar("grad_norm", 0.5) + scalar("tokens_per_s", 100) + scalar("memory/peak_bytes", 4096);
  CHECK(e[0] == event(0, field(3, "brain.Event:2")));
  CHECK(e[1] == event(1, kStart));
  CHECK(e[2] == event(1, field(5, scalar("loss/train", 2.5) + rest)));
  CHECK(e[3] == event(300, field(5, scalar("loss/train", std::nan("")) + rest + scalar("loss/val", 2) +
                                        scalar("perplexity/val", std::exp(2.)))));
  const std::string metadata = field(9, field(1, field(1, "text")) + "\x20\x02"),
                    shape = field(2, field(2, "\x08\x01"));
  const std::string text = field(8, "\x08\x07" + shape + field(8, "    a\n    **b**\xef\xbf\xbd"));
  CHECK(e[4] == event(300, field(5, field(1, field(1, "samples") + metadata + text))));
  CHECK(e[5] == event(301, field(5, scalar("loss/train", 1) + rest)));
}

TEST_CASE("events: a later file sorts after the former ones, and tells TensorBoard its first step") {
  Folder folder;
  detail::write_file_atomically(folder / "events.out.tfevents.3000000000.host.1.0", "");
  detail::write_file_atomically(folder / "other", "");
  { EventFile first(folder.path, 6); }
  { EventFile second(folder.path, 8); }
  const auto files = files_in(folder.path);
  REQUIRE(files.size() == 4);
  CHECK_HAS(files[1], "events.out.tfevents.3000000001.");
  CHECK(fs::path(files[1]).filename() > fs::path(files[0]).filename());
  CHECK(events_of(read_file(files[1])).at(1) == event(6, kStart));
  CHECK_HAS(files[2], "events.out.tfevents.3000000002.");
}

TEST_CASE("events: a folder that cannot be written, a full disk and a removed file are errors") {
  Folder folder;
  detail::write_file_atomically(folder / "file", "");
  CHECK_SAYS((void)EventFile(folder / "file", 1), "file");
  CHECK_SAYS((void)EventFile(folder / "file/below", 1), "Not a directory");
  EventFile events(folder / "events", 1);
  events.write(record_of(1, 1));
  fs::remove_all(folder / "events");
  CHECK_SAYS_OF(io, events.flush(), "was removed while it was being written");
  events.flush();  // the failed records are dropped
  EventFile full(folder / "full", 1);
  for (int i = 1; i < 20; ++i) full.write(record_of(i, 1));
  const std::string message = error_of(Error::Kind::io, [&] {
    const Limit small(RLIMIT_FSIZE, 1000);
    full.flush();
  });
  CHECK_HAS(message, "cannot be appended to: File too large. Free space");
}
