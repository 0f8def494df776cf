#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/error.h>
#include <tapegrad/core/io/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <vector>

namespace tg {
namespace detail {
namespace {
ptrdiff_t make_call(std::string_view, size_t bytes, const FileCall& call) { return call(bytes); }
}  // namespace
constinit FileCallHook file_call_hook = make_call;
constinit FileReadHook file_read_hook = nullptr;
int Descriptor::close() { return fd_ < 0 ? 0 : ::close(std::exchange(fd_, -1)); }

const char* advice_for(int error) {
  static const std::pair<std::vector<int>, const char*> kAdvice[] = {
      {{EACCES, EPERM}, "Correct the permissions, or choose another path"},
      {{EROFS}, "Its file system is mounted without the permission to write: choose a path on another one"},
      {{ENOSPC, EDQUOT, EFBIG}, "Free space, or write to another disk"},
      {{ENOENT, ENOTDIR}, "Make the folder first, or choose another path"},
      {{EMFILE, ENFILE}, "Raise the limit of open files (ulimit -n)"},
      {{ENOMEM}, "Free memory, or raise its limit (ulimit -v)"},
      {{EISDIR, EEXIST, ENOTEMPTY}, "Remove what is there, or choose another path"},
      {{ENAMETOOLONG}, "Choose a shorter path"},
      {{ELOOP}, "Check the path: its symbolic links lead to each other"},
      {{EIO, ENXIO}, "Check the disk (dmesg)"},
      {{ESTALE, ENOTCONN, ETIMEDOUT, EHOSTDOWN}, "Check the server of its file system, and mount that again"},
      {{EINTR, EAGAIN, EBUSY, ETXTBSY}, "Repeat the command when no other program uses it"},
      {{EINVAL, ENOTSUP, EOPNOTSUPP, ENOSYS, ENODEV, ENOLCK, EXDEV, EMLINK},
       "Its file system cannot do this: choose a path on another one"}};
  for (const auto& [errors, advice] : kAdvice)
    if (std::count(errors.begin(), errors.end(), error)) return advice;
  return "Choose another path, or correct the cause";
}
}  // namespace detail

namespace {
namespace fs = std::filesystem;
using detail::advice_for, detail::Descriptor;

std::string reason(int error) { return std::generic_category().message(error); }
const char* no_regular_file(const struct stat& s) {
  return S_ISDIR(s.st_mode) ? "it is a folder" : "it is a device, pipe or socket";
}
[[noreturn]] void fail_read(const std::string& path, std::string_view what, int error = 0) {
  const bool names_none = error == 0 || error == ENOENT || error == ENOTDIR;
  throw Error(Error::Kind::io,
              fmt::format("[file] cannot read {}: {}{}. {}.", path, what, error ? reason(error) : "",
                          names_none ? "It must be a regular file that this process may read. Check the path"
                                     : advice_for(error)));
}
[[noreturn]] void fail_write(const std::string& path, std::string_view what, std::string_view advice) {
  throw Error(Error::Kind::io,
              fmt::format("[file] cannot write {}: {}. What was there before is unchanged. {}.", path, what, advice));
}

// Repeats f(), a system call (-1: failure), after EINTR, except close(), which has freed the descriptor.
template <class F> int system_call(std::string_view name, F f) {
  const auto call = [&](size_t) {
    int result = f();
    while (result == -1 && errno == EINTR && name != "close") result = f();
    return ptrdiff_t(result);
  };
  return int(detail::file_call_hook(name, 0, call));
}
// Whether a file system lacks the call.
bool is_lacking(int error) {
  return error == EINVAL || error == ENOTSUP || error == EOPNOTSUPP || error == ENOSYS || error == ENOLCK;
}
int synchronize(int fd) {
  return system_call("fsync", [&] { return ::fsync(fd); }) && !is_lacking(errno) ? errno : 0;
}
int write_all(int fd, std::span<const std::byte> bytes) {
  constexpr size_t kMost = size_t(16) << 20;  // bounds a pending signal's delay
  while (!bytes.empty()) {
    const ptrdiff_t n = detail::file_call_hook("write", std::min(bytes.size(), kMost),
                                               [&](size_t most) { return ::write(fd, bytes.data(), most); });
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    bytes = bytes.subspan(size_t(n));
  }
  return 0;
}

Descriptor open_folder_of(const fs::path& path) {
  const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
  return Descriptor(system_call("open", [&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
}

// A file next to `path`, removed unless it replaces `path`.
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
    if (const int error = synchronize(fd_.get())) fail("fsync", error);
    if (system_call("close", [&] { return fd_.close(); })) fail("close", errno);
    if (system_call("rename", [&] { return ::rename(name_.c_str(), path_.c_str()); })) fail("rename", errno);
    name_.clear();
  }

 private:
  int create() {
    static std::atomic<uint64_t> serial{0};
    for (;;) {  // a killed process of this id may have left it
      name_ = fmt::format("{}.{}-{}.tmp", path_, ::getpid(), serial++);
      const int fd =
          system_call("open", [&] { return ::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
      if (fd >= 0) return fd;
      if (errno != EEXIST) fail("open", errno);
    }
  }
  [[noreturn]] void fail(std::string_view call, int error) const {
    fail_write(path_, fmt::format("{} of {} failed: {}", call, name_, reason(error)), advice_for(error));
  }

  const std::string& path_;
  std::string name_;
  Descriptor fd_;
};

// Opens a regular file for reading; `s` gets its fstat().
Descriptor open_to_read(const std::string& path, struct stat& s) {
  // O_NONBLOCK: rejects a pipe without a writer below.
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0 || ::fstat(fd.get(), &s)) {
    const int error = errno;
    if (error == ENOENT) (void)detail::path_exists(path);  // throws for a dangling link
    fail_read(path, "", error);
  }
  if (!S_ISREG(s.st_mode)) fail_read(path, no_regular_file(s));
  if (detail::file_read_hook) detail::file_read_hook(path, {uint64_t(s.st_dev), uint64_t(s.st_ino)});
  return fd;
}
size_t read_at(const std::string& path, int fd, size_t offset, std::span<std::byte> to) {
  for (size_t done = 0;;) {
    constexpr size_t kMost = size_t(1) << 30;  // some systems reject more than INT_MAX
    const ssize_t n = ::pread(fd, to.data() + done, std::min(to.size() - done, kMost), off_t(offset + done));
    if (n < 0 && errno != EINTR) fail_read(path, "", errno);
    if (n == 0) return done;
    if (n > 0) done += size_t(n);
  }
}
int64_t modified_at(const struct stat& s) {
#ifdef __APPLE__
  const timespec t = s.st_mtimespec;
#else
  const timespec t = s.st_mtim;
#endif
  return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}
}  // namespace

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  struct stat s;
  const Descriptor fd = open_to_read(path_, s);
  if (s.st_size == 0) return;  // mmap rejects 0
  size_ = size_t(s.st_size);
  void* p = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (p != MAP_FAILED) {
    data_ = {static_cast<std::byte*>(p), [n = size_](std::byte* at) { ::munmap(at, n); }};
    return;
  }
  data_ = {new std::byte[size_], std::default_delete<std::byte[]>()};
  size_ = read_at(path_, fd.get(), 0, {data_.get(), size_});
}

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  struct stat s;
  fd_ = open_to_read(path_, s);
  size_ = size_t(s.st_size);
  modified_ = modified_at(s);
}
void InputFile::read(size_t offset, std::span<std::byte> to) const {
  const size_t n = read_at(path_, fd_.get(), offset, to);
  if (n < to.size()) check_unchanged();
  TG_CHECK(n == to.size(), io,
           "[file] {} has {} bytes, but {} bytes from byte {} on were requested. Read only bytes that it has.", path_,
           size_, to.size() - n, offset + n);
}
void InputFile::check_unchanged() const {
  constexpr const char* kRule =
      "It must not change while it is in use. Restore it; to replace a file that is in use, rename a new one to its "
      "path";
  struct stat s;
  if (::fstat(fd_.get(), &s)) fail_read(path_, "", errno);
  TG_CHECK(size_t(s.st_size) == size_, io,
           "[file] {} was changed while it was being read: it had {} bytes, and has {}. {}.", path_, size_, s.st_size,
           kRule);
  TG_CHECK(
      modified_at(s) == modified_, io,
      "[file] {} was written to while it was being read: its {} bytes are {:.3f} s newer than when it was opened. {}.",
      path_, size_, double(modified_at(s) - modified_) * 1e-9, kRule);
}

void detail::write_file_atomically(const std::string& path, const std::function<void(const Sink&)>& produce) {
  struct stat s;
  if (::stat(path.c_str(), &s) == 0 && !S_ISREG(s.st_mode))
    fail_write(path, no_regular_file(s), "Name a regular file or a new one");
  const Descriptor folder = open_folder_of(path);
  const int error = errno;
  TG_CHECK(folder.get() >= 0, io, "[file] cannot write {}: its folder cannot be opened: {}. {}.", path, reason(error),
           advice_for(error));

  detail::remove_leftovers(path);
  Temporary file(path);
  produce([&](std::span<const std::byte> bytes) { file.write(bytes); });
  file.take_place();
  // A name is on the disk once its folder is.
  if (const int failed = synchronize(folder.get()))
    throw Error(Error::Kind::io, fmt::format("[file] {} is written, but fsync of its folder failed: {}. Until the "
                                             "folder is on the disk a power cut may bring the former file back. {}.",
                                             path, reason(failed), advice_for(failed)));
}
void detail::check_writable(const std::string& path) {
  struct Stop {};
  try {
    detail::write_file_atomically(path, [](const Sink&) { throw Stop(); });  // an existing file stays unchanged
  } catch (const Stop&) {
  }
}
void detail::write_file_atomically(const std::string& path, std::string_view content) {
  detail::write_file_atomically(path, [&](const Sink& write) { write(std::as_bytes(std::span(content))); });
}

void detail::remove_leftovers(const std::string& path) {
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
    std::error_code of_another_user;
    if (gone) fs::remove_all(it->path(), of_another_user);
  }
}
std::string detail::temporary_folder(const std::string& path) { return fmt::format("{}.{}-0.tmp", path, ::getpid()); }

