// Guards of a run's files: a second process, repeated commands, changing or vanishing files, non-finite weights. Former
// files stay; messages name the next command.
#include <tapegrad/models/io/checkpoint.h>
#include <tapegrad/models/io/huggingface.h>
#include <tapegrad/models/train/run_config.h>

#include <iterator>
#include <sstream>

#include "support/app_run.h"

using namespace tg;

TEST_CASE("a second process in the folder of a run is refused, and changes nothing") {
  const TextFolder folder;
  const Arguments command = with(kTrain, tiny_with({"--max-steps", "1000000", "--eval-every", "0"}));
  Process first(folder.path, command);
  REQUIRE(wait_for(first, [&] { return lines_of(folder / "run/log.jsonl") >= 3; }));
  const std::string checkpoint = read_file(folder / "run/checkpoint.safetensors");
  for (const Arguments& words : {command, Arguments{"train", "--resume", "run"}}) {
    CHECK_HAS(errors_of(1, folder.path, words),
              "[train] another process is training in run. One at a time may write there. Wait until");
    CHECK(!first.ended());
  }
  CHECK(read_file(folder / "run/checkpoint.safetensors") == checkpoint);
  first.send(SIGKILL);
  CHECK(first.status() == -SIGKILL);
  const int64_t steps = lines_of(folder / "run/log.jsonl");
  // Killed before its first save: a new run is refused, a resumed one is not.
  Process fresh(folder.path, command);
  CHECK(fresh.status() == 1);
  CHECK_HAS(
      fresh.errors(),
      fmt::format("belongs to a run that was saved at step 0 of 1000000, and whose log continues to step {}. A new run",
                  steps));
  CHECK(lines_of(folder / "run/log.jsonl") == steps);
  errors_of(0, folder.path, {"train", "--resume", "run", "--max-steps", "2", "--quiet"});
}

namespace {
RunConfig run_of(const Checkpoint& c) { return detail::run_config_from_json(c.config, "checkpoint"); }
Arguments command_in(const std::string& message) {
  const size_t begin = message.rfind("`tapegrad ") + 10, end = message.find('`', begin);
  REQUIRE(end != std::string::npos);
  std::istringstream words(message.substr(begin, end - begin));
  return {std::istream_iterator<std::string>(words), {}};
}
void write_tokens(const std::string& path, char first = 0) {
  std::string ids;
  for (const char c : rhyme()) ids += {c, '\0'};
  ids[0] = char(ids[0] + first);
  detail::write_file_atomically(path, ids);
}
}  // namespace

TEST_CASE("a command that is typed twice is refused, and both ways on that the message names work") {
  const Reference reference(kTiny);
  const Folder& folder = reference.folder;
  REQUIRE(Process(folder.path, reference.command).status() == 0);
  const std::string log = read_file(folder / "run/log.jsonl");
  Process again(folder.path, with(reference.command, {"--seed", "2"}));
  CHECK(again.status() == 1);
  const std::string errors = again.errors();
  CHECK_HAS(
      errors,
      "run/checkpoint.safetensors belongs to a run that is finished, after 4 steps. A new run would overwrite it.",
      "`tapegrad train --resume run --max-steps 8`, choose another --out, or pass --overwrite.");
  CHECK(read_file(folder / "run/log.jsonl") == log);
  reference.check_same();
  REQUIRE(Process(folder.path, command_in(errors)).status() == 0);
  CHECK(load_checkpoint(folder / "run/checkpoint.safetensors").state.step == 8);
  errors_of(0, folder.path, with(reference.command, {"--overwrite"}));
  reference.check_same();
  // A model without a checkpoint and an unreadable checkpoint are protected too.
  fs::remove(folder / "run/checkpoint.safetensors");
  Process model(folder.path, reference.command);
  CHECK(model.status() == 1);
  CHECK_HAS(model.errors(),
            "[train] run/model.safetensors exists, and a new run would overwrite the files in its folder.",
            "Choose another --out, or pass --overwrite.");
  detail::write_file_atomically(folder / "run/checkpoint.safetensors", "damaged");
  CHECK_HAS(errors_of(1, folder.path, reference.command),
            "A new run would overwrite it. Choose another --out, or pass --overwrite.");
  CHECK(Process(folder.path, with(reference.command, {"--overwrite"})).status() == 0);
  reference.check_same();
  CHECK_HAS(errors_of(2, folder.path, {"train", "--resume", "run", "--overwrite"}), "omit --overwrite");
}

