#include <tapegrad/models/config/json.h>
#include <tapegrad/models/io/adapter.h>
#include <tapegrad/models/io/checkpoint.h>
#include <tapegrad/models/io/hash.h>

#include <charconv>
#include <cmath>

namespace tg {
namespace {

constexpr std::string_view kFormat = "tapegrad-checkpoint", kVersion = "1";
using Metadata = std::map<std::string, std::string>;

// A state that is not finite is one that no run gets out of: what is on the disk is worth more.
void check_finite(const std::string& path, const std::string& name, const Tensor& t, int64_t step) {
  visit_dtype(t.dtype(), [&]<class T>() {
    if constexpr (is_float(dtype_of<T>())) {
      const std::span<const T> all(t.data<T>(), size_t(t.numel()));
      const auto bad = std::find_if(all.begin(), all.end(), [](T x) { return !std::isfinite(double(x)); });
      if (bad == all.end()) return;
      const double x = std::isnan(double(*bad)) ? std::abs(double(*bad)) : double(*bad);  // never "-nan"
      throw Error(
          Error::Kind::non_finite,
          fmt::format("[checkpoint] cannot write {}: '{}' is {} at {} after step {}. What was there before is "
                      "unchanged. All weights and moments must be finite. {}.",
                      path, name, x, position_of(bad - all.begin(), t.shape()), step,
                      step == 0 ? "Change the model or its init_std" : "Lower the learning rate or use more warm-up"));
    }
  });
}
// Of all that the file says, but for this entry itself.
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
  return text_of(Json{{"model", f.model}, {"weights", f.weights}, {"lora", own_json(to_json(f.lora))}});
}

// Reads the metadata of one file; every failure names it.
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
  // An object with these keys and no others.
  Json object(const std::string& key, std::initializer_list<const char*> keys) const {
    return checked(parse_json(text(key), "checkpoint", source(key)), key, keys);
  }
  Rng rng(const Json& of, const char* key) const {
    const Json j = checked(of.at(key), key, {"seed", "offset"});
    return {number<uint64_t>(j, "seed"), number<uint64_t>(j, "offset")};
  }
  template <class T> T number(const Json& of, const char* key) const {
    const Json& x = of.at(key);
    const bool fits = x.is_number_unsigned() && x.get<uint64_t>() <= uint64_t(std::numeric_limits<T>::max());
    if (!fits) fail(fmt::format("its '{}' is {}, no whole number of at least 0", key, text_of(x)));
    return x.get<T>();
  }
  DataIdentity data() const {
    const Json j = object("data", {"files", "tokens", "hash"});
    DataIdentity d;
    if (!j.at("files").is_array()) fail(fmt::format("its 'files' is {}, no list", text_of(j.at("files"))));
    for (const Json& file : j.at("files")) {
      if (!file.is_string()) fail(fmt::format("one of its 'files' is {}, no path", text_of(file)));
      d.files.push_back(file.get<std::string>());
    }
    d.tokens = number<int64_t>(j, "tokens");
    const std::string hash = j.at("hash").is_string() ? j.at("hash").get<std::string>() : "";
    const auto [end, error] = std::from_chars(hash.data(), hash.data() + hash.size(), d.hash, 16);
    if (hash.size() != 16 || error != std::errc() || end != hash.data() + hash.size())
      fail(fmt::format("its 'hash' is {}, no 16 hexadecimal digits", text_of(j.at("hash"))));
    return d;
  }
  Finetuning finetuning() const {
    const Json j = object("finetuning", {"model", "weights", "lora"});
    for (const char* key : {"model", "weights"})
      if (!j.at(key).is_string()) fail(fmt::format("its '{}' is {}, no text", key, text_of(j.at(key))));
    return {j.at("model").get<std::string>(), j.at("weights").get<std::string>(),
            lora_config_from_json(text_of(j.at("lora")), source("finetuning"))};
  }
  StepRecord unvalidated(int64_t step) const {
    const Json j = object("unvalidated", {"loss", "grad_norm", "lr", "ms", "tokens_per_s"});
    const auto number = [&](const char* key) {
      if (!j.at(key).is_number()) fail(fmt::format("its '{}' is {}, no number", key, text_of(j.at(key))));
      return j.at(key).get<double>();
    };
    StepRecord r;
    r.step = step;
    r.loss = number("loss"), r.grad_norm = number("grad_norm"), r.lr = number("lr");
    r.ms = number("ms"), r.tokens_per_s = number("tokens_per_s");
    return r;
  }
  bool has(const std::string& key) const { return metadata_.contains(key); }
  std::string source(const std::string& key) const { return fmt::format("'{}' of {}", key, path_); }

