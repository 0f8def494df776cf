#include <tapegrad/core/check.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/io/adapter.h>
#include <tapegrad/models/io/hash.h>

#include <algorithm>
#include <cmath>

namespace tg {
namespace {

constexpr std::string_view kAdapterFormat = "tapegrad-lora", kAdapterVersion = "1";
constexpr std::string_view kFields[] = {"rank", "alpha", "dropout", "seed", "targets"};

void read_field(const FieldName& f, const Json& x, std::vector<std::string>& to) {
  bool strings = x.is_array();
  for (const Json& entry : x) strings = strings && entry.is_string();
  expect_field(strings, f, x, "a list of patterns in quotes");
  to = x.get<std::vector<std::string>>();
}
template <class Config, class F> void visit_lora_fields(Config& c, F&& f) {
  f("rank", c.rank), f("alpha", c.alpha), f("dropout", c.dropout), f("seed", c.seed), f("targets", c.targets);
}

struct File {
  std::string path;
  LoraConfig config;
  std::string base;
  bool rounded;  // the base was in bf16
  StateDict tensors;
};
[[noreturn]] void fail(const std::string& path, std::string_view what, std::string_view advice) {
  throw Error(Error::Kind::io, fmt::format("[adapter] {} cannot be used: {}. It must be as save_adapter() writes it. "
                                           "{}.",
                                           path, what, advice));
}
File read(const std::string& path, Device device) {
  const SafetensorsFile file(path);
  const auto& metadata = file.metadata();
  const auto text = [&](std::string_view key) -> const std::string& {
    const auto it = metadata.find(std::string(key));
    if (it == metadata.end()) fail(path, fmt::format("it has no '{}'", key), "Use another copy of the file");
    return it->second;
  };
  if (const auto format = metadata.find("format"); format == metadata.end() || format->second != kAdapterFormat)
    fail(path, "it is a safetensors file, but not an adapter", "Name the adapter.safetensors that finetuning wrote");
  if (text("version") != kAdapterVersion)
    fail(path, fmt::format("its version is '{}', and this program reads '{}'", text("version"), kAdapterVersion),
         "Use the program that wrote it");
  Json fields;
  for (const std::string_view key : kFields)
    fields[std::string(key)] = parse_json(text(key), "adapter", fmt::format("'{}' of {}", key, path));
  const auto base = metadata.find("base"), dtype = metadata.find("base_dtype");
  if (dtype != metadata.end() && dtype->second != name_of(DType::bf16))
    fail(path, fmt::format("its base_dtype is '{}', and this program reads 'bf16'", dtype->second),
         "Use the program that wrote it");
  return {path, lora_config_from_json(text_of(fields), path), base == metadata.end() ? "" : base->second,
          dtype != metadata.end(), file.tensors(device)};
}

Tensor rounded(const Tensor& t) {
  NoGradScope off;
  return t.detach().to(DType::bf16).to(t.dtype());
}
std::string hash_of(const Params& params, bool round) {
  NoGradScope off;
  Hash h;
  for (const auto& [name, t] : params.state())
    if (round || t.dtype() == DType::bf16)
      h.add_as_f32(name, t.to(DType::bf16));
    else
      h.add(name, t);
  return h.hex();
}

// The shapes that the modules of the model need.
struct Shapes {
  std::map<std::string, std::pair<std::string, Shape>> all;  // name of the tensor: of the module, and its shape
  void add(const std::string& module, int64_t in, int64_t out, int64_t rank) {
    all[module + ".lora_a"] = {module, {in, rank}};
    all[module + ".lora_b"] = {module, {rank, out}};
  }
};
void check_fits(const File& f, const Shapes& shapes) {
  constexpr const char* kRule = "An adapter fits the model that it was trained on. Name that model";
  for (const auto& [name, wanted] : shapes.all) {
    const auto& [module, shape] = wanted;
    const auto it = f.tensors.find(name);
    TG_CHECK(it != f.tensors.end(), value, "[adapter] {} has no '{}', which is {} for '{}' of this model. {}.", f.path,
             name, shape, module, kRule);
    TG_CHECK(it->second.shape() == shape, shape, "[adapter] '{}' is {} in {}, and '{}' of this model takes {}. {}.",
             name, it->second.shape(), f.path, module, shape, kRule);
    TG_CHECK(is_float(it->second.dtype()), dtype, "[adapter] '{}' is {} in {}. It must be of a floating dtype.", name,
             it->second.layout(), f.path);
  }
  for (const auto& [name, t] : f.tensors)
    TG_CHECK(shapes.all.contains(name), value,
             "[adapter] {} has '{}' {}, and this model has no such module among the targets {}. {}.", f.path, name,
             t.shape(), text_of(Json(f.config.targets)), kRule);
}
void check_finite(const std::string& path, const std::string& name, const Tensor& t) {
  const auto all = t.to_vector<double>();
  const auto bad = std::find_if(all.begin(), all.end(), [](double x) { return !std::isfinite(x); });
  if (bad == all.end()) return;
  const double x = std::isnan(*bad) ? std::abs(*bad) : *bad;  // never "-nan"
  throw Error(
      Error::Kind::non_finite,
      fmt::format("[adapter] cannot write {}: '{}' is {} at {}. What was there before is unchanged. All weights "
                  "must be finite. Lower the learning rate or use more warm-up.",
                  path, name, x, position_of(bad - all.begin(), t.shape())));
}

}  // namespace

std::string to_json(const LoraConfig& c) {
  Json fields;
  visit_lora_fields(c, [&](const char* name, const auto& x) { fields[name] = x; });
  return text_of(fields);
}
LoraConfig lora_config_from_json(std::string_view text, const std::string& source) {
  const Json fields = parse_json(text, "lora", source);
  TG_CHECK(fields.is_object(), value, "[lora] {} is {}. It must be an object.", source, fields.type_name());
  check_keys("lora", source, fields, kFields);
  LoraConfig c;
  visit_lora_fields(c, [&](const char* name, auto& x) {
    TG_CHECK(fields.contains(name), value, "[lora] {} has no '{}'. Every field must be there.", source, name);
    read_field({"lora", name}, fields.at(name), x);
  });
  return c;
}

std::string weights_hash(const Params& params) { return hash_of(params, false); }

void save_adapter(const std::string& path, const Lora& lora, const std::string& base) {
  const StateDict tensors = lora.params().state();
  for (const auto& [name, t] : tensors) check_finite(path, name, t);
  std::map<std::string, std::string> metadata{{"format", std::string(kAdapterFormat)},
                                              {"version", std::string(kAdapterVersion)}};
  const Json fields = own_json(to_json(lora.config()));
  for (const auto& [key, x] : fields.items()) metadata[key] = text_of(x);
  if (!base.empty()) metadata["base"] = base;
  if (const DType dtype = lora.base_dtype(); dtype == DType::bf16) metadata["base_dtype"] = name_of(dtype);
  write_safetensors(path, tensors, metadata);
}

Lora load_adapter(const std::string& path, const Linears& model, const Params& base) {
  const File f = read(path, base.device());
  Shapes shapes;
  try {
    for (const auto& l : lora_targets(model, f.config))
      shapes.add(l.name, l.layer->weight.size(1), l.layer->weight.size(0), f.config.rank);
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("{}\n    in {}", e.what(), path), e.scoped());
  }
  check_fits(f, shapes);
  if (!f.base.empty()) {
    const std::string here = hash_of(base, f.rounded);
    TG_CHECK(f.base == here, value,
             "[adapter] {} was trained over other weights: their hash was {}, and that of this model is {}. An adapter "
             "is a change of the weights that it was trained over. Name that model{}.",
             path, f.base, here, !f.rounded && base.dtype() == DType::bf16 ? ", in f32" : "");
  }
  Lora lora = apply_lora(model, base, f.config);
  if (f.rounded && base.dtype() != DType::bf16) {
    for (const Parameter& p : base.all()) Tensor(p.tensor).assign(rounded(p.tensor));
    lora.base_dtype_ = DType::bf16;
  }
  lora.params().assign(f.tensors);
  return lora;
}
void assign_adapter(const std::string& path, const Lora& lora) {
  const File f = read(path, lora.params().device());
  const LoraConfig& c = lora.config();
  TG_CHECK(f.config.rank == c.rank, value,
           "[adapter] {} is of rank {}, and the adapters of this model are of rank {}. They must be equal. Make them "
           "by load_adapter(), which takes the rank of the file.",
           path, f.config.rank, c.rank);
  TG_CHECK(f.config.alpha == c.alpha, value,
           "[adapter] {} has an alpha of {}, and the adapters of this model one of {}. They must be equal. Make them "
           "by load_adapter(), which takes the alpha of the file.",
           path, f.config.alpha, c.alpha);
  TG_CHECK(!lora.merged(), state,
           "[adapter] the adapters of this model are merged, and {} would not reach the weights. Call unmerge() first.",
           path);
  Shapes shapes;
  for (const auto& m : lora.modules()) shapes.add(m.name, m.layer.delta().a.size(0), m.layer.delta().b.size(1), c.rank);
  check_fits(f, shapes);
  lora.params().assign(f.tensors);
}

std::string adapter_path(const std::string& path) {
  const bool there = path_exists(path), folder = there && is_folder(path);
  const std::string file = folder ? path + "/adapter.safetensors" : path, peft = path + "/adapter_config.json";
  if (folder && !path_exists(file) && path_exists(peft)) {
    const Json config = parse_json(MappedFile(peft).text(), "adapter", peft);
    const Json* dora = config.is_object() ? config.find("use_dora") : nullptr;
    TG_CHECK(false, value,
             "[adapter] {} is an adapter of PEFT{}, which is not supported. Merge it in Python by "
             "PeftModel.merge_and_unload().save_pretrained(), and pass that folder as the model.",
             path, dora && *dora == Json(true) ? " with use_dora" : "");
  }
  TG_CHECK(
      there && path_exists(file), io,
      "[adapter] {} {}. An adapter is a folder with adapter.safetensors, which `tapegrad finetune --out` wrote, or "
      "that file itself. Name one of them.",
      path, there ? "is a folder without adapter.safetensors" : "does not exist");
  return file;
}

}  // namespace tg
