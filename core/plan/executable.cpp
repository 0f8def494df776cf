#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/bf16_copy.h>
#include <tapegrad/core/engine/shared_values.h>
#include <tapegrad/core/plan/executable.h>

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
    : binding_(std::move(b)),
      plan_(make_executable_plan(g, plan, binding_)),
      generators_(std::move(d)),
      ops_(plan_.ops),
      dynamic_ops_(plan_.dynamic_ops) {
  for (const auto& v : binding_.variables)
    if (v.updated || v.new_value != kNone) assigned_.push_back(v.variable.get());
  std::ranges::sort(assigned_);
  for (const MemorySource& r : plan_.sources) memory_.push_back({r.storage.get()});
}

namespace {
bool same_place(const Layout& a, const Layout& b) {
  return a.shape == b.shape && a.strides == b.strides && a.offset == b.offset && a.dtype == b.dtype &&
         a.device == b.device;
}
}  // namespace
bool Executable::fits() const {
  return std::ranges::all_of(binding_.variables, [&](const auto& v) {
    // Unread values may have any layout that assign() accepts.
    return v.variable->requires_grad == v.requires_grad && hooks_of(*v.variable) == v.hooks &&
           (v.slot == kNone || v.bf16_copy || same_place(v.variable->value->layout, plan_.layouts[v.slot]));
  });
}

bool Executable::given(Inputs in) const {
  for (size_t k = 0; k < in.size(); ++k)
    if (const Variable* v = in[k].variable().get(); v->requires_grad)
      if (binding_.captured(v) != binding_.captured_as[k]) return false;
  return true;
}

bool Executable::free(const MemorySource& r, Inputs in) const {
  const Value* v = start_value(r.index);
  for (const Tensor& t : in)  // the variable may also be an input
    if (t.value()->storage.get() == v->storage.get()) return false;
  return v->refs.load(std::memory_order_acquire) == 1 && v->storage.use_count() == 1 &&
         fills_storage(v->layout, v->storage->bytes);
}
// False if another thread may have assigned a tensor.
bool Executable::compute(Inputs in, ReadsValues& reads) {
  std::vector<Tensor> pending;
  const auto read = [&](const Ref<Variable>& v) {
    reads.wait_for(*v);
    if (!v->value->storage) pending.emplace_back(v);
  };
  for (const Tensor& t : in) read(t.variable());
  for (const auto& v : binding_.variables)
    if (v.slot != kNone) read(v.variable);
  bool all = pending.empty();
  if (!all) eval(pending);
  if (several_readers()) copies_.resize(binding_.variables.size());
  for (size_t k = 0; k < binding_.variables.size(); ++k) {
    const auto& v = binding_.variables[k];
    if (!v.bf16_copy || v.slot == kNone) continue;
    const Ref<Value> now = v.variable->value;
    const Value* const former = now->bf16_copy.get();
    const Ref<Value> copy = keep_bf16_copy(*now);
    if (!copies_.empty()) copies_[k] = copy;
    if (copy.get() == former && copy->storage) continue;
    eval({Tensor(copy)});
    all = false;
  }
  return all;
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
  read_.clear(), copies_.clear();
  ReadsValues reads;
  bool computed = true;
  for (const Tensor& t : in) {
    reads.wait_for(*t.variable());
    computed &= bool(t.value()->storage);
  }
  for (const auto& v : binding_.variables) {
    reads.wait_for(*v.variable);
    computed &= v.slot == kNone || (!v.bf16_copy && bool(v.variable->value->storage));
  }
  while (!computed) computed = compute(in, reads);
  for (const uint32_t i : plan_.moving_sources) {
    const MemorySource& r = plan_.sources[i];
    Memory& m = memory_[i];
    if (r.kind == MemorySource::Kind::input) {
      m.storage = in[r.index].value()->storage.get();
    } else if (r.kind == MemorySource::Kind::variable) {
      m.storage = start_value(r.index)->storage.get();
    } else if (r.kind == MemorySource::Kind::donated && free(plan_.sources[r.index], in)) {
      m.storage = memory_[r.index].storage;
    } else {
      m.owned = make_ref<Storage>(r.device, r.bytes);
      m.storage = m.owned.get();
    }
    std::byte* const data = copied(r, m) ? m.copy->data : m.storage->data;
    if (m.data == data) continue;
    m.data = data;
    for (const MemorySource::Entry& e : r.patch_sites) {
      *e.at = data + e.offset;
      if (recording_) changed_.push_back(e.call);
    }
  }
  if (several_readers())
    for (const uint32_t i : plan_.moving_sources) {
      const auto kind = plan_.sources[i].kind;
      if (kind == MemorySource::Kind::variable || kind == MemorySource::Kind::input)
        read_.emplace_back(memory_[i].storage);
    }
}
// This run's state of a traced generator.
Rng Executable::moved(const Rng& traced) const {
  for (const GeneratorSpan& d : generators_)
    if (d.covers(traced)) return {d.outside.seed, d.outside.offset + (traced.offset - d.begin.offset)};
  return traced;
}
// `first`: the trace has counted this step.
void Executable::update_dynamic_ops(bool first) {
  for (GeneratorSpan& d : generators_) d.outside = d.generator->take(4 * (d.end.offset - d.begin.offset));
  size_t kept = 0;
  for (ExecutablePlan::DynamicOp& c : dynamic_ops_) {
    const Rng* at = c.traced->rng_state();
    if (at || !first) {
      OpPtr next = c.traced->for_next_step(at ? moved(*at) : Rng());
      if (!next) continue;  // the op is constant
      *c.use = next.get();
      ops_[c.op] = std::move(next);
      if (recording_ && !recording_->update(c.call, *ops_[c.op])) changed_.push_back(c.call);
    }
    if (&dynamic_ops_[kept] != &c) dynamic_ops_[kept] = std::move(c);
    ++kept;
  }
  dynamic_ops_.resize(kept);
}

