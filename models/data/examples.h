/// @file
/// Examples of instruction, chat and preference data: JSON lines become tokens and targets, and batches of them.
#pragma once
#include <tapegrad/models/config/suggest.h>
#include <tapegrad/models/data/batch.h>
#include <tapegrad/models/data/chat.h>

#include <algorithm>
#include <memory>

namespace tg {

/// The tokens of an example that count in the loss. completion: the assistant's contents and their stop, and all of a
/// text. all: every token.
enum class ExampleLoss { completion, all };
/// How examples fill rows. none: one in each. concat: whole examples share a row of at most `context` inputs, best fit
/// first; each sees those before it.
enum class Packing { none, concat };
/// Names of values.
/// @{
template <> inline constexpr EnumNames<2> kEnumNames<ExampleLoss>{"loss", {"completion", "all"}};
template <> inline constexpr EnumNames<2> kEnumNames<Packing>{"pack", {"none", "concat"}};
/// @}

/// Tokens, and for each the token itself or Batch::kIgnoreIndex. A batch shifts targets by one.
struct TokenExample {
  std::vector<int32_t> tokens, targets;
  int64_t inputs() const { return int64_t(tokens.size()) - 1; }  ///< positions in a row
};

/// How lines become examples.
struct ExampleOptions {
  ChatTemplate chat = ChatTemplate::named("plain");
  /// The tokenizer's text of the token that ends a plain text, such as "<|endoftext|>". Empty: none.
  std::string end = {};
  ExampleLoss loss = ExampleLoss::completion;
  int64_t context = 0;    ///< most inputs; longer examples are cut at the end
  bool skip_bad = false;  ///< leaves out lines that would be an Error
  bool pairs = false;     ///< lines are preferences, as for dpo_loss()
};

/// The examples of some files; copies and parts share them.
struct Examples {
  /// An example, the chosen and the rejected one, or those of a packed row.
  using Row = std::vector<std::shared_ptr<const TokenExample>>;
  std::vector<Row> rows = {};  ///< lines of the files, unless packed
  int64_t context = 0;         ///< inputs of the longest row
  bool pairs = false;
  int64_t cut = 0;       ///< examples that were longer than the context
  int64_t skipped = 0;   ///< lines left out by skip_bad
  std::string why = {};  ///< the Error of the first of them
  /// The keys without an effect of the first line that has some, and its place: "'id', 'url' in chat.jsonl:1".
  std::string ignored = {};
  struct Split;
  int64_t size() const { return std::ssize(rows); }  ///< rows
  /// The first int(fraction * size()) rows for training, the rest for validation. 0 < fraction <= 1.
  Split split(double fraction) const;
  /// Packing::concat. An Error for pairs.
  Examples packed() const;
};
/// Training and validation examples.
struct Examples::Split {
  Examples train, val;
};

/// Whether the first object in the lines of a file has a key of examples, other than "text".
bool holds_examples(const std::string& path);
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
  /// Batches of a step. They follow each other and have one length, so a compiled step sees few shapes.
  int64_t accumulate = 1;
};

/// Batches of examples of similar length, padded at the right with token 0 and ignored targets: (batch, T) i32, or the
/// batches of DpoModel for pairs. T is one of at most 8 lengths, quantiles of the data rounded up to a multiple of 8: a
/// compiled step keeps 8 shapes (CompileOptions::signatures), and a fixed multiple would be coarse for short data or
/// have too many. Each epoch has another order: the examples are shuffled, 64 batches at a time sorted by length, and
/// the steps shuffled. Examples that do not fill a last step are left out of this epoch. The generator is the only
/// state; its offset counts batches.
class ExampleBatches {
 public:
  /// An Error unless there are batch * accumulate rows.
  ExampleBatches(Examples, ExampleBatchOptions);
  Batch next(Rng&) const;
  /// The i-th batch of all rows in order of length, for validation; the last batch may have fewer rows.
  std::optional<Batch> at(int64_t i) const;
  int64_t per_epoch() const;  ///< batches of an epoch
  /// The share of padding in the inputs of the first epoch of Rng{}, in [0, 1).
  double padding() const;
  const std::vector<int64_t>& lengths() const { return lengths_; }  ///< the values of T, ascending
  const ExampleBatchOptions& options() const { return o_; }

 private:
  int64_t rows_of_step() const { return o_.batch * o_.accumulate; }
  int64_t sorted_steps() const { return std::max<int64_t>(1, 64 / o_.accumulate); }
  std::vector<int64_t> sorted_rows(Rng epoch, int64_t first) const;
  int64_t padded(std::span<const int64_t> from_short_to_long) const;
  Batch batch_of(std::span<const int64_t> some, int64_t length) const;
  std::shared_ptr<const Examples> all_;
  ExampleBatchOptions o_;
  std::vector<int64_t> sizes_, by_size_, lengths_;  // inputs of each row; rows from short to long
};

/// Training batches and, if `val` has examples, validation batches.
BatchSource example_batches(const ExampleBatches& train, Examples val);

}  // namespace tg
