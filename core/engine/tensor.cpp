#include <tapegrad/core/backend/dry_run.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/core/engine/shared_values.h>
#include <tapegrad/core/engine/trace.h>

#include <atomic>

namespace tg {
namespace {
std::atomic<uint64_t> g_ids{1}, g_oldest{0};  // blocks of ids below g_oldest are stale
constinit thread_local uint64_t t_id = 0, t_id_end = 0;

// A view: sharing the Value would keep the tape.
struct Detach : ViewOp<Detach> {
  static constexpr auto kName = "detach";
  Layouts infer(Inputs in) const override { return {in[0].layout().view_of(0)}; }
};
}  // namespace

// Blocks of ids per thread: no contention.
uint64_t detail::next_ids(uint64_t n) {
  constexpr uint64_t kBlock = 1 << 16;
  if (t_id + n > t_id_end || t_id < g_oldest.load(std::memory_order_relaxed)) [[unlikely]] {
    t_id = g_ids.fetch_add(kBlock + n, std::memory_order_relaxed);
    t_id_end = t_id + kBlock + n;
  }
  return std::exchange(t_id, t_id + n);
}
uint64_t detail::id_of_next_tensors() {
  const uint64_t id = g_ids.fetch_add(1, std::memory_order_relaxed);
  for (uint64_t oldest = g_oldest.load(); oldest < id && !g_oldest.compare_exchange_weak(oldest, id);) {
  }
  return id;
}

Storage::Storage(Device d, size_t n)
    : allocator(detail::runtime_of(d).allocator(d.index)),
      data(static_cast<std::byte*>(allocator.allocate(n))),
      bytes(n) {}
Storage::Storage(Ref<Storage> whole, size_t offset, size_t n)
    : allocator(whole->allocator), data(whole->data + offset), bytes(n), within(std::move(whole)) {}
Storage::~Storage() {
  if (!within) allocator.deallocate(data, bytes);
}

Value::Value(const Layout& l) : layout(l) {}
Value::Value(const Layout& l, Ref<Storage> s) : layout(l), storage(std::move(s)), version(storage->version) {
  layout.aliases_input = -1;
}
Value::~Value() = default;
namespace {
bool dies(const Value& v) {  // unless owned elsewhere
  if (v.lent && v.refs.load(std::memory_order_acquire) > 1 && v.refs.fetch_sub(1, std::memory_order_acq_rel) > 1)
    return false;
  if (!v.producer) return true;
  const std::atomic_ref<Value*> live(v.producer->out[v.index].live);
  if (live.load(std::memory_order_relaxed) == &v) live.store(nullptr, std::memory_order_relaxed);
  return true;
}
}  // namespace
void Value::dispose(const Value* v) {
  const auto alone_dies = [&] {
    const detail::ReadsValues reads;
    return dies(*v);
  };
  if (!(v->lent && v->producer ? alone_dies() : dies(*v))) return;
  v->was_read ? detail::retire(const_cast<Value*>(v)) : delete v;
}

Tensor::Tensor(Ref<Value> v) : var_(make_ref<Variable>(detail::next_ids(), std::move(v), false)) {
  if (detail::Trace* trace = detail::tracing()) [[unlikely]]
    trace->made(var_);
}

void Tensor::fail_item() const {
  detail::fail(Error::Kind::shape,
               fmt::format("[item] {} has {} elements. Only a tensor with one element is a number.", *this, numel()));
}
void Tensor::fail_empty() {
  detail::fail(Error::Kind::value, fmt::format("[tensor] an empty tensor was read{}", detail::about_empty()));
}
constinit thread_local std::source_location detail::t_unreached;
std::string detail::about_empty() {
  const std::source_location& at = t_unreached;
  return fmt::format(
      ": it was made without a value, was moved from, or is a gradient that backward() did "
      "not reach{}. Give it a value before you use it.",
      at.line() ? fmt::format(" (the last such was read at {}:{})", at.file_name(), at.line()) : "");
}

Tensor empty(const Layout& l) {
  detail::checked_numel("empty", l.shape);
  return Tensor(make_ref<Value>(l, make_ref<Storage>(l.device, l.bytes())));
}
Tensor detail::from_bytes(std::span<const std::byte> bytes, const Shape& shape, DType dtype, Device d) {
  const int64_t n = detail::checked_numel("from", shape);
  TG_CHECK(size_t(n) * size_of(dtype) == bytes.size(), shape,
           "[from] {} values do not fill {}, which has {} elements. Pass as many values as the shape has.",
           bytes.size() / size_of(dtype), shape, n);
  if (detail::Trace* trace = detail::tracing())
    trace->check_constant(fmt::format("makes {} {} of host data", shape, dtype));
  Tensor t = empty(Layout::contiguous(shape, dtype, d));
  if (!bytes.empty())
    detail::runtime_of(d).copy_from_host(d.index, t.value()->storage->data, bytes.data(), bytes.size());
  return t;
}

namespace {
void check_own(std::string_view op, const Tensor& t, std::string_view does) {
  if (detail::Trace* trace = detail::tracing(); trace && !trace->made_by_function(*t.variable())) [[unlikely]]
    trace->refuse(
        fmt::format("[{}] a compiled function {} {} while it is traced: a replay would not do it again. Do "
                    "it outside, before the call.",
                    op, does, t));
}
}  // namespace
Tensor& Tensor::requires_grad_(bool on) {
  if (on != requires_grad()) check_own("requires_grad_", *this, "changes the gradient flag of");
  TG_CHECK(!detail::on_tape(*this), state,
           "[requires_grad_] {} is the result of tracked ops. Only leaves take the flag; use detach().", *this);
  TG_CHECK(!on || is_float(dtype()), dtype,
           "[requires_grad_] {} is not of a floating dtype. Only f64, f32, f16 and bf16 have gradients.", *this);
  var().requires_grad = on;
  return *this;
}
Tensor& Tensor::label(std::string_view text) {
  var().label = detail::intern(text);
  const detail::ReadsValues reads;
  if (const auto& s = value()->storage; s && !s->within) s->allocator.name(s->data, var().label);
  return *this;
}
void* Tensor::read(DType t) const {
  TG_CHECK(device().backend == Backend::cpu, device,
           "[data] tensor {} is not in host memory. Copy it with to_vector() or .to(Device::cpu()), or use "
           "device_data<T>() for a pointer to pass to CUDA.",
           *this);
  return elements(t);
}
void* Tensor::write(DType t) {
  void* const p = read(t);
  detail::UpdatesElsewhere::note(var());
  ++value()->storage->version;
  return p;
}
void* Tensor::elements(DType t) const {
  TG_CHECK(t == dtype(), dtype, "[data] tensor is {}, read as {}. Use .to(DType::{}).", *this, t, t);
  TG_CHECK(is_contiguous(), shape,
           "[data] tensor {} has strides {}. Only contiguous data has a plain pointer; use contiguous().", *this,
           strides());
  detail::host_reads(*this);
  TG_CHECK(!detail::running_dry(), state,
           "[data] tensor {}: a dry run computes no elements. Read them outside of it, or call item() or "
           "to_vector(), which return 0 in it.",
           *this);
  const Ref<Value> v = detail::value_of(*this);
  if (!v->storage) eval({Tensor(v)});
  return v->storage->data + v->layout.offset * int64_t(size_of(t));
}
void Tensor::assign(const Tensor& t) const {
  TG_CHECK(t.shape() == shape() && t.dtype() == dtype() && t.device() == device(), shape,
           "[assign] {} cannot take {}. Shapes, dtypes and devices must agree.", *this, t);
  TG_CHECK(
      !t.requires_grad() && !detail::on_tape(*this), state,
      "[assign] {} <- {}: a tracked value would lose its gradient here. Assign a leaf under NoGradScope, or detach().",
      *this, t);
  detail::Trace* const trace = detail::tracing();
  Ref<Value> next = trace ? trace->assigns(*this, t) : detail::value_of(t);
  detail::WritesValues().replace(var(), std::move(next));
}
Tensor Tensor::to(DType t) const { return dtype() == t ? *this : emit1(make_ref<op::Cast>(t), {*this}); }
Tensor Tensor::contiguous() const { return is_contiguous() ? *this : emit1(make_ref<op::Cast>(dtype()), {*this}); }
Tensor Tensor::to(Device d) const {
  if (d == device()) return *this;
  detail::runtime_of(d);
  TG_CHECK(!requires_grad() || !grad_enabled(), state,
           "[to] {} is tracked, and copies between devices are not recorded. Call detach() first, or move leaves.",
           *this);
  if (device().backend != Backend::cpu && d.backend != Backend::cpu) return to(Device::cpu()).to(d);
  detail::host_reads(*this);
  const Tensor source = detach().contiguous();
  eval({source});
  const Layout& l = source.layout();
  Tensor copy = empty(Layout::contiguous(shape(), dtype(), d));
  const size_t bytes = l.bytes();
  if (!bytes) return copy;
  const std::byte* from = source.value()->storage->data + l.offset * int64_t(size_of(l.dtype));
  std::byte* to = copy.value()->storage->data;
  if (device().backend == Backend::cpu)
    detail::runtime_of(d).copy_from_host(d.index, to, from, bytes);
  else
    detail::runtime_of(device()).copy_to_host(device().index, to, from, bytes);
  return copy;
}
void Tensor::copy_to_host(void* to_host, DType t) const {
  detail::host_reads(*this);
  const Tensor source = detach().to(t).contiguous();
  eval({source});
  const Layout& l = source.layout();
  if (!l.numel()) return;
  const std::byte* from = source.value()->storage->data + l.offset * int64_t(size_of(t));
  detail::runtime_of(device()).copy_to_host(device().index, to_host, from, l.bytes());
}
Tensor Tensor::detach() const {
  NoGradScope off;
  detail::Trace* const trace = detail::tracing();
  const Ref<Value> seen = trace ? trace->reads(*this) : detail::value_of(*this);  // evaluates lazy variables
  if (!seen->producer) return Tensor(seen);
  return emit1(stateless<Detach>(), {*this});
}
void Tensor::on_grad(Hook f) {
  check_own("on_grad", *this, "adds a hook to");
  TG_CHECK(!var().recorded || var_->hooks || !value()->producer, state,
           "[on_grad] {} has been read by an op already, which will not call this hook. Register hooks of an "
           "intermediate right after it is made.",
           *this);
  if (detail::WritesValues alone; !var().hooks) var_->hooks = make_ref<Hooks>();
  const std::lock_guard lock(var_->hooks->adding);
  var_->hooks->list.push_back(std::move(f));
}
std::string detail::describe(const Tensor& t) {
  if (!t) return "an empty tensor";
  std::string s = t.label().empty() ? fmt::format("{}", t.layout()) : fmt::format("'{}' {}", t.label(), t.layout());
  if (t.device() != Device()) s += fmt::format(" on {}", t.device());
  return s;
}
}  // namespace tg
