#include <tapegrad/core/backend/dry_run.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/one_user.h>
#include <tapegrad/core/engine/run_node.h>
#include <tapegrad/core/engine/shared_values.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/core/plan/fingerprint.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <unordered_map>
#include <unordered_set>

namespace tg {
namespace {
using namespace detail;

// The first input with input k's variable, if it needs a gradient.
size_t first_equal(Inputs in, size_t k) {
  size_t i = in[k].requires_grad() ? 0 : k;
  while (in[i].variable().get() != in[k].variable().get()) ++i;
  return i;
}
StructuralHash signature(Inputs in) {
  StructuralHash key;
  key.add(grad_enabled());
  key.add(recompute_enabled());
  key.add(int(matmul_precision()));
  key.add(uint64_t(enabled_passes()));
  for (const Tensor& t : in) {
    const Layout& l = t.layout();
    key.add(l.shape);
    key.add(l.strides);
    key.add(l.offset);
    key.add(uint64_t(l.dtype) << 16 | uint64_t(l.device.backend) << 8 | uint64_t(t.requires_grad()));
    key.add(l.device.index);
    if (!t.requires_grad()) continue;
    const Hooks* const hooks = t.variable()->hooks.get();
    key.add(first_equal(in, size_t(&t - in.data())) << 2 | size_t(t.value()->tracked) << 1 | size_t(hooks != nullptr));
    if (hooks) key.add(hooks), key.add(hooks->list.size());
  }
  return key;
}

class Tracing {
 public:
  Tracing(Inputs in, const CompileOptions& o) : state_(o.state) {
    for (Rng* r : o.generators) {
      generators_.push_back({r, *r, {}, {}});
      trace_.seeds.push_back(r->seed);
    }
    for (Tensor* t : state_) {
      const auto same = std::ranges::find(former_, t->id(), &Tensor::id);
      TG_CHECK(same == former_.end(), value,
               "[compile] states {} and {} are handles of one tensor, {}. After a call they could not differ. Give one "
               "of them a detach() before the call.",
               same - former_.begin(), former_.size(), *t);
      former_.push_back(*t);
    }
    trace_.constants = o.constants;
    for (const Tensor& t : in) given_.push_back(t.variable().get());
    for (const Tensor& t : in) {
      const size_t k = first_equal(in, in_.size());
      in_.push_back(k < in_.size() ? in_[k] : trace_.add_input(t));
    }
  }
  struct Traced {
    std::unique_ptr<Executable> program;
    Fingerprint fingerprint;
  };
  Traced run(const TensorFunction& f) {
    try {
      Graph g = graph(f);
      Binding b = bind(g);
      Fingerprint fingerprint(g, b, trace_, generators_);
      const Plan plan = make_plan(g, enabled_passes());
      return {std::make_unique<Executable>(g, plan, std::move(b), generators_), std::move(fingerprint)};
    } catch (const std::exception& e) {
      undo();
      if (std::string_view(e.what()).find(*error_of_traced()) == std::string_view::npos) trace_.check_elsewhere();
      throw;
    } catch (...) {
      undo();
      throw;
    }
  }
  // Difference of a new trace from `then`. Undoes the trace's changes.
  std::string difference(const TensorFunction& f, const Fingerprint& then) {
    std::string s;
    try {
      Graph g = graph(f);
      const Binding b = bind(g);
      s = then.difference({g, b, trace_, generators_}, g);
    } catch (...) {
      undo();
      throw;
    }
    undo();
    return s;
  }

