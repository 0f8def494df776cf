#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/io/checkpoint.h>
#include <tapegrad/models/io/hash.h>
#include <tapegrad/models/io/layout.h>
#include <tapegrad/models/train/config.h>

#include <charconv>
#include <filesystem>
#include <map>

namespace tg {
namespace {

constexpr std::string_view kFormat = "tapegrad-checkpoint", kVersion = "1";
using Metadata = std::map<std::string, std::string>;

// Hash of the whole file except this checksum.
std::string checksum(const StateDict& tensors, const Metadata& metadata) {
  Hash h;
  for (const auto& [key, text] : metadata)
    if (key != "checksum") h.add(key), h.add(text);
  for (const auto& [name, t] : tensors) h.add(name, t);
  return h.hex();
}

struct DataText {
  std::vector<std::string> files;
  int64_t tokens = 0;
  std::string hash;
};
template <class F> void visit(DataText& d, F f) { f("files", d.files), f("tokens", d.tokens), f("hash", d.hash); }
template <class F> void visit(Rng& rng, F f) { f("seed", rng.seed), f("offset", rng.offset); }
template <class F> void visit(TrainerState& s, F f) {
  f("step", s.step), f("optimizer_steps", s.optimizer_steps), f("data_rng", s.data), f("dropout_rng", s.dropout);
}
template <class F> void visit(StepRecord& r, F f) {
  f("loss", r.loss), f("grad_norm", r.grad_norm), f("lr", r.lr), f("ms", r.ms), f("tokens_per_s", r.tokens_per_s);
}
template <class F> void visit(LoraConfig& c, F f) {
  f("rank", c.rank), f("alpha", c.alpha), f("dropout", c.dropout), f("seed", c.seed), f("rslora", c.rslora);
  f("rank_pattern", c.rank_pattern), f("alpha_pattern", c.alpha_pattern), f("targets", c.targets);
}
template <class F> void visit(Finetuning& x, F f) {
  f("model", x.model), f("weights", x.weights), f("lora", x.lora);
  if (x.base != DType::f32) f("base", x.base);
  if (x.nf4) f("nf4", x.nf4);
}
template <class T>
concept Visited = requires(T& x) { visit(x, [](auto&&...) {}); };

template <class T> Json json_of(T x) {
  if constexpr (Visited<T>) {
    Json j;
    visit(x, [&](const char* name, const auto& field) { j[name] = json_of(field); });
    return j;
  } else {
    return written(x);
  }
}

class Reader {
 public:
  explicit Reader(const SafetensorsFile& file) : path_(file.path()), metadata_(file.metadata()) {}

  [[noreturn]] void fail(std::string_view what, std::string_view advice = "Use an older copy of the file") const {
    detail::fail(Error::Kind::io, fmt::format("[checkpoint] {} cannot be used: {}. It must be as save_checkpoint() "
                                              "writes it. {}.",
                                              path_, what, advice));
  }
  const std::string& text(const std::string& key) const {
    const auto it = metadata_.find(key);
    if (it == metadata_.end()) fail(fmt::format("it has no '{}'", key));
    return it->second;
  }
  template <class T> void read(const std::string& key, T& to) const { value(key, object_of(key), to); }
  Json object_of(const std::string& key) const { return detail::parse_json(text(key), "checkpoint", source(key)); }
  bool has(const std::string& key) const { return metadata_.contains(key); }
  std::string source(const std::string& key) const { return fmt::format("'{}' of {}", key, path_); }

