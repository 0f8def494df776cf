#include <tapegrad/core/check.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/io/huggingface.h>

#include <cstdio>
#include <filesystem>

namespace tg {
namespace {

constexpr const char *kSingle = "/model.safetensors", *kIndex = "/model.safetensors.index.json";
constexpr size_t kMostIndex = 100'000'000;  // bytes, like the header of a file
constexpr size_t kMostFiles = 512;          // open at once

// Like model-00001-of-00004.safetensors.
bool is_shard(const std::string& name) {
  unsigned i = 0, n = 0;
  int length = 0;
  return std::sscanf(name.c_str(), "model-%5u-of-%5u.safetensors%n", &i, &n, &length) == 2 && length == 32 &&
         name.size() == 32;
}

}  // namespace

Shards::Shards(const std::string& folder) : folder_(folder) {
  if (detail::path_exists(folder + kSingle)) {
    files_.emplace_back(folder + kSingle);
    for (const std::string& name : files_[0].names()) where_[name] = 0;
  } else if (detail::path_exists(folder + kIndex)) {
    open_all(folder + kIndex);
  } else {
    const bool pickled = detail::path_exists(folder + "/pytorch_model.bin") ||
                         detail::path_exists(folder + "/pytorch_model.bin.index.json");
    TG_CHECK(!pickled, value,
             "[shards] {} has pytorch_model.bin alone, which only Python can read safely. Load it in transformers and "
             "write it by save_pretrained(), which makes model.safetensors.",
             folder);
    TG_CHECK(false, value,
             "[shards] {} has neither model.safetensors nor model.safetensors.index.json. A model folder has its "
             "weights in one of these forms. Complete the folder.",
             folder);
  }
}

void Shards::open_all(const std::string& index) {
  const MappedFile mapped(index);
  TG_CHECK(mapped.text().size() <= kMostIndex, value,
           "[shards] {} has {} bytes. An index of weights has at most {}. Is it the file of another program?", index,
           mapped.text().size(), kMostIndex);
  const Json json = detail::parse_json(mapped.text(), "shards", index, 4);
  const Json* map = json.is_object() ? json.find("weight_map") : nullptr;
  TG_CHECK(map && map->is_object(), value,
           "[shards] {} has no object \"weight_map\". It names the file of each tensor. Restore the file.", index);
  std::map<std::string, size_t> opened;
  for (const auto& [name, x] : map->items()) {
    TG_CHECK(x.is_string(), value, "[shards] {}: the file of '{}' is {}. It must be a name in quotes.", index, name,
             detail::text_of(x));
    const auto file = x.get<std::string>();
    TG_CHECK(file.ends_with(".safetensors") && file.find_first_of("/\\") == file.npos, value,
             "[shards] {}: the file of '{}' is '{}'. It must be a .safetensors file in the folder of the index, by its "
             "name alone.",
             index, name, file);
    const auto [at, is_new] = opened.emplace(file, files_.size());
    TG_CHECK(!is_new || files_.size() < kMostFiles, value,
             "[shards] {} names more than {} files. Write the model with larger shards.", index, kMostFiles);
    if (is_new) {
      TG_CHECK(detail::path_exists(folder_ + "/" + file), value,
               "[shards] {}/{} is missing, and {} names it for '{}'. All shards must be there. Complete the folder.",
               folder_, file, index, name);
      files_.emplace_back(folder_ + "/" + file);
    }
    TG_CHECK(files_[at->second].has(name), value,
             "[shards] {} has no tensor '{}', and {} says that it has. Restore the files: each shard belongs to one "
             "index.",
             files_[at->second].path(), name, index);
    where_[name] = at->second;
  }
  for (size_t i = 0; i < files_.size(); ++i)
    for (const std::string& name : files_[i].names())
      TG_CHECK(where_.contains(name) && where_.at(name) == i, value,
               "[shards] {} has the tensor '{}', and {} {}. Restore the files: each shard belongs to one index.",
               files_[i].path(), name, index,
               where_.contains(name) ? "names " + files_[where_.at(name)].path() + " for it" : "does not name it");
}

std::vector<std::string> Shards::names() const {
  std::vector<std::string> all;
  for (const auto& [name, file] : where_) all.push_back(name);
  return all;
}

void detail::write_shards(const std::string& folder, const std::vector<ExportTensor>& tensors, int64_t max_shard) {
  TG_CHECK(max_shard >= 1, value, "[shards] a shard may have {} bytes. It must be 1 or more.", max_shard);
  const auto bytes = [](const ExportTensor& t) { return t.shape.product() * int64_t(size_of(t.dtype)); };
  std::vector<std::vector<const ExportTensor*>> shards;
  int64_t in_last = 0, total = 0, parameters = 0;
  for (const ExportTensor& t : tensors) {
    if (shards.empty() || in_last + bytes(t) > max_shard) shards.emplace_back(), in_last = 0;
    shards.back().push_back(&t);
    in_last += bytes(t), total += bytes(t), parameters += t.shape.product();
  }
  Json map = Json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file =
        shards.size() == 1 ? kSingle + 1 : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    StateDict made;
    for (const ExportTensor* t : shards[i]) {
      const Tensor x = made[t->name] = t->make(t->dtype);
      if (t->dtype == DType::f16)
        check_finite("huggingface", fmt::format("'{}'", t->name), x, fmt::format(" in f16. {}", kBeFinite));
      map[t->name] = file;
    }
    write_safetensors(folder + "/" + file, made, {{"format", "pt"}});  // transformers 4 refuses any other format
  }
  const bool single = shards.size() == 1;
  if (!single) {
    const Json index = {{"metadata", {{"total_size", total}, {"total_parameters", parameters}}}, {"weight_map", map}};
    write_file_atomically(folder + kIndex, text_of(index, 2) + "\n");
  }
  remove_other_weights(folder, single ? 1 : shards.size());
}

std::vector<std::string> detail::weight_files(const std::string& folder) {
  namespace fs = std::filesystem;
  std::vector<std::string> all{kSingle + 1, kIndex + 1};
  std::error_code none;
  for (fs::directory_iterator it(folder, none), end; !none && it != end; it.increment(none))
    if (const std::string name = it->path().filename().string(); is_shard(name)) all.push_back(name);
  return all;
}
void detail::remove_other_weights(const std::string& folder, size_t shards) {
  remove_file(folder + (shards == 1 ? kIndex : kSingle));  // index first, while its files are complete
  const std::string own = fmt::format("-of-{:05}.safetensors", shards);
  for (const std::string& name : weight_files(folder))
    if (is_shard(name) && (shards == 1 || !name.ends_with(own))) remove_file(folder + "/" + name);
}

}  // namespace tg
