// Standard streams that are closed, full or not read, control characters in what is printed, and Ctrl-C.

#include <tapegrad/models/train/log.h>

#include <regex>

#include "support/app_run.h"

using namespace tg;

TEST_CASE("without standard streams nothing that is printed goes into the files of a run") {
  const Reference reference(kTiny);
  const Folder& folder = reference.folder;
  Arguments loud = reference.command;
  std::erase(loud, "--quiet");
  CHECK(Process(folder.path, loud, {.closed = true}).status() == 0);
  reference.check_same();
  CHECK(fs::file_size(folder / "run/.lock") == 0);
}

TEST_CASE("names and values of a file are printed without the control characters that they hold") {
  Folder folder;
  const std::string name = "\x1b[31mred\x7f\xc2\x9b \xc3\xa9";
  write_safetensors(folder / "a.safetensors", {{name, filled({2}, 1.f)}}, {{"key\r", std::string(5000, 'v') + "\x07"}});
  const int out = open((folder / "out").c_str(), O_WRONLY | O_CREAT, 0600);
  Process p(folder.path, {"inspect", "--model", "a.safetensors"}, {.output = out});
  close(out);
  CHECK_MESSAGE(p.status() == 0, p.errors());
  const std::string text = read_file(folder / "out");
  CHECK_HAS(text, "\\x1b[31mred\\x7f\\xc2\\x9b \xc3\xa9", "metadata key\\x0d: vvvv", "...(5004 bytes)...");
  CHECK(std::none_of(text.begin(), text.end(), [](char c) { return uint8_t(c) < 0x20 && c != '\n'; }));
  CHECK(text.size() < 1000);
}

TEST_CASE("tok/s of a line is the mean since the line before") {
  const TextFolder folder;
  const int out = open((folder / "out").c_str(), O_WRONLY | O_CREAT, 0600);
  REQUIRE(Process(folder.path, with(kTrain, tiny_with({"--progress", "lines"})), {.output = out}).status() == 0);
  close(out);
  double tokens = 0, seconds = 0;
  const std::string text = "\n" + read_file(folder / "out");
  std::smatch m;
  for (const StepRecord& r : read_log(folder / "run/log.jsonl").steps) {
    tokens += r.tokens_per_s * r.ms / 1000, seconds += r.ms / 1000;
    if (!std::regex_search(text, m, std::regex(fmt::format("\n *{}/.* ([0-9.]+k?) tok/s", r.step)))) continue;
    const double rate = std::stod(m[1]) * (m.str(1).ends_with('k') ? 1000 : 1);
    CHECK(std::abs(rate - tokens / seconds) <= 0.002 * rate + 51);  // the log is rounded
    tokens = seconds = 0;
  }
}

TEST_CASE("a pipe that nobody reads ends a command in silence, and a full disk is named") {
  const Folder folder;
  StateDict many;
  for (int i = 0; i < 1000; ++i) many[fmt::format("tensor {}", i)] = filled({2}, 1.f);
  write_safetensors(folder / "many.safetensors", many);
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  close(ends[0]);
  Process p(folder.path, {"inspect", "--model", "many.safetensors"}, {.output = ends[1]});
  CHECK(p.status() == 128 + SIGPIPE);
  CHECK(p.errors() == "");
  close(ends[1]);
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  Process q(folder.path, {"inspect", "--model", "many.safetensors"}, {.output = full});
  CHECK(q.status() == 1);
  CHECK(q.errors() == "tapegrad: [io] standard output cannot be written: No space left on device.\n");
  close(full);
}

TEST_CASE("Ctrl-C of a run whose output nobody reads has the status of Ctrl-C") {
  const TextFolder folder;
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  close(ends[0]);
  Process p(folder.path, with(kTrain, tiny_with({"--max-steps", "1000000"})), {.output = ends[1]});
  close(ends[1]);
  REQUIRE(wait_for(p, [&] { return fs::exists(folder / "run/log.jsonl"); }));
  p.send(SIGINT);
  CHECK(p.status() == 128 + SIGINT);
}

TEST_CASE("no control character or invalid UTF-8 of a text is written, except into a pipe with --raw") {
  Folder folder;
  const std::string hostile =
      "a\x1b[2J\x0e\xc2\x9b"
      "31m\x07\x9b\x7f\xc0\x80\xed\xa0\x80\xe2\x80\xae"
      "b\xc3\xa9\t";
  const std::string escaped = R"(a\x1b[2J\x0e\xc2\x9b31m\x07\x9b\x7f\xc0\x80\xed\xa0\x80\xe2\x80\xaeb)"
                              "\xc3\xa9";
  detail::write_file_atomically(folder / "text.txt", rhyme() + rhyme());
  REQUIRE(Process(folder.path, with(with(kTrain, {"--quiet"}), kTiny)).status() == 0);
  std::string errors;
  const auto shown = [&](int out, int in, const Arguments& more = {}) {
    Process p(folder.path, with({"generate", "--model", "run", "--prompt", hostile, "--max-tokens", "0"}, more),
              {.output = out});
    CHECK(p.status() == (more.empty() || !isatty(out) ? 0 : 2));
    errors = p.errors();
    close(out);
    std::string text;
    for (char c; read(in, &c, 1) == 1;) text += c;
    close(in);
    return text;
  };
  const char* note =
      "tapegrad: bytes that are no text are written as \\x and two digits; --raw writes them as they are\n";
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  CHECK(shown(ends[1], ends[0]) == escaped + "\t\n");
  CHECK(errors == note);
  REQUIRE(pipe(ends) == 0);
  CHECK(shown(ends[1], ends[0], {"--raw"}) == hostile + "\n");
  CHECK(errors == "");
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE((terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0));
  const auto device = [&] { return open(ptsname(terminal), O_RDWR | O_NOCTTY); };
  CHECK_HAS(shown(device(), dup(terminal)), escaped);
  CHECK(errors == "");
  shown(device(), terminal, {"--raw"});
  CHECK_HAS(errors, "--raw writes bytes that a terminal may obey, and standard output is one.");
}

TEST_CASE("a second Ctrl-C ends the process at once") {
  const TextFolder folder;
  Process p(folder.path, with(kTrain, tiny_with({"--batch", "10000", "--width", "128"})));
  REQUIRE(wait_for(p, [&] { return fs::exists(folder / "run/log.jsonl"); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  p.send(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  REQUIRE(!p.ended());
  p.send(SIGINT);
  REQUIRE(wait_for(p, [] { return false; }) == false);
  CHECK(p.status() == -SIGINT);
}

TEST_CASE("Ctrl-C ends tokenize, and leaves nothing of its folder") {
  const TextFolder folder;
  REQUIRE(Process(folder.path, {"tokenizer", "--train", "text.txt", "--vocab", "260", "--out", "tok"}).status() == 0);
  std::string text;
  for (int i = 0; i < 10'000; ++i) text += rhyme();
  detail::write_file_atomically(folder / "long.txt", text);
  const size_t before = folder.entries();
  Process p(folder.path,
            {"tokenize", "--tokenizer", "tok", "--in", "long.txt", "--shard-tokens", "100k", "--out", "shards"});
  REQUIRE(wait_for(p, [&] { return folder.entries() > before; }));
  p.send(SIGINT);
  CHECK(p.status() == 128 + SIGINT);
  CHECK(folder.entries() == before);
}
