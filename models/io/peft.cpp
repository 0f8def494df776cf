#include <tapegrad/core/check.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/io/hash.h>
#include <tapegrad/models/io/peft.h>
#include <tapegrad/models/io/peft_file.h>
#include <tapegrad/ops/shape_ops.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace tg {
namespace {

using detail::PeftFile, detail::kPeftA, detail::kPeftB, detail::kPeftPrefix;
// An external module: rows of our Linear.
struct Slot {
  std::string name, linear;
  nn::LoraRows rows;
  int64_t pair_heads = 0;  // rows of B (out, r) move like those of the weight
  bool transposed = false;
};
// A layout's Linear layers: matrices except tables.
std::vector<Slot> slots_of(const detail::TensorMappings& layout) {
  const auto stem = [](const std::string& name) { return name.substr(0, name.rfind('.')); };  // name minus ".weight"
  std::vector<Slot> all;
  for (const detail::TensorMapping& e : layout) {
    if (!e.columns || e.ours == "wte.weight" || e.ours == "wpe.weight" || e.ours == "score.weight") continue;
    int64_t row = 0;
    for (const detail::TensorSlice& p : e.pieces) {
      all.push_back({stem(p.theirs), stem(e.ours), {row, p.rows}, p.pair_heads, e.transposed});
      row += p.rows;
    }
  }
  return all;
}
std::vector<Slot> slots_of(const Linears& model, const detail::TensorMappings& layout) {
  if (!layout.empty()) return slots_of(layout);
  std::vector<Slot> all;
  for (const NamedLinear& l : model.list) {
    if (l.layer->out() == 0 || l.whole) continue;
    all.push_back({l.name, l.name, {0, l.layer->out()}});
    for (const auto& p : l.parts) all.push_back({p.name, l.name, p.rows});
  }
  return all;
}
// Drops words of the wrapped class: AutoModel has none, AutoModelForCausalLM one.
std::string core_of(std::string_view name) {
  for (const std::string_view word :
       {"model.", "transformer.", "base_model.", "module.", "_orig_mod.", "pretrained_model."})
    if (name.starts_with(word)) return core_of(name.substr(word.size()));
  return std::string(name);
}
std::string hash_of(const Params& params, bool round) {
  NoGradScope off;
  Hash h;
  for (const auto& [name, t] : params.tensors()) {
    const bool narrow = round || t.dtype() == DType::bf16;
    h.add(name, narrow ? t.to(DType::bf16) : t, narrow);
  }
  for (const auto& [name, b] : params.all_blocks())
    for (const auto& part : b.parts) {
      h.add(detail::layout_of_block(part.format).name);
      h.add(name, part.codes);
    }
  return h.hex();
}

// Configuration and tensors of a folder, by our names.
class Plan {
 public:
  LoraConfig config;
  StateDict tensors;

  Plan(const PeftFile& f, const Linears& model, const Params& base, const detail::TensorMappings& layout) : f_(f) {
    for (const auto& [name, t] : f.copies) check_copy(name, t, base.tensors(), layout);
    check_whole(model, !layout.empty());
    std::map<std::string, std::string> theirs;  // key: core
    if (!layout.empty())
      for (const auto& [name, ab] : f.modules) theirs.emplace(core_of(name), name);
    std::vector<Slot> slots = slots_of(model, layout);
    std::optional<std::string> front;
    for (Slot& s : slots)
      if (const auto at = theirs.find(core_of(s.name)); at != theirs.end()) {
        if (at->first != s.name) front = at->second.substr(0, at->second.size() - at->first.size());
        s.name = at->second;
      }
    for (Slot& s : slots) {
      const std::string core = core_of(s.name);
      if (front && core != s.name && !theirs.contains(core)) s.name = *front + core;
      slots_[s.linear].push_back(std::move(s));
    }
    check_modules();
    config = f.lora;
    config.rank_pattern = {}, config.alpha_pattern = {};  // rebuilt by our names
    for (const NamedLinear& l : model.list) add(l);
  }