TEST_CASE("a run that overwrites another is that run once it has begun, wherever it is cut off") {
  const Reference reference(kTiny);
  const Folder& folder = reference.folder;
  const Arguments other = with(reference.command, {"--seed", "2", "--overwrite"});
  int former = 0, begun = 0;
  for (int n = 1;; n += 3 * stride()) {  // initially the former run
    CAPTURE(n);
    fs::remove_all(folder / "run");
    REQUIRE(Process(folder.path, reference.command).status() == 0);
    if (Process(folder.path, other, {.fault = fmt::format("before-any:{}", n)}).status() == 0) break;
    const bool is_new = run_of(load_checkpoint(folder / "run/checkpoint.safetensors")).train.seed == 2;
    REQUIRE(reference.go_on() == 0);
    is_new ? ++begun : ++former;
    if (!is_new) reference.check_same();
    if (is_new) CHECK(reference.file("model.safetensors") != reference.files.at("model.safetensors"));
  }
  CHECK(former > 0);
  CHECK(begun >= 10 / stride());
}

TEST_CASE("no command replaces or removes an input, nor, without --overwrite, any file that it would write") {
  const TextFolder folder;
  std::string said;
  const auto run = [&](const std::string& text) {
    Process p(folder.path, command_in("`tapegrad " + text + "`"));
    const int status = p.status();
    said = p.errors();
    return status;
  };
  const auto in_out = [](Arguments names, const Arguments& more = {}) {
    names.insert(names.end(), more.begin(), more.end());
    for (std::string& name : names) name = "out/" + name;
    return names;
  };
  const std::string steps = " --data text.txt --quiet --max-steps 1 --warmup 0 --batch 1 --val-fraction 0",
                    shape = " --layers 1 --heads 1 --width 8 --context 8", hf = " --model hf",
                    both = hf + " --adapter ad";
  const Arguments of_run = {"checkpoint.safetensors", "log.jsonl", ".watch", ".machine"},
                  model = with(detail::huggingface_files("none"), {"model-00001-of-00002.safetensors"});
  REQUIRE(run("train --positions rope --norm rms_norm --activation swiglu --out base" + steps + shape) == 0);
  REQUIRE(run("export --model base --to hf --out hf") == 0);
  REQUIRE(run("finetune --rank 1 --out ad" + steps + hf) == 0);
  const std::tuple<std::string, std::string, Arguments> writers[] = {
      // command, an input, files; last if it overwrites
      {"train" + steps + shape + " --out out", "text.txt", in_out(model, of_run)},
      {"train" + steps + hf + " --out out", "hf/config.json", in_out(model, of_run)},
      {"train --no-save" + steps + shape + " --out out", "text.txt", in_out({"log.jsonl"})},
      {"finetune" + steps + hf + " --out out", "hf/tokenizer.json",
       in_out({"adapter_config.json", "adapter_model.safetensors", "chat_template.jinja"}, of_run)},
      {"merge" + both + " --out out", "ad/adapter_config.json", in_out(model)},
      {"tokenize --tokenizer hf --in text.txt --out out.npy", "text.txt", {"out.npy"}},
      {"tokenize --tokenizer hf --in text.txt --out out.bin", "hf/tokenizer.json", {"out.bin"}},
      {"export --to hf --out out" + both, "hf/config.json", {"out", "out/config.json", "out/notes"}},
      {"export --to gguf --out out" + both, "ad/adapter_config.json", {"out"}},
      {"tokenizer --out out --train text.txt --vocab 260", "text.txt", {"out", "out/tokenizer.json"}},
      {"tokenize --out out --tokenizer hf --in text.txt --shard-tokens 100", "text.txt", {"out", "out/meta.json"}},
      {"plot --out out ad", "ad/log.jsonl", {"out"}},
      {"eval --data text.txt --logits out" + both, "hf/model.safetensors", {"out"}},
      {"generate --prompt a --max-tokens 1 --out out" + both, "hf/config.json", {"out"}},
      {"compare --json out --model base", "base/config.json", {"out"}},
      {"train --out run --profile out" + steps + shape, "text.txt", {"out", "out.txt"}}};
  for (const auto& [words, input, files] : writers)
    for (const std::string& file : files)
      for (const std::string kind : {"of another", "hard link", "symbolic link"}) {
        CAPTURE_ALL(words, file, kind);
        const bool over = kind != "of another" && words.ends_with(" --out " + file.substr(0, file.find('/')));
        fs::create_directories(fs::path(folder / file).parent_path());
        if (kind == "of another") detail::write_file_atomically(folder / file, "mine, of tapegrad plot");
        if (kind == "hard link") fs::create_hard_link(folder / input, folder / file);
        if (kind == "symbolic link") fs::create_symlink(folder / input, folder / file);
        const std::string before = read_file(folder / file);
        CHECK(run(words + (over ? " --overwrite" : "")) == 1);
        CHECK_HAS(said, over ? file + " is the file that is read as " : file.substr(0, 3));
        REQUIRE((fs::is_symlink(folder / file) == (kind == "symbolic link") && read_file(folder / file) == before));
        for (const std::string& left : {std::string("out"), file, std::string("run")}) fs::remove_all(folder / left);
      }
  // --no-save removes nothing, and --overwrite only what the command's kind of folder has.
  fs::create_directory(folder / "out");
  for (const std::string& file : in_out(model, {"notes", "adapter_model.safetensors"}))
    detail::write_file_atomically(folder / file, "mine");
  const auto entries = [&] { return size_t(std::distance(fs::directory_iterator(folder / "out"), {})); };
  CHECK(run("train --no-save --overwrite --out out" + steps + shape) == 0);
  CHECK(entries() == model.size() + 4);  // log.jsonl and .lock
  CHECK(run("merge --overwrite --out out" + both) == 0);
  CHECK(read_file(folder / "out/notes") + read_file(folder / "out/adapter_model.safetensors") == "minemine");
  CHECK(entries() == 4 + 4);
}

