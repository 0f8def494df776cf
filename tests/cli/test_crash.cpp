// Crashes at each writing system call, full disks, kill -9, Ctrl-C, limits. The resumed run writes the same bytes.
#include <tapegrad/models/io/checkpoint.h>

#include "support/app_run.h"

using namespace tg;

namespace {
// Runs with TG_FAULT=<fault>:n for each `every`-th n, until no call is struck. Returns the number of struck runs.
int strike_everywhere(const Reference& reference, const std::string& fault, int struck_status, int every) {
  int struck = 0;
  for (int n = first_struck(every);; n += every) {
    const std::string at = fmt::format("{}:{}", fault, n);
    CAPTURE(at);
    reference.begin_again();
    Process p(reference.folder.path, reference.command, {.fault = at});
    const int status = p.status();
    if (status == 0) {
      reference.check_same();
      MESSAGE("covered: " << struck << " system calls that fail or are the last");
      return struck;
    }
    ++struck;
    REQUIRE(status == struck_status);
    if (struck_status == 1) CHECK_HAS(p.errors(), "No space left on device");
    const bool begins = n % 2 == 0 && lines_of(reference.folder / "run/log.jsonl") == 0;  // allowed: no step is lost
    const int again = begins ? Process(reference.folder.path, reference.command).status()
                             : reference.go_on(n % 5 == 0 ? fmt::format("after-any:{}", n % 40 + 1) : "");
    if (again == 137) CHECK(reference.go_on() == 0);  // struck a second time
    if (again != 137) CHECK(again == 0);
    reference.check_same();
    if (struck > 2000) FAIL("the run never ends");
  }
}

constexpr int kLongRun = kSanitized ? 300 : 2000;
}  // namespace

TEST_CASE("crash before system calls that write: the run goes on to the same bytes") {
  const Reference reference(tiny_with({"--tensorboard", "run/events"}));
  CHECK(strike_everywhere(reference, "before-any", 137, stride()) >= 100 / stride());
}
TEST_CASE("crash after system calls that write: the run goes on to the same bytes") {
  CHECK(strike_everywhere(Reference(kTiny), "after-any", 137, stride()) >= 100 / stride());
}
TEST_CASE("crash in the middle of system calls that write: the run goes on to the same bytes") {
  CHECK(strike_everywhere(Reference(kTiny), "within-write", 137, stride()) >= 80 / stride());
}
TEST_CASE("a crash or no space left at system calls that write, of finetuning: the run goes on to the same bytes") {
  const Arguments settings = {"--rank",      "2", "--targets", "*", "--lora-dropout", "0.1", "--batch",        "2",
                              "--max-steps", "4", "--warmup",  "1", "--eval-every",   "2",   "--val-fraction", "0.02"};
  const Reference reference(
      with({"train", "--data", "text.txt", "--tokenizer", "char", "--quiet", "--out", "base"}, kTiny),
      {"finetune", "--model", "base", "--data", "text.txt"}, settings,
      {"adapter_config.json", "adapter_model.safetensors"});
  CHECK(strike_everywhere(reference, "before-any", 137, 2 * stride()) >= 40 / stride());
  CHECK(strike_everywhere(reference, "fail-any", 1, 2 * stride()) >= 40 / stride());
}
TEST_CASE("a crash or no space left at system calls that write, of exports: the whole folder or file, or none") {
  const Folder folder;
  const auto run = [&](const Arguments& words, const std::string& fault = "") {
    Process p(folder.path, words, {.fault = fault});
    return p.status();
  };
  std::ofstream(folder / "text.txt") << rhyme();
  const Arguments llama = {"--positions", "rope", "--norm", "rms_norm", "--activation", "swiglu", "--out", "base"};
  REQUIRE(run(with(with({"train", "--data", "text.txt", "--quiet", "--max-steps", "1"}, kTiny), llama)) == 0);
  const Arguments merge = {"merge", "--model", "base", "--adapter", "adapter", "--out", "out"};
  REQUIRE(run({"finetune", "--model", "base", "--data", "text.txt", "--out", "adapter", "--rank", "1", "--max-steps",
               "1", "--warmup", "0", "--batch", "1", "--quiet"}) == 0);
  for (const Arguments& words :
       {merge, with(merge, {"--overwrite"}), Arguments{"export", "--model", "base", "--to", "gguf", "--out", "out"},
        Arguments{"export", "--model", "base", "--max-shard", "20KB", "--to", "hf", "--out", "out"}}) {
    const bool overwrites = words.back() == "--overwrite";
    const std::string to = words[0] + " " + words.back();
    const auto content = [&] {
      std::map<std::string, std::string> all;
      if (fs::is_directory(folder / "out"))
        for (const auto& f : fs::directory_iterator(folder / "out")) all[f.path().filename()] = read_file(f.path());
      else
        all[""] = read_file(folder / "out");
      return all;
    };
    REQUIRE(run(words) == 0);
    const auto whole = content();
    const auto begin = [&] {
      fs::remove_all(folder / "out");
      if (overwrites) REQUIRE(run({"export", "--model", "base", "--max-shard", "20KB", "--out", "out"}) == 0);
    };
    begin();
    const auto former = overwrites ? content() : whole;
    for (const auto& [fault, status] : {std::pair("before-any", 137), std::pair("fail-any", 1)}) {
      int struck = 0;
      for (int n = 1;; n += int(stride())) {
        begin();
        CAPTURE_ALL(to, fault, n);
        const int ended = run(words, fmt::format("{}:{}", fault, n));
        if (overwrites || fs::exists(folder / "out")) CHECK((content() == whole || content() == former));
        if (ended == 0) break;
        REQUIRE(ended == status);
        ++struck;
      }
      CHECK(struck >= 5 / int(stride()));
    }
    fs::remove_all(folder / "out");
    REQUIRE(run(words) == 0);
    CHECK(content() == whole);
    fs::remove_all(folder / "out");
    CHECK(folder.entries() == 4);
  }
}
TEST_CASE("no space left at system calls that write: an error, and the run goes on to the same bytes") {
  const Reference reference(tiny_with({"--tensorboard", "run/events"}));
  CHECK(strike_everywhere(reference, "fail-any", 1, stride()) >= 100 / stride());
}

