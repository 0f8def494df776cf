// The program `tapegrad` as a process, and an uninterrupted run as reference.
#pragma once
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <tapegrad/core/io/json.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "support/effort.h"
#include "support/helpers.h"
#include "support/small_run.h"

namespace tg {
namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

struct Surroundings {
  std::string fault = "";  // TG_FAULT
  rlim_t file_limit = 0;   // `ulimit -f`, in bytes; 0: none
  int output = -1;         // -1: /dev/null
  int input = -1;          // -1: /dev/null
  bool closed = false;     // none of the three standard streams
};
// Runs in `folder`; stderr goes to the file "stderr".
class Process {
 public:
  Process(const std::string& folder, const Arguments& arguments, const Surroundings& s = {}) {
    Arguments words = {TG_APP};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    error_path_ = folder + "/stderr";
    pid_ = fork();
    REQUIRE(pid_ >= 0);
    if (pid_ > 0) return;
    const int null = open("/dev/null", O_RDWR), error = open(error_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(s.input < 0 ? null : s.input, 0), dup2(s.output < 0 ? null : s.output, 1), dup2(error, 2);
    if (s.closed) {
      for (int fd = 0; fd < 256; ++fd) ::close(fd);
    }
    setenv("TG_THREADS", "1", 1);
    for (const int signal : {SIGINT, SIGHUP, SIGPIPE, SIGXFSZ})
      ::signal(signal, SIG_DFL);  // a background job ignores some signals
    s.fault.empty() ? unsetenv("TG_FAULT") : setenv("TG_FAULT", s.fault.c_str(), 1);
    if (const rlimit limit{s.file_limit, s.file_limit}; s.file_limit > 0 && setrlimit(RLIMIT_FSIZE, &limit)) _exit(125);
    if (chdir(folder.c_str()) == 0) execv(TG_APP, argv.data());
    _exit(126);
  }
  ~Process() {
    if (pid_ > 0) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void send(int signal) const {
    if (pid_ > 0) kill(pid_, signal);
  }
  bool ended() {
    if (pid_ > 0 && waitpid(pid_, &status_, WNOHANG) == pid_) pid_ = 0;
    return pid_ == 0;
  }
  // Exit status, or minus the signal that ended it.
  int status() {
    if (pid_ > 0) waitpid(pid_, &status_, 0);
    pid_ = 0;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -WTERMSIG(status_);
  }
  std::string errors() const { return read_file(error_path_); }

 private:
  pid_t pid_ = -1;
  int status_ = 0;
  std::string error_path_;
};
// The errors of a process that ends with this status.
inline std::string errors_of(int status, const std::string& folder, const Arguments& words,
                             const Surroundings& s = {}) {
  Process p(folder, words, s);
  CHECK_MESSAGE(p.status() == status, p.errors());
  return p.errors();
}
// Waits until asked() holds or the process ends, at most two minutes.
template <class F> bool wait_for(Process& p, F asked) {
  for (int i = 0; i < 120'000 && !p.ended(); ++i) {
    if (asked()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

// log.jsonl without time and memory, which differ between runs.
inline std::string steps_of(const std::string& path) {
  std::string text, line;
  for (std::ifstream in(path); std::getline(in, line);) {
    Json j = detail::own_json(line);
    for (const char* field : {"ms", "tokens_per_s", "peak_bytes"}) {
      CHECK(j.contains(field));
      j.erase(field);
    }
    text += detail::text_of(j) + "\n";
  }
  return text;
}
inline int64_t lines_of(const std::string& path) {
  if (!fs::exists(path)) return 0;
  const std::string text = read_file(path);
  return std::count(text.begin(), text.end(), '\n');
}

struct Reference {
  Folder folder;
  Arguments command;
  std::map<std::string, std::string> files;
  std::string log;
  std::chrono::duration<double> took{};

  explicit Reference(const Arguments& settings)
      : Reference({}, {"train", "--data", "text.txt", "--tokenizer", "char"}, settings,
                  {"model.safetensors", "config.json"}) {}
  // `before` may be empty; `names`: more files than those of any run.
  Reference(const Arguments& before, const Arguments& what, const Arguments& settings,
            const std::vector<std::string>& names)
      : command(what) {
    detail::write_file_atomically(folder / "text.txt", rhyme());
    if (!before.empty()) {
      Process p(folder.path, before);
      REQUIRE_MESSAGE(p.status() == 0, p.errors());
    }
    command.insert(command.end(), {"--quiet", "--out", "run"});
    command.insert(command.end(), settings.begin(), settings.end());
    const auto start = std::chrono::steady_clock::now();
    Process p(folder.path, command);
    REQUIRE_MESSAGE(p.status() == 0, p.errors());
    took = std::chrono::steady_clock::now() - start;
    for (const std::string& name : names) files[name] = file(name);
    files["checkpoint.safetensors"] = file("checkpoint.safetensors");
    log = steps_of(folder / "run/log.jsonl");
    begin_again();
  }
  std::string file(const std::string& name) const { return read_file(folder / ("run/" + name)); }
  void begin_again() const { fs::remove_all(folder / "run"); }
  // Resumes; a run that ended before its first checkpoint starts again.
  int go_on(const std::string& fault = "") const {
    Process resumed(folder.path, {command[0], "--resume", "run", "--quiet"}, {.fault = fault});
    const int status = resumed.status();
    if (status != 1 || fs::exists(folder / "run/checkpoint.safetensors")) return status;
    CHECK_HAS(resumed.errors(), "run/checkpoint.safetensors: No such file or directory");
    return Process(folder.path, command, {.fault = fault}).status();
  }
  void check_same() const {
    for (const auto& [name, content] : files) CHECK_MESSAGE(file(name) == content, name);
    CHECK(steps_of(folder / "run/log.jsonl") == log);
    CHECK(size_t(std::distance(fs::directory_iterator(folder / "run"), {})) ==
          files.size() + 2 + fs::exists(folder / "run/.watch") + fs::exists(folder / "run/.machine") +
              fs::exists(folder / "run/events"));
  }
};

// Each stride-th system call is struck. TG_KILL_SEED=N repeats the draws of a printed seed.
inline int stride() { return kSanitized ? 23 : test_effort() == 1 ? 5 : 1; }
inline uint64_t kill_seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("TG_KILL_SEED");
    const uint64_t drawn = given ? std::stoull(given) : std::random_device()();
    MESSAGE("TG_KILL_SEED=" << drawn << " repeats these moments");
    return drawn;
  }();
  return seed;
}
inline int first_struck(int every) { return 1 + int(kill_seed() % uint64_t(every)); }

inline const Arguments kTiny = {"--layers",  "1",   "--heads",        "1",   "--width",      "8", "--context", "8",
                                "--batch",   "2",   "--max-steps",    "4",   "--eval-every", "2", "--warmup",  "1",
                                "--dropout", "0.1", "--val-fraction", "0.02"};
inline Arguments with(Arguments words, const Arguments& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}
inline Arguments tiny_with(const Arguments& flags) {
  Arguments r = kTiny;
  for (size_t i = 0; i < flags.size(); i += 2) {
    const auto at = std::find(r.begin(), r.end(), flags[i]);
    if (at == r.end())
      r.insert(r.end(), {flags[i], flags[i + 1]});
    else
      *(at + 1) = flags[i + 1];
  }
  return r;
}
struct TextFolder : Folder {
  TextFolder() { detail::write_file_atomically(*this / "text.txt", rhyme()); }
};
inline const Arguments kTrain = {"train", "--data", "text.txt", "--out", "run"};

}  // namespace tg
