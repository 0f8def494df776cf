#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/tokenizers/bpe.h>
#include <tapegrad/models/tokenizers/bpe_parts.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <system_error>
#include <thread>

namespace tg {
namespace {

// Encodes parts of a text on num_threads() threads; ids are in order.
class Encoder {
 public:
  Encoder(const detail::BpeParts& parts, const Tokenizer::Take& take) : parts_(parts), take_(take) {}
  int32_t last() const { return last_; }  // id; -1: a text
  void add(std::span<const int32_t> ids) {
    if (ids.empty()) return;
    last_ = ids.back();
    open_.push_back({.ids = {ids.begin(), ids.end()}});
    bytes_ += sizeof(Part);
    if (bytes_ >= kPart * kParts) run();
  }
  // Keeps a text for add() until this level's next keep().
  std::string_view keep(std::string text, size_t level) { return kept_[level].emplace_back(std::move(text)); }
  // `begins`: starts a document. The text must live until run().
  void add(std::string_view text, bool begins) {
    while (!text.empty()) {
      last_ = -1;
      const size_t end = detail::part_end(parts_.cuts, text, kPart);
      open_.push_back({.text = text.substr(0, end), .begins = begins});
      bytes_ += end;
      text.remove_prefix(end);
      begins = false;
      if (bytes_ >= kPart * kParts) run();
    }
  }
  void run() {
    std::atomic<size_t> next = 0;
    const auto work = [&](detail::BpeMemory& memory) {
      for (size_t i; (i = next++) < open_.size();) encode(open_[i], memory);
    };
    {
      const size_t threads = bytes_ > 2 * kPart ? std::min(size_t(num_threads()), open_.size()) : 1;
      while (memories_.size() < threads) memories_.push_back(std::make_unique<detail::BpeMemory>());
      std::vector<std::jthread> others;
      try {
        for (size_t k = 1; k < threads; ++k) others.emplace_back([&, k] { work(*memories_[k]); });
      } catch (const std::system_error&) {
        // If no thread can start, the existing ones do all the work.
      }
      work(*memories_[0]);
    }
    std::vector<int64_t> wide;
    for (const Part& p : open_) {
      for (std::span<const int32_t> rest = p.ids; !rest.empty(); rest = rest.subspan(wide.size())) {
        const std::span<const int32_t> some = rest.first(std::min(rest.size(), kPart));  // a part may be all text
        wide.assign(some.begin(), some.end());
        take_(wide);
      }
      if (p.error) std::rethrow_exception(p.error);
    }
    open_.clear();
    bytes_ = 0;
    for (auto& kept : kept_)
      while (kept.size() > 1) kept.pop_front();
  }

 private:
  static constexpr size_t kPart = 1 << 16, kParts = 64;  // bytes, and parts per run()
  struct Part {
    std::string_view text{};  // empty: the entry has ids
    bool begins = false;
    std::vector<int32_t> ids{};
    std::exception_ptr error{};
  };
  void encode(Part& part, detail::BpeMemory& memory) const {
    if (part.text.empty()) return;
    std::vector<int32_t> ids;  // apart from other threads' ids
    try {
      detail::cut(parts_.cuts, part.text, part.begins,
                  [&](std::span<const std::string_view> pre_tokens) { parts_.model.encode(pre_tokens, memory, ids); });
    } catch (...) {
      part.error = std::current_exception();
    }
    part.ids = std::move(ids);
  }
  const detail::BpeParts& parts_;
  const Tokenizer::Take& take_;
  std::vector<Part> open_;
  size_t bytes_ = 0;
  int32_t last_ = -1;
  std::deque<std::string> kept_[2];  // texts in open_, current one
  std::vector<std::unique_ptr<detail::BpeMemory>> memories_;
};
void encode_one(const detail::BpeParts& p, std::string_view text, EncodeOptions options, Encoder& out) {
  // Finds added tokens; plain(text, starts the part) takes the rest.
  const auto find = [&](const detail::AddedTokens& tokens, std::string_view part, const auto& plain) {
    tokens.find(part, options.parse_special, [&](size_t begin, size_t end, const detail::AddedToken* token) {
      if (token)
        out.add({&token->id, 1});
      else
        plain(part.substr(begin, end - begin), begin == 0);
    });
  };
  if (options.add_special) out.add(p.before);
  find(p.added, text, [&](std::string_view part, bool begins) {
    if (!p.normalizer.empty()) part = out.keep(detail::normalized(p.normalizer, part), 0);
    find(p.added_normalized, part, [&](std::string_view rest, bool rest_begins) {
      if (!options.dropped.empty() && rest.find(options.dropped) != rest.npos)
        rest = out.keep(detail::Replace{std::string(options.dropped), ""}.of(rest, rest.size()), 1);
      out.add(rest, begins && rest_begins);
    });
  });
  if (options.add_special) out.add(p.after);
}
}  // namespace

std::unique_ptr<Tokenizer> detail::bpe_tokenizer(std::string_view json) {
  return std::make_unique<BpeTokenizer>(BpeTokenizer::from_json(json, "tokenizer.json"));
}
BpeTokenizer BpeTokenizer::from_json(std::string_view json, const std::string& source) {
  return from_parsed(detail::parse_json(json, "tokenizer", source, detail::kTokenizerDepth), json, source);
}
BpeTokenizer BpeTokenizer::from_parsed(const Json& parsed, std::string_view json, const std::string& source) {
  const auto parts = std::make_shared<detail::BpeParts>(detail::read_bpe(parsed, source));
  parts->json = json.empty() ? detail::text_of(parsed) : json;
  return BpeTokenizer(parts);
}

void BpeTokenizer::encode(std::string_view text, EncodeOptions options, const Take& take) const {
  Encoder out(*parts_, take);
  encode_one(*parts_, text, options, out);
  out.run();
}
void BpeTokenizer::encode_documents(std::span<const std::string_view> documents, EncodeOptions options,
                                    const Take& take) const {
  Encoder out(*parts_, take);
  const int32_t end = parts_->end_of_text;
  for (const std::string_view text : documents) {
    encode_one(*parts_, text, options, out);
    if (end >= 0 && out.last() != end) out.add({&end, 1});
  }
  out.run();
}
int64_t BpeTokenizer::end_of_text() const { return parts_->end_of_text; }
std::vector<SpecialSpan> BpeTokenizer::specials(std::string_view text) const {
  std::vector<SpecialSpan> all;
  for (const detail::AddedTokens* tokens : {&parts_->added, &parts_->added_normalized})
    tokens->find(text, true, [&](size_t begin, size_t, const detail::AddedToken* t) {
      if (!t || !t->special) return;
      const size_t at = text.find(t->content, begin);
      all.push_back({begin, at, at + t->content.size()});
    });
  std::ranges::stable_sort(all, {}, &SpecialSpan::at);
  return all;
}

std::string BpeTokenizer::decode_next(int64_t id, bool& begins) const {
  check_id(id);
  std::string text = parts_->texts[size_t(id)];
  if (!begins || text.empty()) return text;
  begins = false;
  const std::string& leading = parts_->leading;
  if (!leading.empty() && text.starts_with(leading)) text.erase(0, leading.size());
  return text;
}
int64_t BpeTokenizer::vocab_size() const { return int64_t(parts_->texts.size()); }
int64_t BpeTokenizer::plain_vocab_size() const { return parts_->plain_size; }
std::string BpeTokenizer::to_json() const { return parts_->json; }
int64_t BpeTokenizer::id_of(std::string_view token) const { return parts_->id_of(token); }

}  // namespace tg
