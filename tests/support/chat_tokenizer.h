// A tokenizer of bytes with the special tokens of chat formats, from id 256 on.
#pragma once
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/tokenizers/bpe.h>

namespace tg {

inline BpeTokenizer chat_tokenizer() {
  Json json = detail::own_json(tokenizer_json(ByteTokenizer()));
  Json added = Json::array();
  int64_t id = 256;
  for (const char* token : {"<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>",
                            "<|end_header_id|>", "<|eot_id|>", "<s>", "</s>"})
    added.push_back(Json{{"id", id++}, {"content", token}, {"special", true}});
  json["added_tokens"] = added;
  return BpeTokenizer::from_json(detail::text_of(json), "chat");
}

}  // namespace tg