TEST_CASE("event files that are removed during a run end it, and the message names the next command") {
  const TextFolder folder;
  Process p(folder.path, with(kTrain, tiny_with({"--max-steps", "1000000", "--eval-every", "0", "--checkpoint-every",
                                                 "20", "--tensorboard", "events"})));
  REQUIRE(wait_for(p, [&] { return lines_of(folder / "run/log.jsonl") >= 3; }));
  fs::rename(folder / "events", folder / "moved");
  CHECK(p.status() == 1);
  CHECK_HAS(p.errors(), "was moved or replaced while it was being written",
            "`tapegrad train --resume run` resumes from there.");
  errors_of(0, folder.path, {"train", "--resume", "run", "--max-steps", "100"});
  CHECK(std::distance(fs::directory_iterator(folder / "events"), {}) == 1);
}

TEST_CASE("a log or a lock that is a link is refused, and what it leads to stays") {
  const TextFolder folder;
  detail::write_file_atomically(folder / "victim", "precious");
  const Arguments command = with(with(kTrain, {"--overwrite"}), kTiny);
  for (const char* name : {"log.jsonl", ".lock"}) {
    CAPTURE(name);
    fs::remove_all(folder / "run");
    fs::create_directory(folder / "run");
    fs::create_symlink("../victim", folder / (std::string("run/") + name));
    CHECK_HAS(errors_of(1, folder.path, command),
              fmt::format("[file] run/{} is a symbolic link. It is written in place", name));
    CHECK(read_file(folder / "victim") == "precious");
  }
}

TEST_CASE("a model whose path no checkpoint can say is refused") {
  const TextFolder folder;
  REQUIRE(Process(folder.path, with(with(kTrain, {"--quiet"}), kTiny)).status() == 0);
  fs::rename(folder / "run", folder / "run\xff");
  CHECK_HAS(
      errors_of(1, folder.path, {"train", "--model", "run\xff", "--data", "text.txt", "--out", "next", "--quiet"}),
      "run\\xff, is not UTF-8, and a checkpoint cannot store it");
  CHECK(!fs::exists(folder / "next"));
  fs::create_symlink("run\xff", folder / "link");
  errors_of(0, folder.path,
            {"train", "--model", "link", "--data", "text.txt", "--out", "next", "--quiet", "--max-steps", "1",
             "--batch", "1"});
}

