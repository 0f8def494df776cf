// Any bytes as a safetensors file: each tensor is read, written and read again.
#include "fuzz.h"

#include <tapegrad/core/io/safetensors.h>

#include <vector>

using namespace tg;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::Scratch scratch;
  // A copy: reads past the end of a mapping would stay within its page.
  const std::vector<std::byte> bytes(reinterpret_cast<const std::byte*>(data),
                                     reinterpret_cast<const std::byte*>(data) + size);
  const auto header = fuzz::accepted([&] { return detail::parse_safetensors(bytes, "memory"); });
  const std::string path = scratch.file("in.safetensors", {reinterpret_cast<const char*>(data), size});
  const auto file = fuzz::accepted([&] { return SafetensorsFile(path); });
  TG_FUZZ_CHECK(file.has_value() == header.has_value());
  if (!file) return 0;
  size_t described = 0;
  for (const auto& [name, info] : header->tensors) {
    TG_FUZZ_CHECK(info.offset <= size && info.bytes <= size - info.offset);
    described += info.bytes;
  }
  TG_FUZZ_CHECK(described <= size);
  const auto tensors = fuzz::accepted([&] { return file->tensors(); });  // refuses invalid BOOL
  if (!tensors) return 0;
  for (const auto& [name, tensor] : *tensors) {
    const SafetensorsInfo& info = header->tensors.at(name);
    TG_FUZZ_CHECK(tensor.shape() == info.shape && tensor.dtype() == info.dtype);
    TG_FUZZ_CHECK(visit_dtype(info.dtype, [&]<class T>() {
      return info.bytes == 0 || !std::memcmp(tensor.data<T>(), bytes.data() + info.offset, info.bytes);
    }));
  }
  write_safetensors(scratch / "out.safetensors", *tensors, file->metadata());
  const SafetensorsFile again(scratch / "out.safetensors");
  TG_FUZZ_CHECK(again.names() == file->names() && again.metadata() == file->metadata());
  for (const auto& [name, tensor] : again.tensors()) TG_FUZZ_CHECK(fuzz::same_bits(tensor, tensors->at(name)));
  return 0;
}
