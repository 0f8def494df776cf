// Any bytes as JSON lines of examples: two bytes of choices, then a file. A NUL ends it: the rest is a chat template.
#include "fuzz.h"

#include <tapegrad/models/data/examples.h>

#include <algorithm>

using namespace tg;

namespace {
void check_batches(const Examples& all, int64_t batch) {
  const auto batches = fuzz::accepted([&] { return ExampleBatches(all, {.batch = batch, .accumulate = 2}); });
  if (!batches) return;
  Rng rng{1};
  for (int i = 0; i < 3; ++i) {
    const Batch b = batches->next(rng);
    TG_FUZZ_CHECK(b.num_targets() > 0 && b.inputs.size(-1) <= all.context);
  }
  int64_t targets = 0;
  for (int64_t i = 0; const auto b = batches->at(i); ++i) targets += b->num_targets();
  int64_t counted = 0;
  for (const Examples::Row& row : all.rows)
    for (const auto& e : row)
      counted +=
          std::count_if(e->targets.begin() + 1, e->targets.end(), [](int32_t t) { return t != Batch::kIgnoreIndex; });
  TG_FUZZ_CHECK(targets == (all.pairs ? all.size() : counted));
  TG_FUZZ_CHECK(batches->padding() >= 0 && batches->padding() < 1);
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  static const fuzz::Scratch scratch;
  const std::string content(reinterpret_cast<const char*>(data) + 2, size - 2);
  const size_t end = std::min(content.find('\0'), content.size());
  constexpr const char* kNames[] = {"chatml", "qwen", "llama3", "zephyr", "mistral", "alpaca", "plain"};
  ExampleOptions o{.chat = ChatTemplate::named(kNames[data[0] % 7]), .end = data[1] % 2 ? "</s>" : ""};
  o.loss = data[1] % 4 < 2 ? ExampleLoss::completion : ExampleLoss::all, o.context = 1 + data[0];
  o.pairs = data[1] % 16 >= 12;
  if (end < content.size()) {
    const std::string path = scratch.file("chat.jinja", content.substr(end + 1));
    if (const auto chat = fuzz::accepted([&] { return ChatTemplate::named(path); })) o.chat = *chat;
  }
  const std::string path = scratch.file("lines", content.substr(0, end));
  const ByteTokenizer bytes;
  const auto strict = fuzz::accepted([&] { return read_examples({&path, 1}, bytes, o); });
  o.skip_bad = true;
  const auto all = fuzz::accepted([&] { return read_examples({&path, 1}, bytes, o); });
  TG_FUZZ_CHECK(!strict || (all && all->size() == strict->size() && all->skipped == 0));
  if (!all) return 0;
  TG_FUZZ_CHECK(strict || all->skipped > 0);
  for (const Examples::Row& row : all->rows)
    for (const auto& e : row) {
      TG_FUZZ_CHECK(e->tokens.size() == e->targets.size() && e->inputs() >= 1 && e->inputs() <= o.context);
      for (size_t i = 0; i < e->tokens.size(); ++i)
        TG_FUZZ_CHECK(e->targets[i] == e->tokens[i] || e->targets[i] == Batch::kIgnoreIndex);
    }
  check_batches(*all, 1 + data[1] % 3);
  if (!all->pairs) check_batches(all->packed(), 1);
  return 0;
}
