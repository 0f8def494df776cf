/// @file
/// Files on disk: a read-only mapping, a write that happens wholly or not at all, one that appends, locks, and folders.
/// POSIX. Knows no file format; safetensors.h, checkpoints, logs and token data stand on it. Every failure is an Error
/// of kind io that names the path and the reason the system gave.
#pragma once
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace tg {

/// The bytes of a regular file, mapped for reading; pages come in when they are read. An empty file has no bytes. The
/// mapping survives that the path is replaced or removed; to cut the file shorter meanwhile ends the process (SIGBUS).
class MappedFile {
 public:
  explicit MappedFile(std::string path);  ///< an Error when it is missing, not readable or no regular file
  ~MappedFile();
  MappedFile(MappedFile&&) noexcept;
  MappedFile& operator=(MappedFile&&) noexcept;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
};

using Sink = std::function<void(std::span<const std::byte>)>;  ///< appends to the file being written
/// Makes or replaces `path` with what `produce` passes to its sink: into a temporary file of the same folder, which is
/// synchronised and then renamed. On any failure, and when `produce` throws, the temporary file is removed and the
/// former file is as it was. A symbolic link is replaced by the file.
void write_file_atomically(const std::string& path, const std::function<void(const Sink&)>& produce);
void write_file_atomically(const std::string& path, std::string_view content);
/// An Error now if write_file_atomically() could not write there: before hours of work.
void check_writable(const std::string& path);
/// Removes the temporary files of `path` whose processes were killed while they wrote it. An Error when one cannot be
/// removed; files of processes that still run are left alone.
void remove_leftovers(const std::string& path);

/// A file that grows at its end, as a log does. Unlike the writes above, one that fails or is cut off by a crash may
/// leave a part of its text.
class AppendFile {
 public:
  /// Opens the file, or makes it; keep goes on at its end, empty begins with no content. An Error when that fails.
  enum class Begin { keep, empty };
  AppendFile(std::string path, Begin);
  ~AppendFile();
  AppendFile(AppendFile&&) noexcept;
  AppendFile& operator=(AppendFile&&) noexcept;

  const std::string& path() const { return path_; }
  /// An Error when the text is not taken whole, and when the path is no longer that of the open file: it was removed,
  /// moved, alone or with its folder, or replaced.
  void append(std::string_view text);
  void sync();  ///< on return the content is on the disk, and not in the system's memory only

 private:
  std::string path_;
  int fd_ = -1;
};

/// Keeps other processes out, which ask for the same lock, until it ends or its process does, in whatever way. The file
/// is made when it is missing, has no content, and stays.
class FileLock {
 public:
  explicit FileLock(std::string path);  ///< an Error of kind state when another FileLock holds it, of kind io else
  ~FileLock();
  FileLock(FileLock&&) noexcept;
  FileLock& operator=(FileLock&&) noexcept;

 private:
  std::string path_;
  int fd_ = -1;
};

/// Makes the folder and its parents where they are missing; an Error when that fails or files cannot be made in it.
void make_folder(const std::string& path);

}  // namespace tg
