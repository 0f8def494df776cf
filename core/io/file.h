/// @file
/// Files on POSIX systems: reads, atomic writes, appends, locks, folders. Every failure is an Error of kind io that
/// names the path and the system's reason.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace tg {
namespace detail {
// An open file descriptor, closed by the destructor; -1: none.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  Descriptor& operator=(Descriptor o) noexcept { return std::swap(fd_, o.fd_), *this; }
  int get() const { return fd_; }
  int close();  // result of close(2)

 private:
  int fd_;
};
}  // namespace detail

/// The bytes of a regular file, mapped for reading: pages are read on use. The path may be replaced or removed
/// meanwhile. Shortening the file ends the process (SIGBUS), so map only files that are read at once.
class MappedFile {
 public:
  /// Maps the file, or reads it if its file system has no mmap. An Error if it is missing, not readable or not a
  /// regular file.
  explicit MappedFile(std::string path);

  const std::string& path() const { return path_; }
  /// The content, valid while this object or its move target exists.
  std::span<const std::byte> bytes() const { return {data_.get(), data_ ? size_ : 0}; }
  /// The content as text of unchecked encoding, valid while this object or its move target exists.
  std::string_view text() const { return {reinterpret_cast<const char*>(data_.get()), bytes().size()}; }

 private:
  std::string path_;
  std::unique_ptr<std::byte[], std::function<void(std::byte*)>> data_;
  size_t size_ = 0;
};

/// A regular file that is read by position. If the file becomes shorter, read() throws an Error; a mapping would end
/// the process. The path may be replaced or removed meanwhile.
class InputFile {
 public:
  /// Opens the file. An Error if it is missing, not readable or not a regular file.
  explicit InputFile(std::string path);

  const std::string& path() const { return path_; }
  /// The size in bytes at the time of opening.
  size_t size() const { return size_; }
  /// Fills `to`; an Error unless the file has all these bytes.
  void read(size_t offset, std::span<std::byte> to) const;
  /// Throws an Error if size or modification time have changed since opening.
  void check_unchanged() const;

 private:
  std::string path_;
  detail::Descriptor fd_;
  size_t size_ = 0;
  int64_t modified_ = 0;
};

/// Appends bytes to a file that is being written.
using Sink = std::function<void(std::span<const std::byte>)>;
/// Creates or replaces `path` with the bytes that `produce` passes to its sink. They go to a temporary file in the same
/// folder, which is synced and renamed. On any failure, and when `produce` throws, the temporary file is removed and
/// the former file is unchanged. The file replaces a symbolic link.
void write_file_atomically(const std::string& path, const std::function<void(const Sink&)>& produce);
/// Creates or replaces `path` with this content. On any failure the former file is unchanged.
void write_file_atomically(const std::string& path, std::string_view content);
namespace detail {
/// Throws an Error if write_file_atomically() could not write `path`, before hours of work.
void check_writable(const std::string& path);
/// Removes temporary files and folders of `path` that killed processes left.
void remove_leftovers(const std::string& path);
/// This process's temporary folder for `path`, as remove_leftovers() expects it.
std::string temporary_folder(const std::string& path);
/// Creates the folder and its parents if missing. An Error if no file can be created in it.
void make_folder(const std::string& path, unsigned permissions = 0777);
/// Removes the file or link, if it exists.
void remove_file(const std::string& path);
/// Renames the folder `from` to `to`, or exchanges both, at one moment.
void place_folder(const std::string& from, const std::string& to);
/// The absolute path, without parts such as `..`. An Error if the path is relative and the current folder is gone.
std::string absolute_path(const std::string& path);
/// Whether the path exists. Follows links. An Error if the system does not tell, or for a dangling link.
bool path_exists(const std::string& path);
/// Whether the path is a folder. Follows links. An Error if the system does not tell.
bool is_folder(const std::string& path);
/// Recognises formats that are often mistaken for another, by the first 512 bytes of a file. Returns format and remedy:
/// "a pointer of Git LFS, ... Run `git lfs pull`". Empty if unknown. HTML and XML count only if text_is_meant is false.
std::string foreign_format(std::string_view first, bool text_is_meant = false);
}  // namespace detail

/// A file that grows at its end, such as a log. A failed write or a crash may leave a part of its text.
class AppendFile {
 public:
  /// The treatment of existing content.
  enum class Begin { keep, empty };
  /// Opens or creates the file. An Error if that fails.
  AppendFile(std::string path, Begin);

  const std::string& path() const { return path_; }
  /// Appends text. An Error if not all was written, or if the path no longer names the open file because that was
  /// removed, moved or replaced.
  void append(std::string_view text);
  /// Returns when the content is on the disk, not only in the system's memory.
  void sync();

 private:
  std::string path_;
  detail::Descriptor fd_;
};

/// Excludes other processes that ask for the same lock, until this object or its process ends in any way. The empty
/// file is created if missing. If this object created it, it is removed in the end, unless keep() was called.
class FileLock {
 public:
  /// Takes the lock without waiting. An Error of kind state if another FileLock holds it.
  [[nodiscard]] explicit FileLock(std::string path);
  ~FileLock();
  FileLock(FileLock&&) = default;
  FileLock& operator=(FileLock o) noexcept {
    std::swap(path_, o.path_), std::swap(fd_, o.fd_), std::swap(created_, o.created_), std::swap(missing_, o.missing_);
    return *this;
  }

  /// Keeps the file when the lock ends.
  void keep() { created_ = false; }
  /// Why nothing is locked on this file system; empty: the lock is held.
  const std::string& missing() const { return missing_; }

 private:
  std::string path_, missing_;
  detail::Descriptor fd_;
  bool created_ = false;
};

namespace detail {
// Every system call that writes files goes through this hook: mkdir, open, flock, write, fsync, close or rename.
// call(bytes) makes it; a write takes that number of bytes. Tests replace the hook before main().
using FileCall = std::function<ptrdiff_t(size_t bytes)>;
using FileCallHook = ptrdiff_t (*)(std::string_view name, size_t bytes, const FileCall& call);
extern FileCallHook file_call_hook;
// Called with path, device and inode of each file that is read.
using FileReadHook = void (*)(const std::string& path, std::pair<uint64_t, uint64_t> id);
extern FileReadHook file_read_hook;
const char* advice_for(int error);  // the end of a message about this errno
}  // namespace detail

}  // namespace tg
