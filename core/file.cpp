// Files over POSIX calls. All that writes goes through system_call() and write_some(), which can fail on purpose, for
// tests of crashes and full disks: TG_FAULT=<when>-<call>:<n>, or <call>:<n> for before, strikes at the n-th (from 1)
// such system call of write_file_atomically and AppendFile in this process.
//   <call>  open, write, fsync, close, rename, or any of them
//   <when>  before, after   the process ends there, at once, as by kill -9 (status 137)
//           within          a write passes half of its bytes, then the process ends; with `write` only
//           fail            the call does nothing and fails with ENOSPC, no space left
// Another value is an Error at the first such call. Unset, it costs one test of a static variable per call.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tapegrad/core/error.h>
#include <tapegrad/core/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

namespace tg {
namespace {
namespace fs = std::filesystem;

std::string reason(int error) { return std::generic_category().message(error); }
[[noreturn]] void fail_read(const std::string& path, std::string_view what) {
  throw Error(Error::Kind::io, fmt::format("[file] cannot read {}: {}. It must be a regular file that this process may "
                                           "read. Check the path.",
                                           path, what));
}
[[noreturn]] void fail_write(const std::string& path, std::string_view what, std::string_view advice) {
  throw Error(Error::Kind::io,
              fmt::format("[file] cannot write {}: {}. What was there before is unchanged. {}.", path, what, advice));
}
std::string_view advice_for(int error) {
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) return "Free space, or write to another disk";
  if (error == ENOENT || error == ENOTDIR) return "Make the folder first, or choose another path";
  return "Check the folder's permissions, or choose another path";
}

enum class When { never, before, within, after, fail };
struct Fault {
  When when = When::never;
  std::string call;
  uint64_t n = 0;
};
Fault parse_fault(const char* variable) {
  Fault f;
  if (!variable) return f;
  constexpr std::pair<std::string_view, When> kWhen[] = {
      {"before-", When::before}, {"within-", When::within}, {"after-", When::after}, {"fail-", When::fail}};
  constexpr std::string_view kCalls[] = {"open", "write", "fsync", "close", "rename", "any"};
  std::string_view text = variable;
  const auto found =
      std::find_if(std::begin(kWhen), std::end(kWhen), [&](const auto& w) { return text.starts_with(w.first); });
  f.when = found != std::end(kWhen) ? found->second : When::before;
  if (found != std::end(kWhen)) text.remove_prefix(found->first.size());
  const size_t colon = std::min(text.find(':'), text.size());
  f.call = text.substr(0, colon);
  const bool known = std::find(std::begin(kCalls), std::end(kCalls), f.call) != std::end(kCalls);
  text.remove_prefix(std::min(colon + 1, text.size()));
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), f.n);
  const bool number = error == std::errc() && end == text.data() + text.size() && f.n > 0;
  TG_CHECK(
      known && number && (f.when != When::within || f.call == "write"), value,
      "[file] TG_FAULT is '{}'. It must be <open, write, fsync, close, rename or any>:<n> with n from 1, and before-, "
      "after- or fail- in front, or within-write:<n>. Unset it, or correct it.",
      variable);
  return f;
}
// What strikes this call, if anything.
When fault_at(std::string_view call) {
  static const Fault fault = parse_fault(std::getenv("TG_FAULT"));
  if (fault.when == When::never) [[likely]]
    return When::never;
  static std::atomic<uint64_t> count{0};
  const bool counted = fault.call == "any" || fault.call == call;
  return counted && ++count == fault.n ? fault.when : When::never;
}
[[noreturn]] void die() { ::_exit(137); }

