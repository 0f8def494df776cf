#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/bf16_copy.h>
#include <tapegrad/core/engine/shared_values.h>
#include <tapegrad/core/plan/executable.h>
#include <tapegrad/core/profile/profiler_record.h>
#include <tapegrad/core/profile/work.h>

#include <algorithm>

namespace tg::detail {

void check_inputs(const Binding& b, std::span<const Variable* const> inputs) {
  for (size_t k = 0; k < inputs.size(); ++k)
    for (const auto& v : b.variables)
      TG_CHECK(b.inputs[k] == kNone || !(v.updated || v.new_value != kNone) || v.variable.get() != inputs[k], state,
               "[compile] input {} is {}, which the function updates. After the update the function would read the "
               "new value as its input, but a replay the old one. Pass a detach() of it, or drop the input and use "
               "the captured tensor.",
               k, Tensor(v.variable));
}

Executable::Executable(const Graph& g, const Plan& plan, Binding b, std::vector<GeneratorSpan> d)
    : binding_(std::move(b)), generators_(std::move(d)) {
  for (const auto& v : binding_.variables) {
    captured_.push_back(v.variable.get());
    if (v.updated || v.new_value != kNone) assigned_.push_back(v.variable.get());
  }
  std::ranges::sort(captured_);
  std::ranges::sort(assigned_);
  build(g, plan);
}

namespace {
bool same_place(const Layout& a, const Layout& b) {
  return a.shape == b.shape && a.strides == b.strides && a.offset == b.offset && a.dtype == b.dtype &&
         a.device == b.device;
}
}  // namespace
bool Executable::fits() const {
  return std::ranges::all_of(binding_.variables, [&](const auto& v) {
    // A value without readers may have any layout that assign() accepts.
    return v.variable->requires_grad == v.requires_grad && hooks_of(*v.variable) == v.hooks &&
           (v.slot == kNone || v.bf16_copy || same_place(v.variable->value->layout, layouts_[v.slot]));
  });
}

bool Executable::given(Inputs in) const {
  for (size_t k = 0; k < in.size(); ++k)
    if (const Variable* v = in[k].variable().get(); v->requires_grad)
      if ((std::ranges::binary_search(captured_, v) ? v : nullptr) != binding_.captured_as[k]) return false;
  return true;
}

void Executable::patch_pointers(const MemorySource& r) {
  for (const MemorySource::Entry& e : r.patch_sites) {
    *e.at = r.data + e.offset;
    if (recording_) changed_.push_back(e.call);
  }
}
bool Executable::free(const MemorySource& r, Inputs in) const {
  const Value* v = start_value(r.index);
  for (const Tensor& t : in)  // the variable itself may also be an input
    if (t.value()->storage.get() == v->storage.get()) return false;
  return v->refs.load(std::memory_order_acquire) == 1 && v->storage.use_count() == 1 &&
         fills_storage(v->layout, v->storage->bytes);
}
void Executable::bind(Inputs in) {
  std::vector<const Variable*> given;
  if (!assigned_.empty())
    for (const Tensor& t : in) {
      if (!std::ranges::binary_search(assigned_, t.variable().get())) continue;
      for (const Tensor& x : in) given.push_back(x.variable().get());
      check_inputs(binding_, given);
      break;
    }
  read_.clear();
  ReadsValues reads;
  for (const auto& v : binding_.variables) reads.wait_for(*v.variable);
  std::vector<Tensor> pending;  // assigned under a LazyScope, not yet computed
  for (const auto& v : binding_.variables)
    if (v.slot != kNone && !v.variable->value->storage) pending.emplace_back(v.variable);
  if (!pending.empty()) evaluate(pending);
  for (const auto& v : binding_.variables)
    if (v.bf16_copy && v.slot != kNone) keep_bf16_copy(*v.variable->value);
  for (const uint32_t i : moving_sources_) {
    MemorySource& r = sources_[i];
    if (r.kind == MemorySource::Kind::input) {
      r.storage = in[r.index].value()->storage.get();
    } else if (r.kind == MemorySource::Kind::variable) {
      r.storage = start_value(r.index)->storage.get();
    } else if (r.kind == MemorySource::Kind::donated && free(sources_[r.index], in)) {
      r.storage = sources_[r.index].storage;
    } else {
      r.owned = make_ref<Storage>(r.device, r.bytes);
      r.storage = r.owned.get();
    }
    std::byte* const at = copied(r) ? r.copy->data : r.storage->data;
    if (r.data == at) continue;
    r.data = at;
    patch_pointers(r);
  }
  if (several_readers())
    for (const uint32_t i : moving_sources_)
      if (sources_[i].kind == MemorySource::Kind::variable) read_.emplace_back(sources_[i].storage);
}
// The generator state of this run that corresponds to one of the trace.
Rng Executable::moved(const Rng& traced) const {
  for (const GeneratorSpan& d : generators_)
    if (d.covers(traced)) return {d.generator->seed, d.generator->offset + (traced.offset - d.begin.offset)};
  return traced;
}
// The trace has counted the first step.
void Executable::update_dynamic_ops(bool first) {
  size_t kept = 0;
  for (DynamicOp& c : dynamic_ops_) {
    const Rng* at = c.traced->rng_state();
    if (at || !first) {
      OpPtr next = c.traced->for_next_step(at ? moved(*at) : Rng());
      if (!next) continue;  // it is constant
      if (c.in_chain) *c.in_chain = next.get();
      ops_[c.op] = std::move(next);
      if (recording_ && !recording_->update(c.call, *ops_[c.op])) changed_.push_back(c.call);
    }
    if (&dynamic_ops_[kept] != &c) dynamic_ops_[kept] = std::move(c);
    ++kept;
  }
  dynamic_ops_.resize(kept);
  for (const GeneratorSpan& d : generators_) d.generator->offset += d.end.offset - d.begin.offset;
}

void Executable::undo_steps() {
  for (auto c = dynamic_ops_.rbegin(); c != dynamic_ops_.rend(); ++c) ops_[c->op]->undo_step();
  for (const GeneratorSpan& d : generators_) d.generator->offset -= d.end.offset - d.begin.offset;
}

void Executable::call(const Call& c) {
  if (c.chain) {
    run_chain_kernel(c.name, {c.chain->plan,
                              {c.chain->ops.data(), c.chain->ops.size()},
                              {c.chain->data.data(), c.chain->data.size()},
                              c.device});
  } else {
    Context context{c.device, c.name};
    const Buf* const in = bufs_.data() + c.first;
    run_kernel(*ops_[c.op], {in, c.in}, {in + c.in, c.out}, context);
  }
}

void Executable::count_work() const {
  for (const Call& c : calls_)
    if (c.chain) {
      t_work->add(c.name, c.chain->from, c.chain->to, c.chain->work);
    } else {
      const Buf* const in = bufs_.data() + c.first;
      detail::count_work(*ops_[c.op], {in, c.in}, {in + c.in, c.out});
    }
}

void Executable::call_all() {
  const DefaultFloatMode mode;
  if (t_work) [[unlikely]]
    count_work();
  const Scope* scope = current_scope();
  try {
    if (!call_as_one())
      for (const Call& c : calls_) {
        scope = c.scope;
        const NowRunning run(c.name, c.scope, c.range);
        OpSpan span;
        if (profiling()) [[unlikely]]
          span.begin(c.name, c.scope, joined_path(t_range, c.range),
                     c.chain ? std::string() : shapes_of({bufs_.data() + c.first, c.in}));
        call(c);
      }
  } catch (const Error& e) {
    for (const MemorySource& r : sources_)
      if (r.kind == MemorySource::Kind::donated && !r.owned) ++r.storage->version;  // may be half written
    throw with_scope(e, scope);
  }
  mutable_stats().kernels += calls_.size();
}

Ref<Value> Executable::value_of(uint32_t slot) const {
  return make_ref<Value>(layouts_[slot], Ref<Storage>(sources_[source_of_[slot]].storage));
}
// Reads all values before assigning any: variables may swap values.
void Executable::assign_variables() {
  read_.clear();
  if (assigned_.empty()) return;
  for (const auto& v : binding_.variables)
    if (v.new_value != kNone) new_values_.push_back(value_of(v.new_value));
  WritesValues alone;
  auto next = new_values_.begin();
  for (const auto& v : binding_.variables)
    if (v.new_value != kNone) {
      if (v.bf16_copy)
        give_bf16_copy(*v.variable->value, std::move(*next++));
      else
        alone.replace(*v.variable, std::move(*next++));
    }
  new_values_.clear();  // no other owner, so that the next run can donate them
}
std::vector<Tensor> Executable::results() const {
  std::vector<Tensor> r;
  r.reserve(binding_.outputs.size());
  for (const uint32_t slot : binding_.outputs) r.emplace_back(value_of(slot));
  return r;
}

std::vector<Tensor> Executable::run(Inputs in) {
  bool counted = runs_++ == 0;
  if (counted) update_dynamic_ops(true);
  try {
    bind(in);
    if (!counted) update_dynamic_ops(false), counted = true;
    copy_moved(MemorySource::Kind::input);
    call_all();
    copy_moved(MemorySource::Kind::per_run);
  } catch (...) {
    wait_for_async();  // it uses memory of this run
    if (counted) undo_steps();
    throw;
  }
  std::vector<Tensor> r = results();
  assign_variables();
  for (const uint32_t i : moving_sources_) sources_[i].owned = nullptr;
  return r;
}

}  // namespace tg::detail
