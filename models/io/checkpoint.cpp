#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/io/checkpoint.h>
#include <tapegrad/models/io/hash.h>
#include <tapegrad/models/io/peft.h>
#include <tapegrad/models/train/config.h>

#include <array>
#include <charconv>
#include <filesystem>
#include <map>

namespace tg {
namespace {

constexpr std::string_view kFormat = "tapegrad-checkpoint", kVersion = "1";
using Metadata = std::map<std::string, std::string>;

// No run recovers from a non-finite state, so the file on disk is kept.
void check_finite(const std::string& path, const std::string& name, const Tensor& t, int64_t step) {
  const std::string bad = non_finite_in(t);
  TG_CHECK(
      bad.empty(), non_finite,
      "[checkpoint] cannot write {}: '{}' is {} after step {}. What was there before is unchanged. All weights and "
      "moments must be finite. {}.",
      path, name, bad, step,
      step == 0 ? "Change the model or its init_std" : "Lower the learning rate or use more warm-up");
}
// Covers everything in the file except the checksum itself.
std::string checksum(const StateDict& tensors, const Metadata& metadata) {
  Hash h;
  for (const auto& [key, text] : metadata)
    if (key != "checksum") h.add(key), h.add(text);
  for (const auto& [name, t] : tensors) h.add(name, t);
  return h.hex();
}

Json json_of(const Rng& rng) { return {{"seed", rng.seed}, {"offset", rng.offset}}; }
std::string json_of(const DataIdentity& d) {
  return text_of(Json{{"files", d.files}, {"tokens", d.tokens}, {"hash", fmt::format("{:016x}", d.hash)}});
}
std::string json_of(const TrainerState& s) {
  return text_of(Json{{"step", s.step},
                      {"optimizer_steps", s.optimizer_steps},
                      {"data_rng", json_of(s.data)},
                      {"dropout_rng", json_of(s.dropout)}});
}

std::string json_of(const StepRecord& r) {
  return text_of(
      Json{{"loss", r.loss}, {"grad_norm", r.grad_norm}, {"lr", r.lr}, {"ms", r.ms}, {"tokens_per_s", r.tokens_per_s}});
}
std::string json_of(const Finetuning& f) {
  Json j{{"model", f.model}, {"weights", f.weights}, {"lora", own_json(to_json(f.lora))}};
  if (f.base != DType::f32) j["base"] = name_of(f.base);
  return text_of(j);
}

// Every failure names the file.
class Reader {
 public:
  explicit Reader(const SafetensorsFile& file) : path_(file.path()), metadata_(file.metadata()) {}

  [[noreturn]] void fail(std::string_view what, std::string_view advice = "Use an older copy of the file") const {
    throw Error(Error::Kind::io, fmt::format("[checkpoint] {} cannot be used: {}. It must be as save_checkpoint() "
                                             "writes it. {}.",
                                             path_, what, advice));
  }
  const std::string& text(const std::string& key) const {
    const auto it = metadata_.find(key);
    if (it == metadata_.end()) fail(fmt::format("it has no '{}'", key));
    return it->second;
  }
  // Reads the object at `key`, which must have exactly these fields.
  template <class... To>
  void fields(const std::string& key, const std::array<const char*, sizeof...(To)>& names, To&... to) const {
    object(object_of(key), key, names, to...);
  }
  Json object_of(const std::string& key) const { return parse_json(text(key), "checkpoint", source(key)); }
  bool has(const std::string& key) const { return metadata_.contains(key); }
  std::string source(const std::string& key) const { return fmt::format("'{}' of {}", key, path_); }

 private:
  template <class... To>
  void object(const Json& j, const std::string& key, const std::array<const char*, sizeof...(To)>& names,
              To&... to) const {
    if (!j.is_object() || j.size() != names.size())
      fail(fmt::format("its '{}' is {}, not an object of {} fields", key, text_of(j), names.size()));
    size_t i = 0;
    (value(j, names[i++], to), ...);
  }
  template <class T> void value(const Json& of, const char* key, T& to) const {
    if (!of.contains(key)) fail(fmt::format("it has no '{}'", key));
    const Json& x = of.at(key);
    if constexpr (std::is_same_v<T, Rng>)
      object(x, key, {"seed", "offset"}, to.seed, to.offset);
    else if constexpr (std::is_same_v<T, LoraConfig>)
      to = lora_config_from_json(text_of(x), source(key));
    else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>)
      read_field({"checkpoint", key}, x, to);
    else
      to = x.get<T>();
  }
  const std::string& path_;
  const Metadata& metadata_;
};
}  // namespace

DataIdentity DataIdentity::of(const TokenData& data, std::vector<std::string> files) {
  Hash h;
  data.for_each([&](int64_t, std::span<const int32_t> some) {
    for (const int32_t token : some) h.add(uint64_t(token));
  });
  return {std::move(files), data.size(), h.value()};
}

DataIdentity DataIdentity::of(const Examples& data, std::vector<std::string> files) {
  Hash h;
  int64_t tokens = 0;
  for (const Examples::Row& row : data.rows)
    for (const auto& e : row) {
      h.add(std::as_bytes(std::span(e->tokens)));
      h.add(std::as_bytes(std::span(e->targets)));
      tokens += std::ssize(e->tokens);
    }
  return {std::move(files), tokens, h.value()};
}

