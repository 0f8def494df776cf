// `eval --task` and `train --task`: sums, picks, forms of files, refusals.
#include <tapegrad/models/io/model_dir.h>
#include <tapegrad/ops/softmax.h>

#include "support/app_run.h"

using namespace tg;

namespace {
struct Item {
  std::vector<int> context;
  std::vector<std::vector<int>> endings;
  int label;
};
const std::string kTokens =
    R"({"added_tokens": [], "decoder": {"type": "Fuse"}, "model": {"type": "BPE", "unk_token": "?",
    "vocab": {"?": 0, "t": 1, "h": 2, "th": 3, " ": 4, "e": 5, "the": 6}, "merges": ["t h", "th e"]}})";
constexpr const char* kLines =
    R"({"ind": 3, "ctx": "the the", "endings": ["the", "e t", "h h h", "t"], "label": 2, "split": "val"}
{"ctx": "he", "endings": ["t the the", "e", "the", "t t"], "label": 1}

{"ctx": "e the e", "endings": ["t", "he", "h", "e e e e"], "label": 3})";
const std::vector<Item> kItems = {{{6, 4, 6}, {{4, 6}, {4, 5, 4, 1}, {4, 2, 4, 2, 4, 2}, {4, 1}}, 2},
                                  {{2, 5}, {{4, 1, 4, 6, 4, 6}, {4, 5}, {4, 6}, {4, 1, 4, 1}}, 1},
                                  {{5, 4, 6, 4, 5}, {{4, 1}, {4, 2, 5}, {4, 2}, {4, 5, 4, 5, 4, 5, 4, 5}}, 3}};

// llm.c's write_evalfile(); `count` and `n` as the header and the items say.
std::string binary(const std::vector<Item>& items, int count, int n = 4) {
  std::string text;
  const auto put = [&](int x, int bytes) {
    for (int i = 0; i < bytes; ++i) text += char(x >> 8 * i & 255);
  };
  for (const int x : {20240522, 1, count}) put(x, 4);
  text.resize(1024);
  for (size_t i = 0; i < items.size(); ++i) {
    const size_t begin = text.size();
    for (const int x : {65535, 0, int(i), items[i].label, n}) put(x, 2);
    const auto ids = [&](const std::vector<int>& some) {
      put(int(some.size()), 2);
      for (const int id : some) put(id, 2);
    };
    ids(items[i].context);
    for (const auto& e : items[i].endings) ids(e);
    text[begin + 2] = char(text.size() - begin);
  }
  return text;
}

struct TaskFolder : Folder {
  TaskFolder() {
    write("tokens.json", kTokens), write("text.txt", rhyme());
    write("task.jsonl", kLines), write("task.bin", binary(kItems, 3));
    errors_of(0, path, train);
  }
  void write(const std::string& name, const std::string& text) const {
    detail::write_file_atomically(*this / name, text);
  }
  Json report(const Arguments& more) const {
    errors_of(0, path, with({"eval", "--model", "run", "--json", "report.json"}, more));
    return detail::own_json(read_file(*this / "report.json"));
  }
  const Arguments train = with(kTrain, tiny_with({"--tokenizer", "./tokens.json", "--context", "12", "--lr", "0.1"}));
};
}  // namespace

TEST_CASE("a task's sums are those of the model's log-probabilities, in both forms and any batch") {
  const TaskFolder folder;
  const LoadedModel m = load_model(folder / "run");
  const Json report = folder.report({"--task", "task.jsonl"});
  int64_t right = 0, right_norm = 0;
  for (size_t i = 0; i < kItems.size(); ++i) {
    const Item& item = kItems[i];
    std::vector<double> sums, means;
    for (const auto& ending : item.endings) {
      std::vector<int32_t> ids(item.context.begin(), item.context.end());
      ids.insert(ids.end(), ending.begin(), ending.end());
      const Tensor inputs = tensor(std::vector(ids.begin(), ids.end() - 1), {1, int64_t(ids.size()) - 1});
      const Tensor logs = log_softmax(m.model.forward(inputs), -1);
      double sum = 0;
      for (size_t at = item.context.size(); at < ids.size(); ++at)
        sum += logs.data<float>()[(at - 1) * 7 + size_t(ids[at])];
      sums.push_back(sum), means.push_back(sum / double(ending.size()));
      CHECK(report["items"][i]["sums"][sums.size() - 1].get<double>() == doctest::Approx(sum).epsilon(1e-5));
    }
    const auto pick = std::ranges::max_element(sums) - sums.begin(),
               norm = std::ranges::max_element(means) - means.begin();
    CHECK(report["items"][i]["pick"] == Json(pick));
    CHECK(report["items"][i]["pick_norm"] == Json(norm));
    right += pick == item.label, right_norm += norm == item.label;
  }
  CHECK(report["acc"] == Json(double(right) / 3));
  CHECK(report["acc_norm"] == Json(double(right_norm) / 3));
  for (const Arguments& other : {Arguments{"--task", "task.bin"}, {"--task", "task.jsonl", "--batch", "1"}})
    CHECK(folder.report(other)["items"] == report["items"]);
}

