#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/models/apps/task.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/data/documents.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace tg::apps {
namespace {
using Ids = std::vector<int32_t>;
using Header = std::array<int32_t, 256>;
constexpr int32_t kMagic = 20240522;

void add(Task& task, const ModelOfData& m, int64_t most, const Ids& context, const std::vector<Ids>& endings,
         int64_t label) {
  const int64_t n = std::ssize(endings), before = task.items.empty() ? 0 : std::ssize(task.items[0].rows);
  TG_CHECK(n >= 2 && (before == 0 || n == before), value, "[task] the item has {}. It must have {}. Correct it.",
           detail::counted(n, "ending"),
           before == 0 ? "at least 2" : fmt::format("{}, the number of the items before it", before));
  TG_CHECK(label >= 0 && label < n, value, "[task] label is {}. It must be from 0 to {}.", label, n - 1);
  TG_CHECK(!context.empty(), value, "[task] the context has no token. It must have at least one.");
  TaskItem& item = task.items.emplace_back(TaskItem{{}, context.size(), label});
  for (const Ids& ending : endings) {
    const size_t e = item.rows.size();
    TG_CHECK(!ending.empty(), value, "[task] ending {} has no token. It must have at least one.", e);
    Ids& row = item.rows.emplace_back(context);
    row.insert(row.end(), ending.begin(), ending.end());
    for (const int32_t id : row)
      TG_CHECK(
          id < m.vocab_size, value,
          "[task] the token {} of ending {} is not in the vocabulary of {}: ids are in [0, {}). The file must have "
          "the ids of the model's tokenizer.",
          id, e, m.folder, m.vocab_size);
    TG_CHECK(std::ssize(row) <= most, value,
             "[task] the context and ending {} have {} tokens. They may have {}, one more than the model's context. "
             "Leave the item out.",
             e, row.size(), most);
  }
}

using Add = std::function<void(const Ids& context, const std::vector<Ids>& endings, int64_t label)>;
void read_lines(const std::string& path, const Tokenizer& tokenizer, const Add& take) {
  const auto ids = [&](const std::string& text) {
    const std::vector<int64_t> all = tokenizer.encode(text);
    return Ids(all.begin(), all.end());
  };
  detail::for_each_line(path, [&](std::string_view text, int64_t number) {
    in_file(fmt::format("{}:{}", path, number), [&] {
      const Json line = detail::parse_json(text, "task", "the line");
      const Json &ctx = line.member("ctx"), &label = line.member("label"), &endings = line.member("endings");
      const bool texts = std::ranges::all_of(endings, [](const Json& x) { return x.is_string(); });
      TG_CHECK(ctx.is_string() && label.is_number_integer() && endings.is_array() && texts, value,
               "[task] the line must have \"ctx\", a text, \"endings\", a list of texts, and \"label\", an integer.");
      std::vector<Ids> all;
      for (const Json& x : endings) all.push_back(x.text().empty() ? Ids() : ids(" " + x.text()));
      take(ids(ctx.text()), all, label.get<int64_t>());
    });
    return true;
  });
}
void read_binary(const InputFile& file, const Header& header, const Add& take) {
  std::vector<uint16_t> words((file.size() - sizeof(Header)) / 2);
  file.read(sizeof(Header), std::as_writable_bytes(std::span(words)));
  TG_CHECK(header[1] == 1, value, "[task] {} has version {}. It must be 1.", file.path(), header[1]);
  size_t at = 0;
  const auto next = [&] {
    TG_CHECK(at < words.size(), value, "[task] the file ends in the item. It must have {} items.", header[2]);
    return words[at++];
  };
  const auto ids = [&] {
    Ids some(next());
    for (int32_t& id : some) id = next();
    return some;
  };
  for (int64_t i = 0; i < header[2]; ++i)
    in_file(fmt::format("item {} of {}", i, file.path()), [&] {
      const size_t begin = at;
      const int64_t mark = next(), bytes = next(), index = next(), label = next(), n = next();
      TG_CHECK(mark == 0xFFFF && index == i, value,
               "[task] the item begins with {} and its number {}. They must be 65535 and {}.", mark, index, i);
      TG_CHECK(n == 4, value, "[task] the item has {}. In llm.c's form it must have 4. JSON lines take others.",
               detail::counted(n, "ending"));
      const Ids context = ids();
      take(context, {ids(), ids(), ids(), ids()}, label);
      TG_CHECK(bytes == 2 * int64_t(at - begin), value,
               "[task] the item has {} bytes, and says {}. Both must be equal.", 2 * (at - begin), bytes);
    });
  TG_CHECK(at == words.size() && file.size() % 2 == 0, value,
           "[task] {} goes on after its {} items. It must end there.", file.path(), header[2]);
}
}  // namespace

