// encode_examples TOKENIZER FORMAT LINES CONTEXT [END]: prints {"tokens", "targets"} of each example of a file of JSON
// lines, for masks.py. encode_examples --jinja FORMAT: prints the format's template.
#include <tapegrad/core/error.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/data/bpe.h>
#include <tapegrad/models/data/examples.h>

#include <cstdio>
#include <cstdlib>

int main(int count, char** words) try {
  if (count == 3 && std::string_view(words[1]) == "--jinja") {
    std::fputs(tg::jinja_of(tg::chat_format(words[2])).c_str(), stdout);
    return 0;
  }
  if (count < 5) {
    std::fprintf(stderr, "encode_examples TOKENIZER FORMAT LINES CONTEXT [END]\nencode_examples --jinja FORMAT\n");
    return 2;
  }
  const tg::BpeTokenizer tokenizer = tg::read_tokenizer(words[1]);
  const std::string lines = words[3];
  const tg::Examples all = tg::read_examples({&lines, 1}, tokenizer,
                                             {.format = tg::chat_format(words[2]),
                                              .end = count > 5 ? words[5] : "",
                                              .context = std::atoll(words[4]),
                                              .skip_bad = true});
  for (const tg::Examples::Row& row : all.rows)
    std::puts(tg::text_of(tg::Json{{"tokens", row[0]->tokens}, {"targets", row[0]->targets}}).c_str());
  std::fprintf(stderr, "%lld cut, %lld skipped\n%s\n", static_cast<long long>(all.cut),
               static_cast<long long>(all.skipped), all.why.c_str());
  return 0;
} catch (const tg::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