TEST_CASE("a token file that changes during a run is an error, and the run goes on when it is restored") {
  const Arguments command = with({"train", "--data", "ids.bin", "--out", "run", "--quiet"},
                                 tiny_with({"--max-steps", "1000000", "--checkpoint-every", "20"}));
  Folder folder;
  write_tokens(folder / "ids.bin");
  Process p(folder.path, command);
  REQUIRE(wait_for(p, [&] { return lines_of(folder / "run/log.jsonl") >= 30; }));
  std::string what;
  SUBCASE("cut shorter") {
    fs::resize_file(folder / "ids.bin", 0);
    what =
        "[file] ids.bin was changed while it was being read: it had 3600 bytes, and has 0. It must not change "
        "while it is in use";
  }
  SUBCASE("written to") {
    AppendFile file(folder / "ids.bin", AppendFile::Begin::empty);
    write_tokens(folder / "other.bin", 1);
    file.append(read_file(folder / "other.bin"));
    what = "[file] ids.bin was ";  // shorter for a moment, or newer
  }
  CHECK(p.status() == 1);
  CHECK_HAS(p.errors(), what, "`tapegrad train --resume run` resumes from there.");
  const int64_t step = load_checkpoint(folder / "run/checkpoint.safetensors").state.step;
  CHECK(step > 0);
  Process early(folder.path, {"train", "--resume", "run", "--quiet"});
  CHECK(early.status() == 1);
  write_tokens(folder / "ids.bin");
  const std::string more = std::to_string(step + 5);
  errors_of(0, folder.path, {"train", "--resume", "run", "--quiet", "--max-steps", more});
}

TEST_CASE("after a divergence what the message says helps") {
  const TextFolder folder;
  const Arguments begin =
      with(with(kTrain, {"--quiet"}), tiny_with({"--max-steps", "30", "--warmup", "0", "--eval-every", "0"}));
  const auto diverges = [&](const Arguments& more) {
    Process p(folder.path, with(begin, more));
    CHECK(p.status() == 1);
    CHECK_HAS(p.errors(), "must be finite");
    return p.errors();
  };
  SUBCASE("the checkpoint is good: a lower rate, until it is low enough") {
    std::string errors, schedule;
    SUBCASE("cosine") { schedule = "cosine"; }
    SUBCASE("wsd") { schedule = "wsd"; }
    SUBCASE("constant") { schedule = "constant"; }
    errors = diverges({"--lr", "1.2345e6", "--schedule", schedule});  // a tenth of it is above the rate of the message
    Arguments command;
    int tries = 0;
    for (int status = 1; status != 0;) {
      CAPTURE(errors);
      REQUIRE(++tries < 20);
      CHECK_HAS(errors, "run/checkpoint.safetensors holds the state after step 0; `tapegrad train --resume run --lr 1",
                "resumes from there with a lower rate.");
      command = command_in(errors);
      REQUIRE(command[3] == "--lr");
      Process p(folder.path, with(command, {"--quiet"}));
      status = p.status();
      errors = p.errors();
      CHECK_HAS(errors, "tapegrad: lr was ");
    }
    CHECK(run_of(load_checkpoint(folder / "run/checkpoint.safetensors")).train.lr == std::stod(command[4]));
    CHECK_HAS(errors_of(1, folder.path, {"train", "--resume", "run", "--seed", "2"}),
              "only max_steps, lr, min_lr, muon_lr, warmup, moments, split_weights, eval_every, checkpoint_every, "
              "compile and shard_optimizer may change");
  }
  SUBCASE("the weights of the checkpoint give it: a new run") {
    const std::string errors = diverges({"--lr", "1e25", "--checkpoint-every", "1"});
    CHECK_HAS(errors, "run/checkpoint.safetensors holds the weights that cause this, after step ",
              "a lower rate does not help from there. Begin a new run with --lr 1e+24 --overwrite.");
    errors_of(0, folder.path, with(begin, {"--lr", "1e-3", "--overwrite"}));
  }
}

TEST_CASE(
    "Ctrl-C in a long validation: it is given up, and made when the run goes on, to the same bytes and the same log") {
  const Reference reference(
      tiny_with({"--val-fraction", "0.97", "--eval-every", "1", "--batch", "1", "--checkpoint-every", "0"}));
  int given_up = 0;
  for (int i = 0; i < 20 && given_up < 2; ++i) {
    reference.begin_again();
    Process p(reference.folder.path, reference.command);
    const int64_t lines = 1 + i % 3;
    REQUIRE(wait_for(p, [&] { return lines_of(reference.folder / "run/log.jsonl") >= lines; }));
    p.send(SIGTERM);
    if (p.status() == 0) continue;
    CHECK(p.status() == 128 + SIGTERM);
    const Checkpoint c = load_checkpoint(reference.folder / "run/checkpoint.safetensors");
    CHECK(lines_of(reference.folder / "run/log.jsonl") == c.state.step - (c.state.unvalidated ? 1 : 0));
    given_up += bool(c.state.unvalidated);
    CHECK(reference.go_on() == 0);
    reference.check_same();
  }
  CHECK(given_up > 0);
}

