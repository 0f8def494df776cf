// Log-probabilities of `generate` against the loss of `eval`.
#include "support/app_run.h"
#include "support/helpers.h"

using namespace tg;

namespace {
int new_file(const std::string& path) { return open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600); }
// Standard output of a command that succeeds.
std::string output_of(const Folder& folder, const Arguments& words) {
  const int out = new_file(folder / "out");
  Process p(folder.path, words, {.output = out});
  close(out);
  CHECK_MESSAGE(p.status() == 0, p.errors());
  return read_file(folder / "out");
}
}  // namespace

TEST_CASE("the log-probabilities of generate sum to the loss of eval on the same tokens") {
  const TextFolder folder;
  REQUIRE(Process(folder.path, with(with(kTrain, {"--quiet", "--tokenizer", "char"}), kTiny)).status() == 0);
  const Json made = own_json(output_of(folder, {"generate", "--model", "run", "--prompt", "t", "--max-tokens", "8",
                                                "--temperature", "1.5", "--top-k", "9", "--logprobs", "--out", "-"}));
  double sum = 0;
  std::string text = "t";
  for (const Json& token : made["logprobs"]["content"]) {
    sum += token["logprob"].get<double>();
    text += token["token"].get<std::string>();
  }
  CHECK(made["logprobs"]["content"].size() == 8);
  CHECK(text == "t" + made["text"].get<std::string>());
  write_file_atomically(folder / "same.txt", text);
  const std::string said = output_of(folder, {"eval", "--model", "run", "--data", "same.txt"});
  const size_t at = said.find("loss ");
  REQUIRE(at != said.npos);
  CHECK(std::abs(std::stod(said.substr(at + 5)) + sum / 8) <= 1e-6);
}
