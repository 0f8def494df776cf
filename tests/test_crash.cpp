// Ends of real runs of the program `tapegrad`: crashes at every system call that writes, full disks, kill -9 at random
// moments, Ctrl-C, and what must not end well: limits, a second process, weights that are not finite. After each the
// run goes on, and its files must be those of the run that was never cut off.
#include <tapegrad/models/io/checkpoint.h>

#include <random>

#include "app_run.h"
#include "helpers.h"

using namespace tg;

namespace {

// Runs once for each n with TG_FAULT=<fault>:n, from 1 until the run is no longer struck; every stride-th n only.
// Returns how many it struck.
int strike_everywhere(const Reference& reference, const std::string& fault, int struck_status, int stride) {
  int struck = 0;
  for (int n = 1;; n += stride) {
    const std::string at = fmt::format("{}:{}", fault, n);
    CAPTURE(at);
    reference.begin_again();
    Process p(reference.folder.path, reference.command, {.fault = at});
    const int status = p.status();
    if (status == 0) return reference.check_same(), struck;
    ++struck;
    REQUIRE(status == struck_status);
    if (struck_status == 1) CHECK_HAS(p.errors(), "No space left on device");
    const int again = reference.go_on(n % 5 == 0 ? fmt::format("after-any:{}", n % 40 + 1) : "");
    if (again == 137) CHECK(reference.go_on() == 0);  // struck a second time
    if (again != 137) CHECK(again == 0);
    reference.check_same();
    if (struck > 2000) FAIL("the run never ends");
  }
}

#ifdef TG_SANITIZED
constexpr int kStride = 23, kKills = 3, kLongRun = 300;
#define TG_POINTS "every 23rd system call that writes (each of them without sanitizers)"
#define TG_KILLS "3 (20 without sanitizers)"
#else
constexpr int kStride = 1, kKills = 20, kLongRun = 2000;
#define TG_POINTS "every system call that writes"
#define TG_KILLS "20"
#endif

}  // namespace

TEST_CASE("crash before " TG_POINTS ": the run goes on to the same bytes") {
  CHECK(strike_everywhere(Reference(kTiny), "before-any", 137, kStride) >= 100 / kStride);
}
TEST_CASE("crash after " TG_POINTS ": the run goes on to the same bytes") {
  CHECK(strike_everywhere(Reference(kTiny), "after-any", 137, kStride) >= 100 / kStride);
}
TEST_CASE("crash in the middle of " TG_POINTS ": the run goes on to the same bytes") {
  CHECK(strike_everywhere(Reference(kTiny), "within-write", 137, kStride) >= 80 / kStride);
}
TEST_CASE("a crash or no space left at " TG_POINTS " of finetuning: the run goes on to the same bytes") {
  const Arguments settings = {"--rank",      "2", "--targets", "*", "--lora-dropout", "0.1", "--batch",        "2",
                              "--max-steps", "4", "--warmup",  "1", "--eval-every",   "2",   "--val-fraction", "0.02"};
  Arguments base = {"train", "--data", "text.txt", "--tokenizer", "char", "--quiet", "--out", "base"};
  base.insert(base.end(), kTiny.begin(), kTiny.end());
  const Reference reference(base, {"finetune", "--model", "base", "--data", "text.txt"}, settings,
                            {"adapter.safetensors"});
  CHECK(strike_everywhere(reference, "before-any", 137, 2 * kStride) >= 40 / kStride);
  CHECK(strike_everywhere(reference, "fail-any", 1, 2 * kStride) >= 40 / kStride);
}
TEST_CASE("no space left at " TG_POINTS ": an error, and the run goes on to the same bytes") {
  CHECK(strike_everywhere(Reference(kTiny), "fail-any", 1, kStride) >= 100 / kStride);
}