TEST_CASE("kill -9 at random moments: the run goes on to the same bytes") {
  const int kills = kSanitized ? 3 : test_effort() == 1 ? 20 : 100 * int(test_effort());
  const Reference reference(tiny_with({"--max-steps", "60", "--checkpoint-every", "3"}));
  Rng rng{kill_seed()};
  int killed = 0;
  std::chrono::duration<double> took = reference.took;  // too long if the machine was busy
  for (int i = 0; i < 10 * kills && killed < kills; ++i) {
    reference.begin_again();
    const std::chrono::duration<double> after = took * double(rng.uniform());
    CAPTURE(after.count());
    Process p(reference.folder.path, reference.command);
    std::this_thread::sleep_for(after);
    p.send(SIGKILL);
    const int status = p.status();
    REQUIRE((status == -SIGKILL || status == 0));
    killed += status != 0;
    if (status == 0) took = std::min(took, after);  // the machine is faster now
    CHECK(reference.go_on() == 0);
    reference.check_same();
  }
  CHECK(killed == kills);
  MESSAGE("covered: " << killed << " kills");
}

TEST_CASE("Ctrl-C, SIGTERM and SIGHUP: the step ends, a checkpoint is written, and the run goes on to the same bytes") {
  const Reference reference(tiny_with({"--max-steps", std::to_string(kLongRun), "--eval-every", "0", "--width", "32"}));
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    int status = 0;
    std::string errors;
    for (int i = 0; i < 5 && status == 0; ++i) {  // a busy machine may miss the run
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
              fmt::format("stopped after step {} of {}; `tapegrad train --resume run` resumes it", lines, kLongRun));
    // The same command is refused: it would start anew.
    CHECK_HAS(errors_of(1, reference.folder.path, reference.command),
              fmt::format("belongs to a run that stopped at step {} of {}", lines, kLongRun));
    fs::remove(reference.folder / "run/model.safetensors");
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
  CHECK_HAS(errors_of(1, folder.path, longer,
                      {.file_limit = rlim_t(reference.files.at("checkpoint.safetensors").size() / 2)}),
            "[file] cannot write run/checkpoint.safetensors: write of",
            "File too large. What was there before is unchanged. Free space",
            "holds the state after step 4; `tapegrad train --resume run` resumes from there.");
  CHECK(read_file(folder / "run/checkpoint.safetensors") == reference.files.at("checkpoint.safetensors"));
  CHECK(read_file(folder / "run/model.safetensors") == reference.files.at("model.safetensors"));
  CHECK_HAS(errors_of(1, folder.path, longer, {.file_limit = rlim_t(fs::file_size(folder / "run/log.jsonl") / 2)}),
            "File too large");
  CHECK(reference.go_on() == 0);
  reference.check_same();
}

TEST_CASE("standard output that nobody reads: the run goes on, and ends like `head`'s other inputs, in silence") {
  const TextFolder folder;
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  close(ends[0]);
  Process p(folder.path, with(with(kTrain, {"--sample-every", "1"}), kTiny), {.output = ends[1]});
  close(ends[1]);
  CHECK(p.status() == 128 + SIGPIPE);
  CHECK(p.errors() == "");
  CHECK(fs::exists(folder / "run/model.safetensors"));
  CHECK(load_checkpoint(folder / "run/checkpoint.safetensors").state.step == 4);
}
