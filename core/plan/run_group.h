// run_node() for a step of several nodes: a pointwise chain or a replacement op.
#pragma once
#include <tapegrad/core/backend/chain.h>
#include <tapegrad/core/engine/run_node.h>
#include <tapegrad/core/plan/rewrite.h>

namespace tg::detail {

std::string_view chain_name(std::span<const Op* const>);  // "mul+add+gelu"; never freed

// One backend call. Results inside a tile are null.
std::vector<OutputStorages> run_nodes_as_chain(std::span<const Ref<Node>>, const ChainPlan&, std::span<const Donors>,
                                               const BufferAssignment&);
void run_nodes_as_one(std::span<const Ref<Node>>, const Replacement&, const Donors&, const BufferAssignment&);

}  // namespace tg::detail