 private:
  void undo() {
    trace_.undo_steps();
    for (const GeneratorSpan& d : generators_) *d.generator = d.outside;
    for (size_t k = 0; k < state_.size(); ++k) *state_[k] = former_[k];
    trace_.check_refused();
  }
  Graph graph(const TensorFunction& f) {
    for (size_t k = 0; k < generators_.size(); ++k)
      *generators_[k].generator = generators_[k].begin = {Trace::kSeed + k, generators_[k].outside.offset};
    for (const Tensor& t : former_) state_of_trace_.push_back(trace_.add_state(t));
    for (size_t k = 0; k < state_.size(); ++k) *state_[k] = state_of_trace_[k];
    {
      const ScopedValue<const Scope*> outside_ranges(t_range, nullptr);
      std::vector<Tensor> reads;
      const ReadsOfTracked apart(reads);  // not those of recompute()
      const LazyScope lazy;
      out_ = f(in_);
    }
    trace_.check_refused();
    check_results();
    check_draws();
    assign_state();
    trace_.check_kept(in_, out_);
    Graph g = collect(roots());
    trace_.nodes.clear();  // frees what unread ops hold
    number(g);
    return g;
  }
  static void check_no_gradient(const char* what, size_t k, const Tensor& t) {
    TG_CHECK(!(on_tape(t) && t.requires_grad()), state,
             "[compile] {} {}, {}, still needs a gradient, but a compiled function does not return its tape. Compute "
             "gradients inside it, use a NoGradScope, or return a detach().",
             what, k, t);
  }
  void check_results() {
    for (size_t k = 0; k < out_.size(); ++k) {
      TG_CHECK(out_[k], value, "[compile] result {} is an empty tensor. Return tensors that have a value.", k);
      check_no_gradient("result", k, out_[k]);
      if (const Ref<Value> seen = trace_.reads(out_[k]); seen.get() != out_[k].value().get()) out_[k] = Tensor(seen);
    }
  }
  // Makes `h = ...` an assignment: the handle's former variable gets the new value.
  void assign_state() {
    std::vector<Tensor> next(state_.size());
    const auto changed = [&](size_t k) {
      return state_[k]->variable().get() != state_of_trace_[k].variable().get() ||
             state_[k]->value().get() != trace_.held[k].during.get();
    };
    for (size_t k = 0; k < state_.size(); ++k) {
      TG_CHECK(*state_[k], value, "[compile] state {} is an empty tensor after the call. Give it a value.", k);
      check_no_gradient("state", k, *state_[k]);
      if (changed(k)) next[k] = Tensor(trace_.reads(*state_[k]));
    }
    for (size_t k = 0; k < state_.size(); ++k) *state_[k] = former_[k];
    for (size_t k = 0; k < state_.size(); ++k)  // separate loop: two may have been swapped
      if (trace_.ends_state(k, bool(next[k])); next[k]) former_[k].assign(next[k]);
  }
  void check_draws() {
    for (size_t k = 0; k < generators_.size(); ++k) {
      GeneratorSpan& d = generators_[k];
      d.end = std::exchange(*d.generator, d.outside);
      TG_CHECK(d.end == Rng(d.begin.seed, d.begin.offset + trace_.taken[d.generator]), state,
               "[compile] generator {} of CompileOptions::generators was set to another state inside the function, "
               "which a replay would not do again. Set it before the call, or draw from a generator of your own.",
               k);
    }
    for (const auto& n : trace_.nodes)
      if (const Rng* at = n->op->rng_state()) {
        TG_CHECK(n->op->traits().dynamic_attributes && n->op->for_next_step(*at), state,
                 "[compile] {} has an rng_state(), but no for_next_step() or dynamic_attributes: replays would repeat "
                 "its numbers. Give it both.",
                 n->op->name());
        TG_CHECK(std::ranges::any_of(generators_, [&](const GeneratorSpan& d) { return d.covers(*at); }), value,
                 "[compile] {} draws from a generator (seed {}, offset {}) that is not among the {} in "
                 "CompileOptions::generators, so every replay would draw the same numbers. Add its address there.",
                 n->op->name(), at->seed, at->offset, generators_.size());
      }
  }
  std::vector<Tensor> roots() const {
    std::vector<Tensor> r = out_;
    for (const Trace::CapturedVariable& h : trace_.held)
      if (h.assigned()) r.emplace_back(make_ref<Variable>(h.variable->id, h.now(), false));
    return r;
  }