 private:
  // Layers without tensors in the file stay.
  void check_whole(const Linears& model, bool of_family) {
    std::map<std::string, Shape> own, given;
    for (const NamedLinear& l : model.list)
      for (const auto& [end, t] : {std::pair(".weight", l.layer->weight), {".bias", l.layer->bias}})
        if (l.whole && t) own[l.name + end] = t.shape(), tensors[l.name + end] = t.detach();
    for (const auto& [theirs, t] : f_.whole) {
      const std::string name = of_family ? core_of(theirs) : theirs;
      given[name] = t.shape(), tensors[name] = t;
    }
    const auto is_own = [&](const std::string& name) { return name == "classifier" || own.contains(name + ".weight"); };
    TG_CHECK((own == given || (given.empty() && f_.to_save.empty())) && std::ranges::all_of(f_.to_save, is_own), shape,
             "[adapter] 'modules_to_save' is {}, which changes the results and is not supported. Its tensors are {}, "
             "and the new heads of this model {}: with_new_head() makes one. Name the model that it was trained on. "
             "Merge the adapter in Python by merge_and_unload() otherwise.",
             detail::text_of(Json(f_.to_save)), given, own);  // PEFT lists "classifier" with "score"
  }
  void check_copy(const std::string& name, const Tensor& t, const StateDict& base,
                  const detail::TensorMappings& layout) const {
    NoGradScope off;
    const auto entry = std::ranges::find_if(layout, [&](const detail::TensorMapping& e) {
      return e.pieces.size() == 1 && core_of(e.pieces[0].theirs) == core_of(name);
    });
    const auto ours = entry == layout.end() ? base.end() : base.find(entry->ours);
    const auto same = [&] {
      const Tensor w = ours->second.to(Device::cpu()).contiguous();
      return t.shape() == entry->shape(entry->pieces[0]) &&
             detail::same_bits(
                 w,
                 detail::from_half_split(t, entry->pieces[0].pair_heads, entry->transposed).to(w.dtype()).contiguous());
    };
    TG_CHECK(ours != base.end() && same(), value,
             "[adapter] {} has a weight '{}' {} that is not the model's{}. Adapters may only add to the weights of "
             "Linear layers. Merge the adapter in Python, and pass the merged folder as the model.",
             f_.path, name, t.shape(), name == "lm_head.weight" && entry == layout.end() ? ": the head is tied" : "");
  }
  void check_modules() const {
    std::set<std::string> known;
    for (const auto& [linear, slots] : slots_)
      for (const Slot& s : slots) known.insert(s.name);
    for (const auto& [name, ab] : f_.modules)
      TG_CHECK(known.contains(name), value,
               "[adapter] {} has tensors for '{}', and this model has no such Linear layer (a tied head is none). It "
               "has '{}', for one. An adapter fits the model that it was trained on. Name that model.",
               f_.path, name, known.empty() ? "" : *known.rbegin());
    for (const auto& [linear, slots] : slots_)
      for (const Slot& s : slots) {
        const bool there = f_.modules.contains(s.name), wanted = detail::is_selected(f_.config, s.name).value_or(there);
        TG_CHECK(there || !wanted, value,
                 "[adapter] {} has no tensors for '{}', which 'target_modules' of {} names. Name the model that it was "
                 "trained on, or restore the file that does not belong to the adapter.",
                 f_.path, s.name, f_.config_path);
        TG_CHECK(!there || wanted, value,
                 "[adapter] {} has tensors for '{}', which {} does not name ('target_modules', 'exclude_modules', "
                 "'layers_to_transform'). Restore the file that does not belong to the adapter.",
                 f_.path, s.name, f_.config_path);
      }
  }
  void add(const NamedLinear& l) {
    std::vector<const Slot*> there;
    for (const Slot& s : slots_[l.name])
      if (f_.modules.contains(s.name)) there.push_back(&s);
    if (there.empty()) return;
    const int64_t out = l.layer->out(), in = l.layer->in();
    if (out == 0) return config.targets.push_back(l.name);  // lora_targets() refuses it
    for (const Slot* s : there) check_shapes(*s, in);
    if (is_fused(there, out)) return add(l.name, there);
    for (const Slot* s : there) {
      const auto part = std::ranges::find_if(
          l.parts, [&](auto& p) { return p.rows.begin == s->rows.begin && p.rows.count == s->rows.count; });
      TG_CHECK(part != l.parts.end() || s->rows.count == out, value,
               "[adapter] '{}' of this model has no part for '{}' of the layout. Pass adapter_layout() of the model.",
               l.name, s->name);
      add(s->rows.count == out ? l.name : part->name, {s});
    }
  }
  void check_shapes(const Slot& s, int64_t in) const {
    const auto& [a, b] = f_.modules.at(s.name);
    const int64_t rank = f_.ranks.at(s.name);
    const auto check = [&](const Tensor& t, std::string_view end, const Shape& shape) {
      TG_CHECK(t.shape() == shape, shape,
               "[adapter] '{}{}{}' is {} in {}, and 'r' and 'rank_pattern' of {} and this model imply {}. Name the "
               "model that it was trained on, or restore the file that does not belong to the adapter.",
               kPeftPrefix, s.name, end, t.shape(), f_.path, f_.config_path, shape);
    };
    check(a, kPeftA, {rank, in});
    check(b, kPeftB, {s.rows.count, rank});
  }
  bool is_fused(const std::vector<const Slot*>& there, int64_t out) const {
    const std::string& first = there[0]->name;
    int64_t rows = 0;
    for (const Slot* s : there) {
      rows += s->rows.count;
      if (f_.alphas.at(s->name) != f_.alphas.at(first)) return false;
      if (!detail::same_bits(f_.modules.at(s->name).first, f_.modules.at(first).first)) return false;
    }
    return there.size() > 1 && rows == out;
  }
  void add(const std::string& module, const std::vector<const Slot*>& slots) {
    NoGradScope off;
    // No op computes in f16.
    const auto wide = [](const Tensor& t) { return t.dtype() == DType::f16 ? t.to(DType::f32) : t; };
    const std::string& first = slots[0]->name;
    std::vector<Tensor> b;
    for (const Slot* s : slots)
      b.push_back(detail::from_half_split(wide(f_.modules.at(s->name).second), s->pair_heads));
    tensors[module + ".lora_a"] = transpose(wide(f_.modules.at(first).first)).contiguous();
    tensors[module + ".lora_b"] = transpose(b.size() == 1 ? b[0] : concat(b)).contiguous();
    config.targets.push_back(module);
    if (const int64_t rank = f_.ranks.at(first); rank != f_.lora.rank) config.rank_pattern.push_back({module, rank});
    if (const double alpha = f_.alphas.at(first); alpha != f_.lora.alpha)
      config.alpha_pattern.push_back({module, alpha});
  }
  const PeftFile& f_;
  std::map<std::string, std::vector<Slot>> slots_;  // key: layer name
};

// Shortest name ends that select exactly the modules.
std::vector<std::string> target_modules(const std::vector<AdapterModule>& modules,
                                        const detail::TensorMappings& layout) {
  std::set<std::string> chosen, ends;
  for (const AdapterModule& m : modules) chosen.insert(m.name);
  const std::vector<Slot> all = slots_of(layout);
  for (const std::string& name : chosen) {
    size_t begin = layout.empty() ? 0 : name.size();
    const auto selects_others = [&] {
      return std::ranges::any_of(
          all, [&](const Slot& s) { return !chosen.contains(s.name) && s.name.ends_with("." + name.substr(begin)); });
    };
    do begin = begin < 2 ? 0 : name.rfind('.', begin - 2) + 1;
    while (begin > 0 && selects_others());
    ends.insert(name.substr(begin));
  }
  return {ends.begin(), ends.end()};
}

}  // namespace