TEST_CASE("kill -9 at " TG_KILLS " random moments: the run goes on to the same bytes") {
  const char* given = std::getenv("TG_KILL_SEED");
  const uint64_t seed = given ? std::stoull(given) : std::random_device()();
  MESSAGE("TG_KILL_SEED=" << seed << " makes these moments again");
  Arguments settings = kTiny;
  settings.insert(settings.end(), {"--checkpoint-every", "3"});
  settings[std::distance(settings.begin(), std::find(settings.begin(), settings.end(), "--max-steps")) + 1] = "60";
  const Reference reference(settings);
  Rng rng{seed};
  int killed = 0;
  std::chrono::duration<double> took = reference.took;
  for (int i = 0; i < kKills; ++i) {
    reference.begin_again();
    const std::chrono::duration<double> after = took * double(rng.uniform());
    CAPTURE(after.count());
    Process p(reference.folder.path, reference.command);
    std::this_thread::sleep_for(after);
    p.send(SIGKILL);
    const int status = p.status();
    REQUIRE((status == -SIGKILL || status == 0));
    killed += status != 0;
    if (status == 0) took = std::min(took, after);  // the machine is faster now than in the reference run
    CHECK(reference.go_on() == 0);
    reference.check_same();
  }
  CHECK(2 * killed >= kKills);
}

TEST_CASE("Ctrl-C, SIGTERM and SIGHUP: the step ends, a checkpoint is written, and the run goes on to the same bytes") {
  Arguments settings = kTiny;
  for (const auto& [flag, value] :
       {std::pair("--max-steps", std::to_string(kLongRun)), {"--eval-every", "0"}, {"--width", "32"}})
    *(std::find(settings.begin(), settings.end(), flag) + 1) = value;
  const Reference reference(settings);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    int status = 0;
    std::string errors;
    for (int i = 0; i < 5 && status == 0; ++i) {  // a machine that is busy may let the run end before the signal
      reference.begin_again();
      Process p(reference.folder.path, reference.command);
      REQUIRE(wait_for(p, [&] { return lines_of(reference.folder / "run/log.jsonl") >= 3; }));
      p.send(signal);
      status = p.status();
      errors = p.errors();
    }
    REQUIRE(status == 128 + signal);
    const int64_t lines = lines_of(reference.folder / "run/log.jsonl");
    CHECK(lines < kLongRun);
    CHECK(load_checkpoint(reference.folder / "run/checkpoint.safetensors").state.step == lines);
    CHECK_HAS(errors,
              fmt::format("stopped after step {} of {}; `tapegrad train --resume run` goes on", lines, kLongRun));

    // The same command once more would begin from nothing: refused.
    Process fresh(reference.folder.path, reference.command);
    CHECK(fresh.status() == 1);
    CHECK_HAS(fresh.errors(), fmt::format("is of a run that stopped at step {} of {}", lines, kLongRun));

    fs::remove(reference.folder / "run/model.safetensors");  // is no part of the state
    CHECK(reference.go_on() == 0);
    reference.check_same();
  }
}

TEST_CASE("a limit of the file size is an error, and the former files stay") {
  const Reference reference(kTiny);
  const Folder& folder = reference.folder;
  Process whole(folder.path, reference.command);
  REQUIRE(whole.status() == 0);
  const Arguments longer = {"train", "--resume", "run", "--quiet", "--max-steps", "6"};
  Process p(folder.path, longer, {.file_limit = rlim_t(reference.files.at("checkpoint.safetensors").size() / 2)});
  CHECK(p.status() == 1);
  CHECK_HAS(p.errors(), "[file] cannot write run/checkpoint.safetensors: write of");
  CHECK_HAS(p.errors(), "File too large. What was there before is unchanged. Free space");
  CHECK_HAS(p.errors(), "is as it was after step 4; `tapegrad train --resume run` goes on from there.");
  CHECK(read_file(folder / "run/checkpoint.safetensors") == reference.files.at("checkpoint.safetensors"));
  CHECK(read_file(folder / "run/model.safetensors") == reference.files.at("model.safetensors"));
  Process log(folder.path, longer, {.file_limit = rlim_t(fs::file_size(folder / "run/log.jsonl") / 2)});
  CHECK(log.status() == 1);
  CHECK_HAS(log.errors(), "File too large");
  CHECK(reference.go_on() == 0);
  reference.check_same();
}

