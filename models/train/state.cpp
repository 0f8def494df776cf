#include <tapegrad/core/check.h>
#include <tapegrad/models/train/state.h>

#include <map>

namespace tg {
namespace {
constexpr std::string_view kModel = "model.", kOwn = "own.";
std::string prefix_of(const Optimizer& o) { return fmt::format("{}.", o.name()); }

StateDict with_prefix(std::string_view prefix, const StateDict& tensors) {
  StateDict r;
  for (const auto& [name, t] : tensors) r[fmt::format("{}{}", prefix, name)] = t;
  return r;
}
StateDict without_prefix(std::string_view prefix, const StateDict& tensors) {
  StateDict r;
  for (const auto& [name, t] : tensors)
    if (name.starts_with(prefix)) r[name.substr(prefix.size())] = t;
  return r;
}
void check_own(const StateDict& own, const Optimizer& optimizer) {
  for (const auto& [name, t] : own)
    TG_CHECK(
        t && !name.empty() && prefix_of(optimizer) != kOwn, value,
        "[train] the own tensor '{}' is {}, of optimiser '{}'. It needs a name, a value, an optimiser not named own.",
        name, detail::describe(t), optimizer.name());
}
// Throws an Error for the first tensor that differs, in the model's order, then the others by name.
void check_fits(const StateDict& given, const std::map<std::string, Layout>& own,
                const std::vector<Parameter>& parameters) {
  constexpr const char* kRule =
      "A state fits the configuration of model and optimiser that it was saved with. Train with that one.";
  std::vector<std::string> order;
  for (const Parameter& p : parameters) order.push_back(fmt::format("{}{}", kModel, p.name));
  for (const auto& [name, layout] : own)
    if (!name.starts_with(kModel)) order.push_back(name);
  for (const std::string& name : order) {
    const auto it = given.find(name);
    const Layout& here = own.at(name);
    TG_CHECK(it != given.end() && it->second, value, "[train] the state has no '{}', which is {} here. {}", name, here,
             kRule);
    const auto kind = [](DType t) { return t == DType::bf16 ? DType::f32 : t; };
    const bool same = it->second.dtype() == here.dtype || (!name.starts_with(kModel) && !name.starts_with(kOwn) &&
                                                           kind(it->second.dtype()) == kind(here.dtype));
    TG_CHECK(it->second.shape() == here.shape && same, shape, "[train] '{}' is {} in the state and {} here. {}", name,
             it->second.layout(), here, kRule);
  }
  for (const auto& [name, t] : given)
    TG_CHECK(own.contains(name), value, "[train] '{}' of the state is not part of this training. {}", name, kRule);
}
}  // namespace

TrainerState training_state(int64_t step, const Params& params, const Optimizer& optimizer, const Rng& data,
                            const Rng& dropout, const StateDict& own) {
  check_own(own, optimizer);
  TrainerState s{.step = step,
                 .optimizer_steps = optimizer.steps(),
                 .data = data,
                 .dropout = dropout,
                 .tensors = with_prefix(kModel, params.state())};
  s.tensors.merge(with_prefix(prefix_of(optimizer), optimizer.state()));
  for (const auto& [name, t] : own) s.tensors[fmt::format("{}{}", kOwn, name)] = t.detach();
  return s;
}
void restore(const TrainerState& s, const Params& params, Optimizer& optimizer, const StateDict& own_tensors) {
  check_own(own_tensors, optimizer);
  std::map<std::string, Layout> own;
  for (const auto& [name, t] : own_tensors) own.emplace(fmt::format("{}{}", kOwn, name), t.layout());
  for (const Parameter& p : params.all()) {
    const DType whole = p.low ? DType::f32 : p.tensor.dtype();
    own.emplace(fmt::format("{}{}", kModel, p.name), Layout::contiguous(p.tensor.shape(), whole, p.tensor.device()));
  }
  for (const auto& [name, layout] : optimizer.state_layouts())
    own.emplace(fmt::format("{}{}", prefix_of(optimizer), name), layout);
  tg::check_fits(s.tensors, own, params.all());
  for (const Parameter& p : params.all())
    if (p.low) (void)detail::split_weight(s.tensors.at(fmt::format("{}{}", kModel, p.name)));
  optimizer.load_state(without_prefix(prefix_of(optimizer), s.tensors), s.optimizer_steps);
  params.assign(without_prefix(kModel, s.tensors));  // cannot fail after the checks
  for (const auto& [name, t] : own_tensors)
    t.assign(s.tensors.at(fmt::format("{}{}", kOwn, name)).detach().to(t.device()));
}

}  // namespace tg
