// encode_texts TOKENIZER TEXTS OUT [PATTERN]: the ids of many texts, for tokens.py. TEXTS holds each text after its
// number of bytes (u32). OUT gets per text, first with special tokens as text, then parsed: number of ids (u32), ids
// (u32), number of decoded bytes (u32), these bytes.
#include <tapegrad/core/error.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/models/tokenizers/bpe.h>

#include <chrono>
#include <cstdio>
#include <cstring>

namespace {
void put(std::string& to, uint32_t x) { to.append(reinterpret_cast<const char*>(&x), sizeof x); }
}  // namespace

int main(int count, char** words) try {
  if (count < 4) {
    std::fprintf(stderr, "encode_texts TOKENIZER TEXTS OUT [PATTERN]\n");
    return 2;
  }
  const tg::BpeTokenizer tokenizer = tg::read_tokenizer(words[1], count > 4 ? words[4] : "");
  const tg::MappedFile file(words[2]);
  std::string out;
  double seconds = 0;
  size_t bytes = 0;
  for (std::string_view rest = file.text(); !rest.empty();) {
    uint32_t size = 0;
    std::memcpy(&size, rest.data(), sizeof size);
    const std::string_view text = rest.substr(sizeof size, size);
    rest.remove_prefix(sizeof size + size);
    for (const bool parse : {false, true}) {
      const auto begin = std::chrono::steady_clock::now();
      const std::vector<int64_t> ids = tokenizer.encode(text, {.parse_special = parse, .add_special = parse});
      seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      bytes += size;
      put(out, uint32_t(ids.size()));
      for (const int64_t id : ids) put(out, uint32_t(id));
      const std::string decoded = tokenizer.decode(ids);
      put(out, uint32_t(decoded.size()));
      out += decoded;
    }
  }
  tg::detail::write_file_atomically(words[3], out);
  std::printf("%.1f MB/s\n", double(bytes) / 1e6 / seconds);
  return 0;
} catch (const tg::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
