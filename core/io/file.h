/// @file
/// Files on disk: two ways to read, a file written wholly or not at all, a file that grows at its end, locks, folders.
/// POSIX. It knows no file format; safetensors.h, checkpoints, logs and token data use it. Every failure is an Error of
/// kind io that names the path and the reason that the system gave.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace tg {
namespace detail {
// An open file of the system, closed in the end; -1: none.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() { close(); }
  Descriptor(Descriptor&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  Descriptor& operator=(Descriptor o) noexcept { return std::swap(fd_, o.fd_), *this; }
  int get() const { return fd_; }
  int close();  // what the system says

 private:
  int fd_;
};
}  // namespace detail

/// The bytes of a regular file, mapped for reading: pages are read when they are used. An empty file has no bytes. The
/// path may be replaced or removed meanwhile. Shortening the file meanwhile ends the process (SIGBUS), so it is for
/// files that are read at once.
class MappedFile {
 public:
  /// Maps the file. An Error if it is missing, not readable or not a regular file.
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(MappedFile&&) noexcept;
  MappedFile& operator=(MappedFile&&) noexcept;

  const std::string& path() const { return path_; }
  /// The content. The view is valid as long as this object, or the one that it is moved to.
  std::span<const std::byte> bytes() const { return bytes_; }
  /// The content as text; nothing checks its encoding. The view is valid as long as this object, or the one that it is
  /// moved to.
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
};

/// A regular file that is read by positions. If the file becomes shorter meanwhile, read() throws an Error, where a
/// mapping would end the process. The path may be replaced or removed meanwhile.
class InputFile {
 public:
  /// Opens the file. An Error if it is missing, not readable or not a regular file.
  explicit InputFile(std::string path);

  const std::string& path() const { return path_; }
  /// The size in bytes when the file was opened.
  size_t size() const { return size_; }
  /// Reads as many bytes as `to` takes; an Error unless all of them are there.
  void read(size_t offset, std::span<std::byte> to) const;
  /// Throws an Error if the size or the time of modification differs from when the file was opened.
  void check_unchanged() const;

 private:
  std::string path_;
  detail::Descriptor fd_;
  size_t size_ = 0;
  int64_t modified_ = 0;
};

/// Appends bytes to the file that is being written.
using Sink = std::function<void(std::span<const std::byte>)>;
/// Creates or replaces `path` with the bytes that `produce` passes to its sink. They go into a temporary file of the
/// same folder, which is synced and renamed. On any failure, and when `produce` throws, the temporary file is removed
/// and the former file is unchanged. A symbolic link is replaced by the file.
void write_file_atomically(const std::string& path, const std::function<void(const Sink&)>& produce);
/// Creates or replaces `path` with this content. On any failure the former file is unchanged.
void write_file_atomically(const std::string& path, std::string_view content);
/// Throws an Error now if write_file_atomically() could not write `path`, for example before hours of work.
void check_writable(const std::string& path);
/// Removes the temporary files and folders of `path` whose processes were killed while they wrote them. Those of
/// running processes are left alone. An Error if one cannot be removed.
void remove_leftovers(const std::string& path);
/// The name of this process's temporary folder for `path`, as remove_leftovers() knows it.
std::string temporary_folder(const std::string& path);

/// A file that grows at its end, as a log does. A write that fails, or that a crash cuts off, may leave a part of its
/// text.
class AppendFile {
 public:
  /// What happens to the content that is already there.
  enum class Begin { keep, empty };
  /// Opens or creates the file. An Error if that fails.
  AppendFile(std::string path, Begin);

  const std::string& path() const { return path_; }
  /// Appends text. An Error if the text was not taken whole, or if the path no longer names the open file: it was
  /// removed, moved or replaced.
  void append(std::string_view text);
  /// Returns when the content is on the disk, and not only in the system's memory.
  void sync();

 private:
  std::string path_;
  detail::Descriptor fd_;
};

/// Keeps other processes out that ask for the same lock, until this object or its process ends, in whatever way. The
/// file is created if it is missing. It has no content. A file that this object created is removed with it, unless
/// keep() was called.
class FileLock {
 public:
  /// Takes the lock without waiting. An Error of kind state if another FileLock holds it.
  explicit FileLock(std::string path);
  ~FileLock();
  FileLock(FileLock&&) = default;
  FileLock& operator=(FileLock o) noexcept {
    std::swap(path_, o.path_), std::swap(fd_, o.fd_), std::swap(created_, o.created_);
    return *this;
  }

  /// The file stays when the lock ends.
  void keep() { created_ = false; }

 private:
  std::string path_;
  detail::Descriptor fd_;
  bool created_ = false;
};

/// Creates the folder and its parents, with these permissions, if they are missing. An Error if that fails, or if no
/// file can be created in it.
void make_folder(const std::string& path, unsigned permissions = 0777);

/// The path from the root on, without parts such as `..`. An Error if it is relative and the current folder is gone.
std::string absolute_path(const std::string& path);
/// Whether there is anything at the path. Links are followed. An Error if the system does not tell, or if the path is a
/// link that leads nowhere.
bool path_exists(const std::string& path);
/// Whether there is a folder at the path. Links are followed. An Error if the system does not tell.
bool is_folder(const std::string& path);

/// What a file is that begins so, if it is of a format that often lies in another's place, and what to do about it: "a
/// pointer of Git LFS, ... Run `git lfs pull`". Empty if it is none that is known. By 512 bytes. A page of HTML or XML
/// counts where no text is meant.
std::string foreign_format(std::string_view first, bool text_is_meant = false);

namespace detail {
// Every system call that writes a file goes through this hook, by its name: mkdir, open, write, fsync, close or rename.
// call(bytes) makes it; a write takes so many bytes. Tests of crashes and full disks replace the hook before main().
using FileCall = std::function<ptrdiff_t(size_t bytes)>;
using FileCallHook = ptrdiff_t (*)(std::string_view name, size_t bytes, const FileCall& call);
extern FileCallHook file_call_hook;
}  // namespace detail

}  // namespace tg
