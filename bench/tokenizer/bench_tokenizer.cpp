// Encoding speed of published models' tokenizers in MB/s, by number of threads. All must give the same ids; their
// checksum is for comparisons with other libraries.
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/models/data/documents.h>
#include <tapegrad/models/tokenizers/bpe.h>

#include "common/program.h"

using namespace tg;
using namespace tg::bench;
namespace {
constexpr const char* kProgram = "bench_tokenizer";

struct TokenizerFlags : SharedFlags {
  std::string pattern;
  std::vector<std::string> tokenizers, texts;
  std::vector<int64_t> counts;  // thread counts
  int64_t rounds = 7;
};

// Sum of id_i (i + 1) modulo 2^64.
uint64_t checksum(const std::vector<int64_t>& ids) {
  uint64_t sum = 0, i = 0;
  for (const int64_t id : ids) sum += uint64_t(id) * ++i;
  return sum;
}

Json measured(const TokenizerFlags& f, const BpeTokenizer& tokenizer, const std::string& name,
              const std::string& path) {
  const std::string text = read_texts(std::vector{path});
  std::vector<std::vector<double>> seconds(f.counts.size());
  std::vector<int64_t> want;
  for (int64_t round = -1; round < f.rounds; ++round)  // the first round warms up
    for (size_t k = 0; k < f.counts.size(); ++k) {     // alternating: machine noise hits all
      set_num_threads(int(f.counts[k]));
      std::vector<int64_t> got;
      const double s = timed([&] { got = tokenizer.encode(text); });
      if (want.empty()) want = got;
      TG_CHECK(got == want, internal, "[{}] {} threads give other ids of {} than {}.", kProgram, f.counts[k], path,
               f.counts[0]);
      if (round >= 0) seconds[k].push_back(s);
    }
  Json runs = Json::array();
  const auto rate = [&](double s) { return 1e-6 * double(text.size()) / s; };
  for (size_t k = 0; k < f.counts.size(); ++k) {
    const Timing t = summary(seconds[k]);
    fmt::print("{:<24} {:<24} {:3} thread(s) {:8.1f} MB/s  (p10 {:.1f}, p90 {:.1f})\n", name, path, f.counts[k],
               rate(t.median), rate(t.p90), rate(t.p10));
    runs.push_back(
        {{"threads", f.counts[k]}, {"mb_per_second", rate(t.median)}, {"seconds", json_of(t)}, {"runs", t.runs}});
  }
  return {{"tokenizer", name},
          {"text", path},
          {"bytes", text.size()},
          {"tokens", want.size()},
          {"checksum", fmt::format("{:016x}", checksum(want))},
          {"runs", std::move(runs)}};
}

int run(TokenizerFlags& f, int argc, char** argv) {
  if (f.tokenizers.empty() || f.texts.empty())
    throw apps::UsageError("bench_tokenizer needs --tokenizer PATH... and --text FILE...");
  if (f.counts.empty()) f.counts = num_threads() > 1 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{1};
  if (f.cpu_time) f.counts = {1};
  Json all = json_of(begin(f, argc, argv)), rows = Json::array();
  for (const std::string& path : f.tokenizers) {
    const BpeTokenizer tokenizer = read_tokenizer(path, path.ends_with(".tiktoken") ? f.pattern : "");
    for (const std::string& text : f.texts) rows.push_back(measured(f, tokenizer, path, text));
  }
  all["encoding"] = std::move(rows);
  write_json(f.json, all);
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  const auto declare = [](Command& c, TokenizerFlags& f) {
    c.list("--tokenizer", "PATH", "tokenizer.json files, .tiktoken files, or folders with tokenizers", f.tokenizers);
    c.option("--pattern", "NAME", "of .tiktoken files: gpt2, llama3 or qwen2", f.pattern);
    c.list("--text", "FILE", "texts, each encoded by itself", f.texts);
    c.option("--threads", "of the CPU, each in turn; default: 1 and 2", f.counts);
    c.option("--rounds", "times that each text is encoded, after one to warm up", f.rounds, 1, 1 << 20);
  };
  return run_benchmark<TokenizerFlags>(argc, argv, kProgram, "Megabytes per second of encoding texts.", kCpuTime,
                                       declare, run);
}