namespace {
// Opens or creates a regular file with the system call f(flags).
template <class F> Descriptor open_in_place(const std::string& path, F f) {
  // O_NONBLOCK: rejects a pipe below.
  Descriptor fd(f(O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  const int error = errno;
  struct stat s;
  const bool there = fd.get() < 0 && ::lstat(path.c_str(), &s) == 0;
  TG_CHECK(!there || !S_ISLNK(s.st_mode), io,
           "[file] {} is a symbolic link. It is written in place, and the target of a link may belong to someone else. "
           "Remove the link, or choose another folder.",
           path);
  TG_CHECK(fd.get() >= 0, io, "[file] {} cannot be opened for writing: {}. {}.", path, reason(error),
           advice_for(error));
  TG_CHECK(::fstat(fd.get(), &s) == 0 && !S_ISFIFO(s.st_mode), io,
           "[file] {} cannot be opened for writing: it is a pipe. It must be a regular file. Remove it, or choose "
           "another folder.",
           path);
  return fd;
}
// Whether the path names the open file.
bool names(const std::string& path, int fd) {
  struct stat own, named;
  return ::fstat(fd, &own) == 0 && ::stat(path.c_str(), &named) == 0 && named.st_dev == own.st_dev &&
         named.st_ino == own.st_ino;
}
}  // namespace

AppendFile::AppendFile(std::string path, Begin begin) : path_(std::move(path)) {
  fd_ = open_in_place(path_, [&](int flags) {
    flags |= O_WRONLY | O_APPEND | (begin == Begin::empty ? O_TRUNC : 0);
    return system_call("open", [&] { return ::open(path_.c_str(), flags, 0666); });
  });
}
void AppendFile::append(std::string_view text) {
  // Unlinked files lose data at exit; renamed ones leave their run folder.
  struct stat own;
  if (::fstat(fd_.get(), &own) == 0)
    TG_CHECK(names(path_, fd_.get()), io,
             "[file] {} was {} while it was being written. It must stay at its path until the process ends. Do not "
             "move or remove files of a running process.",
             path_, own.st_nlink == 0 ? "removed" : "moved or replaced");
  const int error = write_all(fd_.get(), std::as_bytes(std::span(text)));
  TG_CHECK(error == 0, io, "[file] {} cannot be appended to: {}. {}.", path_, reason(error), advice_for(error));
}
void AppendFile::sync() {
  const int error = synchronize(fd_.get());
  TG_CHECK(error == 0, io, "[file] fsync of {} failed: {}. {}.", path_, reason(error), advice_for(error));
}

FileLock::FileLock(std::string path) : path_(std::move(path)) {
  int error = 0;
  for (int tries = 0; tries < 100 && error == 0; ++tries) {
    created_ = false;
    fd_ = open_in_place(path_, [&](int flags) {
      const int fresh = ::open(path_.c_str(), O_RDWR | O_EXCL | flags, 0600);
      created_ = fresh >= 0;
      return created_ || errno != EEXIST ? fresh : ::open(path_.c_str(), O_RDWR | flags, 0600);
    });
    if (system_call("flock", [&] { return ::flock(fd_.get(), LOCK_EX | LOCK_NB); })) error = errno;
    if (is_lacking(error)) missing_ = reason(error), error = 0;
    if (error == 0 && names(path_, fd_.get())) return;  // otherwise its former owner removed it
    if (created_ && error) ::unlink(path_.c_str());
    fd_.close();
  }
  TG_CHECK(error == 0 || error == EWOULDBLOCK, io, "[file] {} cannot be locked: {}. {}.", path_, reason(error),
           advice_for(error));
  throw Error(Error::Kind::state, fmt::format("[file] {} is locked by another process. One at a time may hold it. Wait "
                                              "until that process has ended, or end it.",
                                              path_));
}
FileLock::~FileLock() {
  if (fd_.get() >= 0 && created_ && names(path_, fd_.get())) ::unlink(path_.c_str());  // locked: no other owner
}

namespace {
// Syncs a folder for the entry of `path`; returns 0 or the error. Skips unreadable folders.
int sync_folder_of(const fs::path& path) {
  const Descriptor folder = open_folder_of(path);
  if (folder.get() < 0) return errno == EACCES ? 0 : errno;
  return synchronize(folder.get());
}
fs::file_status status_of(const std::string& path) {
  std::error_code error;
  const fs::file_status s = fs::status(path, error);
  TG_CHECK(s.type() != fs::file_type::none, io, "[file] cannot find out what {} is: {}. {}.", path, error.message(),
           advice_for(error.value()));
  return s;
}
}  // namespace

void detail::make_folder(const std::string& path, unsigned permissions) {
  const fs::path whole = fs::path(path).has_filename() ? fs::path(path) : fs::path(path).parent_path();
  std::error_code error;
  std::vector<fs::path> missing, made;
  for (fs::path p = whole; !p.empty() && fs::status(p, error).type() == fs::file_type::not_found; p = p.parent_path())
    missing.push_back(p);
  error.clear();
  std::string what;
  for (; !missing.empty() && !error; missing.pop_back()) {
    const fs::path& p = missing.back();
    std::error_code none;
    if (system_call("mkdir", [&] { return ::mkdir(p.c_str(), mode_t(permissions)); }) == 0) {
      made.push_back(p);
      error.assign(sync_folder_of(p), std::generic_category());
    } else if (error.assign(errno, std::generic_category()); errno == EEXIST && fs::is_directory(p, none)) {
      error.clear();  // another process made it
    } else if (fs::is_symlink(p, none)) {
      what = fmt::format("{} is a symbolic link to nothing", p.string());
    }
  }
  if (!error && !fs::is_directory(whole, error) && !error) error = std::make_error_code(std::errc::not_a_directory);
  if (!error && ::access(whole.c_str(), W_OK | X_OK)) error.assign(errno, std::generic_category());
  if (!error) return;
  for (; !made.empty(); made.pop_back()) ::rmdir(made.back().c_str());
  throw Error(Error::Kind::io, fmt::format("[file] cannot make or use the folder {}: {}. Each part of the path must be "
                                           "a folder, and the last one writable. {}.",
                                           path, what.empty() ? error.message() : what,
                                           advice_for(what.empty() ? error.value() : ELOOP)));
}

void detail::remove_file(const std::string& path) {
  TG_CHECK(::unlink(path.c_str()) == 0 || errno == ENOENT || errno == ENOTDIR, io, "[file] cannot remove {}: {}. {}.",
           path, reason(errno), advice_for(errno));
}
void detail::place_folder(const std::string& from, const std::string& to) {
  const bool exchanges = detail::path_exists(to);
#ifdef __APPLE__
  const auto place = [&] { return ::renamex_np(from.c_str(), to.c_str(), exchanges ? RENAME_SWAP : 0); };
#else
  const unsigned flags = exchanges ? RENAME_EXCHANGE : 0;
  const auto place = [&] { return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags); };
#endif
  if (system_call("rename", place))
    fail_write(to, "rename of " + from + " failed: " + reason(errno), advice_for(errno));
  (void)sync_folder_of(to);
}

std::string detail::absolute_path(const std::string& path) {
  std::error_code error;
  const fs::path whole = fs::absolute(path, error);
  TG_CHECK(!error, io,
           "[file] {} is a relative path, and the current folder cannot be found: {}. It must exist. Change to "
           "another folder (cd), or use an absolute path.",
           path, error.message());
  return whole.lexically_normal().string();
}
bool detail::path_exists(const std::string& path) {
  if (fs::exists(status_of(path))) return true;
  std::error_code none;
  if (!fs::is_symlink(fs::symlink_status(path, none))) return false;
  throw Error(Error::Kind::io, fmt::format("[file] {} is a link to {}, which does not exist. Restore the target, or "
                                           "remove the link.",
                                           path, fs::read_symlink(path, none).string()));
}
bool detail::is_folder(const std::string& path) { return fs::is_directory(status_of(path)); }

}  // namespace tg
