// Any text as config.json and model.safetensors.index.json of Hugging Face, separated by a byte of 0, with weights of a
// gpt2 and of a sharded qwen2.
#include "fuzz.h"

#include <tapegrad/core/mode.h>
#include <tapegrad/models/io/huggingface.h>
#include <tapegrad/models/io/model_dir.h>
#include <tapegrad/ops/factories.h>

using namespace tg;

namespace {
struct Folders {
  fuzz::Scratch scratch;
  std::string gpt2 = scratch / "gpt2", qwen2 = scratch / "qwen2";
  Folders() {
    GptConfig c{.vocab_size = 8, .context = 4, .layers = 1, .heads = 2, .width = 8, .ff_width = 12};
    c.activation = Activation::gelu_tanh;
    save(gpt2, c, {});
    c.positions = Positions::rope, c.norm = NormKind::rms_norm, c.activation = Activation::swiglu;
    c.bias = false, c.qkv_bias = true, c.kv_heads = 1;
    save(qwen2, c, {.max_shard = 1000});
  }
  static void save(const std::string& folder, const GptConfig& config, const HuggingfaceOptions& options) {
    detail::make_folder(folder);
    const Params params;
    const Gpt model(params, config);
    save_huggingface(folder, config, params, options);
  }
};

void check_config(std::string_view text) {
  const auto config = fuzz::accepted([&] { return detail::gpt_config_from_huggingface(text, "config.json"); });
  if (config)
    TG_FUZZ_CHECK(detail::gpt_config_from_huggingface(detail::gpt_config_to_huggingface(*config), "again") == *config);
}
void check_folder(const Folders& all, const std::string& folder, std::string_view config, std::string_view index) {
  const std::string name = folder.substr(all.scratch.path().size() + 1);
  all.scratch.file(name + "/config.json", config);
  if (!index.empty()) all.scratch.file(name + "/model.safetensors.index.json", index);
  const auto model = fuzz::accepted([&] { return load_model(folder); });
  if (!model) return;
  const NoGradScope off;
  const Tensor tokens = zeros({1, 1}, DType::i32), logits = model->model.forward(tokens);  // (1, 1, V)
  TG_FUZZ_CHECK(logits.shape() == Shape({1, 1, model->model.config().vocab_size}));
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folders folders;
  const std::string all(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(all.find('\0'), all.size());
  const std::string config = all.substr(0, end), index = all.substr(std::min(end + 1, all.size()));
  check_config(config);
  check_folder(folders, folders.gpt2, config, "");
  check_folder(folders, folders.qwen2, config, index);
  return 0;
}