TEST_CASE("standard output that nobody reads: the run goes on, and ends with an error") {
  Folder folder;
  write_file_atomically(folder / "text.txt", rhyme());
  Arguments command = {"train", "--data", "text.txt", "--out", "run", "--sample-every", "1"};
  command.insert(command.end(), kTiny.begin(), kTiny.end());
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  close(ends[0]);
  Process p(folder.path, command, {.output = ends[1]});
  close(ends[1]);
  CHECK(p.status() == 1);
  CHECK(p.errors() == "tapegrad: [io] standard output cannot be written.\n");
  CHECK(load_checkpoint(folder / "run/checkpoint.safetensors").state.step == 4);
}

TEST_CASE("a second process in the folder of a run is refused, and changes nothing") {
  Arguments settings = kTiny;
  *(std::find(settings.begin(), settings.end(), "--max-steps") + 1) = "1000000";
  *(std::find(settings.begin(), settings.end(), "--eval-every") + 1) = "0";
  Folder folder;
  write_file_atomically(folder / "text.txt", rhyme());
  Arguments command = {"train", "--data", "text.txt", "--out", "run"};
  command.insert(command.end(), settings.begin(), settings.end());
  Process first(folder.path, command);
  REQUIRE(wait_for(first, [&] { return lines_of(folder / "run/log.jsonl") >= 3; }));
  const std::string checkpoint = read_file(folder / "run/checkpoint.safetensors");
  for (const Arguments& words : {command, Arguments{"train", "--resume", "run"}}) {
    Process second(folder.path, words);
    CHECK(second.status() == 1);
    CHECK_HAS(second.errors(), "[train] another process is training in run. One at a time may write there. Wait until");
    CHECK(!first.ended());
  }
  CHECK(read_file(folder / "run/checkpoint.safetensors") == checkpoint);
  first.send(SIGKILL);
  CHECK(first.status() == -SIGKILL);
  const int64_t steps = lines_of(folder / "run/log.jsonl");

  // Killed before its first periodic save it has done steps all the same: a new run is refused, and going on is not.
  Process fresh(folder.path, command);
  CHECK(fresh.status() == 1);
  CHECK_HAS(fresh.errors(), fmt::format("is of a run that stopped at step {} of 1000000", steps));
  CHECK(lines_of(folder / "run/log.jsonl") == steps);
  Process resumed(folder.path, {"train", "--resume", "run", "--max-steps", "2", "--quiet"});
  CHECK_MESSAGE(resumed.status() == 0, resumed.errors());
}

TEST_CASE("weights that are not finite do not replace the last good files") {
  const Reference reference(kTiny);
  const Folder& folder = reference.folder;
  Process whole(folder.path, reference.command);
  REQUIRE(whole.status() == 0);
  const std::string path = folder / "run/checkpoint.safetensors";
  const Checkpoint good = load_checkpoint(path);
  for (const int64_t every : {1, 0}) {  // a periodic save, and the next step's loss
    Checkpoint wild = good;
    wild.run.train.lr = 1e39;
    wild.run.train.min_lr = 0;
    wild.run.train.warmup = 0;
    wild.run.train.max_steps = 8;
    wild.run.train.eval_every = 0;
    wild.run.train.checkpoint_every = every;
    save_checkpoint(path, wild);
    const std::string before = read_file(path);
    Process p(folder.path, {"train", "--resume", "run"});
    CHECK(p.status() == 1);
    CHECK_HAS(p.errors(), every ? " after step 5. What was there before is unchanged." : "of step 6 is");
    CHECK_HAS(p.errors(), "must be finite");
    CHECK_HAS(p.errors(), "is as it was after step 4");
    CHECK(read_file(path) == before);
    CHECK(read_file(folder / "run/model.safetensors") == reference.files.at("model.safetensors"));
    CHECK(read_file(folder / "run/config.json") == reference.files.at("config.json"));
  }
}

