// models/data/examples.h: lines, masks, packing, batches, refusals. tests/clients/masks.py compares with trl.
#include <tapegrad/models/data/examples.h>
#include <tapegrad/models/train/trainer.h>

#include <set>

#include "support/chat_tokenizer.h"
#include "support/files.h"
#include "support/tiny_gpt.h"

using namespace tg;

namespace {
struct Lines : Folder {
  Examples read(const std::string& text, ExampleOptions o = {}) const {
    detail::write_file_atomically(*this / "d.jsonl", text);
    if (o.context == 0) o.context = 1000;
    const std::string file = *this / "d.jsonl";
    return read_examples({&file, 1}, chat_tokenizer(), o);
  }
  std::string error(const std::string& text, const ExampleOptions& o = {}) const {
    return error_of(Error::Kind::value, [&] { read(text, o); });
  }
};
// The text of the tokens that count; others are dots.
std::string counted(const TokenExample& e) {
  std::string s;
  for (size_t i = 0; i < e.tokens.size(); ++i) {
    CHECK((e.targets[i] == e.tokens[i] || e.targets[i] == Batch::kIgnoreIndex));
    const int64_t id = e.tokens[i];
    s += e.targets[i] == Batch::kIgnoreIndex ? "." : chat_tokenizer().decode({&id, 1});
  }
  return s;
}
std::string counted(const Examples& e) { return counted(*e.rows.at(0)[0]); }
const ExampleOptions kPlain{.chat = ChatTemplate::named("plain", {{"eos_token", "</s>"}}), .end = "</s>"};
// Example i has sizes[i] inputs, tokens i, 1, 2, ..., which all count, or all but `ignored`.
Examples of_sizes(const std::vector<int64_t>& sizes, int64_t context = 100, int32_t ignored = -1) {
  Examples all;
  all.context = context;
  for (const int64_t n : sizes) {
    TokenExample e{{int32_t(all.size())}, {Batch::kIgnoreIndex}};
    for (int32_t i = 1; i <= n; ++i)
      e.tokens.push_back(i), e.targets.push_back(i == ignored ? int32_t(Batch::kIgnoreIndex) : i);
    all.rows.push_back({std::make_shared<const TokenExample>(e)});
  }
  return all;
}
int64_t targets_of(const Examples& all) {
  int64_t n = 0;
  for (const Examples::Row& row : all.rows)
    for (const auto& e : row)
      n += std::count_if(e->targets.begin() + 1, e->targets.end(), [](int32_t t) { return t != Batch::kIgnoreIndex; });
  return n;
}
std::vector<int64_t> first_tokens(const Batch& b) {
  std::vector<int64_t> r;
  const auto x = b.inputs.to_vector<int64_t>();
  for (int64_t i = 0; i < b.inputs.size(0); ++i) r.push_back(x[size_t(i * b.inputs.size(1))]);
  return r;
}
std::vector<int64_t> varied_sizes(int64_t n) {
  Rng rng{3};
  std::vector<int64_t> r;
  while (std::ssize(r) < n) r.push_back(1 + int64_t(rng.below(60)));
  return r;
}
}  // namespace

