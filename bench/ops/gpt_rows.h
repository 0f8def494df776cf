// Whole models: forward with the loss, its backward, and both, of document 004's two models (batch 16, context 128) in
// f32, TF32 and bf16. Gradients are made anew each run. For bench_ops on a GPU.
#pragma once
#include "common/results.h"

#include <functional>

namespace tg::bench {

struct GptRow {
  RowId id;                                     // name "gpt_forward", shape (batch, context), dtype of the products
  std::function<std::function<void()>()> make;  // makes the model and its data; a run ends synchronised
};
std::vector<GptRow> gpt_rows(Device);

}  // namespace tg::bench