  // Maps values to slots. Among leaves the plan may overwrite only old values of assigned variables (not pinned), if
  // they have no other owner.
  Binding bind(Graph& g) {
    std::unordered_map<const Value*, uint32_t> leaves;
    for (uint32_t s = 0; s < g.slots.size(); ++s) {
      if (g.slots[s].node != kNone) continue;
      leaves.emplace(g.slots[s].value, s);
      g.slots[s].pinned = true;
    }
    const auto leaf = [&](const Value* v) {
      const auto it = leaves.find(v);
      return it == leaves.end() ? kNone : it->second;
    };
    std::unordered_set<uint32_t> wanted;  // leaves that are results or new values
    const auto slot = [&](const Value& v) {
      if (v.producer) return v.producer->slot + v.index;
      if (const uint32_t s = leaf(&v); s != kNone) return wanted.insert(s), s;
      const auto s = uint32_t(g.slots.size());
      g.slots.push_back({.value = &v, .layout = &v.layout, .node = kNone, .group = s, .pinned = true});
      leaves.emplace(&v, s);
      return s;
    };
    Binding b;
    for (const Tensor& t : out_) b.outputs.push_back(slot(*t.value()));
    for (const Trace::CapturedVariable& h : trace_.held)
      b.variables.push_back({.variable = h.variable,
                             .new_value = h.assigned() ? slot(*h.now()) : kNone,
                             .hooks = hooks_of(*h.variable),
                             .updated = h.updated,
                             .bf16_copy = h.bf16_copy,
                             .requires_grad = h.variable->requires_grad});
    for (const Tensor& t : in_) b.inputs.push_back(leaf(t.value().get()));
    for (size_t k = 0; k < in_.size(); ++k)
      b.captured_as.push_back(in_[k].requires_grad() ? b.captured(given_[k]) : nullptr);
    check_inputs(b, given_);
    for (size_t k = 0; k < b.variables.size(); ++k) {
      const Trace::CapturedVariable& h = trace_.held[k];
      const uint32_t s = b.variables[k].slot = leaf(h.during.get());
      if (s != kNone && h.assigned() && !wanted.contains(s))
        g.slots[s].pinned = !fills_storage(h.during->layout, h.during->storage->bytes);
    }
    return b;
  }

  Trace trace_;
  std::vector<GeneratorSpan> generators_;
  std::vector<Tensor*> state_;
  std::vector<Tensor> in_, out_, former_, state_of_trace_;
  std::vector<const Variable*> given_;  // the caller's inputs
};
std::atomic<uint64_t> g_structure{0};
}  // namespace

struct Compiled::State {
  std::source_location where;  // line of the compile() call
  TensorFunction f;
  CompileOptions options;
  struct Entry {
    StructuralHash key;
    std::vector<uint64_t> state;    // ids of state handles' variables
    std::vector<Ref<Hooks>> hooks;  // hooks of inputs in `key`
    uint64_t structure;             // g_structure before the trace
    std::unique_ptr<Executable> program;
    Fingerprint fingerprint;
    uint64_t replays = 0;
  };
  std::list<Entry> entries;  // most recently used first
  OneUser user;
  CompileStats stats;

