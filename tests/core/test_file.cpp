// core/io/file.h: mappings, atomic writes, folders. POSIX limits emulate a full disk: root ignores permissions.
#include "support/files.h"
#include "support/limit.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <tapegrad/core/io/safetensors.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/ops/pointwise.h>

#include <map>
#include <set>
#include <stdexcept>

using namespace tg;

TEST_CASE("file: a mapping reads a file, survives its replacement and names what cannot be read") {
  const Folder folder;
  detail::write_file_atomically(folder / "a", "some bytes");
  MappedFile file(folder / "a");
  CHECK(file.text() == "some bytes");
  detail::write_file_atomically(folder / "a", "other");
  CHECK(file.text() == "some bytes");
  CHECK(read_file(folder / "a") == "other");
  MappedFile moved = std::move(file);
  CHECK(moved.text() == "some bytes");
  CHECK(file.bytes().empty());  // NOLINT: a moved mapping is empty
  moved = MappedFile(folder / "a");
  CHECK(moved.text() == "other");
  detail::write_file_atomically(folder / "empty", "");
  CHECK(MappedFile(folder / "empty").bytes().empty());
  const std::string without_mmap = "/sys/devices/system/cpu/online";
  if (fs::exists(without_mmap)) CHECK(MappedFile(without_mmap).text().starts_with("0"));
  CHECK_SAYS_OF(io, MappedFile(folder / "none"), "[file] cannot read " + folder / "none: No such file or directory.");
  CHECK_SAYS_OF(io, MappedFile(folder.path), folder.path + ": it is a folder.");
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_SAYS_OF(io, MappedFile(folder / "pipe"), "it is a device, pipe or socket");
}

TEST_CASE("file: reading by positions sees a file that is cut shorter or written to, and not one that is replaced") {
  const Folder folder;
  const std::string path = folder / "a";
  detail::write_file_atomically(path, "some bytes");
  const InputFile file(path);
  CHECK(file.size() == 10);
  std::string text(5, ' ');
  const auto read = [&](size_t offset) { file.read(offset, std::as_writable_bytes(std::span(text))); };
  const auto error = [&](auto f) { return error_of(Error::Kind::io, f); };
  read(5);
  CHECK(text == "bytes");
  CHECK_HAS(error([&] { read(6); }), "[file] " + path + " has 10 bytes, but 1 bytes from byte 10 on were requested.");
  file.check_unchanged();
  SUBCASE("replaced, removed") {
    detail::write_file_atomically(path, "other");
    fs::remove(path);
    file.check_unchanged();
    read(5);
    CHECK(text == "bytes");
  }
  SUBCASE("cut shorter") {
    fs::resize_file(path, 7);
    const std::string what = "[file] " + path + " was changed while it was being read: it had 10 bytes, and has 7.";
    read(1);
    CHECK_HAS(error([&] { read(5); }), what);
    CHECK_HAS(error([&] { file.check_unchanged(); }), what);
  }
  SUBCASE("written to") {
    const auto before = fs::last_write_time(path);
    AppendFile other(path, AppendFile::Begin::empty);
    other.append("SOME BYTES");
    fs::last_write_time(path, before + std::chrono::milliseconds(1500));
    const auto message = error([&] { file.check_unchanged(); });
    CHECK_HAS(message, "[file] " + path + " was written to while it was being read: its 10 bytes are 1.500 s newer",
              "Restore it; to replace a file that is in use, rename a new one to its path.");
  }
  CHECK_HAS(error([&] { InputFile(folder / "none"); }), "[file] cannot read " + folder / "none: No such file");
  CHECK_HAS(error([&] { InputFile f(folder.path); }), folder.path + ": it is a folder.");
}

TEST_CASE("file: a log and a lock are not written through a link, nor into a pipe") {
  const Folder folder;
  detail::write_file_atomically(folder / "victim", "precious");
  fs::create_symlink("victim", folder / "link");
  fs::create_symlink("nowhere", folder / "dangling");
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  const auto refused = [&](const std::string& name, const std::string& what) {
    const auto message = [&](auto f) { CHECK_HAS(error_of(Error::Kind::io, f), "[file] " + folder / name + what); };
    message([&] { AppendFile(folder / name, AppendFile::Begin::empty); });
    message([&] { AppendFile(folder / name, AppendFile::Begin::keep); });
    message([&] { (void)FileLock(folder / name); });
  };
  refused("link", " is a symbolic link. It is written in place");
  refused("dangling", " is a symbolic link.");
  refused("pipe", " cannot be opened for writing: ");
  CHECK(read_file(folder / "victim") == "precious");
  CHECK(folder.entries() == 4);
  const FileLock lock(folder / ".lock");  // any reader could hold the lock
  CHECK(int(fs::status(folder / ".lock").permissions()) == 0600);
}

