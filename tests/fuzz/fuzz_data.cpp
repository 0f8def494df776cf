// Any bytes as training data: five bytes of choices, then a token file (in NumPy's format if it begins so), which is
// also read as text.
#include "fuzz.h"

#include <tapegrad/core/io/file.h>
#include <tapegrad/models/data/dataset.h>
#include <tapegrad/models/tokenizers/tokenizer.h>

#include <algorithm>

using namespace tg;

namespace {
std::vector<int32_t> all_of(const TokenData& d) {
  std::vector<int32_t> v(size_t(d.size()));
  d.copy(0, v);
  return v;
}
// Each target is the token after its token; both are in the data.
void check_batch(const Batch& b, int64_t batch, int64_t context) {
  TG_FUZZ_CHECK(b.inputs.shape() == b.targets.shape() && b.inputs.size(0) <= batch && b.inputs.size(1) <= context);
  const auto x = b.inputs.to_vector<int32_t>(), y = b.targets.to_vector<int32_t>();
  const auto length = size_t(b.inputs.size(1));
  for (size_t i = 0; i + 1 < x.size(); ++i)
    if ((i + 1) % length != 0) TG_FUZZ_CHECK(y[i] == x[i + 1]);
}
void check_data(const TokenData& data, int64_t batch, int64_t context, int64_t vocab) {
  const auto ids = all_of(data);
  const bool inside = std::all_of(ids.begin(), ids.end(), [&](int32_t id) { return id < vocab; });
  TG_FUZZ_CHECK(inside == fuzz::accepted([&] { return data.check_vocabulary(vocab), true; }).has_value());
  if (auto batches = fuzz::accepted([&] { return ShuffledBatches(data, batch, context, Rng{1}); }))
    for (int i = 0; i < 2; ++i) check_batch(batches->next(), batch, context);
  if (auto windows = fuzz::accepted([&] { return SequentialBatches(data, batch, context); })) {
    std::vector<int32_t> targets;
    for (int64_t i = 0; const auto b = windows->at(i); ++i) {
      check_batch(*b, batch, context);
      const auto y = b->targets.to_vector<int32_t>();
      targets.insert(targets.end(), y.begin(), y.end());
    }
    TG_FUZZ_CHECK(std::equal(targets.begin(), targets.end(), ids.begin() + 1, ids.end()));
  }
}
void check_tokens(const uint8_t* choice, std::string_view content) {
  static const fuzz::Scratch scratch;
  const bool npy = content.starts_with("\x93NUMPY") || content.starts_with("\x88\xd8\x34\x01") ||
                   content.starts_with("\xa1\xd9\x34\x01");  // or the magic of llm.c
  const std::string path = scratch.file(npy ? "tokens.npy" : "tokens", content);
  const auto data = fuzz::accepted([&] { return TokenData::from_file(path); });
  const bool ids_alone = content.size() % 2 == 0 && detail::foreign_format(content.substr(0, 512)).empty();
  TG_FUZZ_CHECK(npy || data.has_value() == (!content.empty() && ids_alone));
  if (!data) return;
  const auto read = fuzz::accepted([&] { return all_of(*data); });
  if (!read) return;  // ids outside of [0, 2^31)
  const auto& ids = *read;
  data->write(scratch / "again.npy");
  TG_FUZZ_CHECK(all_of(TokenData::from_file(scratch / "again.npy")) == ids);
  // A copy, so that reads past its end are seen.
  const auto memory = TokenData::from_tokens(std::vector<int64_t>(ids.begin(), ids.end()));
  TG_FUZZ_CHECK(all_of(memory) == ids);

  const double fraction = choice[0] / 250.0;  // some above 1
  const int64_t batch = choice[1] % 20, vocab = choice[2] * 257;
  const int64_t context = choice[3] == 255 ? INT64_MAX - choice[4] : choice[3] % 40;
  for (const TokenData& d : {*data, memory}) {
    check_data(d, batch, context, vocab);
    const auto parts = fuzz::accepted([&] { return d.split(fraction); });
    if (!parts) continue;
    TG_FUZZ_CHECK(parts->train.size() + parts->val.size() == d.size());
    auto both = all_of(parts->train);
    for (const int32_t id : all_of(parts->val)) both.push_back(id);
    TG_FUZZ_CHECK(both == ids);
    check_data(parts->train, batch, context, vocab);
    check_data(parts->val, batch, context, vocab);
  }
}
void check_text(std::string_view seen, std::string_view text) {
  const ByteTokenizer bytes;
  TG_FUZZ_CHECK(bytes.decode(bytes.encode(text)) == text);
  const auto characters = fuzz::accepted([&] { return CharTokenizer::from_text(seen); });
  if (!characters) return;
  TG_FUZZ_CHECK(characters->decode(characters->encode(seen)) == seen);
  const auto again = Tokenizer::from_json(characters->to_json());
  TG_FUZZ_CHECK(again->vocab_size() == characters->vocab_size());
  TG_FUZZ_CHECK(again->encode(seen) == characters->encode(seen));
  if (const auto ids = fuzz::accepted([&] { return characters->encode(text); }))
    TG_FUZZ_CHECK(characters->decode(*ids) == text);
  if (const auto known = fuzz::accepted([&] { return characters->known(text); }))
    TG_FUZZ_CHECK(characters->decode(characters->encode(known->text)) == known->text &&
                  known->text.size() <= text.size());
  std::vector<int64_t> any(text.size() / 8);
  for (size_t i = 0; i < any.size(); ++i) std::memcpy(&any[i], text.data() + 8 * i, 8);
  for (const Tokenizer* t : std::initializer_list<const Tokenizer*>{&bytes, again.get()})
    if (const auto decoded = fuzz::accepted([&] { return t->decode(any); })) TG_FUZZ_CHECK(t->encode(*decoded) == any);
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kChoices = 5;
  if (size < kChoices) return 0;
  const std::string content(reinterpret_cast<const char*>(data) + kChoices, size - kChoices);
  check_tokens(data, content);
  const size_t cut = std::min(content.size(), size_t(data[0]));
  check_text(std::string(content, 0, cut), std::string(content, cut));
  return 0;
}
