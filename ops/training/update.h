/// @file
/// Updates bf16 cast_parameter() copies together with their weights, for the ops of this folder.
#pragma once
#include <tapegrad/core/engine/bf16_copy.h>
#include <tapegrad/core/op.h>

#include <cstdint>
#include <vector>

namespace tg::detail {
// Emits an op that updates the first `updated` of `in`. Copies of the weights w, if any, follow; `copied` of the op
// lists their indices.
template <class OpT> void emit_with_copies(Ref<OpT> op, Inputs w, std::vector<Tensor> in, size_t updated) {
  std::vector<Tensor> copies;
  for (size_t k = 0; k < w.size(); ++k)
    if (Ref<Value> copy = take_bf16_copy(w[k])) copies.emplace_back(std::move(copy)), op->copied.push_back(uint32_t(k));
  const std::vector<uint32_t> copied = op->copied;
  in.insert(in.begin() + int64_t(updated), copies.begin(), copies.end());
  detail::emit_update(std::move(op), in, updated + copies.size());
  for (size_t k = 0; k < copies.size(); ++k) give_bf16_copy(*w[copied[k]].value(), copies[k].value());
}
}  // namespace tg::detail