  std::vector<Tensor> call(Inputs);
  Entry* find(const StructuralHash& key, Inputs in) {
    const auto it = std::ranges::find_if(entries, [&](const Entry& e) { return e.key == key && e.program->given(in); });
    if (it == entries.end()) return nullptr;
    if (!it->program->fits() || it->state != state_ids() ||
        it->structure != g_structure.load(std::memory_order_relaxed)) {
      entries.erase(it);
      return nullptr;
    }
    entries.splice(entries.begin(), entries, it);
    return &*it;
  }
  void verify(Entry& e, Inputs in) {
    ++stats.verified;
    const std::string what = Tracing(in, options).difference(f, e.fingerprint);
    if (what.empty()) return;
    entries.pop_front();  // find() moved it to the front
    fail(Error::Kind::state,
         fmt::format("[compile] the function now differs from its replays: {}. Replays since the last check "
                     "(CompileOptions::verify is {}) may have been wrong, too. The next call is traced again. Pass "
                     "changing values as inputs, assign() tensors instead of handles, or call structure_changed() "
                     "after each change.",
                     what, options.verify));
  }
  std::vector<uint64_t> state_ids() const {
    std::vector<uint64_t> r;
    for (size_t k = 0; k < options.state.size(); ++k) {
      TG_CHECK(*options.state[k], value, "[compile] state {} is an empty tensor. Give it a value before the call.", k);
      r.push_back(options.state[k]->id());
    }
    return r;
  }
  Entry* trace(const StructuralHash& key, Inputs in) {
    ++stats.traces;
    const uint64_t structure = g_structure.load(std::memory_order_relaxed);
    std::vector<uint64_t> ids = state_ids();
    auto [program, fingerprint] = Tracing(in, options).run(f);
    std::vector<Ref<Hooks>> hooks;
    for (const Tensor& t : in) hooks.push_back(t.variable()->hooks);
    entries.push_front({key, std::move(ids), std::move(hooks), structure, std::move(program), std::move(fingerprint)});
    if (entries.size() > options.signatures) {
      entries.pop_back();
      if (stats.evictions++ == 0)
        std::fputs(fmt::format("[compile] call {} is the first one with signature number {}, but the function keeps "
                               "only {}: it replaces the least recently used. Each new signature is traced and planned "
                               "again. Pad inputs to fewer shapes, or raise CompileOptions::signatures.\n",
                               stats.traces + stats.replays, stats.traces, options.signatures)
                       .c_str(),
                   stderr);
    }
    return &entries.front();
  }
};

Compiled::Compiled(TensorFunction f, CompileOptions o, const std::source_location& where)
    : state_(std::make_shared<State>()) {
  state_->where = where;
  TG_CHECK(f, value, "[compile] the function is empty. Pass one that can be called.");
  TG_CHECK(o.signatures > 0, value, "[compile] signatures is 0. At least one must be kept.");
  for (const Rng* r : o.generators) {
    TG_CHECK(r, value, "[compile] a generator is null. Pass addresses of generators.");
    TG_CHECK(std::ranges::count(o.generators, r) == 1, value,
             "[compile] a generator is listed twice. A call advances each once: list it once.");
  }
  for (const Tensor* t : o.state) TG_CHECK(t, value, "[compile] a state is null. Pass addresses of tensors.");
  state_->f = std::move(f);
  state_->options = std::move(o);
}
void detail::check_planner() {
  (void)enabled_passes();
  (void)folder_of_dumps();
}
void structure_changed() { g_structure.fetch_add(1, std::memory_order_relaxed); }
const CompileStats& Compiled::stats() const { return state_->stats; }

std::vector<Tensor> Compiled::operator()(Inputs in) const {
  return detail::called_at(
      state_->where, [&] { return state_->call(in); }, "compiled");
}
std::vector<Tensor> Compiled::State::call(Inputs in) {
  if (tracing() || anomaly_enabled() || observing() || running_dry()) return f(in);
  for (size_t k = 0; k < in.size(); ++k)
    TG_CHECK(in[k], value, "[compile] input {} is an empty tensor. Pass a tensor that has a value.", k);
  const OneUser::Use alone = user.use("compile", "compiled function");
  if (!std::ranges::all_of(in, &Tensor::materialized)) eval(in);
  const StructuralHash key = signature(in);
#ifdef NDEBUG
  const size_t each = options.verify;
#else
  const size_t each = std::min<size_t>(options.verify, 1);
#endif
  Entry* e = find(key, in);
  if (!e) {
    e = trace(key, in);
  } else {
    if (each && e->replays % each == 0) verify(*e, in);
    ++e->replays;
    ++stats.replays;
  }
  Executable* const p = e->program.get();
  const uint64_t launches = p->launches(), recorded = p->recorded();
  std::vector<Tensor> r = p->run(in);
  stats.ops = p->ops();
  stats.bytes = p->bytes();
  stats.graph_launches += p->launches() - launches;
  stats.recorded_ops += p->recorded() - recorded;
  if (stats.why_no_graph != p->why_not_recorded()) stats.why_no_graph = p->why_not_recorded();
  return r;
}
}  // namespace tg