TEST_CASE("file: a limit that is reached is named in the advice") {
  const Folder folder;
  detail::write_file_atomically(folder / "a", "x");
  const std::string advice = "Too many open files. Raise the limit of open files (ulimit -n).";
  const auto limited = [](auto f) {  // CHECK opens files when sanitized
    const Limit none(RLIMIT_NOFILE, 0);
    return error_of(Error::Kind::io, f);
  };
  CHECK_HAS(limited([&] { MappedFile(folder / "a"); }), "a: " + advice);
  CHECK_HAS(limited([&] { detail::write_file_atomically(folder / "a", "y"); }), "folder cannot be opened: " + advice);
}

TEST_CASE("file: a write that fails leaves the former file and nothing else") {
  const Folder folder;
  const std::string path = folder / "a";
  detail::write_file_atomically(path, "former");
  SUBCASE("the producer throws in the middle") {
    const auto half = [](const Sink& write) {
      write(std::as_bytes(std::span("part")));
      throw std::runtime_error("stop");
    };
    CHECK_THROWS_AS(detail::write_file_atomically(path, half), std::runtime_error);
  }
  SUBCASE("the disk is full") {
    const auto message = error_of(Error::Kind::io, [&] {
      const Limit small(RLIMIT_FSIZE, 4096);
      detail::write_file_atomically(path, std::string(10'000, 'x'));
    });
    CHECK_HAS(message, "[file] cannot write " + path + ": write of " + path + ".",
              "failed: File too large. What was there before is unchanged. Free space");
  }
  SUBCASE("a tensor cannot be evaluated") {
    const Tensor x = tensor<float>({1, 2}, {2});
    const LazyScope lazy;
    const Tensor sum = x + x;
    Tensor(x).mutable_data<float>()[0] = 3;  // the pending sum has lost its input
    CHECK_SAYS_OF(state, write_safetensors(path, {{"a", x}, {"b", sum}}), "[add]");
  }
  CHECK(read_file(path) == "former");
  CHECK(folder.entries() == 1);
}

TEST_CASE("file: targets that cannot be written are named with the reason") {
  const Folder folder;
  detail::write_file_atomically(folder / "a", "former");
  const auto write_error = [](const std::string& path) {
    return error_of(Error::Kind::io, [&] { detail::write_file_atomically(path, "x"); });
  };
  CHECK_HAS(write_error(folder / "none/a"), "its folder cannot be opened: No such file or directory.",
            "Make the folder first");
  CHECK_HAS(write_error(folder / "a/b"),
            "[file] cannot write " + folder / "a/b: its folder cannot be opened: Not a dir");
  CHECK_HAS(write_error(folder.path), folder.path + ": it is a folder.");
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_HAS(write_error(folder / "pipe"), "it is a device, pipe or socket");
  CHECK_HAS(write_error(folder / std::string(250, 'n')), "File name too long");
  CHECK(folder.entries() == 2);
}

TEST_CASE("file: a lock has one holder, ends with it, and comes back when its process is killed") {
  Folder folder;
  const std::string path = folder / ".lock", locked = "[file] " + path + " is locked by another process. One at a time";
  {
    FileLock first(path);
    CHECK_SAYS_OF(state, (void)FileLock(path), locked);
    const FileLock moved = std::move(first);
    CHECK_SAYS_OF(state, (void)FileLock(path), locked);
  }
  CHECK(folder.entries() == 0);  // the lock removes its file
  { FileLock(path).keep(); }
  { FileLock again(path); }
  CHECK(folder.entries() == 1);
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const FileLock lock(path);
    if (write(ready[1], "x", 1) == 1) pause();
    _exit(1);
  }
  char x;
  REQUIRE(::read(ready[0], &x, 1) == 1);
  CHECK_SAYS_OF(state, (void)FileLock(path), locked);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  { FileLock again(path); }
  close(ready[0]), close(ready[1]);
  CHECK(fs::file_size(path) == 0);
  CHECK_SAYS_OF(io, (void)FileLock(folder / "none/.lock"),
                "none/.lock cannot be opened for writing: No such file or directory");
}

TEST_CASE("file: what is appended to a file that has left its place is an error") {
  Folder folder;
  fs::create_directory(folder / "run");
  const std::string path = folder / "run/log";
  AppendFile file(path, AppendFile::Begin::empty);
  file.append("a\n");
  const auto refused = [&] { return error_of(Error::Kind::io, [&] { file.append("b\n"); }); };
  fs::rename(folder / "run", folder / "elsewhere");
  CHECK_HAS(refused(), "[file] " + path + " was moved or replaced while it was being written. It must stay");
  fs::create_directory(folder / "run");
  detail::write_file_atomically(path, "another");
  CHECK_HAS(refused(), "was moved or replaced while");
  CHECK(read_file(path) == "another");
  CHECK(read_file(folder / "elsewhere/log") == "a\n");
  fs::remove_all(folder / "run");
  fs::rename(folder / "elsewhere", folder / "run");  // put back
  file.append("b\n");
  CHECK(read_file(path) == "a\nb\n");
  fs::remove(path);
  CHECK_HAS(refused(), "was removed while it was being written");
}

TEST_CASE("file: make_folder makes parents, takes existing ones, refuses files") {
  const Folder folder;
  detail::make_folder(folder / "a/b/c");
  detail::make_folder(folder / "a/b/c/");
  CHECK(fs::is_directory(folder / "a/b/c"));
  detail::write_file_atomically(folder / "file", "x");
  const auto error = [](const std::string& path) {
    return error_of(Error::Kind::io, [&] { detail::make_folder(path); });
  };
  CHECK_HAS(error(folder / "file/sub"),
            "[file] cannot make or use the folder " + folder / "file/sub: Not a directory.");
  CHECK_HAS(error(folder / "file"), "Not a directory.");
  CHECK_HAS(error(""), "[file] cannot make or use the folder : ");
  // No parent of a failed folder remains.
  CHECK_HAS(error(folder / "x/y/" + std::string(300, 'n')), "File name too long.");
  CHECK(!fs::exists(folder / "x"));
  fs::create_symlink("nowhere", folder / "dangling");
  CHECK_HAS(error(folder / "dangling/sub"), folder / "dangling is a symbolic link to nothing. Each part");
  detail::make_folder(folder / "x/../y", 0700);
  CHECK(int(fs::status(folder / "x").permissions()) == 0700);
  CHECK(int(fs::status(folder / "y").permissions()) == 0700);
}

namespace {
std::string g_calls;
ptrdiff_t note_call(std::string_view name, size_t bytes, const detail::FileCall& call) {
  g_calls += std::string(name) + " ";
  return call(bytes);
}
}  // namespace
namespace {
std::string g_struck;
int g_error = 0;
ptrdiff_t fail_call(std::string_view name, size_t bytes, const detail::FileCall& call) {
  return name == g_struck ? errno = g_error, -1 : call(bytes);
}
}  // namespace
TEST_CASE("file: each errno of each system call has an advice that is true of it") {
  const Folder folder;
  const auto former = std::exchange(detail::file_call_hook, fail_call);
  const std::set<int> denied = {EACCES, EPERM, EROFS}, lacking = {EINVAL, ENOTSUP, EOPNOTSUPP, ENOSYS, ENOLCK};
  std::map<std::string, int> advices;
  for (g_error = 1; g_error < 134; ++g_error) {
    const std::string advice = detail::advice_for(g_error), reason = std::generic_category().message(g_error);
    CHECK(has(advice, "permission") == denied.contains(g_error));
    ++advices[advice];
    for (const std::string call : {"open", "write", "fsync", "close", "rename", "mkdir", "flock"}) {
      if (g_error == EINTR || g_error == EEXIST || (g_error == EWOULDBLOCK && call == "flock")) continue;
      g_struck = call;
      const bool goes_on = lacking.contains(g_error) && (call == "flock" || call == "fsync");
      const std::string said = error_of([&] {
        const FileLock lock(folder / ".lock");
        CHECK(lock.missing() == (call == "flock" ? reason : ""));
        detail::make_folder(folder / "a/b");
        detail::write_file_atomically(folder / "a/file", "x");
        AppendFile(folder / "a/log", AppendFile::Begin::empty).sync();
      });
      CAPTURE_ALL(call, reason, said);
      CHECK((goes_on ? said == "no error" : has(said, ": " + reason + ".") && said.ends_with(advice + ".")));
      fs::remove_all(folder / "a");
    }
  }
  detail::file_call_hook = former;
  CHECK(folder.entries() == 0);
  for (const int error : {ENOSPC, EMFILE, EINVAL, EINTR, EISDIR, ENAMETOOLONG, ELOOP, ESTALE, EIO, ENOENT, ENOMEM})
    CHECK(advices[detail::advice_for(error)] < 12);  // not the general advice
}
TEST_CASE("file: each new folder is synchronised with the one it is in") {
  const Folder folder;
  const auto former = std::exchange(detail::file_call_hook, note_call);
  detail::make_folder(folder / "nn/deep/run/");
  detail::make_folder(folder / "nn/deep");
  detail::file_call_hook = former;
  CHECK(g_calls == "mkdir open fsync mkdir open fsync mkdir open fsync ");
}

TEST_CASE("file: what is at a path, or an error when nobody can tell") {
  const Folder folder;
  detail::write_file_atomically(folder / "file", "x");
  fs::create_symlink("b", folder / "a");
  fs::create_symlink("a", folder / "b");
  CHECK((detail::path_exists(folder / "file") && !detail::is_folder(folder / "file")));
  CHECK((detail::path_exists(folder.path) && detail::is_folder(folder.path)));
  CHECK((!detail::path_exists(folder / "none") && !detail::path_exists(folder / "file/none") &&
         !detail::is_folder(folder / "none")));
  const std::string what = "[file] cannot find out what " + folder / "a is: Too many levels of symbolic links. Check";
  CHECK_SAYS_OF(io, detail::path_exists(folder / "a"), what);
  CHECK_SAYS_OF(io, detail::is_folder(folder / "a"), what);
}

TEST_CASE("file: a relative path in a current folder that was removed is named") {
  const Folder folder;
  const fs::path before = fs::current_path();
  CHECK(detail::absolute_path("a/../b") == (before / "b").string());
  fs::create_directory(folder / "gone");
  fs::current_path(folder / "gone");
  fs::remove(folder / "gone");
  const std::string message = error_of(Error::Kind::io, [] { detail::absolute_path("t.txt"); });
  CHECK(detail::absolute_path("/a/../b") == "/b");
  fs::current_path(before);
  CHECK_HAS(message, "[file] t.txt is a relative path, and the current folder cannot be found: No such file");
}

TEST_CASE("file: temporary files of killed processes are removed, those of living ones and other files are not") {
  Folder folder;
  const pid_t gone = fork();
  if (gone == 0) _exit(0);
  REQUIRE(waitpid(gone, nullptr, 0) == gone);
  const std::string path = folder / "model.safetensors";
  const std::string kept[] = {path,
                              fmt::format("{}.{}-0.tmp", path, getpid()),
                              fmt::format("{}.{}-0.tmp.txt", path, gone),
                              path + ".x-0.tmp",
                              path + ".0-0.tmp",
                              fmt::format("{}.{}-0.tmp", folder / "other", gone)};
  for (const std::string& name : kept) detail::write_file_atomically(name, "x");
  for (int i = 0; i < 3; ++i) detail::write_file_atomically(fmt::format("{}.{}-{}.tmp", path, gone, i), "x");
  detail::remove_leftovers(path);
  for (const std::string& name : kept) CHECK(fs::exists(name));
  CHECK(std::distance(fs::directory_iterator(folder.path), {}) == std::ssize(kept));
  detail::write_file_atomically(fmt::format("{}.{}-9.tmp", path, gone), "x");
  detail::write_file_atomically(path, "y");
  CHECK(std::distance(fs::directory_iterator(folder.path), {}) == std::ssize(kept));
  detail::remove_leftovers(folder / "none/model.safetensors");  // nothing there
}
