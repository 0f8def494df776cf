// Any bytes as a chat template, rendered with a conversation: a text or an Error, in bounded time and memory.
#include "fuzz.h"

#include <tapegrad/core/io/json.h>
#include <tapegrad/models/jinja/jinja.h>

using namespace tg;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Json context = detail::own_json(
      R"({"messages":[{"role":"user","content":"é <a>"},{"n":[1,2.5,null]}],"s":"a b","l":[3,1],"d":{"k":true}})");
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto program = fuzz::accepted([&] { return JinjaTemplate(text); });
  const auto rendered = program ? fuzz::accepted([&] { return program->render(context); }) : std::nullopt;
  if (!rendered) return 0;
  for (const auto& [begin, end] : rendered->generated) TG_FUZZ_CHECK(begin <= end && end <= rendered->text.size());
  TG_FUZZ_CHECK(text.find("strftime") != text.npos || program->render(context).text == rendered->text);
  return 0;
}