 private:
  template <class T> void value(std::string_view key, const Json& x, T& to) const {
    if constexpr (Visited<T>) {
      size_t n = 0;
      visit(to, [&](auto&&...) { ++n; });
      if (!x.is_object() || x.size() != n)
        fail(fmt::format("its '{}' is {}, not an object of {} fields", key, detail::text_of(x), n));
      visit(to, [&](const char* name, auto& field) {
        if (!x.contains(name)) fail(fmt::format("it has no '{}'", name));
        value(name, x.at(name), field);
      });
    } else {
      read_field({"checkpoint", key}, x, to);
    }
  }
  const std::string& path_;
  const Metadata& metadata_;
};
}  // namespace

DataIdentity DataIdentity::of(const TokenData& data, std::vector<std::string> files) {
  Hash h;
  const auto add = [&h](int64_t, std::span<const int32_t> some) {
    for (const int32_t token : some) h.add(uint64_t(token));
  };
  data.for_each(add);
  if (data.validation()) data.validation()->for_each(add);
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

std::string detail::tokenizer_hash(const Tokenizer& tokenizer) {
  Hash h;
  h.add(text_of(own_json(tokenizer.to_json())));  // normalised: an export has other spaces
  return h.hex();
}
void detail::check_shards(std::span<const TokenData> files, const Tokenizer* tokenizer) {
  namespace fs = std::filesystem;
  std::map<fs::path, Json> read;  // key: folder
  for (const TokenData& file : files) {
    const fs::path path = file.name(), folder = path.parent_path();
    const std::string meta = (folder / "meta.json").string();
    const auto [at, added] = read.try_emplace(folder);
    if (added && path_exists(meta) && !is_folder(meta)) at->second = json_or_null(MappedFile(meta).text());
    const Json &hash = at->second.member("tokenizer_hash"), &shards = at->second.member("shards");
    if (!hash.is_string()) continue;  // foreign file
    TG_CHECK(!added || !tokenizer || hash == Json(tokenizer_hash(*tokenizer)), value,
             "[data] {} was written with another tokenizer, as {} says. Its ids would be other text. Pass that "
             "tokenizer, or tokenize the texts again.",
             file.name(), meta);
    if (!shards.is_object()) continue;
    const Json* tokens = shards.find(path.filename().string());
    TG_CHECK(!tokens || *tokens == Json(file.size()), value,
             "[data] {} has {} tokens, and {} says {}. Tokenize the texts again, or correct --token-type.", file.name(),
             file.size(), meta, text_of(*tokens));
    if (!added) continue;
    for (const auto& [name, count] : shards.items())
      TG_CHECK(fs::path(name).filename() != name || path_exists((folder / name).string()), io,
               "[data] {} is missing, and {} lists it. Restore it, or tokenize the texts again.",
               (folder / name).string(), meta);
  }
}

void save_checkpoint(const std::string& path, const Checkpoint& c) {
  TG_CHECK(
      detail::json_or_null(c.config).is_object(), value,
      "[checkpoint] the config for {} is '{}'. It must be a JSON object, such as to_json() of a configuration makes.",
      path, c.config);
  // No run recovers from a non-finite state: keep the file.
  const std::string lost = fmt::format(
      " after step {}. What was there before is unchanged. All weights and moments must be finite. {}.", c.state.step,
      c.state.step == 0 ? "Change the model or its init_std" : "Lower the learning rate or use more warm-up");
  StateDict tensors;
  for (const auto& [name, t] : c.state.tensors) {
    TG_CHECK(t, value, "[checkpoint] '{}' for {} is an empty Tensor. Take the state from Trainer::state().", name,
             path);
    const Tensor& here = tensors[name] = t.detach().to(Device::cpu()).contiguous();
    detail::check_finite("checkpoint", fmt::format("cannot write {}: '{}'", path, name), here, lost);
  }
  const DataText data{c.data.files, c.data.tokens, fmt::format("{:016x}", c.data.hash)};
  Metadata metadata{{"format", std::string(kFormat)},
                    {"version", std::string(kVersion)},
                    {"config", c.config},
                    {"tokenizer", c.tokenizer},
                    {"data", detail::text_of(json_of(data))},
                    {"state", detail::text_of(json_of(c.state))}};
  if (c.finetuning) metadata["finetuning"] = detail::text_of(json_of(*c.finetuning));
  if (c.state.unvalidated) metadata["unvalidated"] = detail::text_of(json_of(*c.state.unvalidated));
  if (!c.init.empty()) metadata["init"] = c.init;
  if (!c.kernels.empty()) metadata["kernels"] = c.kernels;
  if (!c.program.empty()) metadata["program"] = c.program;
  if (!c.init_weights.empty()) metadata["init_weights"] = c.init_weights;
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
  if (const Json config = detail::parse_json(c.config, "checkpoint", r.source("config")); !config.is_object())
    r.fail(fmt::format("its 'config' is {}, not an object", detail::text_of(config)));
  c.tokenizer = r.text("tokenizer");
  DataText data;
  r.read("data", data);
  c.data = {data.files, data.tokens};
  const auto [end, error] = std::from_chars(data.hash.data(), data.hash.data() + data.hash.size(), c.data.hash, 16);
  if (error != std::errc() || end != data.hash.data() + data.hash.size())
    r.fail(fmt::format("its 'hash' is '{}'", data.hash));
  r.read("state", c.state);
  if (c.state.step < 0) r.fail(fmt::format("it is of step {}", c.state.step));
  if (r.has("finetuning")) {
    Finetuning& f = c.finetuning.emplace();
    if (r.object_of("finetuning").contains("base")) f.base = DType::bf16;  // visit() then lists it
    f.nf4 = r.object_of("finetuning").contains("nf4");
    r.read("finetuning", f);
  }
  if (r.has("unvalidated")) {
    c.state.unvalidated.emplace().step = c.state.step;
    r.read("unvalidated", *c.state.unvalidated);
  }
  if (r.has("init")) c.init = r.text("init");
  if (r.has("kernels")) c.kernels = r.text("kernels");
  if (r.has("program")) c.program = r.text("program");
  if (r.has("init_weights")) c.init_weights = r.text("init_weights");
  return c;
}

}  // namespace tg