TEST_CASE("examples: each kind of line; replies and their stop count") {
  const Lines f;
  const ExampleOptions chat{.chat = ChatTemplate::named("zephyr")};
  const std::string talk = R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"},
    {"role": "user", "content": "d"}, {"role": "assistant", "content": "ef"}], "id": 7})";
  std::string line = talk;
  std::erase(line, '\n');
  CHECK(counted(f.read(line, chat)) == std::string(26, '.') + "bc</s>" + std::string(27, '.') + "ef</s>.");
  CHECK(counted(f.read(R"({"prompt": "ab", "completion": "cd"})", kPlain)) == "..cd</s>");
  CHECK(counted(f.read(R"({"instruction": "ab", "input": "i", "output": "cd"})", kPlain)) == ".....cd</s>");
  CHECK(counted(f.read(R"({"instruction": "ab", "input": "", "output": "cd"})", kPlain)) == "..cd</s>");
  CHECK(counted(f.read(R"({"text": "ab</s>"})", kPlain)) == "ab</s></s>");  // contents have no special tokens
  CHECK(counted(f.read(R"({"text": "ab"})")) == "ab");
  CHECK(counted(f.read("\n\r\n"
                       R"({"prompt": "ab", "completion": "c"})"
                       "\r\n \n",
                       kPlain)) == "..c</s>");
  const std::string lists =
      R"({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},)"
      R"({"role": "user", "content": "c"}], "completion": [{"role": "assistant", "content": "d"}]})";
  CHECK(counted(f.read(lists, kPlain)) == "....d</s>");  // the prompt's reply does not count
  ExampleOptions all = kPlain;
  all.loss = ExampleLoss::all;
  CHECK(counted(f.read(lists, all)) == "ab</s>cd</s>");
}

TEST_CASE("examples: a key that changes a text or its targets is followed, or refused without a template for it") {
  const Lines f;
  const auto line = [](const std::string& of_line, const std::string& of_reply) {
    return R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a")" + of_reply + "}]" +
           of_line + "}";
  };
  const auto passed = [&](const std::string& key, const std::string& value, bool message) {
    CAPTURE(key);
    const std::string pair = fmt::format(R"(, "{}": {})", key, value), in = message ? line("", pair) : line(pair, "");
    CHECK_HAS(f.error(in, kPlain), fmt::format("'{}' is given, and the chat template plain does not take it.", key));
    ExampleOptions with = kPlain;
    with.chat = ChatTemplate(
        fmt::format("{{{{ {0} }}}}{{% for m in messages %}}{{{{ m.content }}}}{{{{ m.{0} }}}}{{% endfor %}}", key));
    if (key == "image" || key == "chat_template") {
      CHECK_HAS(f.error(in, with), "is given");
    } else {
      with.loss = ExampleLoss::all;
      CHECK_HAS(counted(f.read(in, with)), "77");
    }
    for (const char* blank : {"null", "[]", "\"\"", "{}"}) {  // tables with one type per column
      const std::string none = fmt::format(R"(, "{}": {})", key, blank);
      CHECK(counted(f.read(message ? line("", none) : line(none, ""), kPlain)) == ".a</s>");
    }
  };
  for (const char* key : {"tools", "functions", "documents", "enable_thinking", "image", "chat_template"})
    passed(key, "[\"77\"]", false);
  for (const char* key : {"tools", "functions", "documents", "tool_calls", "function_call", "name", "prefix",
                          "reasoning", "thinking", "reasoning_content", "image"})
    passed(key, "[\"77\"]", true);
  for (const std::string key : {"weight", "train", "trainable", "mask", "loss_mask", "label"})
    for (const bool message : {false, true}) {
      CAPTURE(key);
      const auto of = [&](const std::string& value) {
        const std::string pair = fmt::format(R"(, "{}": {})", key, value);
        return message ? line("", pair) : line(pair, "");
      };
      for (const char* yes : {"1", "true", "null"}) CHECK(counted(f.read(of(yes), kPlain)) == ".a</s>");
      for (const char* no : {"0", "false"}) CHECK_HAS(f.error(of(no), kPlain), "none of its 3 tokens counts");
      for (const char* wrong : {"0.5", "\"1\"", "[]", "2"})
        CHECK_HAS(f.error(of(wrong), kPlain), "says whether replies count");
      ExampleOptions all = kPlain;
      all.loss = ExampleLoss::all;
      CHECK_HAS(f.error(of("0"), all), "with --loss completion also 0");
    }
  const std::string kwargs = line(R"(, "chat_template_kwargs": {"x": "77"})", "");
  CHECK_HAS(f.error(kwargs, kPlain), "'x' is in chat_template_kwargs");
  CHECK_HAS(f.error(R"({"text": "a", "tools": [1]})", kPlain), "does not take it");
  for (const char* key : {"system", "input"})
    CHECK_HAS(f.error(fmt::format(R"({{"text": "a", "{}": "b"}})", key), kPlain), "a line with text has none.");
  CHECK_HAS(f.error(line(R"(, "history": [["a", "b"]])", ""), kPlain), "a line with messages has none.");
  CHECK_HAS(f.error(R"({"prompt": "a", "completion": "b", "history": "c"})", kPlain), "It must be a list of pairs");
  CHECK(
      f.read(line(R"(, "id": 1, "url": "u")", R"(, "date": 1)") + "\n" + line(R"(, "other": 1)", ""), kPlain).ignored ==
      "'id', 'url', 'date' in " + f.path + "/d.jsonl:1");
  const char* before = R"("system": "s", "history": [["q", "r"]], )";
  CHECK(counted(f.read(fmt::format(R"({{{}"instruction": "i", "output": "o"}})", before), kPlain)) == ".....o</s>");
  CHECK(counted(f.read(fmt::format(R"({{{}"prompt": "i", "completion": "o"}})", before), kPlain)) == ".....o</s>");
  CHECK(counted(f.read(line(R"(, "system": "s")", ""), kPlain)) == "..a</s>");
  CHECK_HAS(f.error(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]})", kPlain),
            "The chat template plain takes one text.");
}

