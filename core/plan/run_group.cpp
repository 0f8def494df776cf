#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/run_call.h>
#include <tapegrad/core/plan/run_group.h>
#include <tapegrad/core/profile/work.h>

namespace tg::detail {
std::string_view chain_name(std::span<const Op* const> ops) {
  std::string s;
  for (const Op* op : ops) s += fmt::format("{}{}", s.empty() ? "" : "+", op->name());
  return *detail::intern(s);
}

namespace {
std::vector<OutputStorages> execute_chain(std::span<const Ref<Node>> nodes, const ChainPlan& plan,
                                          std::span<const Donors> donors, const BufferAssignment& buffers) {
  using Kind = ChainPlan::Buffer::Kind;
  const Node &first = *nodes[0], &last = *nodes.back();
  SmallVec<const Op*, 8> ops;
  std::vector<OutputStorages> made;
  for (const auto& n : nodes) {
    check_alive(*n);
    ops.emplace_back(n->op.get());
    made.push_back({nullptr});
  }
  const Layout& end = last.out[0].layout;
  ChainCall chain{{plan, ops, {}, end.device}, first.in.empty() ? end.dtype : first.in[0].dtype, end.dtype};
  const bool named = profiling() || t_work;
  const KernelCall call{nullptr,    &chain,     named ? chain_name(ops) : first.op->name(),
                        last.scope, last.range, end.device};
  const RunningCall running(call);
  SmallVec<std::byte*, 16> data;
  for (const ChainPlan::Buffer& b : plan.buffers) {
    std::byte*& to = data.emplace_back(nullptr);
    if (b.kind == Kind::temporary) continue;
    const Node& n = *nodes[b.node];
    const bool input = b.kind == Kind::input;
    if (input)
      check_version(n, b.index);
    else
      made[b.node][0] = output_storage(n, 0, donors[b.node][0], buffers);
    const Layout& l = input ? n.in[b.index].value->layout : n.out[0].layout;
    to = (input ? n.in[b.index].value->storage : made[b.node][0])->data + l.offset * int64_t(size_of(l.dtype));
    if (t_work) [[unlikely]]
      (input ? chain.work.read : chain.work.written) += distinct_bytes(l);
  }
  chain.data = data;
  running.launch();
  for (size_t k = 0; k < nodes.size(); ++k) commit_outputs(*nodes[k], made[k]);
  return made;
}

void execute_as_one(std::span<const Ref<Node>> nodes, const Replacement& f, const Donors& donors,
                    const BufferAssignment& buffers) {
  std::vector<OutputStorages> made(nodes.size());  // null: not an output
  for (size_t k = 0; k < nodes.size(); ++k) {
    check_alive(*nodes[k]);
    for (size_t i = 0; i < nodes[k]->out.size(); ++i) made[k].emplace_back(nullptr);
  }
  const OpPtr op = f.op([&](size_t k) -> const Node& { return *nodes[k]; });
  SmallVec<Buf, 8> in, out;
  for (const Port& p : f.in) {
    check_version(*nodes[p.node], p.index);
    const Value& v = *nodes[p.node]->in[p.index].value;
    in.emplace_back(&v.layout, v.storage->data);
  }
  const Node& last = *nodes.back();
  KernelCall call{op.get(), nullptr, op->name(), last.scope, last.range, last.out[0].layout.device, in};
  const RunningCall running(call);
  for (size_t k = 0; k < f.out.size(); ++k) {
    const Port& p = f.out[k];
    Ref<Storage>& s = made[p.node][p.index];
    const Port* const from = donors[k] >= 0 ? &f.in[size_t(donors[k])] : nullptr;
    s = from ? nodes[from->node]->in[from->index].value->storage : new_storage(*nodes[p.node], p.index, buffers);
    out.emplace_back(&f.layouts[k], s->data);
  }
  call.out = out;
  running.launch();
  for (size_t k = 0; k < nodes.size(); ++k) commit_outputs(*nodes[k], made[k]);
}
}  // namespace

std::vector<OutputStorages> run_nodes_as_chain(std::span<const Ref<Node>> nodes, const ChainPlan& plan,
                                               std::span<const Donors> donors, const BufferAssignment& buffers) {
  try {
    return execute_chain(nodes, plan, donors, buffers);
  } catch (const Error& e) {
    const Error full = with_scope(e, nodes[0]->scope);
    for (size_t k = 0; k < nodes.size(); ++k) mark_failed(*nodes[k], donors[k], full);
    throw full;
  }
}
void run_nodes_as_one(std::span<const Ref<Node>> nodes, const Replacement& f, const Donors& donors,
                      const BufferAssignment& buffers) {
  try {
    execute_as_one(nodes, f, donors, buffers);
  } catch (const Error& e) {
    const Error full = with_scope(e, nodes.back()->scope);
    for (const int32_t d : donors)  // see mark_failed()
      if (d >= 0 && !nodes.back()->error)
        ++nodes[f.in[size_t(d)].node]->in[f.in[size_t(d)].index].value->storage->version;
    for (const auto& n : nodes) mark_failed(*n, {}, full);
    throw full;
  }
}
}  // namespace tg::detail
