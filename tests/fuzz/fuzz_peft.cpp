// Any text as adapter_config.json and any bytes as adapter_model.safetensors, separated by a byte of 0, over a llama.
// Without bytes the file has A and B of two modules.
#include "fuzz.h"

#include <tapegrad/core/mode.h>
#include <tapegrad/models/io/peft.h>
#include <tapegrad/ops/factories.h>

using namespace tg;

namespace {
struct Base {
  fuzz::Scratch scratch;
  GptConfig config{.vocab_size = 8, .context = 4, .layers = 2, .heads = 2, .width = 8, .ff_width = 12};
  std::string weights;
  Base() {
    config.positions = Positions::rope, config.norm = NormKind::rms_norm, config.activation = Activation::swiglu;
    const Params params;
    Gpt model(params, config);
    const Lora lora = apply_lora(model, params, {.targets = {"h.0.attn.q", "h.1.mlp.up"}, .rank = 2});
    save_adapter(scratch.path(), lora, {.layout = adapter_layout(config)});
    weights = MappedFile(scratch / "adapter_model.safetensors").text();
  }
};
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Base base;
  const std::string all(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(all.find('\0'), all.size());
  base.scratch.file("adapter_config.json", all.substr(0, end));
  base.scratch.file("adapter_model.safetensors", end < all.size() ? all.substr(end + 1) : base.weights);
  const Params params;
  Gpt model(params, base.config);
  const std::vector<detail::TensorMapping> layout = adapter_layout(base.config);
  const auto lora = fuzz::accepted([&] { return load_adapter(base.scratch.path(), model, params, layout); });
  if (!lora) return 0;
  const NoGradScope off;
  TG_FUZZ_CHECK(model.forward(zeros({1, 1}, DType::i32)).shape() == Shape({1, 1, 8}));
  // The adapter can be written unless a value is infinite, and read again with the same values.
  const fuzz::Scratch again;
  if (!fuzz::accepted([&] { return save_adapter(again.path(), *lora, {.layout = layout}), 0; })) return 0;
  const Params other;
  Gpt second(other, base.config);
  const Lora read = load_adapter(again.path(), second, other, layout);
  TG_FUZZ_CHECK(read.config() == lora->config());
  for (const auto& [name, t] : read.params().state())
    TG_FUZZ_CHECK(fuzz::same_bits(t, lora->params().state().at(name)));
  return 0;
}
