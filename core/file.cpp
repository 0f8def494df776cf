#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tapegrad/core/error.h>
#include <tapegrad/core/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
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
    constexpr size_t kMost = size_t(1) << 30;  // a single write() of 2 GiB or more fails on some systems
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_.get(), bytes.data(), std::min(bytes.size(), kMost));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("write", errno);
      bytes = bytes.subspan(size_t(n));
    }
  }
  void take_place() {
    if (::fsync(fd_.get())) fail("fsync", errno);
    if (fd_.close()) fail("close", errno);
    if (::rename(name_.c_str(), path_.c_str())) fail("rename", errno);
    name_.clear();
  }

 private:
  int create() {
    static std::atomic<uint64_t> serial{0};
    for (;;) {  // a name may be taken by what a killed process of the same number left behind
      name_ = fmt::format("{}.{}-{}.tmp", path_, ::getpid(), serial++);
      const int fd = ::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
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
  const Descriptor folder(::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (const int error = errno; folder.get() < 0)
    fail_write(path, fmt::format("its folder cannot be opened: {}", reason(error)), advice_for(error));

  Temporary file(path);
  produce([&](std::span<const std::byte> bytes) { file.write(bytes); });
  file.take_place();
  // The new name itself reaches the disk with its folder. EINVAL: a file system on which folders need no such call.
  if (::fsync(folder.get()) && errno != EINVAL)
    throw Error(Error::Kind::io,
                fmt::format("[file] {} is written, but fsync of its folder failed: {}. Until the folder is on the disk "
                            "a power cut may bring the former file back. Check the disk and write again.",
                            path, reason(errno)));
}
void write_file_atomically(const std::string& path, std::string_view content) {
  write_file_atomically(path, [&](const Sink& write) { write(std::as_bytes(std::span(content))); });
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