TEST_CASE("a second Ctrl-C ends the process at once") {
  Arguments settings = kTiny;
  for (const auto& [flag, value] : {std::pair("--batch", "10000"), {"--width", "128"}})  // steps of many seconds
    *(std::find(settings.begin(), settings.end(), flag) + 1) = value;
  Folder folder;
  write_file_atomically(folder / "text.txt", rhyme());
  Arguments command = {"train", "--data", "text.txt", "--out", "run"};
  command.insert(command.end(), settings.begin(), settings.end());
  Process p(folder.path, command);
  REQUIRE(wait_for(p, [&] { return fs::exists(folder / "run/log.jsonl"); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  p.send(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  REQUIRE(!p.ended());  // it finishes its step
  p.send(SIGINT);
  REQUIRE(wait_for(p, [] { return false; }) == false);
  CHECK(p.status() == -SIGINT);
}

TEST_CASE("a folder that vanishes during a run is an error at the next step") {
  Arguments settings = kTiny;
  *(std::find(settings.begin(), settings.end(), "--max-steps") + 1) = "1000000";
  Folder folder;
  write_file_atomically(folder / "text.txt", rhyme());
  Arguments command = {"train", "--data", "text.txt", "--out", "run"};
  command.insert(command.end(), settings.begin(), settings.end());
  SUBCASE("removed") {
    Process p(folder.path, command);
    REQUIRE(wait_for(p, [&] { return lines_of(folder / "run/log.jsonl") >= 3; }));
    while (!p.ended() && fs::exists(folder / "run")) {  // a save in progress may put a file back in between
      std::error_code busy;
      fs::remove_all(folder / "run", busy);
    }
    CHECK(p.status() == 1);
    const std::string errors = p.errors();
    CHECK_MESSAGE((has(errors, "run/log.jsonl was removed while") || has(errors, "cannot write run/")), errors);
  }
  SUBCASE("renamed") {
    Process p(folder.path, command);
    REQUIRE(wait_for(p, [&] { return lines_of(folder / "run/log.jsonl") >= 3; }));
    fs::rename(folder / "run", folder / "elsewhere");
    CHECK(p.status() == 1);
    const std::string errors = p.errors();  // in the middle of a save it is the save that fails
    CHECK_MESSAGE((has(errors, "run/log.jsonl was moved or replaced while") || has(errors, "cannot write run/")),
                  errors);
    CHECK(load_checkpoint(folder / "elsewhere/checkpoint.safetensors").state.step > 0);
    CHECK(!fs::exists(folder / "run"));
  }
}

TEST_CASE("TG_FAULT that is no fault is an error, and the program itself does not know it") {
  Folder folder;
  write_file_atomically(folder / "text.txt", rhyme());
  Arguments command = {"train", "--data", "text.txt", "--out", "run"};
  command.insert(command.end(), kTiny.begin(), kTiny.end());
  for (const std::string fault :
       {"wrote:1", "write", "write:0", "-write:1", "before-write", "before-write:", "before-write:0", "before-write:-1",
        "before-write:1x", "before-wrote:1", "during-write:1", "within-fsync:1", "before-after-write:1", "1", " "}) {
    CAPTURE(fault);
    Process p(folder.path, command, {.fault = fault});
    CHECK(p.status() == 1);
    CHECK_HAS(p.errors(), fmt::format("[faults] TG_FAULT is '{}'. It must be <open, write, fsync,", fault));
  }
  const bool in_program = read_file(TG_REAL_APP).find("TG_FAULT") != std::string::npos;
  CHECK(!in_program);
  const bool in_injector = read_file(TG_APP).find("TG_FAULT") != std::string::npos;
  CHECK(in_injector);
  // Without a moment it is before the call.
  for (const std::string fault : {"rename:1", "before-rename:1"}) {
    CAPTURE(fault);
    fs::remove_all(folder / "run");
    CHECK(Process(folder.path, command, {.fault = fault}).status() == 137);
    CHECK(!fs::exists(folder / "run/checkpoint.safetensors"));
  }
}
