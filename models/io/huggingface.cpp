#include <tapegrad/core/check.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/data/chat.h>
#include <tapegrad/models/io/gguf_read.h>
#include <tapegrad/models/io/huggingface.h>
#include <tapegrad/models/tokenizers/bpe.h>
#include <tapegrad/models/tokenizers/model_texts.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/shape_ops.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>

namespace tg {
namespace {

constexpr const char *kHead = "lm_head.weight", *kScore = "score.weight";
// Other files of a folder, copied unchanged.
constexpr const char* kOthers[] = {"generation_config.json", "tokenizer.json",    "tokenizer_config.json",
                                   "tokenizer.model",        "added_tokens.json", "special_tokens_map.json",
                                   "chat_template.jinja",    "vocab.json",        "merges.txt"};

// Buffers of old files: gpt2's attention masks, rope frequencies.
bool is_buffer(std::string_view name, const SafetensorsInfo& t) {
  return (name.ends_with(".attn.bias") && t.shape.size() == 4) || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

struct Weights {
  Shards shards;
  std::map<std::string, std::string> in_file;  // names in files

  Weights(const std::string& folder, Family family) : shards(folder) {
    for (const std::string& name : shards.names()) {
      if (is_buffer(name, shards.info(name))) continue;
      const std::string prefix = family == Family::gpt2 ? "transformer." : "model.";  // base models lack it
      const std::string full = name.starts_with(prefix) || name == kHead || name == kScore ? name : prefix + name;
      TG_CHECK(in_file.emplace(full, name).second, value,
               "[huggingface] {} has both '{}' and '{}', which are one tensor. Remove one of them.", shards.folder(),
               name, full);
    }
  }
  const SafetensorsInfo& info(const std::string& theirs) const { return shards.info(in_file.at(theirs)); }
  Tensor tensor(const std::string& theirs) const { return shards.tensor(in_file.at(theirs)); }
  const std::string& path(const std::string& theirs) const { return shards.file_of(in_file.at(theirs)).path(); }

  void check(const detail::TensorMapping& e, const detail::TensorSlice& p) const {
    const Shape shape = e.shape(p);
    TG_CHECK(in_file.contains(p.theirs), value,
             "[huggingface] {} has no tensor '{}' of {}, which its config.json implies. Complete the folder, or "
             "restore config.json.",
             shards.folder(), p.theirs, shape);
    const SafetensorsInfo& t = info(p.theirs);
    TG_CHECK(t.shape == shape, shape,
             "[huggingface] '{}' is {} in {}, and config.json implies {}. Restore the file that does not belong to "
             "this model.",
             p.theirs, t.shape, path(p.theirs), shape);
    TG_CHECK(t.dtype == DType::f32 || t.dtype == DType::bf16 || t.dtype == DType::f16, dtype,
             "[huggingface] '{}' is {} in {}. Weights are read in F32, BF16 and F16. Convert the model to one of them.",
             p.theirs, t.dtype, path(p.theirs));
  }
};

bool is_all(const Tensor& t, float x) {
  return std::ranges::all_of(t.to(DType::f32).to_vector<float>(), [x](float y) { return y == x; });
}

std::optional<GptConfig> stored_config(const Json& config) {
  const Json* model = config.member("tapegrad").find("model");
  if (!model) return {};
  return detail::gpt_config_from_json(detail::text_of(*model), {.name = "\"tapegrad\""});
}
// Whether keys (c) and weights match an export of `before`.
bool still_says(const GptConfig& before, const GptConfig& c, const Weights& w) {
  const Family family = detail::family_of(c);
  if (detail::family_of(before) != family ||
      detail::gpt_config_from_huggingface(detail::gpt_config_to_huggingface(before), "config.json") != c)
    return false;
  for (const detail::TensorMapping& e : detail::whole_layout_of(family, before))
    for (const detail::TensorSlice& p : e.pieces) {
      if (!e.filling) continue;
      w.check(e, p);
      if (!is_all(w.tensor(p.theirs), *e.filling)) return false;
    }
  return true;
}

Tensor read_entry(const Weights& w, const detail::TensorMapping& e) {
  NoGradScope off;
  const bool all_bf16 = std::ranges::all_of(
      e.pieces, [&](const detail::TensorSlice& p) { return w.info(p.theirs).dtype == DType::bf16; });
  std::vector<Tensor> parts;
  for (const detail::TensorSlice& p : e.pieces)  // no op computes in f16
    parts.push_back(detail::from_half_split(w.tensor(p.theirs).to(all_bf16 ? DType::bf16 : DType::f32), p.pair_heads,
                                            e.transposed));
  return parts.size() == 1 ? parts[0] : concat(parts);
}

// config.json, unchanged where the origin's values are equal.
std::string config_text(const GptConfig& c, const HuggingfaceOptions& o) {
  const DType dtype = o.dtype.value_or(DType::f32);
  Json fresh = detail::own_json(detail::gpt_config_to_huggingface(c, dtype));
  if (o.tokenizer && !dynamic_cast<const BpeTokenizer*>(o.tokenizer))
    fresh["tapegrad"]["tokenizer"] = detail::own_json(o.tokenizer->to_json());
  if (!o.origin || detail::family_of(o.origin->model) != detail::family_of(c)) return detail::text_of(fresh, 2) + "\n";
  const Json before = detail::own_json(detail::gpt_config_to_huggingface(o.origin->model, dtype));
  Json all = detail::own_json(o.origin->config);
  bool changed = false;
  for (const auto& [key, x] : fresh.items()) {
    const bool is_dtype = key == "dtype" || key == "torch_dtype", is_own = key == "tapegrad";
    if (is_dtype ? !o.dtype : (before.contains(key) && x == before.at(key)) || (is_own && c == o.origin->model))
      continue;
    all[key] = x, changed = true;
  }
  return changed ? detail::text_of(all, 2) + "\n" : o.origin->config;
}

// Links are untrusted: the copy keeps the target's permissions.
void copy_with_permissions(const std::string& folder, const char* name, const std::string& to) {
  namespace fs = std::filesystem;
  std::error_code none;
  const auto text = detail::text_in(folder, name);
  if (!text) return;
  const std::string from = folder + "/" + name;
  if (fs::is_symlink(from, none) && from.ends_with(".json")) (void)detail::parse_json(*text, "huggingface", from, 64);
  detail::write_file_atomically(to, *text);
  const fs::perms its = fs::status(from, none).permissions();
  if (!none) fs::permissions(to, its & (fs::perms::owner_all | fs::perms::group_all | fs::perms::others_all), none);
}

}  // namespace

std::vector<std::string> detail::huggingface_files(const std::string& folder) {
  std::vector<std::string> all = weight_files(folder);
  all.push_back("config.json");
  all.insert(all.end(), std::begin(kOthers), std::end(kOthers));
  return all;
}

HuggingFaceSource detail::read_huggingface(const std::string& folder) {
  HuggingFaceSource origin{.folder = folder, .config = model_config_text(folder), .model = {}, .dtypes = {}};
  std::optional<GptConfig> before;
  const std::string config_path = folder + "/config.json";
  in_file(config_path, [&] {
    origin.model = gpt_config_from_huggingface(origin.config, config_path);
    before = stored_config(own_json(origin.config));
  });
  origin.eos_tokens = eos_tokens_of_huggingface(folder);
  if (is_gguf(folder)) return origin;
  const Weights w(folder, family_of(origin.model));
  for (const auto& [theirs, name] : w.in_file) origin.dtypes[theirs] = w.shards.info(name).dtype;
  if (before && still_says(*before, origin.model, w)) origin.model = *before;
  return origin;
}

TensorSource detail::huggingface_weights(const std::string& folder, const GptConfig& c, DType dtype, bool keep_blocks) {
  if (is_gguf(folder)) {
    const auto file = std::make_shared<const GgufWeights>(folder, c);
    TensorSource source{file->shapes(), [=](const std::string& ours) { return file->read(ours, dtype); }};
    if (keep_blocks) source.blocks = [=](const std::string& ours) { return file->blocks(ours); };
    return source;
  }
  const auto w = std::make_shared<const Weights>(folder, family_of(c));
  auto entries = std::make_shared<std::map<std::string, TensorMapping>>();
  TensorSource source;
  std::set<std::string> known;
  for (TensorMapping& e : whole_layout_of(family_of(c), c)) {
    for (const TensorSlice& p : e.pieces) w->check(e, p), known.insert(p.theirs);
    if (e.filling) continue;
    source.shapes[e.ours] = e.shape();
    (*entries)[e.ours] = std::move(e);
  }
  if (c.tied_head && !c.classes && w->in_file.contains(kHead)) {
    const std::string& table = entries->at("wte.weight").pieces[0].theirs;
    TG_CHECK(same_bits(w->tensor(kHead), w->tensor(table)), value,
             "[huggingface] {} has '{}' and '{}' with different values, and config.json says that they are one "
             "(tie_word_embeddings). Set that to false, or remove the tensor that does not belong to the model.",
             folder, kHead, table);
    known.insert(kHead);
  }
  for (const auto& [theirs, name] : w->in_file)
    TG_CHECK(known.contains(theirs), value,
             "[huggingface] '{}' {} in {} is not in the model that config.json describes. Remove it, or restore "
             "config.json.",
             name, w->info(theirs).shape, w->path(theirs));
  source.read = [w, entries](const std::string& ours) { return read_entry(*w, entries->at(ours)); };
  return source;
}

void detail::save_tokenizer(const std::string& folder, const Tokenizer& tokenizer, std::optional<int64_t> context,
                            const std::string& chat_template) {
  // Otherwise transformers takes the model type's class, which adds tokens.
  Json j{{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  if (context) j["model_max_length"] = *context;
  if (const int64_t end = tokenizer.end_of_text(); end >= 0) j["eos_token"] = tokenizer.decode({&end, 1});
  if (!chat_template.empty()) j["chat_template"] = chat_template;
  write_file_atomically(folder + "/tokenizer.json", tokenizer_json(tokenizer));
  write_file_atomically(folder + "/tokenizer_config.json", text_of(j, 2) + "\n");
}

void detail::save_ends(const std::string& folder, const std::vector<int64_t>& ends, const Tokenizer& tokenizer) {
  const auto read = [&](std::string_view name) { return json_in(folder, name, "huggingface"); };
  const auto add = [&](const std::string& name, const char* key, const Json& x) {
    Json j = read(name);
    j[key] = x;
    write_file_atomically(folder + "/" + name, text_of(j, 2) + "\n");
  };
  std::vector<int64_t> all = eos_tokens_of_huggingface(folder);
  const size_t named = all.size();
  for (const int64_t end : ends)
    if (std::ranges::find(all, end) == all.end()) all.push_back(end);
  const bool more = all.size() > named;
  for (const char* name : {"generation_config.json", "config.json"})
    if (more) add(name, "eos_token_id", all.size() == 1 ? Json(all[0]) : Json(all));
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"})
    if (const Json j = read(name); j.contains("eos_token") && !j["eos_token"].is_null()) return;
  if (all.empty() || (!more && chat_template_of(folder).find("eos_token") == std::string::npos)) return;
  const int64_t end = tokenizer.end_of_text() >= 0 ? tokenizer.end_of_text() : all[0];
  add("tokenizer_config.json", "eos_token", tokenizer.decode({&end, 1}));
}

void save_huggingface(const std::string& folder, const GptConfig& c, const Params& params,
                      const HuggingfaceOptions& o) {
  TG_CHECK(!o.dtype || *o.dtype == DType::f32 || *o.dtype == DType::bf16 || *o.dtype == DType::f16, dtype,
           "[huggingface] the dtype is {}. It must be f32, bf16 or f16.", *o.dtype);
  const std::string config = config_text(c, o);  // an Error if no family has it
  std::vector<detail::ExportTensor> tensors =
      detail::their_tensors("huggingface", detail::NamingScheme::transformers, c, params);
  for (detail::ExportTensor& t : tensors) {
    t.dtype = o.dtype.value_or(DType::f32);
    if (!o.dtype && o.origin && o.origin->dtypes.contains(t.name)) t.dtype = o.origin->dtypes.at(t.name);
  }
  detail::make_folder(folder);
  detail::write_shards(folder, tensors, o.max_shard);
  for (const char* name : kOthers)
    if (o.origin) copy_with_permissions(o.origin->folder, name, folder + "/" + name);
  if (o.tokenizer) detail::save_tokenizer(folder, *o.tokenizer, c.context, o.chat_template);
  if (!o.tokenizer && !o.chat_template.empty())
    detail::write_file_atomically(folder + "/chat_template.jinja", o.chat_template);
  detail::write_file_atomically(folder + "/config.json", config);
  if (const int64_t end = o.tokenizer ? o.tokenizer->end_of_text() : -1; end >= 0 && end < c.vocab_size)
    detail::save_ends(folder, {end}, *o.tokenizer);
}

}  // namespace tg
