#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/core/plan/executable.h>
#include <tapegrad/core/profile/profiler_record.h>
#include <tapegrad/core/profile/work.h>

#include <algorithm>
#include <cstdio>

namespace tg::detail {
// Lays a plan out: first where each value lies, then the calls, whose pointers are entered as the roots are known.
class Executable::Builder {
 public:
  Builder(Executable& p, const Graph& g, const Plan& plan) : p_(p), g_(g), plan_(plan) {}

  void build() {
    for (const Slot& s : g_.slots) p_.layouts_.push_back(*s.layout);
    p_.source_of_.assign(g_.slots.size(), kNone);
    leaves();
    for (const Plan::Arena& a : plan_.arenas) {
      arenas_.push_back(make_ref<Storage>(a.device, a.bytes));
      p_.bytes_ += a.bytes;
    }
    size_t bufs = 0;
    for (uint32_t n = 0; n < g_.nodes.size(); ++n) bufs += g_.inputs(n).size() + g_.nodes[n]->out.size();
    p_.bufs_.reserve(bufs);  // places point into it
    for (const Step& s : plan_.steps) place(s);
    for (const Step& s : plan_.steps) add_call(s);
    std::ranges::stable_sort(p_.dynamic_ops_, {}, &DynamicOp::node);
    for (uint32_t r = 0; r < p_.sources_.size(); ++r) {
      if (p_.sources_[r].kind == MemorySource::Kind::fixed)
        p_.patch_pointers(p_.sources_[r]);
      else
        p_.moving_sources_.push_back(r);
    }
  }