 private:
  Json checked(const Json& j, const std::string& key, std::initializer_list<const char*> keys) const {
    if (!j.is_object()) fail(fmt::format("its '{}' is {}, no object", key, j.type_name()));
    for (const char* k : keys)
      if (!j.contains(k)) fail(fmt::format("its '{}' has no '{}'", key, k));
    if (j.size() != keys.size()) fail(fmt::format("its '{}' has {} keys, not {}", key, j.size(), keys.size()));
    return j;
  }
  const std::string& path_;
  const Metadata& metadata_;
};

}  // namespace

DataIdentity DataIdentity::of(const TokenData& data, std::vector<std::string> files) {
  Hash h;
  std::vector<int32_t> some(1 << 14);
  for (int64_t at = 0; at < data.size(); at += int64_t(some.size())) {
    some.resize(size_t(std::min<int64_t>(int64_t(some.size()), data.size() - at)));
    data.copy(at, some);
    for (const int32_t token : some) h.add(uint64_t(token));
  }
  return {std::move(files), data.size(), h.value()};
}

void save_checkpoint(const std::string& path, const Checkpoint& c) {
  StateDict tensors;
  for (const auto& [name, t] : c.state.tensors) {
    TG_CHECK(t, value, "[checkpoint] '{}' for {} is an empty Tensor. Take the state from Trainer::state().", name,
             path);
    check_finite(path, name, tensors[name] = t.detach().to(Device::cpu()).contiguous(), c.state.step);
  }
  Metadata metadata{{"format", std::string(kFormat)}, {"version", std::string(kVersion)}, {"config", to_json(c.run)},
                    {"tokenizer", c.tokenizer},       {"data", json_of(c.data)},          {"state", json_of(c.state)}};
  if (c.finetuning) metadata["finetuning"] = json_of(*c.finetuning);
  if (c.state.unvalidated) metadata["unvalidated"] = json_of(*c.state.unvalidated);
  if (!c.kernels.empty()) metadata["kernels"] = c.kernels;
  metadata["checksum"] = checksum(tensors, metadata);
  write_safetensors(path, tensors, metadata);
}

Checkpoint load_checkpoint(const std::string& path) {
  const SafetensorsFile file(path);
  const Reader r(file);
  if (const auto format = file.metadata().find("format"); format == file.metadata().end() || format->second != kFormat)
    r.fail("it is a safetensors file of something else", "Name the checkpoint.safetensors of a training run");
  if (r.text("version") != kVersion)
    r.fail(fmt::format("its version is '{}', and this program reads '{}'", r.text("version"), kVersion),
           "Use the program that wrote it");
  Checkpoint c;
  c.state.tensors = file.tensors();
  if (const std::string sum = checksum(c.state.tensors, file.metadata()); r.text("checksum") != sum)
    r.fail(fmt::format("its checksum is {}, but its content gives {}: it was damaged after it was written",
                       r.text("checksum"), sum));
  c.run = run_config_from_json(r.text("config"), r.source("config"));
  c.tokenizer = r.text("tokenizer");
  c.data = r.data();
  const Json state = r.object("state", {"step", "optimizer_steps", "data_rng", "dropout_rng"});
  c.state.step = r.number<int64_t>(state, "step");
  c.state.optimizer_steps = r.number<int64_t>(state, "optimizer_steps");
  c.state.data = r.rng(state, "data_rng");
  c.state.dropout = r.rng(state, "dropout_rng");
  if (r.has("finetuning")) c.finetuning = r.finetuning();
  if (r.has("unvalidated")) c.state.unvalidated = r.unvalidated(c.state.step);
  if (r.has("kernels")) c.kernels = r.text("kernels");
  return c;
}

}  // namespace tg
