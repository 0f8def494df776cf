// Any text as files of published tokenizers. The first byte chooses: tokenizer.json (j), a pattern (p), vocab.json and
// merges.txt (v), ranks of tiktoken (r). Bytes of 0 separate the rest; the last part is a text to encode.
#include "fuzz.h"

#include <tapegrad/models/tokenizers/bpe.h>
#include <tapegrad/models/tokenizers/regex.h>

#include <algorithm>
#include <array>

using namespace tg;

namespace {
void check_pattern(std::string_view pattern, std::string_view text) {
  const auto p = fuzz::accepted([&] { return detail::Regex(pattern); });
  if (!p) return;
  (void)fuzz::accepted([&] {
    size_t at = 0;
    const size_t all = p->split(text, [&](size_t begin, size_t end, bool) {
      TG_FUZZ_CHECK(begin == at && end > begin && end <= text.size());
      at = end;
    });
    TG_FUZZ_CHECK(at == text.size() && all == at);
    return all;
  });
}
void check_tokenizer(const BpeTokenizer& t, std::string_view text) {
  for (const bool special : {false, true}) {
    const EncodeOptions options{.parse_special = special, .add_special = special};
    const auto ids = fuzz::accepted([&] { return t.encode(text, options); });
    if (!ids) continue;
    const std::string decoded = t.decode(*ids);
    TextStream stream(t, true);
    std::string streamed;
    for (const int64_t id : *ids) streamed += stream.add(id);
    TG_FUZZ_CHECK(streamed + stream.end() == decoded);
  }
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::array<std::string, 3> parts;  // copies expose reads past an end
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  for (std::string& part : parts) {
    const size_t end = std::min(rest.find('\0'), rest.size());
    part = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  const auto read = [&]() -> BpeTokenizer {
    switch (data[0]) {
      case 'v': return BpeTokenizer::from_vocab(parts[0], parts[1], "merges.txt");
      case 'r': return BpeTokenizer::from_ranks(parts[0], parts[1], "ranks");
      default: return BpeTokenizer::from_json(parts[0], "tokenizer.json");
    }
  };
  if (data[0] == 'p') {
    check_pattern(parts[0], parts[1]);
  } else if (const auto tokenizer = fuzz::accepted(read)) {
    check_tokenizer(*tokenizer, data[0] == 'v' || data[0] == 'r' ? parts[2] : parts[1]);
  }
  return 0;
}