// f() is a system call that fails with -1; it is made again when a signal came in between, but for close, which has
// given the descriptor back even then.
template <class F> auto system_call(std::string_view name, F f) {
  const When when = fault_at(name);
  if (when == When::before) die();
  if (when == When::fail) {
    errno = ENOSPC;
    return decltype(f())(-1);
  }
  auto result = f();
  while (result == -1 && errno == EINTR && name != "close") result = f();
  if (when == When::after) die();
  return result;
}
ssize_t write_some(int fd, std::span<const std::byte> bytes) {
  constexpr size_t kMost = size_t(16) << 20;  // a pending signal waits for no more than this
  const size_t n = std::min(bytes.size(), kMost);
  const When when = fault_at("write");
  if (when == When::before) die();
  if (when == When::fail) return errno = ENOSPC, -1;
  const ssize_t done = ::write(fd, bytes.data(), when == When::within ? n / 2 : n);
  if (when != When::never) die();
  return done;
}
// 0, or the error.
int write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write_some(fd, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    bytes = bytes.subspan(size_t(n));
  }
  return 0;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int close() { return fd_ < 0 ? 0 : ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

// A file beside `path` that is removed again unless it took the place of `path`.
class Temporary {
 public:
  explicit Temporary(const std::string& path) : path_(path), fd_(create()) {}
  ~Temporary() {
    if (!name_.empty()) ::unlink(name_.c_str());
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  void write(std::span<const std::byte> bytes) {
    if (const int error = write_all(fd_.get(), bytes)) fail("write", error);
  }
  void take_place() {
    if (system_call("fsync", [&] { return ::fsync(fd_.get()); })) fail("fsync", errno);
    if (system_call("close", [&] { return fd_.close(); })) fail("close", errno);
    if (system_call("rename", [&] { return ::rename(name_.c_str(), path_.c_str()); })) fail("rename", errno);
    name_.clear();
  }

 private:
  int create() {
    static std::atomic<uint64_t> serial{0};
    for (;;) {  // a name may be taken by what a killed process of the same number left behind
      name_ = fmt::format("{}.{}-{}.tmp", path_, ::getpid(), serial++);
      const int fd =
          system_call("open", [&] { return ::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
      if (fd >= 0) return fd;
      if (errno != EEXIST && errno != EINTR) fail("open", errno);
    }
  }
  [[noreturn]] void fail(std::string_view call, int error) const {
    fail_write(path_, fmt::format("{} of {} failed: {}", call, name_, reason(error)), advice_for(error));
  }

  const std::string& path_;
  std::string name_;
  Descriptor fd_;
};

}  // namespace

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  // O_NONBLOCK: a pipe without a writer is then refused below and not waited for.
  const Descriptor fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) fail_read(path_, reason(errno));
  struct stat s;
  if (::fstat(fd.get(), &s)) fail_read(path_, reason(errno));
  if (S_ISDIR(s.st_mode)) fail_read(path_, "it is a folder");
  if (!S_ISREG(s.st_mode)) fail_read(path_, "it is a device, pipe or socket");
  if (s.st_size == 0) return;  // nothing to map: mmap refuses a length of 0
  void* p = ::mmap(nullptr, size_t(s.st_size), PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (p == MAP_FAILED) fail_read(path_, fmt::format("mmap of {} bytes failed: {}", s.st_size, reason(errno)));
  bytes_ = {static_cast<const std::byte*>(p), size_t(s.st_size)};
}
MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}
MappedFile::MappedFile(MappedFile&& o) noexcept : path_(std::move(o.path_)), bytes_(std::exchange(o.bytes_, {})) {}
MappedFile& MappedFile::operator=(MappedFile&& o) noexcept {
  std::swap(path_, o.path_);
  std::swap(bytes_, o.bytes_);
  return *this;
}

void write_file_atomically(const std::string& path, const std::function<void(const Sink&)>& produce) {
  struct stat s;
  if (::stat(path.c_str(), &s) == 0 && !S_ISREG(s.st_mode))
    fail_write(path, S_ISDIR(s.st_mode) ? "it is a folder" : "it is a device, pipe or socket",
               "Name a regular file or a new one");
  const std::string parent = fs::path(path).parent_path().string();
  const Descriptor folder(system_call(
      "open", [&] { return ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (const int error = errno; folder.get() < 0)
    fail_write(path, fmt::format("its folder cannot be opened: {}", reason(error)), advice_for(error));

  Temporary file(path);
  produce([&](std::span<const std::byte> bytes) { file.write(bytes); });
  file.take_place();
  // The new name itself reaches the disk with its folder. EINVAL: a file system on which folders need no such call.
  if (system_call("fsync", [&] { return ::fsync(folder.get()); }) && errno != EINVAL)
    throw Error(Error::Kind::io,
                fmt::format("[file] {} is written, but fsync of its folder failed: {}. Until the folder is on the disk "
                            "a power cut may bring the former file back. Check the disk and write again.",
                            path, reason(errno)));
}
void check_writable(const std::string& path) {
  struct Stop {};
  try {
    write_file_atomically(path, [](const Sink&) { throw Stop(); });  // leaves a file that is there as it is
  } catch (const Stop&) {
  }
}
void write_file_atomically(const std::string& path, std::string_view content) {
  write_file_atomically(path, [&](const Sink& write) { write(std::as_bytes(std::span(content))); });
}

void remove_leftovers(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  const std::string prefix = fs::path(path).filename().string() + ".";
  std::error_code error;
  for (fs::directory_iterator it(folder.empty() ? "." : folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    long process = 0, serial = 0;
    int length = 0;
    if (!name.starts_with(prefix) ||
        std::sscanf(name.c_str() + prefix.size(), "%9ld-%18ld.tmp%n", &process, &serial, &length) != 2 ||
        prefix.size() + size_t(length) != name.size())
      continue;
    const bool gone = process > 0 && ::kill(pid_t(process), 0) != 0 && errno == ESRCH;
    if (gone && ::unlink(it->path().c_str()) && errno != ENOENT)
      fail_write(path, fmt::format("the leftover {} cannot be removed: {}", name, reason(errno)), advice_for(errno));
  }
}

AppendFile::AppendFile(std::string path, Begin begin) : path_(std::move(path)) {
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (begin == Begin::empty ? O_TRUNC : 0);
  fd_ = system_call("open", [&] { return ::open(path_.c_str(), flags, 0666); });
  const int error = errno;
  TG_CHECK(fd_ >= 0, io, "[file] {} cannot be opened for writing: {}. {}.", path_, reason(error), advice_for(error));
}
AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}
AppendFile::AppendFile(AppendFile&& o) noexcept : path_(std::move(o.path_)), fd_(std::exchange(o.fd_, -1)) {}
AppendFile& AppendFile::operator=(AppendFile&& o) noexcept {
  std::swap(path_, o.path_);
  std::swap(fd_, o.fd_);
  return *this;
}
void AppendFile::append(std::string_view text) {
  // What is written to a file without a name is lost when the process ends, and one that has moved has left the files
  // that belong to it.
  struct stat own, named;
  if (::fstat(fd_, &own) == 0) {
    const bool there = ::stat(path_.c_str(), &named) == 0 && named.st_dev == own.st_dev && named.st_ino == own.st_ino;
    TG_CHECK(there, io,
             "[file] {} was {} while it was being written. It must stay in its place until the process ends. Leave the "
             "files of a running process where they are.",
             path_, own.st_nlink == 0 ? "removed" : "moved or replaced");
  }
  const int error = write_all(fd_, std::as_bytes(std::span(text)));
  TG_CHECK(error == 0, io, "[file] {} cannot be appended to: {}. {}.", path_, reason(error), advice_for(error));
}
void AppendFile::sync() {
  const bool done = system_call("fsync", [&] { return ::fsync(fd_); }) == 0;
  const int error = errno;
  TG_CHECK(done || error == EINVAL || error == ENOTSUP, io, "[file] fsync of {} failed: {}. {}.", path_, reason(error),
           advice_for(error));
}

FileLock::FileLock(std::string path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  const bool opened = fd_ >= 0;
  int error = errno;
  TG_CHECK(opened, io, "[file] {} cannot be opened for writing: {}. {}.", path_, reason(error), advice_for(error));
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
  error = errno;
  ::close(std::exchange(fd_, -1));
  TG_CHECK(error == EWOULDBLOCK, io, "[file] {} cannot be locked: {}. Its disk must have locks. Choose another disk.",
           path_, reason(error));
  throw Error(Error::Kind::state,
              fmt::format("[file] {} is locked by another process. One at a time may hold it. Wait until that process "
                          "has ended, or end it.",
                          path_));
}
FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}
FileLock::FileLock(FileLock&& o) noexcept : path_(std::move(o.path_)), fd_(std::exchange(o.fd_, -1)) {}
FileLock& FileLock::operator=(FileLock&& o) noexcept {
  std::swap(path_, o.path_);
  std::swap(fd_, o.fd_);
  return *this;
}

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error && !fs::is_directory(path, error) && !error) error = std::make_error_code(std::errc::not_a_directory);
  if (!error && ::access(path.c_str(), W_OK | X_OK)) error.assign(errno, std::generic_category());
  TG_CHECK(!error, io,
           "[file] cannot make or use the folder {}: {}. Each part of the path must be a folder, and the last one "
           "writable. Choose another path or correct the permissions.",
           path, error.message());
}

}  // namespace tg
