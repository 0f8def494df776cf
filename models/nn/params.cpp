#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/shared_values.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/models/nn/params.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/shape_ops.h>
#include <tapegrad/ops/training/optim_step.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

namespace tg {

struct Params::State {
  std::recursive_mutex turn;  // recursive: a source may ask for parameters
  Device device;
  DType dtype;
  Rng rng;
  std::vector<Parameter> list;
  std::map<std::string, size_t, std::less<>> index;  // name -> index in list
  std::map<std::string, BlockWeight> blocks;
  std::optional<TensorSource> loaded;  // unused shapes
  std::string dropped;                 // drop()'s first name
};

namespace {
// FNV-1a, 64 bits: seeds in checkpoints depend on it.
uint64_t hash_of(std::string_view name) {
  uint64_t h = 0xcbf29ce484222325;
  for (unsigned char c : name) h = (h ^ c) * 0x100000001b3;
  return h;
}
std::string join(const std::string& path, std::string_view name) {
  return path.empty() ? std::string(name) : fmt::format("{}.{}", path, name);
}
const Scope* nested(const Scope* scope, std::string_view path) {
  if (path.empty()) return scope;
  const size_t dot = std::min(path.find('.'), path.size());
  return nested(detail::scope_within(scope, path.substr(0, dot)), path.substr(std::min(dot + 1, path.size())));
}
template <class Map> std::string did_you_mean_key(std::string_view name, const Map& known) {
  std::vector<std::string_view> names;
  for (auto& entry : known) names.push_back(entry.first);
  return detail::did_you_mean(name, names);
}
// A leaf of t's values; shares memory unless converted.
Tensor fitted(const std::string& name, const Tensor& t, const Shape& shape, DType dtype, Device d) {
  TG_CHECK(t, value, "[params] the tensor given for '{}' is empty. Pass one that has a value.", name);
  TG_CHECK(
      t.shape() == shape, shape,
      "[params] '{}' is {} in the model and {} in the tensors given. Was the file made with another configuration?",
      name, shape, t.layout());
  TG_CHECK(is_float(t.dtype()), dtype, "[params] '{}' is {} in the tensors given. A parameter is a floating tensor.",
           name, t.layout());
  NoGradScope off;
  return t.detach().to(dtype).to(d).contiguous();
}
Tensor xavier_of(const Shape& s, const Dims& parts, DType t, Device d, Rng rng) {
  const Dims outs = parts.empty() && s.size() == 2 ? Dims{s[0]} : parts;
  TG_CHECK(s.size() == 2 && std::accumulate(outs.begin(), outs.end(), int64_t(0)) == s[0], shape,
           "[init] {} is no matrix (out, in) of parts {}. The parts must make up its rows.", s, outs);
  std::vector<Tensor> made;
  for (int64_t out : outs) made.push_back(trunc_normal({out, s[1]}, rng, 0, std::sqrt(2 / double(s[1] + out)), t, d));
  return made.size() == 1 ? made[0] : concat(made, 0);
}
}  // namespace

Tensor Init::make(const Shape& shape, DType dtype, Device device, Rng rng) const {
  const bool by_std = kind == Kind::normal || kind == Kind::truncated_normal || kind == Kind::fan_in;
  switch (std == 0 && by_std ? Kind::constant : kind) {
    case Kind::constant: return full(shape, mean, dtype, device);
    case Kind::normal: return randn(shape, rng, mean, std, dtype, device);
    case Kind::truncated_normal: return trunc_normal(shape, rng, mean, std, dtype, device);
    case Kind::fan_in: return randn(shape, rng, 0, std / std::sqrt(double(shape.back())), dtype, device);
    case Kind::uniform: return rand(shape, rng, -bound, bound, dtype, device);
    case Kind::xavier: break;
  }
  return xavier_of(shape, row_splits, dtype, device, rng);
}

Params::Params(Device device, uint64_t seed, DType dtype) : state_(std::make_shared<State>()) {
  TG_CHECK(dtype == DType::f32 || dtype == DType::f64 || dtype == DType::bf16, dtype,
           "[params] parameters cannot be {}. Use f32, f64 or bf16.", dtype);
  state_->device = device;
  state_->dtype = dtype;
  state_->rng = Rng{seed};
}
Device Params::device() const { return state_->device; }
DType Params::dtype() const { return state_->dtype; }

Params Params::at(std::string_view name) const {
  TG_CHECK(!name.empty(), value, "[params] an empty name after '{}'. Names have at least one character.", path_);
  Params p = *this;
  p.path_ = join(path_, name);
  return p;
}
Params Params::shared() const {
  Params p = *this;
  p.shares_ = true;
  return p;
}
const Scope* Params::scope() const { return nested(detail::current_scope(), path_); }

Tensor Params::get(std::string_view name, const Shape& shape, const Init& init) const {
  State& s = *state_;
  const std::lock_guard lock(s.turn);
  const std::string full_name = at(name).path_;
  if (auto it = s.index.find(full_name); it != s.index.end()) {
    const Tensor& t = s.list[it->second].tensor;
    TG_CHECK(shares_, state,
             "[params] '{}' {} exists already. Two layers at one path would share it. Give the second another name, or "
             "share on purpose: pass it params.at(name).shared().",
             full_name, t.shape());
    TG_CHECK(t.shape() == shape, shape,
             "[params] '{}' is {}, and is requested again as {}. Two layers may share a parameter of one shape only.",
             full_name, t.shape(), shape);
    return t;
  }
  Tensor t;
  if (s.loaded) {
    auto& rest = s.loaded->shapes;
    TG_CHECK(rest.contains(full_name), value,
             "[params] '{}' {} is not among the loaded tensors.{} Load the file of this model.", full_name, shape,
             did_you_mean_key(full_name, rest));
    t = fitted(full_name, s.loaded->read(full_name), shape, s.dtype, s.device);
    rest.erase(full_name);
  } else {
    t = init.make(shape, s.dtype, s.device, s.rng.split(hash_of(full_name)));
  }
  t.label(full_name).requires_grad_();
  s.index[full_name] = s.list.size();
  s.list.push_back({full_name, t, init.row_splits});
  return t;
}

std::optional<BlockWeight> Params::blocks(std::string_view name, const Shape& shape) const {
  State& s = *state_;
  const std::lock_guard lock(s.turn);
  const std::string full_name = at(name).path_;
  auto it = s.blocks.find(full_name);
  if (it == s.blocks.end()) {
    if (!s.loaded || !s.loaded->blocks || !s.loaded->shapes.contains(full_name)) return {};
    std::optional<BlockWeight> read = s.loaded->blocks(full_name);
    if (!read) return {};
    for (auto& part : read->parts) part.codes = part.codes.to(s.device).label(full_name);
    it = s.blocks.emplace(full_name, *std::move(read)).first;
    s.loaded->shapes.erase(full_name);
  }
  const Shape own{it->second.out(), it->second.in()};
  TG_CHECK(own == shape, shape,
           "[params] '{}' is {} in the model and {} in the blocks given. Was the file made with another configuration?",
           full_name, shape, own);
  return it->second;
}

void Params::load(TensorSource source) const {
  const std::lock_guard lock(state_->turn);
  TG_CHECK(state_->list.empty(), state,
           "[params] load() comes too late: {} parameters exist already. Load before the model is made, or assign() to "
           "them.",
           state_->list.size());
  TG_CHECK(!state_->loaded, state, "[params] tensors were loaded before. load() is called once.");
  state_->loaded = std::move(source);
}
void Params::load(StateDict tensors) const {
  TensorSource source;
  for (const auto& [name, t] : tensors) source.shapes[name] = t ? t.shape() : Shape();
  const auto held = std::make_shared<StateDict>(std::move(tensors));
  // Releases each tensor once read.
  source.read = [held](const std::string& name) { return held->extract(name).mapped(); };
  load(std::move(source));
}
void Params::check_all_used() const {
  const std::lock_guard lock(state_->turn);
  if (!state_->loaded || state_->loaded->shapes.empty()) return;
  const auto& rest = state_->loaded->shapes;
  std::vector<std::string> names;
  for (auto& [name, shape] : rest)
    if (names.size() < 3) names.push_back(fmt::format("'{}' {}", name, shape));
  TG_CHECK(false, value,
           "[params] {} of the loaded tensors are not used by the model: {}{}. Load the file of this model, "
           "or remove these tensors.",
           rest.size(), fmt::join(names, ", "), rest.size() > 3 ? " ..." : "");
}

std::vector<Parameter> Params::all() const {
  const std::lock_guard lock(state_->turn);
  return state_->list;
}
std::map<std::string, BlockWeight> Params::all_blocks() const {
  const std::lock_guard lock(state_->turn);
  return state_->blocks;
}
std::vector<Parameter> Params::trainable() const {
  std::vector<Parameter> r;
  for (auto& p : all())
    if (p.tensor.requires_grad()) r.push_back(p);
  return r;
}
int64_t Params::numel() const {
  int64_t n = 0;
  for (auto& p : all()) n += p.tensor.numel();
  for (auto& [name, b] : all_blocks()) n += b.out() * b.in();
  return n;
}
StateDict Params::state() const {
  const std::lock_guard lock(state_->turn);
  TG_CHECK(state_->blocks.empty(), state,
           "[params] '{}' and {} other weights are in blocks, which are no tensors. Load the model with its weights "
           "dequantized: load_model() without keep_blocks.",
           state_->blocks.begin()->first, state_->blocks.size() - 1);
  return tensors();
}
StateDict Params::tensors() const {
  const std::lock_guard lock(state_->turn);
  TG_CHECK(state_->dropped.empty(), state,
           "[params] '{}' was dropped from this model, so its state is incomplete. Save a model before it is prepared "
           "for evaluation.",
           state_->dropped);
  StateDict r;
  for (auto& p : state_->list) r[p.name] = p.low ? detail::join_weight({p.tensor, p.low}) : p.tensor.detach();
  return r;
}
bool Params::split(const Tensor& weight) const {
  const std::lock_guard lock(state_->turn);
  const auto it = std::ranges::find(state_->list, weight.id(), [](auto& p) { return p.tensor.id(); });
  if (it == state_->list.end() || !weight.requires_grad()) return false;
  if (it->low) return true;
  const SplitTensor s = detail::split_weight(weight);
  it->low = s.low, it->low.label(it->name + ".low");
  detail::WritesValues().replace(*weight.variable(), s.high.value());  // assign() keeps dtypes
  return true;
}
void Params::drop(const Tensor& t) const {
  State& s = *state_;
  const std::lock_guard lock(s.turn);
  const auto it = std::ranges::find_if(s.list, [&](auto& p) { return p.tensor.id() == t.id(); });
  TG_CHECK(it != s.list.end(), value,
           "[params] {} is not one of these {} parameters. Pass a parameter of the same model.", t, s.list.size());
  if (s.dropped.empty()) s.dropped = it->name;
  s.list.erase(it);
  s.index.clear();
  for (size_t i = 0; i < s.list.size(); ++i) s.index[s.list[i].name] = i;
}
void Params::assign(const StateDict& values) const {
  State& s = *state_;
  const std::lock_guard lock(s.turn);
  std::vector<SplitTensor> fresh;
  for (auto& p : s.list) {
    auto it = values.find(p.name);
    TG_CHECK(it != values.end(), value, "[params] no value for '{}' {}.{} Pass one for each parameter.", p.name,
             p.tensor.shape(), did_you_mean_key(p.name, values));
    const Tensor whole = fitted(p.name, it->second, p.tensor.shape(), s.dtype, s.device);
    fresh.push_back(p.low ? detail::split_weight(whole) : SplitTensor{whole, {}});
  }
  for (auto& [name, t] : values)
    TG_CHECK(s.index.contains(name), value,
             "[params] '{}' is no parameter of this model.{} Remove it, or use the model that has it.", name,
             did_you_mean_key(name, s.index));
  for (size_t i = 0; i < fresh.size(); ++i) {
    s.list[i].tensor.assign(fresh[i].high);
    if (fresh[i].low) s.list[i].low.assign(fresh[i].low);
  }
}

}  // namespace tg
