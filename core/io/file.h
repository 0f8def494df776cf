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
// A file descriptor, closed by the destructor; -1: none.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  Descriptor& operator=(Descriptor o) noexcept { return std::swap(fd_, o.fd_), *this; }
  int get() const { return fd_; }
  int close();  // close(2)'s result

 private:
  int fd_;
};
}  // namespace detail

/// Bytes of a regular file, mapped: pages are read on use. Its path may be replaced or removed. Shortening it ends
/// the process (SIGBUS): map only files that are read at once.
class MappedFile {
 public:
  /// Maps the file, or reads it without mmap. An Error if missing, unreadable or not a regular file.
  explicit MappedFile(std::string path);

  const std::string& path() const { return path_; }
  /// The content, valid while this object or its move target lives.
  std::span<const std::byte> bytes() const { return {data_.get(), data_ ? size_ : 0}; }
  /// bytes() as text of unchecked encoding.
  std::string_view text() const { return {reinterpret_cast<const char*>(data_.get()), bytes().size()}; }

 private:
  std::string path_;
  std::unique_ptr<std::byte[], std::function<void(std::byte*)>> data_;
  size_t size_ = 0;
};

/// A regular file, read by position; an Error if it became shorter. Its path may be replaced or removed.
class InputFile {
 public:
  /// An Error if missing, unreadable or not a regular file.
  explicit InputFile(std::string path);

  const std::string& path() const { return path_; }
  /// Size in bytes at the time of opening.
  size_t size() const { return size_; }
  /// Fills `to`, or throws an Error.
  void read(size_t offset, std::span<std::byte> to) const;
  /// An Error if size or modification time changed.
  void check_unchanged() const;

 private:
  std::string path_;
  detail::Descriptor fd_;
  size_t size_ = 0;
  int64_t modified_ = 0;
};

/// Appends bytes to a file that is being written.
using Sink = std::function<void(std::span<const std::byte>)>;
namespace detail {
/// Creates or replaces `path` with the bytes that `produce` passes to its sink. A temporary file in the same folder is
/// synced and renamed. Any failure or exception removes it and leaves the former file. Replaces a symbolic link.
void write_file_atomically(const std::string& path, const std::function<void(const Sink&)>& produce);
/// The same with this content.
void write_file_atomically(const std::string& path, std::string_view content);
/// An Error if write_file_atomically() would fail, before hours of work.
void check_writable(const std::string& path);
/// Removes temporary files and folders that killed processes left.
void remove_leftovers(const std::string& path);
/// This process's temporary folder for `path`, known to remove_leftovers().
std::string temporary_folder(const std::string& path);
/// Creates the folder and its parents if missing. An Error if no file can be created in it.
void make_folder(const std::string& path, unsigned permissions = 0777);
/// Removes the file or link, if it exists.
void remove_file(const std::string& path);
/// Renames the folder `from` to `to`, or exchanges both, at one moment.
void place_folder(const std::string& from, const std::string& to);
/// Absolute path, without parts such as `..`. An Error if the path is relative and the current folder is gone.
std::string absolute_path(const std::string& path);
/// Whether the path exists; follows links. An Error if the system cannot tell, or for a dangling link.
bool path_exists(const std::string& path);
/// Whether the path is a folder; follows links. An Error if the system cannot tell.
bool is_folder(const std::string& path);
/// Recognises another format by a file's first 512 bytes: returns its name and a remedy, "a pointer of Git LFS, ... Run
/// `git lfs pull`", or empty. HTML and XML count unless text_is_meant.
std::string foreign_format(std::string_view first, bool text_is_meant = false);
}  // namespace detail

/// A log file. A failed write or crash may leave a part of its text.
class AppendFile {
 public:
  /// Treatment of existing content.
  enum class Begin { keep, empty };
  /// Opens or creates the file, or throws an Error.
  AppendFile(std::string path, Begin);

  const std::string& path() const { return path_; }
  /// Appends text. An Error if not all was written, or the path no longer names this file.
  void append(std::string_view text);
  /// Returns when the content is on the disk.
  void sync();

 private:
  std::string path_;
  detail::Descriptor fd_;
};

/// Excludes other owners of this lock until this object or its process ends. Creates an empty file if missing, and
/// removes it in the end unless keep() was called.
class FileLock {
 public:
  /// Takes the lock, or throws an Error of kind state if another FileLock holds it.
  [[nodiscard]] explicit FileLock(std::string path);
  ~FileLock();
  FileLock(FileLock&&) = default;
  FileLock& operator=(FileLock o) noexcept {
    std::swap(path_, o.path_), std::swap(fd_, o.fd_), std::swap(created_, o.created_), std::swap(missing_, o.missing_);
    return *this;
  }

  void keep() { created_ = false; }
  /// Why nothing is locked on this file system; empty: the lock is held.
  const std::string& missing() const { return missing_; }

 private:
  std::string path_, missing_;
  detail::Descriptor fd_;
  bool created_ = false;
};

namespace detail {
// Hook of system calls that write files: mkdir, open, flock, write, fsync, close, rename. call(bytes) makes it; a write
// takes that many bytes. Tests replace it before main().
using FileCall = std::function<ptrdiff_t(size_t bytes)>;
using FileCallHook = ptrdiff_t (*)(std::string_view name, size_t bytes, const FileCall& call);
extern FileCallHook file_call_hook;
// Called with path, device and inode of files read.
using FileReadHook = void (*)(const std::string& path, std::pair<uint64_t, uint64_t> id);
extern FileReadHook file_read_hook;
const char* advice_for(int error);  // end of the message for this errno
}  // namespace detail

}  // namespace tg
