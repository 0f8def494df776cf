/// @file
/// Examples of instruction, chat and preference data, as tokens, targets and batches.
#pragma once
#include <tapegrad/models/config/suggest.h>
#include <tapegrad/models/data/batch.h>
#include <tapegrad/models/data/chat.h>

#include <algorithm>
#include <memory>

namespace tg {

/// Tokens that count in the loss. completion: assistant contents with their stop, and plain texts. all: every token.
enum class ExampleLoss { completion, all };
/// Examples in a row. none: one. concat: several, at most `context` inputs, best fit; each sees those before it.
enum class Packing { none, concat };
/// Names of values.
/// @{
template <> inline constexpr EnumNames<2> kEnumNames<ExampleLoss>{"loss", {"completion", "all"}};
template <> inline constexpr EnumNames<2> kEnumNames<Packing>{"pack", {"none", "concat"}};
/// @}

/// Tokens and unshifted targets: the token or Batch::kIgnoreIndex.
struct TokenExample {
  std::vector<int32_t> tokens, targets;
  int64_t inputs() const { return int64_t(tokens.size()) - 1; }  ///< positions in a row
};

/// How lines become examples.
struct ExampleOptions {
  ChatTemplate chat = ChatTemplate::named("plain");
  /// The token that ends plain texts, "<|endoftext|>". Empty: none.
  std::string end = {};
  ExampleLoss loss = ExampleLoss::completion;
  int64_t context = 0;    ///< maximum inputs; longer examples are cut
  bool skip_bad = false;  ///< drops invalid lines
  bool pairs = false;     ///< preferences, as for dpo_loss()
};

/// Examples; copies and parts share them.
struct Examples {
  /// One example, chosen and rejected, or a packed row.
  using Row = std::vector<std::shared_ptr<const TokenExample>>;
  std::vector<Row> rows = {};  ///< lines of the files, unless packed
  int64_t context = 0;         ///< inputs of the longest row
  bool pairs = false;
  int64_t cut = 0;       ///< cut examples
  int64_t skipped = 0;   ///< lines dropped by skip_bad
  std::string why = {};  ///< first Error of skipped lines
  /// Ignored keys of a first line: "'id', 'url' in chat.jsonl:1".
  std::string ignored = {};
  struct Split;
  int64_t size() const { return std::ssize(rows); }
  /// First int(fraction * size()) rows for training, the rest for validation. 0 < fraction <= 1.
  Split split(double fraction) const;
  /// Packing::concat. An Error for pairs.
  Examples packed() const;
};
/// Training and validation examples.
struct Examples::Split {
  Examples train, val;
};

namespace detail {
/// Whether a file's first object has a key of examples except "text".
bool holds_examples(const std::string& path);
}  // namespace detail
/// Reads files of JSON lines, each an object with the keys of the first kind that it has all of:
///
/// | keys | is |
/// |---|---|
/// | messages | a list of {"role", "content"} |
/// | prompt, completion | texts of user and assistant, or lists of messages; only the completion's replies count |
/// | instruction, output | texts of user and assistant; an `input` that is not "" follows the instruction |
/// | text | a plain text, with the tokenizer's template |
/// | prompt, chosen, rejected | with `pairs`, the only kind: as prompt and completion, twice |
///
/// A `system` text begins a conversation, and a `history` of pairs of texts comes before its instruction or prompt.
/// Keys that change a text, such as tools and tool_calls, go to the template, which must mention them. weight, train,
/// trainable, mask, loss_mask and label say whether a reply counts. Other keys are ignored. Lines have at most 16 MiB.
/// An Error names file and line: wrong JSON or UTF-8, other keys (it lists them), contents that are no texts, a reply
/// that is empty, what the template refuses, no target within the context, or a pair of equal tokens within it.
/// Special tokens in contents are text.
Examples read_examples(std::span<const std::string> paths, const Tokenizer&, const ExampleOptions&);

/// Sizes of batches of examples.
struct ExampleBatchOptions {
  int64_t batch = 1;  ///< rows; lines if they are pairs
  /// Batches of a step. They have one length: a compiled step sees few shapes.
  int64_t accumulate = 1;
};

/// Batches of examples of similar length, padded at the right with token 0 and ignored targets: (batch, T) i32, or the
/// batches of DpoModel for pairs. T is one of at most 8 lengths, quantiles of the data rounded up to a multiple of 8:
/// a compiled step keeps 8 shapes (CompileOptions::signatures), and a fixed multiple would be coarse for short data or
/// have too many. Each epoch shuffles examples, sorts 64 batches at a time by length and shuffles steps. Examples
/// beyond the last full step are skipped. The generator is the only state; its offset counts batches.
class ExampleBatches {
 public:
  /// An Error unless there are batch * accumulate rows.
  ExampleBatches(Examples, ExampleBatchOptions);
  Batch next(Rng&) const;
  /// The i-th validation batch, by length; the last may have fewer rows.
  std::optional<Batch> at(int64_t i) const;
  int64_t per_epoch() const;  ///< batches of an epoch
  /// The share of padding in the first epoch of Rng{}, in [0, 1).
  double padding() const;
  const std::vector<int64_t>& lengths() const { return lengths_; }  ///< values of T, ascending
  const ExampleBatchOptions& options() const { return o_; }

 private:
  int64_t rows_of_step() const { return o_.batch * o_.accumulate; }
  int64_t sorted_steps() const { return std::max<int64_t>(1, 64 / o_.accumulate); }
  std::vector<int64_t> sorted_rows(Rng epoch, int64_t first) const;
  int64_t padded(std::span<const int64_t> from_short_to_long) const;
  Batch batch_of(std::span<const int64_t> some, int64_t length) const;
  std::shared_ptr<const Examples> all_;
  ExampleBatchOptions o_;
  std::vector<int64_t> sizes_, by_size_, lengths_;  // inputs of rows; rows short to long
};

/// Training batches and, if `val` has examples, validation batches.
BatchSource example_batches(const ExampleBatches& train, Examples val);

}  // namespace tg
