#include <tapegrad/core/check.h>
#include <tapegrad/core/file.h>
#include <tapegrad/core/json.h>
#include <tapegrad/models/data/bpe.h>
#include <tapegrad/models/data/bpe_parts.h>

#include <algorithm>

namespace tg {
namespace {
constexpr size_t kDepth = 16;  // a post_processor nests seven deep

// Ids on their way out, in pieces.
class Outlet {
 public:
  explicit Outlet(const Tokenizer::Take& take) : take_(take) {}
  std::vector<int32_t> next;  // is passed on when it is long
  void pass(bool all = false) {
    constexpr size_t kMany = 1 << 13;
    if (next.empty() || (!all && next.size() < kMany)) return;
    const std::vector<int64_t> wide(next.begin(), next.end());
    next.clear();
    take_(wide);
  }

 private:
  const Tokenizer::Take& take_;
};
}  // namespace

struct BpeTokenizer::Parts : detail::BpeParts {
  std::string json;
};

BpeTokenizer BpeTokenizer::from_json(std::string_view json, const std::string& source) {
  auto parts = std::make_shared<Parts>();
  static_cast<detail::BpeParts&>(*parts) = detail::read_bpe(parse_json(json, "tokenizer", source, kDepth), source);
  parts->json = json;
  return BpeTokenizer(std::move(parts));
}

void BpeTokenizer::encode(std::string_view text, EncodeOptions options, const Take& take) const {
  const Parts& p = *parts_;
  Outlet out(take);
  detail::BpeMemory memory;
  const auto add = [&](const std::vector<int32_t>& ids) { out.next.insert(out.next.end(), ids.begin(), ids.end()); };
  const detail::TakePieces join = [&](std::span<const std::string_view> pieces) {
    p.model.encode(pieces, memory, out.next);
    out.pass();
  };
  // Finds added tokens in `part`; plain(text, whether nothing is before it) takes the rest.
  const auto find = [&](const detail::AddedTokens& tokens, std::string_view part, const auto& plain) {
    tokens.find(part, options.parse_special, [&](size_t begin, size_t end, const detail::AddedToken* token) {
      if (token)
        out.next.push_back(token->id);
      else
        plain(part.substr(begin, end - begin), begin == 0);
    });
  };
  if (options.add_special) add(p.before);
  find(p.added, text, [&](std::string_view part, bool begins) {
    const std::string changed = p.normalizer.empty() ? "" : detail::normalized(p.normalizer, part);
    find(p.added_normalized, p.normalizer.empty() ? part : changed,
         [&](std::string_view rest, bool rest_begins) { detail::cut(p.cuts, rest, begins && rest_begins, join); });
  });
  if (options.add_special) add(p.after);
  out.pass(true);
}

std::string BpeTokenizer::decode(std::span<const int64_t> ids) const {
  std::string text;
  bool begins = true;
  for (size_t i = 0; i < ids.size(); ++i) {
    TG_CHECK(ids[i] >= 0 && ids[i] < vocab_size(), value,
             "[tokenizer] id {} at position {} is none of the vocabulary's. Ids must be in [0, {}). Decode with the "
             "tokenizer that the model was trained with.",
             ids[i], i, vocab_size());
    text += decode_next(ids[i], begins);
  }
  return text;
}
std::string BpeTokenizer::decode_next(int64_t id, bool& begins) const {
  TG_CHECK(
      id >= 0 && id < vocab_size(), value,
      "[tokenizer] the id {} is none of the vocabulary's. Ids must be in [0, {}). Decode with the tokenizer that the "
      "model was trained with.",
      id, vocab_size());
  std::string text = parts_->texts[size_t(id)];
  if (!begins || text.empty()) return text;
  begins = false;
  const std::string& leading = parts_->leading;
  if (!leading.empty() && text.starts_with(leading)) text.erase(0, leading.size());
  return text;
}
int64_t BpeTokenizer::vocab_size() const { return int64_t(parts_->texts.size()); }
std::string BpeTokenizer::to_json() const { return parts_->json; }
int64_t BpeTokenizer::id_of(std::string_view token) const {
  const auto found = parts_->names.find(token);
  return found == parts_->names.end() ? -1 : found->second;
}

}  // namespace tg
