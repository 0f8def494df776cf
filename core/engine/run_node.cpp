#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/backend/dry_run.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/core/engine/run_call.h>
#include <tapegrad/core/engine/run_node.h>
#include <tapegrad/core/engine/shared_values.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>

namespace tg {
namespace detail {
void fail_buf_dtype(const Layout& l, DType read_as) {
  fail(Error::Kind::dtype, fmt::format("[{}] the kernel reads {} as {}. Choose the type by visit_dtype(x.dtype(), "
                                       "...), or list the dtypes that the kernel has in the op's kDTypes.",
                                       running().op, l, read_as));
}
void fail_buf_size(const Layout& l, size_t bytes) {
  fail(Error::Kind::dtype, fmt::format("[{}] the kernel reads {} as elements of {} bytes. Choose their type by "
                                       "visit_size(x.dtype(), ...).",
                                       running().op, l, bytes));
}

}  // namespace detail
struct Context::Scratch {
  Scratch* before;
  void* data;
  size_t bytes;
};
void* Context::scratch(size_t bytes) {
  if (bytes == 0) return nullptr;
  auto block = std::make_unique<Scratch>(Scratch{scratch_, nullptr, bytes});
  block->data = detail::runtime_of(device).take_scratch(device.index, bytes);
  scratch_ = block.release();
  return scratch_->data;
}
void Context::release() {
  BackendRuntime& runtime = detail::runtime_of(device);
  while (scratch_) {
    const std::unique_ptr<Scratch> block(std::exchange(scratch_, scratch_->before));
    runtime.give_scratch(device.index, block->data, block->bytes);
  }
}
void Context::fail_scratch(int64_t elements) const {
  detail::fail(Error::Kind::value, fmt::format("[{}] the kernel asks for {} elements of scratch memory. Ask for a "
                                               "count that is at least 0 and that the device can hold.",
                                               op, elements));
}
void* Context::stream() const { return detail::runtime_of(device).stream(device.index); }

namespace detail {
namespace {
void check_computed(std::string_view loop, Bufs in, const Buf& out) {
  const DType d = out.dtype();
  TG_CHECK(is_float(d) && d != DType::f16, dtype,
           "[{}] {} supports f64, f32 and bf16, but the output is {}. Select its type with visit_dtype(), and loop "
           "with parallel_for() or a custom kernel.",
           running().op, loop, *out.layout);
  for (const Buf& b : in)
    if (b.dtype() != d) fail_buf_dtype(*b.layout, d);
}
}  // namespace
void check_elements(Bufs in, const Buf& out) {
  check_computed("for_each", in, out);
  for (const Buf& b : in) {
    const Shape &from = b.shape(), &to = out.shape();
    bool fits = from.size() <= to.size();
    for (size_t i = 0; fits && i < from.size(); ++i) {
      const int64_t want = to[i + to.size() - from.size()];
      fits = from[i] == want || from[i] == 1;
    }
    TG_CHECK(fits, shape,
             "[{}] for_each gets an input {} and an output {}. The input must have the output's shape, or one that "
             "broadcasts to it. infer() sets the output's shape.",
             running().op, *b.layout, *out.layout);
  }
}
void check_rows(Bufs in, const Buf& out) {
  check_computed("for_each_row", in, out);
  const auto rows = [](const Buf& b) { return b.shape().empty() ? -1 : b.shape().without_last().product(); };
  for (const Buf& b : in)
    TG_CHECK(rows(b) == rows(out) && rows(b) >= 0, shape,
             "[{}] for_each_row gets an input {} and an output {}. Both need a last dimension, and the same number "
             "of rows (the product of the other sizes).",
             running().op, *b.layout, *out.layout);
}

struct ContiguousInputs::Copies {
  std::vector<Layout> layouts;
  std::vector<Ref<Storage>> storages;
  std::vector<Buf> bufs;
};
ContiguousInputs::ContiguousInputs(Bufs in, Context& c) : in_(in) {
  if (std::ranges::all_of(in, &Buf::is_contiguous)) return;
  copies_ = std::make_unique<Copies>();
  copies_->layouts.reserve(in.size());  // bufs point here
  for (const Buf& b : in) {
    copies_->bufs.push_back(b);
    if (b.is_contiguous()) continue;
    const Layout& l = copies_->layouts.emplace_back(Layout::contiguous(b.shape(), b.dtype(), c.device));
    copies_->storages.push_back(make_ref<Storage>(c.device, l.bytes()));
    Buf& to = copies_->bufs.back() = {&l, copies_->storages.back()->data};
    op::Cast(b.dtype()).run({&b, 1}, {&to, 1}, c);
  }
  in_ = copies_->bufs;
}
ContiguousInputs::~ContiguousInputs() = default;

Error with_scope(const Error& e, const Scope* s) {  // the innermost failed op has the best scope
  if (!s->parent || e.scoped()) return e;
  return Error(e.kind(), fmt::format("{}\n    in {}", e.what(), s->path()), true);
}
uint64_t next_mark() {
  static std::atomic<uint64_t> n{0};
  return n.fetch_add(1, std::memory_order_relaxed) + 1;
}

namespace {
void check_unchanged(const Node& n, size_t i, bool output, const Storage* s, uint32_t then, const Layout& layout) {
  if (!s || s->version == then) return;
  const std::string* label = output ? nullptr : n.in[i].label;
  const Error e(Error::Kind::state,
                fmt::format("[{}] {} {}{} {} was changed after it was {}: it had version {}, now {}. A write through "
                            "any view counts. Write to a copy, or after {}.",
                            n.op->name(), output ? "output" : "input", i, label ? fmt::format(" '{}'", *label) : "",
                            layout, n.done ? "saved for backward" : "captured by this lazy op", then, s->version,
                            n.done ? "backward" : "evaluate"));
  throw with_scope(e, n.scope);
}
}  // namespace
void check_version(const Node& n, size_t i, const Value& v) {
  const uint32_t then = n.in[i].version;
  // Lazy inputs have the version that their op wrote.
  check_unchanged(n, i, false, v.storage.get(), then == kUnset ? v.version : then, v.layout);
}
void check_version(const Node& n, size_t i, bool output) {
  if (!output) return check_version(n, i, *n.in[i].value);
  const Out& o = n.out[i];
  check_unchanged(n, i, true, o.saved.get(), o.version, o.layout);
}

Donors eager_donors(const Node& n) {
  const auto in = [&](size_t i) -> const Layout& { return n.in[i].value->layout; };
  const auto out = [&](size_t k) -> const Layout& { return n.out[k].layout; };
  return choose_donors(n.op->traits(), n.in.size(), in, n.out.size(), out, [&](size_t i) {
    const auto& v = n.in[i].value;
    return v.use_count() == 1 && v->storage.use_count() == 1 && fills_storage(v->layout, v->storage->bytes);
  });
}

void commit_outputs(Node& n, const OutputStorages& made) {
  const bool tape = n.tape();
  const Mask keep_in = n.kept_inputs(), keep_out = tape ? n.op->saves_out(n.tracked) : 0;
  n.done = true;
  for (size_t i = 0; i < n.out.size(); ++i) {
    Out& o = n.out[i];
    if (keep_out & mask_of(i)) o.saved = made[i], o.version = made[i]->version;
    if (!o.live) continue;
    Value& v = *o.live;
    if (made[i]) v.version = made[i]->version;  // null: an unread result inside a chain
    v.storage = made[i];
    if (!n.tracked) o.live = nullptr, v.producer = nullptr;
    v.runner.store(0, std::memory_order_release);  // other threads may free v now
  }
  for (size_t i = 0; i < n.in.size(); ++i) {
    Edge& e = n.in[i];
    if ((keep_in | n.recomputing.in) & mask_of(i) && e.value->storage)  // null: a result inside a chain
      e.version = e.value->storage->version;
    if (!(keep_in & mask_of(i))) e.value = nullptr;
  }
  if (n.user.load(std::memory_order_relaxed)) leave(n);
}
Ref<Storage> new_storage(const Node& n, size_t i, const BufferAssignment& buffers) {
  const Layout& l = n.out[i].layout;
  if (!buffers.slots.empty())
    if (const BufferSlice& p = buffers.slots[n.slot + i]; p.arena != BufferSlice::kNone)
      return make_ref<Storage>(buffers.arenas[p.arena], p.offset, l.bytes());
  return make_ref<Storage>(l.device, l.bytes());
}
Ref<Storage> output_storage(const Node& n, size_t i, int32_t from, const BufferAssignment& buffers) {
  return from >= 0 ? n.in[size_t(from)].value->storage : new_storage(n, i, buffers);
}
void check_alive(const Node& n) { TG_CHECK(!n.error, state, "[{}] cannot be read: {}", n.op->name(), *n.error); }

namespace {
OutputStorages execute(Node& n, const Donors& donors, const BufferAssignment& buffers) {
  check_alive(n);
  SmallVec<Buf, 4> in, out;
  OutputStorages made;
  for (size_t i = 0; i < n.in.size(); ++i) {
    const Value& v = *n.in[i].value;
    check_version(n, i);
    in.emplace_back(&v.layout, v.storage->data);
  }
  KernelCall call{n.op.get(), nullptr, n.op->name(), n.scope, n.range, n.out[0].layout.device, in};
  const RunningCall running(call);
  for (size_t i = 0; i < n.out.size(); ++i) {
    const Layout& l = n.out[i].layout;
    made.emplace_back(output_storage(n, i, l.aliases_input >= 0 ? l.aliases_input : donors[i], buffers));
    out.emplace_back(&l, made[i]->data);
  }
  call.out = out;
  if (n.op->traits().kind != OpKind::view) {
    std::optional<AnomalyCheck> check;
    if (anomaly_enabled() && !running_dry()) [[unlikely]]
      check.emplace(n, call.in);
    running.launch();
    if (check) check->after(call.out);
  }
  commit_outputs(n, made);
  return made;
}
std::vector<void (*)() noexcept>& waits() {
  static auto& all = *new std::vector<void (*)() noexcept>;
  return all;
}
}  // namespace
bool on_wait_for_async(void (*f)() noexcept) {
  waits().push_back(f);
  return true;
}
void wait_for_async() noexcept {
  for (const auto f : waits()) f();
}

// Donated memory may be half written: readers get an Error.
void mark_failed(Node& n, const Donors& donors, const Error& why) {
  if (n.error) return;
  for (const int32_t d : donors)
    if (d >= 0) ++n.in[size_t(d)].value->storage->version;
  // Interned texts are never freed: a program that catches Errors forever uses at most 3 MB.
  constexpr int kMost = 10'000;
  static std::atomic<int> told = 0;
  n.error = told < kMost && ++told <= kMost
                ? detail::intern(fmt::format("it failed before: {}", why.what()))
                : detail::intern("it failed before. The Error that it threw then says why.");
}

OutputStorages run_node(Node& n, const Donors& donors, const BufferAssignment& buffers) {
  const Ref<Node> guard(&n);  // commit_outputs() may drop the last reference
  try {
    return execute(n, donors, buffers);
  } catch (const Error& e) {
    if (n.error) throw;
    const Error full = with_scope(e, n.scope);
    mark_failed(n, donors, full);
    throw full;
  }
}

void run_or_evaluate(Node& n, Inputs outs) {
  for (auto& e : n.in)
    if (e.value->runner.load(std::memory_order_acquire) || !e.value->storage) return eval(outs);
  const DefaultFloatMode mode;
  run_node(n, eager_donors(n));
}
}  // namespace detail
}  // namespace tg
