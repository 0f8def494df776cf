#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/run_node.h>
#include <tapegrad/core/engine/shared_values.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/ops/shape_ops.h>
#include <tapegrad/ops/training/collective.h>
#include <tapegrad/ops/training/update.h>

#include <algorithm>

namespace tg {
namespace {
void check_call(std::string_view op, Inputs x, const std::shared_ptr<Communicator>& comm) {
  TG_CHECK(comm, value, "[{}] the communicator is null. Pass Communicator::world().", op);
  TG_CHECK(!x.empty(), value, "[{}] no tensors. Pass at least one.", op);
}
void check_cuts(std::string_view op, Inputs x, const ShardOffsets& cuts, int ranks) {
  int64_t n = 0;
  for (const Tensor& t : x) n += t.numel();
  TG_CHECK(cuts.size() == size_t(ranks) + 1 && cuts.front() == 0 && cuts.back() == n && std::ranges::is_sorted(cuts),
           value,
           "[{}] the shard offsets are {}, for {} rank(s) and {} elements. There must be one more offset than ranks, "
           "in ascending order from 0 to the number of elements.",
           op, Shape(cuts.begin(), cuts.end()), ranks, n);
}
void check_contiguous(std::string_view op, const Tensor& x) {
  TG_CHECK(x.is_contiguous(), value,
           "[{}] {} is not contiguous, and it is read after the kernel has returned. Pass contiguous().", op, x);
}
void add_to(StructuralHash& k, const Communicator* comm, const ShardOffsets& cuts) {
  k.add(uint64_t(reinterpret_cast<uintptr_t>(comm)));
  for (const int64_t c : cuts) k.add(uint64_t(c));
}
Layout ticket(Device d) { return Layout::contiguous({1}, DType::i64, d); }
}  // namespace

PendingSums::PendingSums(OpPtr op, Inputs x, std::shared_ptr<Communicator> comm) : comm_(std::move(comm)) {
  const NoGradScope off;
  std::vector<Tensor> dense;
  for (const Tensor& t : x) dense.push_back(t.detach().contiguous());
  const Tensors out = emit(std::move(op), dense);
  all_.assign(out.begin(), out.end() - 1);
  all_.insert(all_.end(), dense.begin(), dense.end());
  all_.push_back(out[out.size() - 1]);
}
PendingSums::~PendingSums() {
  if (all_.empty() || !all_.back().value()->storage) return;  // finished, or never started
  try {
    (void)finish();
  } catch (const std::exception&) {  // no caller asks for the sums
  }
}
Tensors PendingSums::finish() {
  TG_CHECK(!all_.empty(), state, "[finish_sums] these sums were finished before. Keep what finish() returned.");
  std::vector<Tensor> all = std::exchange(all_, {});
  const size_t n = all.size() / 2;
  const bool runs = bool(all.back().value()->storage);
  try {
    detail::emit_update(make_ref<op::FinishSums>(comm_), all, n);
    // A lazy value may be dropped, and its memory with it.
    if (runs && lazy_enabled()) eval({all.data(), n});
  } catch (...) {
    detail::wait_for_async();
    throw;
  }
  Tensors sums;
  for (size_t i = 0; i < n; ++i) sums.emplace_back(std::move(all[i]));
  return sums;
}
Layouts op::FinishSums::infer(Inputs in) const {
  Layouts all;
  for (const Tensor& sum : in.first(in.size() / 2)) all.emplace_back(contiguous_like(sum));
  return all;
}

Layouts op::AllReduce::infer(Inputs in) const {
  Layouts all;
  for (const Tensor& x : in) {
    check_contiguous(kName, x);
    all.emplace_back(contiguous_like(x, detail::reduced_dtype(kName, x.dtype())));
  }
  all.emplace_back(ticket(in[0].device()));
  return all;
}
PendingSums start_all_reduce(Inputs x, std::shared_ptr<Communicator> comm) {
  check_call(op::AllReduce::kName, x, comm);
  return {make_ref<op::AllReduce>(comm), x, comm};
}
Tensors all_reduce(Inputs x, std::shared_ptr<Communicator> comm) {
  return start_all_reduce(x, std::move(comm)).finish();
}

Layouts op::ReduceScatter::infer(Inputs in) const {
  check_cuts(kName, in, cuts, comm->size());
  Layouts all;
  int64_t begin = 0;
  for (const Tensor& x : in) {
    check_contiguous(kName, x);
    const int64_t n = detail::shard_of(cuts, comm->rank(), begin, x.numel()).n;
    all.emplace_back(contiguous_like(x, {n}, detail::reduced_dtype(kName, x.dtype())));
    begin += x.numel();
  }
  all.emplace_back(ticket(in[0].device()));
  return all;
}
void op::ReduceScatter::key(StructuralHash& k) const { add_to(k, comm.get(), cuts); }
PendingSums start_reduce_scatter(Inputs x, const ShardOffsets& cuts, std::shared_ptr<Communicator> comm) {
  check_call(op::ReduceScatter::kName, x, comm);
  return {make_ref<op::ReduceScatter>(comm, cuts), x, comm};
}
Tensors reduce_scatter(Inputs x, const ShardOffsets& cuts, std::shared_ptr<Communicator> comm) {
  return start_reduce_scatter(x, cuts, std::move(comm)).finish();
}

Layouts op::AllGatherParts::infer(Inputs in) const {
  const Inputs w = in.first(in.size() - copied.size());
  check_cuts(kName, w, cuts, comm->size());
  for (size_t k = 0; k < copied.size(); ++k)
    TG_CHECK(in[w.size() + k].dtype() == DType::bf16 && in[w.size() + k].shape() == w[copied[k]].shape(), internal,
             "[{}] the copy of weight {}, {}, is {}.", kName, copied[k], w[copied[k]], in[w.size() + k]);
  Layouts all;
  for (const Tensor& x : in) all.emplace_back(contiguous_like(x));
  return all;
}
void op::AllGatherParts::key(StructuralHash& k) const {
  add_to(k, comm.get(), cuts);
  for (const uint32_t i : copied) k.add(uint64_t(i));
}
void detail::all_gather_parts(Inputs w, const ShardOffsets& cuts, std::shared_ptr<Communicator> comm) {
  check_call(op::AllGatherParts::kName, w, comm);
  for (const Tensor& x : w) {
    TG_CHECK(!detail::on_tape(x), state,
             "[all_gather_parts] {} was computed on the tape. Only leaves are updated: pass one, or detach().", x);
    TG_CHECK(size_of(x.dtype()) >= 2, dtype,
             "[all_gather_parts] {} has elements of 1 byte. They must have 2 bytes or more: use .to(dtype).", x);
  }
  detail::emit_with_copies(make_ref<op::AllGatherParts>(std::move(comm), cuts), w, {w.begin(), w.end()}, w.size());
}
}  // namespace tg
