// Multiple-choice tasks such as HellaSwag, scored as llm.c's dev/data/hellaswag.py does.
#pragma once
#include <tapegrad/core/comm/communicator.h>
#include <tapegrad/models/apps/model_data.h>

namespace tg::apps {

struct TaskItem {
  std::vector<std::vector<int32_t>> rows;  // tokens: context and an ending
  size_t context = 0;
  int64_t label = 0;
};
struct Task {
  std::string path;
  std::vector<TaskItem> items;
};
inline constexpr const char* kTaskFile =
    "a multiple-choice task, such as HellaSwag: JSON lines with ctx, endings and label, or llm.c's binary file";
// An Error names item and rule, or says that the tokenizer makes other ids of most contexts of ids.
Task read_task(const ModelOfData&, const std::string& path, int64_t context);

struct TaskScore {
  std::vector<std::vector<double>> sums;  // log-probabilities by item and ending
  double acc = 0, acc_norm = 0;           // picks by sum and by mean that are right
};
// `rows` endings in a forward pass, right-padded; the ranks share them. Calls next(rows done, all rows) before each
// pass; empty if it returned false. An Error of kind non_finite names an item.
std::optional<TaskScore> score_task(const Task&, const Gpt&, int64_t rows, std::optional<DType> compute, Communicator&,
                                    const std::function<bool(int64_t, int64_t)>& next);
// The ending with the largest sum, or mean per token.
int64_t pick_of(const TaskItem&, std::vector<double> sums, bool mean);

}  // namespace tg::apps