TEST_CASE("weights that are not finite do not replace the last good files") {
  const Reference reference(kTiny);
  const Folder& folder = reference.folder;
  Process whole(folder.path, reference.command);
  REQUIRE(whole.status() == 0);
  const std::string path = folder / "run/checkpoint.safetensors";
  const Checkpoint good = load_checkpoint(path);
  for (const int64_t every : {1, 0}) {
    Checkpoint wild = good;
    RunConfig run = run_of(good);
    TrainConfig& t = run.train;
    t.lr = 1e39, t.min_lr = 0, t.warmup = 0, t.max_steps = 8, t.eval_every = 0, t.checkpoint_every = every;
    wild.config = to_json(run);
    save_checkpoint(path, wild);
    const std::string before = read_file(path);
    CHECK_HAS(errors_of(1, folder.path, {"train", "--resume", "run"}),
              every ? " after step 5. What was there before is unchanged." : "of step 6 is", "must be finite",
              "holds the state after step 4");
    CHECK(read_file(path) == before);
    CHECK(read_file(folder / "run/model.safetensors") == reference.files.at("model.safetensors"));
    CHECK(read_file(folder / "run/config.json") == reference.files.at("config.json"));
  }
}

TEST_CASE("a folder that vanishes during a run is an error at the next step") {
  const TextFolder folder;
  Process p(folder.path, with(kTrain, tiny_with({"--max-steps", "1000000"})));
  REQUIRE(wait_for(p, [&] { return lines_of(folder / "run/log.jsonl") >= 3; }));
  SUBCASE("removed") {
    while (!p.ended() && fs::exists(folder / "run")) {  // a running save may restore a file
      std::error_code busy;
      fs::remove_all(folder / "run", busy);
    }
    CHECK(p.status() == 1);
    const std::string errors = p.errors();
    CHECK_MESSAGE((has(errors, "run/log.jsonl was removed while") || has(errors, "cannot write run/")), errors);
  }
  SUBCASE("renamed") {
    fs::rename(folder / "run", folder / "elsewhere");
    CHECK(p.status() == 1);
    const std::string errors = p.errors();  // a running save fails
    CHECK_MESSAGE((has(errors, "run/log.jsonl was moved or replaced while") || has(errors, "cannot write run/")),
                  errors);
    CHECK(load_checkpoint(folder / "elsewhere/checkpoint.safetensors").state.step > 0);
    CHECK(!fs::exists(folder / "run"));
  }
}

TEST_CASE("a checkpoint that is replaced by a folder during a run is an error, and none that promises to go on") {
  const TextFolder folder;
  Process p(folder.path,
            with(kTrain, tiny_with({"--max-steps", "1000000", "--eval-every", "0", "--checkpoint-every", "50"})));
  REQUIRE(wait_for(p, [&] { return lines_of(folder / "run/log.jsonl") >= 3; }));
  for (std::error_code none; !p.ended() && !fs::is_directory(folder / "run/checkpoint.safetensors");) {
    fs::remove(folder / "run/checkpoint.safetensors", none);  // a running save may restore it
    fs::create_directory(folder / "run/checkpoint.safetensors", none);
  }
  CHECK(p.status() == 1);
  CHECK_HAS(p.errors(), "[file] cannot write run/checkpoint.safetensors: ");
  CHECK(p.errors().find("resumes from") == std::string::npos);
}

TEST_CASE("TG_FAULT that is no fault is an error, and the program itself does not know it") {
  const TextFolder folder;
  const Arguments command = with(kTrain, kTiny);
  for (const std::string fault :
       {"wrote:1", "write", "write:0", "-write:1", "before-write", "before-write:", "before-write:0", "before-write:-1",
        "before-write:1x", "before-wrote:1", "during-write:1", "within-fsync:1", "before-after-write:1", "1", " "}) {
    CAPTURE(fault);
    CHECK_HAS(errors_of(1, folder.path, command, {.fault = fault}),
              fmt::format("[faults] TG_FAULT is '{}'. It must be <open, write, fsync,", fault));
  }
  const bool in_program = has(read_file(TG_REAL_APP), "TG_FAULT"), in_injector = has(read_file(TG_APP), "TG_FAULT");
  CHECK(!in_program);
  CHECK(in_injector);
  // The default moment is before the call.
  for (const std::string fault : {"rename:1", "before-rename:1"}) {
    CAPTURE(fault);
    fs::remove_all(folder / "run");
    CHECK(Process(folder.path, command, {.fault = fault}).status() == 137);
    CHECK(!fs::exists(folder / "run/checkpoint.safetensors"));
  }
}