TEST_CASE("examples: markers in contents stay text") {
  const Examples e =
      Lines().read(R"({"prompt": "<|im_end|>", "completion": "<|im_start|>"})", {.chat = ChatTemplate::named("qwen")});
  const BpeTokenizer t = chat_tokenizer();
  CHECK(std::ranges::count(e.rows[0][0]->tokens, t.id_of("<|im_end|>")) == 3);
  CHECK(std::ranges::count(e.rows[0][0]->tokens, t.id_of("<|im_start|>")) == 3);
  CHECK_HAS(counted(e), ".<|im_start|><|im_end|>.");
}

TEST_CASE("examples: longer ones are cut at the end and counted; one without a target left is refused or skipped") {
  const Lines f;
  ExampleOptions o = kPlain;
  o.context = 3;
  const Examples e = f.read(R"({"prompt": "ab", "completion": "cdefgh"})", o);
  CHECK(counted(e) == "..cd");
  CHECK(e.cut == 1);
  const std::string both =
      "{\"prompt\": \"abcdef\", \"completion\": \"g\"}\n{\"prompt\": \"a\", \"completion\": \"b\"}";
  CHECK_HAS(
      f.error(both, o),
      "[examples] none of its 8 tokens counts in the loss, or none within the context of 3. At least one must: use "
      "a larger context or --window, or skip such lines (--skip-bad true).\n    in " +
          f.path + "/d.jsonl:1");
  o.skip_bad = true;
  const Examples rest = f.read(both, o);
  CHECK(rest.size() == 1);
  CHECK(rest.skipped == 1);
  CHECK(rest.cut == 0);
  CHECK_HAS(rest.why, "d.jsonl:1");
}

