// Chrome's trace event format: complete events ("X") on tracks (pid, tid), counters ("C"), names of tracks ("M"). Times
// are microseconds.
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/core/profile/profiler.h>
#include <tapegrad/core/scope.h>

#include <set>
#include <utility>

namespace tg {
namespace {

std::string json(std::string_view text) { return detail::text_of(text); }

class Writer {
 public:
  Writer(const Profile& p, const Sink& out) : p_(p), out_(out) {}
  void write() {
    put("{\"displayTimeUnit\":\"ns\",\"otherData\":{\"dropped\":" + std::to_string(p_.dropped) + ",\"notes\":[");
    for (size_t i = 0; i < p_.notes.size(); ++i) put((i ? "," : "") + json(p_.notes[i]));
    put("]},\"traceEvents\":[\n");
    for (const Profile::Range& r : p_.ranges)
      event(track(kHost, "host", r.thread, "thread"), r.name, r.begin, r.end,
            fmt::format("{}{}", text("scope", path(r.layer)), text("in", r.shapes)));
    for (const Profile::Call& c : p_.calls)
      event(track(kCalls, "calls of CUDA and of the allocator", c.thread, "thread"), c.name, c.begin, c.end, "");
    for (const Profile::Kernel& k : p_.kernels)
      event(device_track(k.device, k.track), k.name, k.begin, k.end,
            fmt::format("{}{}{}{}", text("op", k.op), text("scope", path(k.layer)), text("range", path(k.path)),
                        k.in_graph ? ",\"graph\":true" : ""));
    for (const Profile::Copy& c : p_.copies)
      event(device_track(c.device, c.track), operation(c.kind), c.begin, c.end,
            fmt::format("{},\"bytes\":{}", text("range", path(c.path)), c.bytes));
    for (const Profile::Memory& m : p_.memory)
      put(fmt::format("{}{{\"ph\":\"C\",\"pid\":{},\"name\":{},\"ts\":{:.3f},\"args\":{{\"bytes\":{}}}}}", next(),
                      kHost, json(fmt::format("live bytes of {}", m.device)), us(m.time), m.live));
    put("\n]}\n");
    flush();
  }

 private:
  static constexpr int kHost = 1, kCalls = 2, kDevices = 10;
  struct Track {
    int process;
    uint32_t number;
  };
  static double us(int64_t ns) { return double(ns) / 1e3; }
  static std::string path(const Scope* s) { return s ? s->path() : ""; }
  static std::string_view operation(Profile::Copy::Kind k) {
    constexpr std::string_view kNames[] = {"copy host to device", "copy device to host", "copy device to device",
                                           "fill"};
    return kNames[size_t(k)];
  }
  static std::string text(std::string_view key, std::string_view value) {
    return value.empty() ? "" : fmt::format(",\"{}\":{}", key, json(value));
  }
  const char* next() { return std::exchange(first_, false) ? "" : ",\n"; }
  void name(int process, uint32_t number, std::string_view what, std::string_view is) {
    put(fmt::format("{}{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"{}\",\"args\":{{\"name\":{}}}}}", next(),
                    process, number, what, json(is)));
  }
  Track track(int process, std::string_view process_is, uint32_t number, std::string_view number_is) {
    if (processes_.insert(process).second) name(process, number, "process_name", process_is);
    if (tracks_.emplace(process, number).second)
      name(process, number, "thread_name", fmt::format("{} {}", number_is, number));
    return {process, number};
  }
  Track device_track(Device d, uint32_t number) {
    const int process = kDevices + int(d.backend) * 128 + d.index;
    return track(process, fmt::format("kernels of {}", d), number, d.backend == Backend::cpu ? "thread" : "stream");
  }
  void event(Track t, std::string_view what, int64_t begin, int64_t end, const std::string& args) {
    put(fmt::format("{}{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"name\":{},\"ts\":{:.3f},\"dur\":{:.3f},\"args\":{{{}}}}}",
                    next(), t.process, t.number, json(what), us(begin), us(end - begin),
                    args.empty() ? args : args.substr(1)));
  }
  void put(std::string_view s) {
    text_ += s;
    if (text_.size() > 1 << 20) flush();
  }
  void flush() {
    out_(std::as_bytes(std::span(text_)));
    text_.clear();
  }

  const Profile& p_;
  const Sink& out_;
  std::string text_;
  bool first_ = true;
  std::set<int> processes_;
  std::set<std::pair<int, uint32_t>> tracks_;
};

}  // namespace

void write_trace(const Profile& p, const std::string& path) {
  detail::write_file_atomically(path, [&](const Sink& out) { Writer(p, out).write(); });
}

}  // namespace tg
