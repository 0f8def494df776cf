// Log-probabilities of `generate` against the loss of `eval`, and the prompt loop.
#include "support/app_run.h"

using namespace tg;

namespace {
int new_file(const std::string& path) { return open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600); }
std::string output_of(const Folder& folder, const Arguments& words) {
  const int out = new_file(folder / "out");
  Process p(folder.path, words, {.output = out});
  close(out);
  CHECK_MESSAGE(p.status() == 0, p.errors());
  return read_file(folder / "out");
}

// A model that answers "he" to "t" and "as" to "c", by the template talk.jinja.
struct Talker : Folder {
  Talker() {
    Json tokens = detail::own_json(R"({"?": 0, "t": 1, "h": 2, "e": 3, "c": 4, "a": 5, "s": 6, " ": 7})"),
         added = Json::array();
    const char* special[] = {"<|u|>", "<|a|>", "<|e|>"};
    for (int64_t i = 0; i < 3; ++i) {
      tokens[special[i]] = 8 + i;
      Json t = detail::own_json(R"({"single_word": false, "lstrip": false, "rstrip": false, "normalized": false})");
      t["id"] = 8 + i, t["content"] = special[i], t["special"] = true;
      added.push_back(t);
    }
    Json tokenizer = detail::own_json(R"({"decoder": {"type": "Fuse"}, "model": {"type": "BPE", "unk_token": "?"}})");
    tokenizer["added_tokens"] = added, tokenizer["model"]["vocab"] = tokens,
    tokenizer["model"]["merges"] = Json::array();
    detail::write_file_atomically(*this / "tokens.json", detail::text_of(tokenizer));
    std::string ids;
    Rng rng{1};
    for (int i = 0; i < 400; ++i)
      for (const char id : rng.below(2) ? std::string{8, 1, 9, 2, 3, 10} : std::string{8, 4, 9, 5, 6, 10})
        ids += {id, '\0'};
    detail::write_file_atomically(*this / "ids.bin", ids);
    detail::write_file_atomically(*this / "talk.jinja", kTemplate);
    Process p(path,
              {"train",        "--data", "ids.bin",     "--tokenizer", "./tokens.json", "--out", "run",       "--quiet",
               "--layers",     "1",      "--heads",     "1",           "--width",       "16",    "--context", "16",
               "--batch",      "8",      "--max-steps", "300",         "--warmup",      "10",    "--lr",      "0.01",
               "--eval-every", "0",      "--positions", "rope"});
    REQUIRE_MESSAGE(p.status() == 0, p.errors());
  }
  struct Said {
    std::string out, errors;
  };
  Said say(const std::string& lines, const Arguments& more, int status = 0) const {
    detail::write_file_atomically(*this / "in", lines);
    const int in = open((*this / "in").c_str(), O_RDONLY | O_CLOEXEC), out = new_file(*this / "out");
    Process p(path, with(kTalk, more), {.output = out, .input = in});
    close(in), close(out);
    CHECK(p.status() == status);
    return {read_file(*this / "out"), p.errors()};
  }
  static constexpr const char* kTemplate =
      "{% for m in messages %}{{ {'user': '<|u|>', 'assistant': '<|a|>', 'system': ''}[m.role] + m.content }}"
      "{{ '<|e|>' if m.role == 'assistant' }}{% endfor %}{% if add_generation_prompt %}<|a|>{% endif %}";
  inline static const Arguments kTalk = {"generate", "--model", "run", "--chat", "--temperature", "0"};
};
const Arguments kFormat = {"--chat-format", "talk.jinja"};
}  // namespace

TEST_CASE("the log-probabilities of generate sum to the loss of eval on the same tokens") {
  const TextFolder folder;
  REQUIRE(Process(folder.path, with(with(kTrain, {"--quiet", "--tokenizer", "char"}), kTiny)).status() == 0);
  const Json made =
      detail::own_json(output_of(folder, {"generate", "--model", "run", "--prompt", "t", "--max-tokens", "8",
                                          "--temperature", "1.5", "--top-k", "9", "--logprobs", "--out", "-"}));
  double sum = 0;
  std::string text = "t";
  for (const Json& token : made["logprobs"]["content"]) {
    sum += token["logprob"].get<double>();
    text += token["token"].get<std::string>();
  }
  CHECK(made["logprobs"]["content"].size() == 8);
  CHECK(text == "t" + made["text"].get<std::string>());
  detail::write_file_atomically(folder / "same.txt", text);
  const std::string said = output_of(folder, {"eval", "--model", "run", "--data", "same.txt"});
  const size_t at = said.find("loss ");
  REQUIRE(at != said.npos);
  CHECK(std::abs(std::stod(said.substr(at + 5)) + sum / 8) <= 1e-6);
}

