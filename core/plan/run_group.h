// Runs the nodes of a step by one call: a chain of pointwise ops, or a replacement op. It does what run_node() does for
// one node.
#pragma once
#include <tapegrad/core/backend/chain.h>
#include <tapegrad/core/engine/run_node.h>
#include <tapegrad/core/plan/rewrite.h>

namespace tg::detail {

std::string_view chain_name(std::span<const Op* const>);  // "mul+add+gelu"; never freed

// One call of the backend. Results within a tile are null.
std::vector<OutputStorages> run_nodes_as_chain(std::span<const Ref<Node>>, const ChainPlan&, std::span<const Donors>,
                                               const BufferAssignment&);
// One replacement op.
void run_nodes_as_one(std::span<const Ref<Node>>, const Replacement&, const Donors&, const BufferAssignment&);

}  // namespace tg::detail