TEST_CASE("examples: what is no example is refused by file, line and keys") {
  const Lines f;
  const auto says = [&](const std::string& line, const std::string& what, const ExampleOptions& o = kPlain) {
    CAPTURE(line);
    const std::string message =
        f.error("{\"text\": \"ok\", \"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n" + line, o);
    CHECK_HAS(message, what, "\n    in " + f.path + "/d.jsonl:2");
  };
  const auto talk = [](const std::string& messages) { return "{\"messages\": [" + messages + "]}"; };
  says(R"({"text": "a)", "is not JSON");
  says(R"({"text": "a"} {"text": "b"})", "is not JSON");
  says("{\"text\": \"\xff\"}", "is not JSON");
  says("\xef\xbb\xbf{}", "the keys are none");
  says(R"({"text": "a", "text": "b"})", "'text' comes twice");
  says("[1]", "[examples] the line holds array. A line is an object with messages; prompt and completion;");
  says(R"({"question": 1, "answer": 2})", "the keys are question, answer. A line is an object with");
  says(R"({"text": 3})", "'text' is number. It must be a text in quotes.");
  says(R"({"text": ""})", "none of its 1 tokens counts");
  says(R"({"prompt": "a", "completion": ""})", "a reply of the assistant is empty.");
  says(R"({"prompt": null, "completion": "b"})", "'prompt' is null. It must be a text or a list of messages.");
  says(R"({"instruction": "a", "output": null})", "'output' is null.");
  says(R"({"messages": "a"})", "'messages' is string. It must be a list of messages.");
  says(talk(R"({"role": "user", "content": null})"), "message 0 of 'messages': 'content' is null.");
  says(talk(R"({"role": "user"})"), "message 0 of 'messages': no role and content.");
  says(talk(R"({"role": "user", "content": "a"}, {"role": "robot", "content": "a"})"), "robot is out of turn");
  says(talk(R"({"role": "assistant", "content": "a"})"), "assistant is out of turn");
  says(talk(R"({"role": "user", "content": "a"})"), "none of its 1 tokens counts");
  says(talk(""), "there are no messages.");
  says(std::string(100, '['), "nested too deeply");
  ExampleOptions pairs = kPlain;
  pairs.pairs = true;
  says(R"({"prompt": "a", "chosen": "b"})",
       "the keys are prompt, chosen. A line is an object with prompt, chosen and rejected", pairs);
  const std::string same = R"({"prompt": "a", "chosen": "bcd", "rejected": "bcd"})";
  says(same, "'chosen' and 'rejected' have the same 5 tokens. A pair must differ", pairs);
  pairs.context = 3;
  says(R"({"prompt": "a", "chosen": "bcd", "rejected": "bcde"})", "the same 4 tokens within the context.", pairs);
  pairs.skip_bad = true;
  CHECK(f.read(same + R"(
    {"prompt": "a", "chosen": "b", "rejected": "c"})",
               pairs)
            .skipped == 1);
  CHECK_SAYS_OF(io, f.read(""), "d.jsonl is empty.");
  CHECK_HAS(f.error("\n\n"), "no line of ");
  CHECK_SAYS(read_examples({}, chat_tokenizer(), {.context = 1}), "no file is named");
}

TEST_CASE("examples: a long line takes time in proportion, and one of 50 MB is refused with a short message") {
  const Lines f;
  const std::string a(4 << 20, 'a');
  ExampleOptions o = kPlain;
  o.context = 10;
  CHECK(f.read("{\"text\": \"" + a + "\"}", o).cut == 1);
  for (const std::string end : {"\"}", ""}) {
    const std::string message = f.error("{\"text\": \"" + std::string(50 << 20, 'a') + end, o);
    CHECK_HAS(message, "the line has 524288", "It may have 16777216.");
  }
  CHECK(f.error("{\"text\": \"" + a, o).size() < 800);
}

TEST_CASE("examples: pairs keep chosen and rejected together") {
  ExampleOptions o = kPlain;
  o.pairs = true;
  const Examples e =
      Lines().read(R"({"prompt": "ab", "chosen": "c", "rejected": [{"role": "assistant", "content": "def"}]})", o);
  REQUIRE(e.size() == 1);
  REQUIRE(e.rows[0].size() == 2);
  CHECK(counted(*e.rows[0][0]) == "..c</s>");
  CHECK(counted(*e.rows[0][1]) == "..def</s>");
  CHECK_SAYS(e.packed(), "pairs cannot be packed");
  const Batch b = *ExampleBatches(e, {.batch = 1}).at(0);
  const int32_t stop = int32_t(chat_tokenizer().id_of("</s>"));
  CHECK(b.inputs.shape() == Shape{1, 2, 2, 8});
  CHECK(values<int32_t>(b.inputs) ==
        std::vector<int32_t>{'a', 'b', 'c', 0,   0,   0, 0, 0, -100, 'c', stop, -100, -100, -100, -100, -100,
                             'a', 'b', 'd', 'e', 'f', 0, 0, 0, -100, 'd', 'e',  'f',  stop, -100, -100, -100});
  CHECK(values<int32_t>(b.targets) == std::vector<int32_t>{0});
  CHECK(b.num_targets() == 1);
}