Task read_task(const ModelOfData& m, const std::string& path, int64_t context) {
  Task task;
  Header header{};
  const InputFile file(path);
  if (file.size() >= sizeof header) file.read(0, std::as_writable_bytes(std::span(header)));
  const bool binary = header[0] == kMagic;
  if (!binary)
    detail::check_tokenizer(
        m.tokenizer, m.tokenizer_error,
        fmt::format("[{}] {} has no tokenizer, and {} is text. Pass llm.c's file of ids.", m.command, m.folder, path));
  const Add take = [&](const auto&... of_item) { add(task, m, context + 1, of_item...); };
  binary ? read_binary(file, header, take) : read_lines(path, *m.tokenizer, take);
  TG_CHECK(!task.items.empty(), value, "[task] {} has no item. It must have at least one.", path);
  if (!binary || !m.tokenizer) return task;
  const auto same = std::ranges::count_if(task.items, [&](const TaskItem& item) {
    const std::vector<int64_t> ids(item.rows[0].begin(), item.rows[0].begin() + ptrdiff_t(item.context));
    return std::ranges::max(ids) < m.tokenizer->vocab_size() && m.tokenizer->encode(m.tokenizer->decode(ids)) == ids;
  });
  TG_CHECK(
      2 * same >= std::ssize(task.items), value,
      "[task] {} holds ids of another tokenizer than that of {}, which makes other ids of the text of {} contexts. "
      "Both must be the same. Pass the JSON lines.",
      path, m.folder, std::ssize(task.items) - same);
  return task;
}

int64_t pick_of(const TaskItem& item, std::vector<double> sums, bool mean) {
  for (size_t e = 0; mean && e < sums.size(); ++e) sums[e] /= double(item.rows[e].size() - item.context);
  return std::ranges::max_element(sums) - sums.begin();
}

std::optional<TaskScore> score_task(const Task& task, const Gpt& model, int64_t rows, std::optional<DType> compute,
                                    Communicator& comm, const std::function<bool(int64_t, int64_t)>& next) {
  NoGradScope off;
  const size_t endings = task.items[0].rows.size(), all = task.items.size() * endings, ranks = size_t(comm.size());
  const auto row = [&](size_t i) -> const Ids& { return task.items[i / endings].rows[i % endings]; };
  std::vector<size_t> order(all);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return row(i).size(); });  // little padding
  std::vector<double> mine(all), sums(all * ranks);
  for (size_t begin = 0, pass = 0, n; begin < all; begin += n, ++pass) {
    n = std::min(size_t(rows), all - begin);
    if (!next(int64_t(begin), int64_t(all))) return std::nullopt;
    if (pass % ranks != size_t(comm.rank())) continue;
    const size_t width = row(order[begin]).size() - 1;
    Ids inputs(n * width), targets(n * width, int32_t(Batch::kIgnoreIndex));
    for (size_t r = 0; r < n; ++r) {
      const Ids& ids = row(order[begin + r]);
      const size_t first = task.items[order[begin + r] / endings].context;
      std::copy(ids.begin(), ids.end() - 1, &inputs[r * width]);
      std::copy(ids.begin() + ptrdiff_t(first), ids.end(), &targets[r * width + first - 1]);
    }
    const Shape shape{int64_t(n), int64_t(width)};
    const Batch batch = Batch{tensor(inputs, shape), tensor(targets, shape)}.to(model.device());
    const Tensor losses =
        model.loss(batch, {.compute = compute}, Reduction::none).to(Device::cpu()).to(DType::f64).contiguous();
    const double* loss = losses.data<double>();
    for (size_t r = 0; r < n; ++r, loss += width) mine[order[begin + r]] = -std::accumulate(loss, loss + width, 0.0);
  }
  comm.all_gather(mine.data(), sums.data(), all * sizeof(double));
  for (size_t i = all; i < sums.size(); ++i) sums[i % all] += sums[i];  // 0 but from one rank
  TaskScore score;
  for (size_t i = 0; i < task.items.size(); ++i) {
    const TaskItem& item = task.items[i];
    const auto first = sums.begin() + ptrdiff_t(i * endings);
    const std::vector<double>& of = score.sums.emplace_back(first, first + ptrdiff_t(endings));
    TG_CHECK(std::ranges::all_of(of, [](double x) { return std::isfinite(x); }), non_finite,
             "[task] the log-probabilities of item {} of {} are {}. They must be finite. Check the weights.", i,
             task.path, fmt::join(of, ", "));
    score.acc += pick_of(item, of, false) == item.label;
    score.acc_norm += pick_of(item, of, true) == item.label;
  }
  score.acc /= double(task.items.size()), score.acc_norm /= double(task.items.size());
  return score;
}

}  // namespace tg::apps
