// encode_examples FOLDER TEMPLATE LINES CONTEXT [END]: prints {"tokens", "targets"} of each example of a file of JSON
// lines, for masks.py and chats.py; with the word prompt in place of CONTEXT, the ids before an answer to each line.
// TEMPLATE is as that of --chat-format, or "": the folder has it. encode_examples --jinja NAME: prints that template.
#include <tapegrad/core/error.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/data/documents.h>
#include <tapegrad/models/data/examples.h>
#include <tapegrad/models/tokenizers/bpe.h>

#include <cstdio>

namespace {
tg::ChatTemplate chat_of(const std::string& folder, const std::string& name, const tg::Tokenizer& tokenizer) {
  const tg::Json tokens = tg::detail::special_tokens_of({folder}, tokenizer);
  return name.empty() ? tg::ChatTemplate(tg::detail::chat_template_of(folder), folder, tokens)
                      : tg::ChatTemplate::named(name, tokens);
}
}  // namespace

int main(int count, char** words) try {
  if (count == 3 && std::string_view(words[1]) == "--jinja") {
    std::fputs(tg::ChatTemplate::named(words[2]).text().c_str(), stdout);
    return 0;
  }
  if (count < 5) {
    std::fprintf(stderr, "encode_examples FOLDER TEMPLATE LINES CONTEXT [END]\nencode_examples --jinja NAME\n");
    return 2;
  }
  const tg::BpeTokenizer tokenizer = tg::read_tokenizer(words[1]);
  const tg::ChatTemplate chat = chat_of(words[1], words[2], tokenizer);
  const std::string lines = words[3];
  if (std::string_view(words[4]) == "prompt") {
    tg::detail::for_each_line(lines, [&](std::string_view line, int64_t) {
      std::puts(tg::detail::text_of(tg::Json(chat.encode(tokenizer, tg::detail::own_json(line)))).c_str());
      return true;
    });
    return 0;
  }
  const tg::Examples all = tg::read_examples(
      {&lines, 1}, tokenizer,
      {.chat = chat, .end = count > 5 ? words[5] : "", .context = std::atoll(words[4]), .skip_bad = true});
  for (const tg::Examples::Row& row : all.rows)
    std::puts(tg::detail::text_of(tg::Json{{"tokens", row[0]->tokens}, {"targets", row[0]->targets}}).c_str());
  std::fprintf(stderr, "%lld cut, %lld skipped\n%s\n", static_cast<long long>(all.cut),
               static_cast<long long>(all.skipped), all.why.c_str());
  return 0;
} catch (const tg::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