TEST_CASE("a prompt loop answers each line after the conversation so far, and stops at the format's stop") {
  const Talker talker;
  const auto [out, errors] = talker.say("t\nc\n\n \nt", with(kFormat, {"--max-tokens", "4"}));
  CHECK(out == "he\nas\nhe\n");
  // Two turns of 6 tokens, 3 of the last message, and 4 of its answer
  CHECK(errors == "tapegrad: the 2 oldest messages are forgotten: the context is 16 tokens\n");
  // A penalty sees the whole conversation.
  const Arguments penalty = {"--max-tokens", "3", "--presence-penalty", "50"};
  const std::string twice = talker.say("t\nt\n", with(kFormat, penalty)).out;
  const Json second =
      detail::own_json(output_of(talker, with({"generate", "--model", "run", "--temperature", "0", "--prompt",
                                               "<|u|>t<|a|>he<|e|><|u|>t<|a|>", "--stop", "<|e|>", "--out", "-"},
                                              penalty)));
  CHECK(twice == "he\n" + second["text"].get<std::string>() + "\n");
  CHECK(second["text"].get<std::string>().substr(0, 2) != "he");
  CHECK(talker.say("", kFormat).out == "");
  CHECK(talker.say("t\n", with(kFormat, {"--system", "c"})).out.size() == 3);
  const auto cut = talker.say("t\nc\n", with(kFormat, {"--max-tokens", "1"}));
  CHECK(cut.out == "h\na\n");
  CHECK_HAS(cut.errors, "tapegrad: the answer ends at --max-tokens 1\n");
  detail::write_file_atomically(talker / "run/chat_template.jinja", Talker::kTemplate);  // template of the folder
  const auto own = talker.say("t\nc\n\n \nt", {"--max-tokens", "4"});
  CHECK(own.out == out);
  CHECK(own.errors == errors);
  CHECK_HAS(talker.say("t\n", {"--chat-format", "plain"}).errors, "the chat template plain replaces that of run\n");
}

TEST_CASE("a prompt loop refuses formats that do not fit, and messages beyond the context") {
  const Talker talker;
  CHECK_HAS(talker.say("t\n", {}, 1).errors,
            "tapegrad: [generate] run has no chat template. Messages need the one that the model was trained on. Pass "
            "--chat-format with chatml, qwen, llama3, zephyr, mistral, alpaca, plain or a FILE.jinja.\n");
  const std::string unknown = talker.say("t\n", {"--chat-format", "chatnl"}, 1).errors;
  for (const char* name : {"chatnl", "chatml", "qwen", "llama3", "zephyr", "mistral", "alpaca", "plain"})
    CHECK_HAS(unknown, name);
  CHECK_HAS(talker.say("t\n", {"--chat-format", "llama3"}, 1).errors,
            "[generate] the chat format llama3 needs the token <|eot_id|>, which the tokenizer of run lacks.");
  detail::write_file_atomically(talker / "run/tokenizer_config.json",
                                R"({"chat_template": "{{ raise_exception('No dogs.') }}"})");
  CHECK_HAS(talker.say("t\n", {}, 1).errors, "chat template of run\n    --chat-format sets another template");
  CHECK_HAS(talker.say("tttttttttttttttt\n", kFormat, 1).errors,
            "[generate] the message and its format have 18 tokens, and the context is 16.");
  for (const Arguments& more : {Arguments{"--prompt", "t"},
                                {"--prompts", "in"},
                                {"--prompt-ids", "1"},
                                {"--out", "never"},
                                {"--samples", "2"},
                                {"--batch", "2"},
                                {"--logprobs"}})
    CHECK_HAS(talker.say("t\n", more, 2).errors,
              "--chat reads messages from standard input, and prints one answer to each; omit " + more[0]);
  CHECK_HAS(errors_of(2, talker.path, {"generate", "--model", "run", "--prompt", "t", "--system", "c"}),
            "--system and --chat-format are for --chat; add it, or omit them");
}

TEST_CASE("on a terminal a prompt loop marks its prompt, and a wrong message does not end it") {
  const Talker talker;
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE((terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0));
  const int to = open(ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC), out = new_file(talker / "out");
  CHECK_HAS(errors_of(2, talker.path, {"generate", "--model", "run"}, {.input = to}),
            "generate needs a prompt: --prompt TEXT, --prompt-ids LIST, --prompts FILE, a text on ");
  Process p(talker.path, with(Talker::kTalk, kFormat), {.output = out, .input = to});
  const std::string keys = "tttttttttttttttttttt\nt\n\x04";
  REQUIRE(write(terminal, keys.data(), keys.size()) == ssize_t(keys.size()));
  CHECK(p.status() == 0);
  CHECK(read_file(talker / "out") == "he\n");
  CHECK(
      p.errors() ==
      "> tapegrad: [generate] the message and its format have 22 tokens, and the context is 16. It must be longer than "
      "they "
      "are. Shorten the message.\n> > \n");
  for (const int fd : {terminal, to, out}) close(fd);
}

TEST_CASE("Ctrl-C ends an answer, and the program at the prompt") {
  const Talker talker;
  Json config = detail::own_json(read_file(talker / "run/config.json"));
  config["model"]["context"] = 1'000'000;
  detail::write_file_atomically(talker / "run/config.json", detail::text_of(config));
  detail::write_file_atomically(talker / "endless.jinja",
                                "{% for m in messages %}<|u|>{{ m.content }}{% endfor %}<|a|>");
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  const int out = new_file(talker / "out");
  Process p(talker.path, with(Talker::kTalk, {"--chat-format", "endless.jinja", "--max-tokens", "1000000"}),
            {.output = out, .input = ends[0]});
  size_t before = 0;
  for (int answer = 0; answer < 2; ++answer) {
    REQUIRE(write(ends[1], "t\n", 2) == 2);
    REQUIRE(wait_for(p, [&] { return read_file(talker / "out").size() > before + 20; }));
    p.send(SIGINT);
    REQUIRE(wait_for(p, [&] { return read_file(talker / "out").ends_with('\n'); }));
    before = read_file(talker / "out").size();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  REQUIRE(!p.ended());
  p.send(SIGINT);
  CHECK(p.status() == -SIGINT);
  for (const int fd : {ends[0], ends[1], out}) close(fd);
}