 private:
  uint32_t add_source(MemorySource r) {
    p_.sources_.push_back(std::move(r));
    return uint32_t(p_.sources_.size() - 1);
  }
  void leaves() {
    const auto leaf = [&](uint32_t slot, MemorySource r) {
      if (slot != kNone) p_.source_of_[slot] = add_source(std::move(r));
    };
    for (uint32_t k = 0; k < p_.binding_.inputs.size(); ++k)
      leaf(p_.binding_.inputs[k], {.kind = MemorySource::Kind::input, .index = k});
    for (uint32_t k = 0; k < p_.binding_.variables.size(); ++k)
      leaf(p_.binding_.variables[k].slot, {.kind = MemorySource::Kind::variable, .index = k});
  }
  static MemorySource fixed(Ref<Storage> s) {
    Storage* const raw = s.get();
    return {.kind = MemorySource::Kind::fixed, .owned = std::move(s), .storage = raw, .data = raw->data};
  }
  // Of a result that takes over nothing.
  uint32_t own_root(uint32_t slot) {
    const Layout& l = p_.layouts_[slot];
    uint32_t group = slot;
    while (g_.slots[group].group != group) group = g_.slots[group].group;
    if (g_.slots[group].pinned)
      return add_source({.kind = MemorySource::Kind::fresh, .device = l.device, .bytes = l.bytes()});
    const BufferSlice& at = plan_.slices[group];
    if (at.arena != BufferSlice::kNone)
      return add_source(fixed(make_ref<Storage>(arenas_[at.arena], at.offset, l.bytes())));
    p_.bytes_ += l.bytes();
    return add_source(fixed(make_ref<Storage>(l.device, l.bytes())));
  }
  uint32_t taken_over(uint32_t from) {
    const uint32_t root = p_.source_of_[from];
    if (p_.sources_[root].kind != MemorySource::Kind::variable) return root;
    const Layout& l = p_.layouts_[from];
    return add_source({.kind = MemorySource::Kind::donated, .index = root, .device = l.device, .bytes = l.bytes()});
  }
  void place(const Step& s) {
    if (s.duplicate_of != kNone) {
      for (size_t i = 0; i < g_.nodes[s.nodes[0]]->out.size(); ++i)
        p_.source_of_[g_.output(s.nodes[0], i)] = p_.source_of_[g_.output(s.duplicate_of, i)];
      return;
    }
    const std::vector<Operation> ops = operations(g_, s);
    for (size_t k = 0; k < ops.size(); ++k)
      for (size_t i = 0; i < ops[k].out.size(); ++i) {
        if (ops[k].out[i] == kNone) continue;
        uint32_t& root = p_.source_of_[ops[k].out[i]];
        if (const int view_of = ops[k].layouts[i]->aliases_input; view_of >= 0)
          root = p_.source_of_[ops[k].in[size_t(view_of)]];
        else if (const int32_t donor = s.donors[k][i]; donor >= 0)
          root = taken_over(ops[k].in[size_t(donor)]);
        else
          root = own_root(ops[k].out[i]);
      }
  }
  void add_entry(uint32_t slot, bool writes, std::byte** at, size_t offset = 0) {
    p_.sources_[p_.source_of_[slot]].places.push_back({at, offset, uint32_t(p_.calls_.size()), writes});
  }
  void add_op(OpPtr op, uint32_t node, const Op** in_chain) {
    if (op->traits().dynamic_attributes)
      p_.dynamic_ops_.push_back({op, uint32_t(p_.ops_.size()), uint32_t(p_.calls_.size()), node, in_chain});
    p_.ops_.push_back(std::move(op));
  }
  void add_call(const Step& s) {
    const Node& last = *g_.nodes[s.nodes.back()];
    if (s.duplicate_of != kNone || last.op->traits().kind == OpKind::view) return;
    Call c{.op = uint32_t(p_.ops_.size()),
           .first = uint32_t(p_.bufs_.size()),
           .device = last.out[0].layout.device,
           .scope = last.scope,
           .range = last.range};
    if (!s.replacement && s.nodes.size() > 1) {
      c.chain = add_chain(s);
      c.name = chain_name(c.chain->ops);
    } else {
      Operation o = operations(g_, s)[0];
      const auto add = [&](uint32_t slot, bool writes, const Layout* layout) {
        p_.bufs_.push_back({layout, nullptr});
        add_entry(slot, writes, &p_.bufs_.back().bytes);
      };
      for (const uint32_t in : o.in) add(in, false, &p_.layouts_[in]);
      for (size_t i = 0; i < o.out.size(); ++i)
        add(o.out[i], true, s.replacement ? &p_.own_layouts_.emplace_back(*o.layouts[i]) : &p_.layouts_[o.out[i]]);
      c.name = o.op->name();
      c.in = uint32_t(o.in.size());
      c.out = uint32_t(o.out.size());
      add_op(std::move(o.op), s.nodes[0], nullptr);
    }
    p_.calls_.push_back(c);
  }
  ChainCall* add_chain(const Step& s) {
    const Node &first = *g_.nodes[s.nodes[0]], &last = *g_.nodes[s.nodes.back()];
    const DType to = last.out[0].layout.dtype;
    ChainCall& c = p_.chains_.emplace_back(ChainCall{s.chain, {}, {}, first.in.empty() ? to : first.in[0].dtype, to});
    c.data.assign(c.plan.buffers.size(), nullptr);
    c.ops.reserve(s.nodes.size());  // changing ops point into it
    for (const uint32_t n : s.nodes) {
      c.ops.push_back(g_.nodes[n]->op.get());
      add_op(g_.nodes[n]->op, n, &c.ops.back());
    }
    for (size_t b = 0; b < c.plan.buffers.size(); ++b) {
      const ChainPlan::Buffer& from = c.plan.buffers[b];
      const uint32_t node = s.nodes[from.node];
      if (from.kind == ChainPlan::Buffer::Kind::temporary) continue;
      const bool input = from.kind == ChainPlan::Buffer::Kind::input;
      const uint32_t slot = input ? g_.inputs(node)[from.index] : g_.output(node, 0);
      const Layout& l = p_.layouts_[slot];
      add_entry(slot, !input, &c.data[b], size_t(l.offset) * size_of(l.dtype));
      (input ? c.work.read : c.work.written) += distinct_bytes(l);
    }
    return &c;
  }