std::string weights_hash(const Params& params) { return hash_of(params, false); }

detail::TensorMappings adapter_layout(const GptConfig& c) {
  const Family family = detail::family_of(c);
  return family == Family::none ? detail::TensorMappings() : detail::layout_of(family, c);
}

std::vector<AdapterModule> adapter_modules(const Lora& lora, const detail::TensorMappings& layout) {
  NoGradScope off;
  const std::vector<Slot> slots = slots_of(layout);
  std::vector<AdapterModule> all;
  for (const auto& m : lora.modules()) {
    const nn::LoraOptions o = lora.config().options(m.name);
    const Tensor a = transpose(m.layer.delta().a), b = transpose(m.layer.delta().b);  // (r, in), (out, r)
    const int64_t begin = m.layer.row(), end = begin + b.size(0);
    const auto add = [&](const Slot& s) {
      const Tensor rows = slice(b, 0, s.rows.begin - begin, s.rows.begin - begin + s.rows.count);
      all.push_back({s.name, a, detail::to_half_split(rows, s.pair_heads), o.rank, o.alpha, o.scale()});
    };
    if (layout.empty()) add({m.name, m.linear, {begin, b.size(0)}});
    for (const Slot& s : slots)
      if (s.linear == m.linear && s.rows.begin >= begin && s.rows.begin + s.rows.count <= end) add(s);
  }
  return all;
}

std::vector<std::string> detail::adapter_files() { return {kPeftWeights, kPeftConfig}; }

