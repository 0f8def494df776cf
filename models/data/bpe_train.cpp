#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/data/bpe_train.h>
#include <tapegrad/models/data/dataset.h>
#include <tapegrad/models/data/documents.h>
#include <tapegrad/models/tokenizers/bpe_parts.h>
#include <tapegrad/models/tokenizers/utf8.h>

#include <algorithm>
#include <array>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <queue>
#include <set>
#include <system_error>
#include <unordered_map>

namespace tg {
namespace {

// Parts of files, with the pre-tokens and special tokens of whole texts.
class TextParts {
 public:
  TextParts(std::span<const std::string> paths, const BpeTraining& o, size_t chunk)
      : paths_(paths),
        special_(o.special),
        cuts_{detail::Split{detail::Regex(detail::pattern_named(o.pattern))}},
        chunk_(chunk) {
    for (const std::string& s : special_) longest_ = std::max(longest_, s.size());
    for (const std::string& path : paths_) (void)detail::open_text(path);  // an Error before any work
  }
  const std::vector<detail::Cut>& cuts() const { return cuts_; }
  // False at the end. Thread-safe.
  bool next(std::string& part) {
    const std::lock_guard lock(mutex_);
    while (true) {
      if (!documents_.empty()) {
        part = std::move(documents_.front());
        documents_.pop_front();
        return true;
      }
      if (!file_) {
        if (paths_.empty()) return false;
        const std::span<const std::string> path = paths_.first(1);
        paths_ = paths_.subspan(1);
        if (path[0].ends_with(".jsonl")) {
          detail::for_each_documents(path, DocumentKind::file,
                                     [&](auto some) { documents_.insert(documents_.end(), some.begin(), some.end()); });
          continue;
        }
        file_.emplace(detail::open_text(path[0]));
        offset_ = searched_ = 0;
        rest_.clear();
      }
      const size_t before = rest_.size(), more = std::min(chunk_, file_->size() - offset_);
      rest_.resize(before + more);
      file_->read(offset_, std::as_writable_bytes(std::span(rest_).subspan(before)));
      offset_ += more;
      if (offset_ == file_->size()) {
        file_->check_unchanged();
        file_.reset();
        part.swap(rest_);
        return true;
      }
      searched_ = detail::part_end(cuts_, rest_, searched_);
      while (searched_ + longest_ <= rest_.size() && in_special(searched_))
        searched_ = detail::part_end(cuts_, rest_, searched_ + 1);
      if (searched_ + longest_ > rest_.size()) continue;  // depends on later text
      part.assign(rest_, 0, searched_);
      rest_.erase(0, searched_);
      searched_ = rest_.size();
      return true;
    }
  }