  Executable& p_;
  const Graph& g_;
  const Plan& plan_;
  std::vector<Ref<Storage>> arenas_;
};

void check_inputs(const Binding& b, std::span<const Variable* const> inputs) {
  for (size_t k = 0; k < inputs.size(); ++k)
    for (const auto& v : b.variables)
      TG_CHECK(b.inputs[k] == kNone || v.new_value == kNone || v.variable.get() != inputs[k], state,
               "[compile] input {} is {}, which the function updates. After that the function would read the new value "
               "as its input, and a replay the old one. Pass a detach() of it, or leave it out and read the tensor "
               "that the function captures.",
               k, Tensor(v.variable));
}

Executable::Executable(const Graph& g, const Plan& plan, Binding b, std::vector<GeneratorSpan> d)
    : binding_(std::move(b)), generators_(std::move(d)) {
  for (const auto& v : binding_.variables)
    if (v.new_value != kNone) assigned_.push_back(v.variable.get());
  std::ranges::sort(assigned_);
  Builder(*this, g, plan).build();
}

namespace {
bool same_place(const Layout& a, const Layout& b) {
  return a.shape == b.shape && a.strides == b.strides && a.offset == b.offset && a.dtype == b.dtype &&
         a.device == b.device;
}
}  // namespace
bool Executable::fits() const {
  return std::ranges::all_of(binding_.variables, [&](const auto& v) {
    // A value that nobody reads may have any layout that assign() lets it have.
    return v.variable->requires_grad == v.requires_grad &&
           (v.slot == kNone || v.bf16_copy || same_place(v.variable->value->layout, layouts_[v.slot]));
  });
}

void Executable::patch_pointers(const MemorySource& r) {
  for (const MemorySource::Entry& e : r.places) {
    *e.at = r.data + e.offset;
    if (recording_) changed_.push_back(e.call);
  }
}
bool Executable::free(const MemorySource& r, Inputs in) const {
  const Value* v = start_value(r.index);
  for (const Tensor& t : in)  // the variable itself may be an input, too
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
  std::vector<Tensor> pending;  // assigned under a LazyScope since
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
}
// A few bytes that lie elsewhere from run to run are copied: that costs less than to record their ops again.
bool Executable::copied(MemorySource& r) {
  constexpr size_t kMost = 64 << 10;
  using enum MemorySource::Kind;
  const bool moves = launches_ > 0 && r.data != r.storage->data;
  if (recording_ && (r.copy || moves) && (r.kind == input || r.kind == fresh) && !r.places.empty() &&
      r.storage->bytes <= kMost) {
    if (r.copy && r.copy->bytes >= r.storage->bytes) return true;
    bytes_ += r.storage->bytes - (r.copy ? r.copy->bytes : 0);
    r.copy = make_ref<Storage>(calls_[0].device, r.storage->bytes);  // a recording is of one device
  } else if (r.copy) {
    bytes_ -= r.copy->bytes;
    r.copy = nullptr;
  }
  return bool(r.copy);
}
void Executable::copy_moved(MemorySource::Kind kind) {
  const bool in = kind == MemorySource::Kind::input;
  for (const uint32_t i : moving_sources_)
    if (const MemorySource& r = sources_[i]; r.copy && r.kind == kind) {
      const Device d = calls_[0].device;
      runtime_of(d).copy(d.index, in ? r.copy->data : r.storage->data, in ? r.storage->data : r.copy->data,
                         r.storage->bytes);
    }
}

// A state of the trace, as it is in this run.
Rng Executable::moved(const Rng& traced) const {
  for (const GeneratorSpan& d : generators_)
    if (d.covers(traced)) return {d.generator->seed, d.generator->offset + (traced.offset - d.begin.offset)};
  return traced;
}
void Executable::update_dynamic_ops() {
  size_t kept = 0;
  for (DynamicOp& c : dynamic_ops_) {
    const Rng* at = c.traced->rng_state();
    OpPtr next = c.traced->for_next_step(at ? moved(*at) : Rng());
    if (!next) continue;  // nothing in it changes
    if (c.in_chain) *c.in_chain = next.get();
    ops_[c.op] = std::move(next);
    if (recording_ && !recording_->update(c.call, *ops_[c.op])) changed_.push_back(c.call);
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

void Executable::run_singly(std::string why) {
  recording_ = nullptr;
  why_not_ = std::move(why);
  std::fputs(fmt::format("[compile] {} ops run one by one, not as one graph: {}\n", calls_.size(), why_not_).c_str(),
             stderr);
}
std::vector<CallOrder> Executable::order_of_calls() const {
  std::vector<Access> all;
  for (uint32_t i = 0; i < sources_.size(); ++i) {
    const MemorySource& r = sources_[i];
    // What is fixed lies in blocks that are shared out; what moves never meets other memory, but where it was donated.
    const bool fixed = r.kind == MemorySource::Kind::fixed;
    const uint32_t of = fixed ? kNone : r.kind == MemorySource::Kind::donated ? r.index : i;
    const uintptr_t begin = fixed ? reinterpret_cast<uintptr_t>(r.data) : 0;
    for (const MemorySource::Entry& e : r.places)
      all.push_back({e.call, of, begin, begin + std::max<size_t>(r.storage->bytes, 1), e.writes});
  }
  constexpr uint32_t kMessages = kNone - 1;  // calls that communicate follow each other as if they wrote one place
  for (uint32_t k = 0; k < calls_.size(); ++k)
    if (!calls_[k].chain && ops_[calls_[k].op]->traits().communicates) all.push_back({k, kMessages, 0, 1, true});
  std::ranges::stable_sort(all, {}, &Access::call);
  return find_branches(calls_.size(), all);
}
// What never changes from run to run is asked once: after that there is a recording, or why there is none.
void Executable::start_recording() {
  const Device d = calls_[0].device;
  if (!std::ranges::all_of(calls_, [&](const Call& c) { return c.device == d; })) {
    return run_singly("its ops run on several devices");
  }
  const bool branches = enabled_passes() & kBranches;
  recording_ = runtime_of(d).recording(d.index, branches ? order_of_calls() : std::vector<CallOrder>(calls_.size()),
                                       [this](size_t k) {
                                         now_ = k;
                                         const NowRunning run(calls_[k].name, calls_[k].scope, calls_[k].range);
                                         call(calls_[k]);
                                       });
  if (!recording_) why_not_ = fmt::format("{} does not record runs", d);
}
void Executable::record_all() {
  recording_->record();
  recorded_ += calls_.size();
}
// The recording has the arguments of this run then; false if it is not worth it.
bool Executable::record_changes() {
  constexpr size_t kMost = 4;
  if (const uint64_t profiler = g_profiling.load(std::memory_order_relaxed); profiler != profiler_ && profiler) {
    profiler_ = profiler;  // it learns that as the parts are made
    record_all();
    changed_.clear();
    return true;
  }
  std::ranges::sort(changed_);
  changed_.erase(std::ranges::unique(changed_).begin(), changed_.end());
  const bool few = launches_ > 0 && 2 * changed_.size() <= calls_.size();
  if (few && std::ranges::all_of(changed_, [&](uint32_t k) { return ++recorded_, recording_->record(k); })) {
    whole_records_ = 0;
  } else if (launches_ > 0 && ++whole_records_ > kMost) {
    run_singly(fmt::format("{} of its {} ops had {}, in {} runs one after the other", changed_.size(), calls_.size(),
                           few ? "work of another form" : "other arguments", whole_records_));
    return false;
  } else {
    record_all();
  }
  changed_.clear();
  return true;
}
// From the third run on: by then kernels are loaded, algorithms chosen and caches of memory filled. False: not done.
bool Executable::call_as_one() {
  if (!why_not_.empty() || runs_ < 3 || calls_.empty()) return false;
  try {
    now_ = calls_.size();
    if (!recording_) start_recording();
    if (!recording_ || !record_changes()) return false;
  } catch (const Error& e) {
    run_singly(now_ < calls_.size() ? fmt::format("{} cannot be recorded: {}", calls_[now_].name, e.what()) : e.what());
    return false;
  }
  if (!recording_->launch()) {
    run_singly("it was recorded for another stream");
    return false;
  }
  ++launches_;
  return true;
}
void Executable::call_all() {
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
      if (r.kind == MemorySource::Kind::donated && !r.owned) ++r.storage->version;  // half written, perhaps
    throw with_scope(e, scope);
  }
  mutable_stats().kernels += calls_.size();
}

Ref<Value> Executable::value_of(uint32_t slot) const {
  return make_ref<Value>(layouts_[slot], Ref<Storage>(sources_[source_of_[slot]].storage));
}
// All from their slots, then all at once: variables may swap values.
void Executable::assign_variables() {
  for (const auto& v : binding_.variables)
    if (v.new_value != kNone) new_values_.push_back(value_of(v.new_value));
  auto next = new_values_.begin();
  for (const auto& v : binding_.variables)
    if (v.new_value != kNone) {
      if (v.bf16_copy)
        give_bf16_copy(*v.variable->value, std::move(*next++));
      else
        v.variable->value = std::move(*next++);
    }
  new_values_.clear();  // a value that somebody else holds is not written over
}
std::vector<Tensor> Executable::results() const {
  std::vector<Tensor> r;
  r.reserve(binding_.outputs.size());
  for (const uint32_t slot : binding_.outputs) r.emplace_back(value_of(slot));
  return r;
}

std::vector<Tensor> Executable::run(Inputs in) {
  bool counted = runs_++ == 0;  // by the trace
  try {
    bind(in);
    if (!counted) update_dynamic_ops(), counted = true;
    copy_moved(MemorySource::Kind::input);
    call_all();
    copy_moved(MemorySource::Kind::fresh);
  } catch (...) {
    wait_for_async();  // it works on memory of this run
    if (counted) undo_steps();
    throw;
  }
  std::vector<Tensor> r = results();
  assign_variables();
  for (const uint32_t i : moving_sources_) sources_[i].owned = nullptr;
  return r;
}

}  // namespace tg::detail