void save_adapter(const std::string& folder, const Lora& lora, const AdapterOptions& o) {
  const std::string path = fmt::format("{}/{}", folder, detail::kPeftWeights);
  for (const auto& [name, t] : lora.params().state())
    detail::check_finite("adapter", fmt::format("cannot write {}: '{}'", path, name), t.to(Device::cpu()).contiguous(),
                         ". What was there before is unchanged. All weights must be finite. Lower the learning rate or "
                         "use more warm-up.");
  const LoraConfig& c = lora.config();
  const std::vector<AdapterModule> modules = adapter_modules(lora, o.layout);
  StateDict tensors;
  Json ranks = Json::object(), alphas = Json::object();
  for (const AdapterModule& m : modules) {
    tensors[fmt::format("{}{}{}", kPeftPrefix, m.name, kPeftA)] = m.a.to(Device::cpu()).contiguous();
    tensors[fmt::format("{}{}{}", kPeftPrefix, m.name, kPeftB)] = m.b.to(Device::cpu()).contiguous();
    if (m.rank != c.rank) ranks[m.name] = m.rank;
    if (m.alpha != c.alpha) alphas[m.name] = m.alpha;
  }
  std::set<std::string> whole;
  for (const auto& [name, base] : lora.whole()) {
    const Tensor trained = lora.params().state().at(name).detach();
    tensors[fmt::format("{}{}", kPeftPrefix, name)] = trained.to(Device::cpu()).contiguous();
    whole.insert(name.substr(0, name.rfind('.')));
  }
  const std::vector<Slot> slots = slots_of(o.layout);
  const Json config{{"peft_type", "LORA"},
                    {"task_type", whole.empty() ? "CAUSAL_LM" : "SEQ_CLS"},
                    {"base_model_name_or_path", o.folder},
                    {"r", c.rank},
                    {"lora_alpha", c.alpha},
                    {"lora_dropout", c.dropout},
                    {"use_rslora", c.rslora},
                    {"rank_pattern", ranks},
                    {"alpha_pattern", alphas},
                    {"target_modules", target_modules(modules, o.layout)},
                    {"fan_in_fan_out", std::ranges::any_of(slots, &Slot::transposed)},
                    {"bias", "none"},
                    {"modules_to_save", whole.empty() ? Json() : Json(std::vector(whole.begin(), whole.end()))},
                    {"use_dora", false},
                    {"inference_mode", true}};
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  detail::make_folder(folder);
  if (!o.chat_template.empty()) detail::write_file_atomically(folder + "/chat_template.jinja", o.chat_template);
  if (!o.base.empty()) metadata["tapegrad.base"] = o.base;
  if (lora.base_dtype() == DType::bf16) metadata["tapegrad.base_dtype"] = name_of(DType::bf16);
  if (o.nf4) metadata["tapegrad.base_blocks"] = "nf4";
  detail::write_file_atomically(fmt::format("{}/{}", folder, detail::kPeftConfig), detail::text_of(config, 2) + "\n");
  write_safetensors(path, tensors, metadata);
}

AdapterBase detail::adapter_base(const std::string& folder) {
  const Json config = read_peft_config(folder);
  const SafetensorsFile file(peft_weights_path(folder));
  const auto hash = file.metadata().find("tapegrad.base");
  return {config.member("base_model_name_or_path").text(), hash == file.metadata().end() ? "" : hash->second,
          file.metadata().contains("tapegrad.base_dtype") ? DType::bf16 : DType::f32,
          file.metadata().contains("tapegrad.base_blocks")};
}

Lora load_adapter(const std::string& folder, const Linears& model, const Params& base,
                  const detail::TensorMappings& layout, const Params* trained_over) {
  const PeftFile f = detail::read_peft(folder);
  const Plan plan = in_file(f.config_path, [&] {
    Plan p(f, model, base, layout);
    (void)detail::lora_targets(model, p.config);  // an Error precedes changes
    return p;
  });
  if (!f.base.empty()) {
    const std::string here = hash_of(trained_over ? *trained_over : base, f.base_is_bf16);
    TG_CHECK(f.base == here, value,
             "[adapter] {} was trained over other weights: their hash was {}, and that of this model is {}. An adapter "
             "is a change of the weights that it was trained over. Name that model{}.",
             f.path, f.base, here, !f.base_is_bf16 && base.dtype() == DType::bf16 ? ", in f32" : "");
  }
  Lora lora = apply_lora(model, base, plan.config);
  if (f.base_is_bf16 && base.dtype() != DType::bf16) {
    NoGradScope off;
    for (Parameter p : base.all()) p.tensor.assign(p.tensor.detach().to(DType::bf16).to(base.dtype()));
    lora.base_dtype_ = DType::bf16;
  }
  StateDict tensors = plan.tensors;
  for (auto& [name, t] : tensors) t = t.to(lora.params().dtype()).to(base.device());
  lora.params().assign(tensors);
  return lora;
}

}  // namespace tg