TEST_CASE("a task that does not fit names its line or item and the rule") {
  const TaskFolder folder;
  const auto refuses = [&](const std::string& text, auto... parts) {
    folder.write("bad", text);
    CHECK_HAS(errors_of(1, folder.path, {"eval", "--model", "run", "--task", "bad"}), parts...);
  };
  const std::string lines = std::string(kLines) + "\n";
  refuses(lines + R"({"ctx": "the", "endings": ["t", "h", "e"], "label": 2})",
          "[task] the item has 3 endings. It must have 4, the number of the items before it.", "in bad:5");
  refuses(R"({"ctx": "the", "endings": ["t"], "label": 0})", "the item has 1 ending. It must have at least 2.",
          "bad:1");
  refuses(lines + R"({"ctx": "the", "endings": ["t", "", "e", "h"], "label": 2})", "ending 1 has no token", "bad:5");
  refuses(R"({"ctx": "", "endings": ["t", "h"], "label": 0})", "the context has no token", "in bad:1");
  refuses(R"({"ctx": "t", "endings": ["t", "h"], "label": 2})", "label is 2. It must be from 0 to 1", "in bad:1");
  refuses(R"({"ctx": "t", "endings": ["t", "h"]})", "and \"label\", an integer", "in bad:1");
  refuses(R"({"ctx": "t", "endings": ["t", 3], "label": 0})", "\"endings\", a list of texts", "in bad:1");
  refuses(R"({"ctx": "t t t t t t", "endings": ["t", "h h"], "label": 0})",
          "the context and ending 1 have 15 tokens. They may have 13", "in bad:1");
  refuses("\n", "[task] bad has no item");
  refuses("{", "in bad:1");
  const auto changed = [](auto change) {
    std::vector<Item> items = kItems;
    change(items[1]);
    return binary(items, 3);
  };
  refuses(changed([](Item& i) { i.endings[2] = {}; }), "ending 2 has no token", "in item 1 of bad");
  refuses(changed([](Item& i) { i.endings[3][0] = 7; }),
          "the token 7 of ending 3 is not in the vocabulary of run: ids "
          "are in [0, 7)",
          "in item 1 of bad");
  refuses(changed([](Item& i) { i.label = 4; }), "label is 4. It must be from 0 to 3", "in item 1 of bad");
  refuses(binary(kItems, 3, 3), "the item has 3 endings. In llm.c's form it must have 4.", "in item 0 of bad");
  refuses(binary(kItems, 4), "the file ends in the item. It must have 4 items.", "in item 3 of bad");
  refuses(binary(kItems, 2), "bad goes on after its 2 items. It must end there.");
  refuses(changed([](Item& i) { i.endings.pop_back(); }), "item 1 of bad");
  std::vector<Item> foreign = kItems;
  for (Item& item : foreign) item.context = {1, 2, 5};  // "the" in other tokens
  refuses(binary(foreign, 3),
          "holds ids of another tokenizer than that of run, which makes other ids of the text of 3 "
          "contexts");
}

TEST_CASE("a run scores its model every few steps, and after a resume") {
  const TaskFolder folder;
  const Arguments scored = {"--out", "scored", "--task", "task.bin", "--task-every", "3", "--tensorboard", "events"};
  errors_of(0, folder.path, with(folder.train, scored));
  CHECK(read_file(folder / "scored/model.safetensors") == read_file(folder / "run/model.safetensors"));
  errors_of(0, folder.path, {"train", "--resume", "scored", "--max-steps", "6", "--quiet"});
  std::vector<Json> scores;
  std::string line;
  for (std::ifstream in(folder / "scored/log.jsonl"); std::getline(in, line);)
    if (const Json j = detail::own_json(line); j.contains("acc")) scores.push_back(j);
  REQUIRE(scores.size() == 3);
  for (size_t i = 0; i < 3; ++i) CHECK(scores[i]["step"] == Json(std::array{3, 4, 6}[i]));
  const Json &last = scores[2], report = folder.report({"--model", "scored", "--task", "task.jsonl"});
  CHECK((last["acc"] == report["acc"] && last["acc_norm"] == report["acc_norm"]));
  std::string events;
  for (const auto& file : fs::directory_iterator(folder / "events")) events += read_file(file.path().string());
  CHECK_HAS(events, "task/acc_norm");
  folder.write("task.bin", "");
  CHECK_HAS(errors_of(1, folder.path, with(folder.train, {"--out", "none", "--task", "task.bin"})), "task.bin");
  CHECK(!fs::exists(folder / "none"));
}