TEST_CASE("examples: a split keeps lines whole and in order") {
  const Examples e = of_sizes({1, 2, 3, 4, 5});
  const auto [train, val] = e.split(0.7);
  CHECK(train.size() == 3);
  CHECK(val.size() == 2);
  CHECK(val.rows[0][0]->inputs() == 4);
  CHECK(val.rows[0][0] == e.rows[3][0]);  // shared
  CHECK(val.context == e.context);
  CHECK(e.split(1).val.rows.empty());
  CHECK_SAYS(e.split(0), "the training part is 0 of the examples.");
  CHECK(of_sizes(std::vector<int64_t>(10, 1)).split(1 - 0.8).train.size() == 2);  // 1 - 0.8 is less than 0.2
}

TEST_CASE("packing: rows hold whole examples within the context, best fit, and the same targets") {
  const Examples e = of_sizes({9, 4, 3, 2, 2, 1, 1, 1}, 9);
  const Examples p = e.packed();
  CHECK(targets_of(p) == targets_of(e));
  size_t examples = 0;
  for (const Examples::Row& row : p.rows) {
    int64_t tokens = 0;
    for (const auto& x : row) tokens += std::ssize(x->tokens);
    CHECK(tokens <= 10);
    examples += row.size();
  }
  CHECK(examples == 8);
  CHECK(p.size() == 4);  // 31 tokens in rows of 10
  for (const int64_t n : {5, 200}) {
    const Examples many = of_sizes(varied_sizes(n)), packed = many.packed();
    CHECK(targets_of(packed) == targets_of(many));
    CHECK(packed.size() <= many.size());
  }
  const Batch b = *ExampleBatches(of_sizes({2, 1}, 9).packed(), {}).at(0);
  CHECK(values<int32_t>(b.inputs) == std::vector<int32_t>{0, 1, 2, 1, 0, 0, 0, 0});
  CHECK(values<int32_t>(b.targets) == std::vector<int32_t>{1, 2, -100, 1, -100, -100, -100, -100});
}

TEST_CASE("batches: targets follow their inputs, and padding does not count") {
  const Examples e = of_sizes({2, 5}, 100, /*ignored=*/2);
  const Batch b = *ExampleBatches(e, {.batch = 2}).at(0);
  CHECK(values<int32_t>(b.inputs) == std::vector<int32_t>{0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 4, 0, 0, 0});
  CHECK(values<int32_t>(b.targets) ==
        std::vector<int32_t>{1, -100, -100, -100, -100, -100, -100, -100, 1, -100, 3, 4, 5, -100, -100, -100});
  CHECK(ExampleBatches(e, {.batch = 2}).padding() == doctest::Approx(1 - 7.0 / 16));
}

TEST_CASE("batches: at most 8 lengths, multiples of 8 within the context") {
  const ExampleBatches all(of_sizes(varied_sizes(1000), 60), {.batch = 4});
  CHECK(all.lengths().size() <= 8);
  CHECK(all.lengths().back() == 60);
  for (const int64_t n : all.lengths()) CHECK((n % 8 == 0 || n == 60));
  std::set<int64_t> seen;
  Rng rng{5};
  for (int i = 0; i < 250; ++i) seen.insert(all.next(rng).inputs.size(1));
  for (const int64_t n : seen) CHECK(std::ranges::count(all.lengths(), n) == 1);
  CHECK(all.padding() < 0.12);  // about half of the distance of two lengths, 8 of 30
  CHECK(all.padding() > 0);
}