 private:
  bool in_special(size_t at) const {
    return std::ranges::any_of(special_, [&](const std::string& s) {
      const size_t reach = s.size() - 1, begin = at - std::min(at, reach);
      return std::string_view(rest_).substr(begin, at + reach - begin).find(s) != std::string::npos;
    });
  }
  std::mutex mutex_;
  std::span<const std::string> paths_;
  const std::vector<std::string>& special_;
  std::vector<detail::Cut> cuts_;
  size_t chunk_, longest_ = 1;
  std::optional<InputFile> file_;
  size_t offset_ = 0, searched_ = 0;  // offsets in the file, in rest_
  std::string rest_;
  std::deque<std::string> documents_;  // lines of .jsonl
};

void check_training(std::span<const std::string> paths, const BpeTraining& o) {
  TG_CHECK(!paths.empty(), value, "[tokenizer] no text is named. Training needs at least one file. Pass its path.");
  for (const std::string& path : paths)
    TG_CHECK(!detail::is_token_file(path), value,
             "[tokenizer] {} is a token file by its name. A tokenizer is trained on texts. Name the text, or rename it "
             "if it is one.",
             path);
  TG_CHECK(!detail::pattern_named(o.pattern).empty(), value,
           "[tokenizer] the pattern is \"{}\". It must be gpt2, llama3 or qwen2.", o.pattern);
  TG_CHECK(o.min_frequency >= 1, value, "[tokenizer] min_frequency is {}. It must be 1 or more.", o.min_frequency);
  std::set<std::string_view> seen;
  for (const std::string& s : o.special) {
    TG_CHECK(!s.empty(), value, "[tokenizer] a special token is empty. It must have at least one character.");
    TG_CHECK(seen.insert(s).second, value, "[tokenizer] the special token {} is given twice. Give it once.", s);
    for (std::string_view rest = s; !rest.empty(); rest.remove_prefix(detail::first_of(rest).length))
      TG_CHECK(detail::first_of(rest).length > 0, value,
               "[tokenizer] a special token has the byte {:#04x}, which is not valid UTF-8. Choose another.",
               uint8_t(rest[0]));
  }
  const int64_t least = 256 + int64_t(o.special.size()), most = 1 << 20;
  TG_CHECK(o.vocab_size >= least && o.vocab_size <= most, value,
           "[tokenizer] vocab_size is {}. The 256 bytes and {} special token(s) have {} ids, and at most {} are "
           "possible. Ask for a number from {} to {}.",
           o.vocab_size, o.special.size(), least, most, least, most);
}

using IdPair = uint64_t;
IdPair pair_of(int32_t left, int32_t right) { return uint64_t(left) << 32 | uint32_t(right); }
int32_t left_of(IdPair pair) { return int32_t(pair >> 32); }
int32_t right_of(IdPair pair) { return int32_t(uint32_t(pair)); }

class BpeMerger {
 public:
  BpeMerger(const detail::PreTokenCounts& counts, const BpeTraining& o)
      : specials_(o.special.size()), min_frequency_(o.min_frequency) {
    for (const std::string& s : o.special) (void)id_of(s);
    std::array<int32_t, 256> byte_ids{};
    std::array<size_t, 256> order{};
    std::iota(order.begin(), order.end(), size_t(0));
    std::ranges::sort(order, {}, [](size_t byte) { return detail::byte_characters()[byte]; });
    for (const size_t byte : order) byte_ids[byte] = id_of(detail::as_characters(std::string(1, char(uint8_t(byte)))));
    size_t bytes = 0;
    for (const auto& [text, count] : counts) bytes += text.size();
    symbols_.reserve(bytes);
    words_.reserve(counts.size());
    for (const auto& [text, count] : counts) {
      for (size_t i = 0; i < text.size(); ++i) {
        symbols_.push_back(byte_ids[uint8_t(text[i])]);
        if (i > 0) change(pair_of(symbols_[symbols_.size() - 2], symbols_.back()), uint32_t(words_.size()), count);
      }
      words_.push_back({symbols_.size() - text.size(), text.size(), count});
    }
    queue_made();
    while (ids_.size() < size_t(o.vocab_size) && !queue_.empty()) {
      Candidate top = queue_.top();
      queue_.pop();
      const int64_t before = std::exchange(top.count, counts_[top.pair]);
      if (top.count < min_frequency_) continue;
      if (top.count == before)
        merge_all(top);
      else
        queue_.push(top);
    }
  }
  Json tokens() const { return Json(ids_); }
  Json merges() const {
    Json all = Json::array();
    for (const IdPair pair : merges_)
      all.push_back(Json::array({names_[size_t(left_of(pair))], names_[size_t(right_of(pair))]}));
    return all;
  }

 private:
  struct Word {  // ids of a pre-token
    size_t begin, size;
    int64_t count;
  };
  struct Candidate {
    int64_t count;  // may be stale
    IdPair pair;
    size_t begin, end;  // range of places_: words that may have the pair
    bool operator<(const Candidate& o) const { return count != o.count ? count < o.count : pair > o.pair; }
  };

