// Any bytes as a GGUF file: header, texts of the tokenizer, configuration, and the model.
#include "fuzz.h"

#include <tapegrad/core/io/gguf.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/models/io/model_dir.h>
#include <tapegrad/models/tokenizers/model_texts.h>
#include <tapegrad/ops/factories.h>

using namespace tg;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Scratch scratch;
  const std::string path = scratch.file("in.gguf", {reinterpret_cast<const char*>(data), size});
  const auto names = fuzz::accepted([&] {
    const detail::GgufFile file(path);
    for (const auto& [name, t] : file.tensors()) {
      TG_FUZZ_CHECK(t.offset <= size && t.bytes <= size - t.offset && t.bytes > 0);
      std::vector<std::byte> bytes(t.bytes);
      fuzz::accepted([&] { return file.read(name, bytes), 0; });
    }
    return file.tensors().size();
  });
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"})
    fuzz::accepted([&] { return detail::text_in(path, name); });
  const auto model = fuzz::accepted([&] { return load_model(path); });
  if (!model) return 0;
  TG_FUZZ_CHECK(names && *names > 0);
  const NoGradScope off;
  const Tensor tokens = zeros({1, 1}, DType::i32), logits = model->model.forward(tokens);  // (1, 1, V)
  TG_FUZZ_CHECK(logits.shape() == Shape({1, 1, model->model.config().vocab_size}));
  if (model->tokenizer) fuzz::accepted([&] { return model->tokenizer->encode("a ab\n", {.add_special = true}); });
  return 0;
}