void Executable::undo_steps() {
  for (auto c = dynamic_ops_.rbegin(); c != dynamic_ops_.rend(); ++c) ops_[c->op]->undo_step();
  for (const GeneratorSpan& d : generators_)
    std::atomic_ref(d.generator->offset).fetch_sub(d.end.offset - d.begin.offset, std::memory_order_relaxed);
}

void Executable::call_all() {
  const DefaultFloatMode mode;
  const Scope* scope = detail::current_scope();
  try {
    if (call_as_one()) {
      for (size_t k = 0; t_work && k < ops(); ++k) count_work(plan_.calls[k]);
      mutable_stats().kernels += ops();
    } else {
      for (const KernelCall& c : plan_.calls) {
        scope = c.scope;
        RunningCall(c, t_range).launch();
      }
    }
  } catch (const Error& e) {
    for (size_t i = 0; i < memory_.size(); ++i)
      if (plan_.sources[i].kind == MemorySource::Kind::donated && !memory_[i].owned)
        ++memory_[i].storage->version;  // half written
    throw with_scope(e, scope);
  }
}

Ref<Value> Executable::value_of(uint32_t slot) const {
  return make_ref<Value>(plan_.layouts[slot], Ref<Storage>(memory_[plan_.source_of[slot]].storage));
}
// Reads before assigning: variables may swap values.
void Executable::assign_variables() {
  read_.clear(), copies_.clear();
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
  new_values_.clear();  // sole owner: the next run can donate them
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
    wait_for_async();  // asynchronous kernels use this run's memory
    if (counted) undo_steps();
    throw;
  }
  std::vector<Tensor> r = results();
  assign_variables();
  for (const uint32_t i : plan_.moving_sources) memory_[i].owned = nullptr;
  return r;
}

}  // namespace tg::detail
