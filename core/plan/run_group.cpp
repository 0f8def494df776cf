#include <tapegrad/core/backend/dry_run.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/plan/run_group.h>
#include <tapegrad/core/profile/profiler_record.h>
#include <tapegrad/core/profile/work.h>
#include <tapegrad/core/scope.h>

#include <optional>

namespace tg::detail {
std::string_view chain_name(std::span<const Op* const> ops) {
  std::string s;
  for (const Op* op : ops) s += fmt::format("{}{}", s.empty() ? "" : "+", op->name());
  return *intern(s);
}
void run_chain_kernel(std::string_view name, const Chain& c) {
  std::optional<KernelSpan> span;
  if (profiling() && c.device.backend == Backend::cpu) [[unlikely]]
    span.emplace(name);
  runtime_of(c.device).run_chain(c);
}

namespace {
void count_chain(std::string_view name, std::span<const Ref<Node>> nodes, const ChainPlan& plan) {
  using Kind = ChainPlan::Buffer::Kind;
  OpWork work;
  for (const ChainPlan::Buffer& b : plan.buffers) {
    const Node& n = *nodes[b.node];
    if (b.kind == Kind::input) work.read += distinct_bytes(n.in[b.index].value->layout);
    if (b.kind == Kind::output) work.written += distinct_bytes(n.out[0].layout);
  }
  const DType to = nodes.back()->out[0].layout.dtype;
  t_work->add(name, nodes[0]->in.empty() ? to : nodes[0]->in[0].dtype, to, work);
}
std::vector<OutputStorages> execute_chain(std::span<const Ref<Node>> nodes, const ChainPlan& plan,
                                          std::span<const Donors> donors, const BufferAssignment& buffers) {
  using Kind = ChainPlan::Buffer::Kind;
  const NowRunning run(nodes[0]->op->name(), nodes[0]->scope, nodes[0]->range);
  SmallVec<const Op*, 8> ops;
  std::vector<OutputStorages> made;
  for (const auto& n : nodes) {
    check_alive(*n);
    ops.emplace_back(n->op.get());
    made.push_back({nullptr});
  }
  std::string_view name = nodes[0]->op->name();
  OpSpan span;
  if (profiling() || t_work) [[unlikely]]
    name = chain_name({ops.data(), ops.size()});
  if (profiling()) [[unlikely]] {
    span.begin(name, nodes.back()->scope, nodes.back()->range, {});
  }
  SmallVec<std::byte*, 16> data;
  for (const ChainPlan::Buffer& b : plan.buffers) {
    Node& n = *nodes[b.node];
    if (b.kind == Kind::input) {
      check_version(n, b.index);
      const Value& v = *n.in[b.index].value;
      data.emplace_back(v.storage->data + v.layout.offset * int64_t(size_of(v.layout.dtype)));
    } else if (b.kind == Kind::output) {
      made[b.node][0] = output_storage(n, 0, donors[b.node][0], buffers);
      data.emplace_back(made[b.node][0]->data);
    } else {
      data.emplace_back(nullptr);
    }
  }
  if (t_work) [[unlikely]]
    count_chain(name, nodes, plan);
  const Device device = nodes[0]->out[0].layout.device;
  if (!running_dry()) {
    run_chain_kernel(name, {plan, {ops.data(), ops.size()}, {data.data(), data.size()}, device});
    ++mutable_stats().kernels;
  }
  for (size_t k = 0; k < nodes.size(); ++k) commit_outputs(*nodes[k], made[k]);
  return made;
}

void execute_as_one(std::span<const Ref<Node>> nodes, const Replacement& f, const Donors& donors,
                    const BufferAssignment& buffers) {
  std::vector<OutputStorages> made(nodes.size());  // null: not made by the op
  for (size_t k = 0; k < nodes.size(); ++k) {
    check_alive(*nodes[k]);
    for (size_t i = 0; i < nodes[k]->out.size(); ++i) made[k].emplace_back(nullptr);
  }
  const OpPtr op = f.op([&](size_t k) -> const Node& { return *nodes[k]; });
  const NowRunning run(op->name(), nodes.back()->scope, nodes.back()->range);
  SmallVec<Buf, 8> in, out;
  for (const Port& p : f.in) {
    check_version(*nodes[p.node], p.index);
    const Value& v = *nodes[p.node]->in[p.index].value;
    in.emplace_back(&v.layout, v.storage->data);
  }
  OpSpan span;
  if (profiling()) [[unlikely]]
    span.begin(op->name(), nodes.back()->scope, nodes.back()->range, shapes_of({in.data(), in.size()}));
  for (size_t k = 0; k < f.out.size(); ++k) {
    const Port& p = f.out[k];
    Ref<Storage>& s = made[p.node][p.index];
    const Port* const from = donors[k] >= 0 ? &f.in[size_t(donors[k])] : nullptr;
    s = from ? nodes[from->node]->in[from->index].value->storage : new_storage(*nodes[p.node], p.index, buffers);
    out.emplace_back(&f.layouts[k], s->data);
  }
  if (t_work) [[unlikely]]
    count_work(*op, {in.data(), in.size()}, {out.data(), out.size()});
  Context c{nodes.back()->out[0].layout.device, op->name()};
  if (!running_dry()) {
    run_kernel(*op, {in.data(), in.size()}, {out.data(), out.size()}, c);
    ++mutable_stats().kernels;
  }
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
    for (const int32_t d : donors)  // as in mark_failed()
      if (d >= 0 && !nodes.back()->error)
        ++nodes[f.in[size_t(d)].node]->in[f.in[size_t(d)].index].value->storage->version;
    for (const auto& n : nodes) mark_failed(*n, {}, full);
    throw full;
  }
}
}  // namespace tg::detail