TEST_CASE("batches: an epoch has each example once, in another order each time, and resumes from its generator") {
  const int64_t n = 203;
  const ExampleBatches all(of_sizes(varied_sizes(n)), {.batch = 3});
  CHECK(all.per_epoch() == 67);
  Rng rng{9};
  std::vector<std::vector<int64_t>> epochs(2);
  for (auto& epoch : epochs)
    for (int64_t i = 0; i < all.per_epoch(); ++i)
      for (const int64_t r : first_tokens(all.next(rng))) epoch.push_back(r);
  for (const auto& epoch : epochs) CHECK(std::set<int64_t>(epoch.begin(), epoch.end()).size() == 201);
  CHECK(epochs[0] != epochs[1]);
  CHECK(rng == Rng{9, 134});
  Rng again{9, 70};  // the generator's offset is the whole state
  Rng late{9};
  for (int i = 0; i < 70; ++i) all.next(late);
  for (int i = 0; i < 10; ++i) CHECK(first_tokens(all.next(again)) == first_tokens(all.next(late)));
  Rng other{10};
  CHECK(first_tokens(all.next(other)) != std::vector<int64_t>(epochs[0].begin(), epochs[0].begin() + 3));
}

TEST_CASE("batches: the batches of a step have one length") {
  const ExampleBatches all(of_sizes(varied_sizes(500)), {.batch = 2, .accumulate = 4});
  CHECK(all.per_epoch() == 248);
  Rng rng{1};
  std::set<int64_t> lengths;
  for (int step = 0; step < 62; ++step) {
    const int64_t length = all.next(rng).inputs.size(1);
    for (int i = 1; i < 4; ++i) CHECK(all.next(rng).inputs.size(1) == length);
    lengths.insert(length);
  }
  CHECK(lengths.size() > 3);
  CHECK_SAYS(ExampleBatches(of_sizes({1, 2, 3}), {.batch = 2, .accumulate = 2}),
             "3 rows for steps of 2 batches of 2. There must be enough for one step.");
  CHECK_SAYS(ExampleBatches(of_sizes({1}), {.batch = 0}), "batch 0 and accumulate 1.");
}

TEST_CASE("batches: validation has every example once, whatever the batch") {
  const Examples val = of_sizes({3, 1, 2, 5, 4});
  for (const int64_t batch : {1, 2, 3}) {
    const BatchSource s = example_batches(ExampleBatches(of_sizes(varied_sizes(9)), {.batch = batch}), val);
    std::multiset<int64_t> seen;
    int64_t targets = 0;
    for (int64_t i = 0; const auto b = s.validation(i); ++i) {
      for (const int64_t r : first_tokens(*b)) seen.insert(r);
      targets += b->num_targets();
    }
    CHECK(seen == std::multiset<int64_t>{0, 1, 2, 3, 4});
    CHECK(targets == targets_of(val));
  }
  CHECK(!example_batches(ExampleBatches(val, {}), {}).validation);
}

TEST_CASE("batches: the loss of padded rows is the mean over the targets of each alone, compiled or not") {
  auto [params, model] = new_gpt(tiny_gpt(), Params(Device(), 1));
  Examples e = of_sizes({2, 7, 4, 5, 3, 1, 6, 2}, 8);
  double sum = 0;
  for (const Examples::Row& x : e.rows) {
    Examples one = e;
    one.rows = {x};
    const Batch b = *ExampleBatches(one, {}).at(0);
    sum += Model(model).loss(b).item<double>() * double(b.num_targets());
  }
  const BatchSource all = example_batches(ExampleBatches(e, {.batch = 3}), e);
  CHECK(validation_loss(model, all.validation).loss == doctest::Approx(sum / double(targets_of(e))).epsilon(1e-6));
  std::vector<double> losses[2];
  for (const bool compile : {false, true}) {
    auto [own, trained] = new_gpt(tiny_gpt(), Params(Device(), 1));
    TrainConfig c;
    c.max_steps = 9, c.accumulate = 2, c.compile = compile;
    Trainer t(trained, own, example_batches(ExampleBatches(e, {.batch = 2, .accumulate = 2}), {}), c);
    t.run([&](const StepRecord& r) { losses[compile].push_back(r.loss); });
  }
  CHECK(losses[0] == losses[1]);
}