std::string identity_of(const Tokenizer& tokenizer) {
  Hash h;
  h.add(text_of(own_json(tokenizer.to_json())));  // an export prints it with other spaces
  return h.hex();
}
void check_shards(std::span<const TokenData> files, const Tokenizer* tokenizer) {
  namespace fs = std::filesystem;
  std::map<fs::path, Json> read;  // by folder
  for (const TokenData& file : files) {
    const fs::path path = file.name(), folder = path.parent_path();
    const std::string meta = (folder / "meta.json").string();
    const auto [at, added] = read.try_emplace(folder);
    if (added && path_exists(meta)) at->second = parse_json(MappedFile(meta).text(), "data", meta);
    const Json& json = at->second;
    if (!json.is_object()) continue;
    const Json *hash = json.find("tokenizer_hash"), *shards = json.find("shards");
    TG_CHECK(!hash || !tokenizer || *hash == Json(identity_of(*tokenizer)), value,
             "[data] {} was written with another tokenizer, as {} says. Its ids would be other text. Pass that "
             "tokenizer, or tokenize the texts again.",
             file.name(), meta);
    if (!shards || !shards->is_object()) continue;  // of another program
    const Json* tokens = shards->find(path.filename().string());
    TG_CHECK(!tokens || *tokens == Json(file.size()), value,
             "[data] {} has {} tokens, and {} says {}. Tokenize the texts again, or correct --token-type.", file.name(),
             file.size(), meta, text_of(*tokens));
    if (!added) continue;
    for (const auto& [name, count] : shards->items())
      TG_CHECK(path_exists((folder / name).string()), io,
               "[data] {} is missing, and {} lists it. Restore it, or tokenize the texts again.",
               (folder / name).string(), meta);
  }
}

void save_checkpoint(const std::string& path, const Checkpoint& c) {
  TG_CHECK(
      json_or_null(c.config).is_object(), value,
      "[checkpoint] the config for {} is '{}'. It must be a JSON object, such as to_json() of a configuration makes.",
      path, c.config);
  StateDict tensors;
  for (const auto& [name, t] : c.state.tensors) {
    TG_CHECK(t, value, "[checkpoint] '{}' for {} is an empty Tensor. Take the state from Trainer::state().", name,
             path);
    check_finite(path, name, tensors[name] = t.detach().to(Device::cpu()).contiguous(), c.state.step);
  }
  Metadata metadata{{"format", std::string(kFormat)}, {"version", std::string(kVersion)}, {"config", c.config},
                    {"tokenizer", c.tokenizer},       {"data", json_of(c.data)},          {"state", json_of(c.state)}};
  if (c.finetuning) metadata["finetuning"] = json_of(*c.finetuning);
  if (c.state.unvalidated) metadata["unvalidated"] = json_of(*c.state.unvalidated);
  if (!c.init.empty()) metadata["init"] = c.init;
  if (!c.kernels.empty()) metadata["kernels"] = c.kernels;
  metadata["checksum"] = checksum(tensors, metadata);
  write_safetensors(path, tensors, metadata);
}

Checkpoint load_checkpoint(const std::string& path) {
  const SafetensorsFile file(path);
  const Reader r(file);
  if (const auto format = file.metadata().find("format"); format == file.metadata().end() || format->second != kFormat)
    r.fail("it is a safetensors file, but not a checkpoint", "Name the checkpoint.safetensors of a training run");
  if (r.text("version") != kVersion)
    r.fail(fmt::format("its version is '{}', and this program reads '{}'", r.text("version"), kVersion),
           "Use the program that wrote it");
  Checkpoint c;
  c.state.tensors = file.tensors();
  if (const std::string sum = checksum(c.state.tensors, file.metadata()); r.text("checksum") != sum)
    r.fail(fmt::format("its checksum is {}, but its content gives {}: it was damaged after it was written",
                       r.text("checksum"), sum));
  c.config = r.text("config");
  if (const Json config = parse_json(c.config, "checkpoint", r.source("config")); !config.is_object())
    r.fail(fmt::format("its 'config' is {}, not an object", text_of(config)));
  c.tokenizer = r.text("tokenizer");
  std::string hash;
  r.fields("data", {"files", "tokens", "hash"}, c.data.files, c.data.tokens, hash);
  const auto [end, error] = std::from_chars(hash.data(), hash.data() + hash.size(), c.data.hash, 16);
  if (error != std::errc() || end != hash.data() + hash.size()) r.fail(fmt::format("its 'hash' is '{}'", hash));
  TrainerState& state = c.state;
  r.fields("state", {"step", "optimizer_steps", "data_rng", "dropout_rng"}, state.step, state.optimizer_steps,
           state.data, state.dropout);
  if (state.step < 0) r.fail(fmt::format("it is of step {}", state.step));
  if (r.has("finetuning")) {
    Finetuning& f = c.finetuning.emplace();
    if (r.object_of("finetuning").contains("base"))
      r.fields("finetuning", {"model", "weights", "lora", "base"}, f.model, f.weights, f.lora, f.base);
    else
      r.fields("finetuning", {"model", "weights", "lora"}, f.model, f.weights, f.lora);
  }
  if (r.has("unvalidated")) {
    StepRecord& last = state.unvalidated.emplace();
    last.step = state.step;
    r.fields("unvalidated", {"loss", "grad_norm", "lr", "ms", "tokens_per_s"}, last.loss, last.grad_norm, last.lr,
             last.ms, last.tokens_per_s);
  }
  if (r.has("init")) c.init = r.text("init");
  if (r.has("kernels")) c.kernels = r.text("kernels");
  return c;
}

}  // namespace tg