  // Id of a spelling, new if unknown.
  int32_t id_of(const std::string& name) {
    const auto [it, is_new] = ids_.emplace(name, int32_t(names_.size()));
    if (is_new) names_.push_back(name);
    std::string bytes;
    TG_CHECK(is_new || size_t(it->second) >= specials_ || (detail::bytes_of(name, bytes) && bytes == name), value,
             "[tokenizer] the special token {} is also how a byte-level vocabulary spells other bytes of the texts. "
             "Its spelling must be its own. Choose another special token.",
             name);
    return it->second;
  }
  void change(IdPair pair, uint32_t word, int64_t by) {
    counts_[pair] += by;
    if (by > 0) made_.emplace_back(pair, word);
  }
  // A pair first appears in the step that makes its newer token; afterwards its count only falls.
  void queue_made() {
    std::ranges::sort(made_);
    for (size_t i = 0; i < made_.size();) {
      const IdPair pair = made_[i].first;
      const size_t begin = places_.size();
      for (; i < made_.size() && made_[i].first == pair; ++i)
        if (places_.size() == begin || places_.back() != made_[i].second) places_.push_back(made_[i].second);
      if (const int64_t count = counts_[pair]; count >= min_frequency_)
        queue_.push({count, pair, begin, places_.size()});
      else
        places_.resize(begin);
    }
    made_.clear();
  }
  void merge_all(const Candidate& c) {
    const int32_t left = left_of(c.pair), right = right_of(c.pair);
    const int32_t id = id_of(names_[size_t(left)] + names_[size_t(right)]);
    merges_.push_back(c.pair);
    for (size_t i = c.begin; i < c.end; ++i) merge(places_[i], left, right, id);
    queue_made();
  }
  void merge(uint32_t w, int32_t left, int32_t right, int32_t id) {
    Word& word = words_[w];
    int32_t* const s = symbols_.data() + word.begin;
    size_t to = 0;
    for (size_t i = 0; i < word.size; ++to) {
      if (i + 1 == word.size || s[i] != left || s[i + 1] != right) {
        s[to] = s[i++];
        continue;
      }
      if (to > 0) {
        change(pair_of(s[to - 1], left), w, -word.count);
        change(pair_of(s[to - 1], id), w, word.count);
      }
      if (i + 2 < word.size) {
        change(pair_of(right, s[i + 2]), w, -word.count);
        change(pair_of(id, s[i + 2]), w, word.count);
      }
      s[to] = id;
      i += 2;
    }
    word.size = to;
  }

  size_t specials_;
  int64_t min_frequency_;
  std::map<std::string, int32_t> ids_;
  std::vector<std::string> names_;  // indexed by id
  std::vector<int32_t> symbols_;
  std::vector<Word> words_;
  std::unordered_map<IdPair, int64_t> counts_;
  std::vector<std::pair<IdPair, uint32_t>> made_;  // new pairs and their words
  std::vector<uint32_t> places_;
  std::priority_queue<Candidate> queue_;
  std::vector<IdPair> merges_;
};

}  // namespace

detail::PreTokenCounts detail::count_pre_tokens(std::span<const std::string> paths, const BpeTraining& o,
                                                size_t chunk) {
  using Counts = std::unordered_map<std::string, int64_t, TextHash, std::equal_to<>>;
  TextParts parts(paths, o, chunk);
  std::vector<AddedToken> special;
  for (const std::string& s : o.special) special.push_back({.content = s, .special = true});
  const AddedTokens added(std::move(special));
  const auto count = [&] {
    Counts counts;
    for (std::string part; parts.next(part);)
      added.find(part, /*parse_special=*/true, [&](size_t begin, size_t end, const AddedToken* token) {
        if (token) return;
        cut(parts.cuts(), std::string_view(part).substr(begin, end - begin), false,
            [&](std::span<const std::string_view> pre_tokens) {
              for (const std::string_view p : pre_tokens)
                if (const auto known = counts.find(p); known != counts.end())
                  ++known->second;
                else
                  counts.emplace(p, 1);
            });
      });
    return counts;
  };
  std::vector<std::future<Counts>> others;
  try {
    for (int k = 1; k < num_threads(); ++k) others.push_back(std::async(std::launch::async, count));
  } catch (const std::system_error&) {
    // If no thread can start, the existing ones do all the work.
  }
  Counts all = count();
  for (std::future<Counts>& other : others)
    for (const auto& [text, n] : other.get()) all[text] += n;
  return {all.begin(), all.end()};
}

BpeTokenizer train_bpe(std::span<const std::string> paths, const BpeTraining& o) {
  check_training(paths, o);
  const detail::PreTokenCounts counts = detail::count_pre_tokens(paths, o);
  TG_CHECK(!counts.empty(), value,
           "[tokenizer] the texts have special tokens only. Training needs other text. Add a text.");
  const BpeMerger merger(counts, o);
  Json json = detail::byte_level_json(merger.tokens(), merger.merges(), detail::pattern_named(o.pattern), false);
  for (size_t id = 0; id < o.special.size(); ++id)
    json["added_tokens"].push_back(detail::added_token(o.special[id], id, true));
  return BpeTokenizer::from_parsed(json, "", "the trained tokenizer");
}

}  // namespace tg
