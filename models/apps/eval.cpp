// `tapegrad eval`: the loss of a model on texts or on a token file, or its score on a multiple-choice task.
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/json.h>
#include <tapegrad/core/io/safetensors.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/models/apps/model_data.h>
#include <tapegrad/models/apps/output.h>
#include <tapegrad/models/apps/process.h>
#include <tapegrad/models/apps/run.h>
#include <tapegrad/models/apps/task.h>
#include <tapegrad/models/train/trainer.h>

#include <chrono>
#include <cmath>
#include <numbers>

namespace tg::apps {
namespace {

struct EvalOptions : ModelOptions {
  std::string logits, task, json;
  std::vector<std::string> data;
  SettingFlags settings;
  int64_t batch = 8, window = 0;
};

// The first token is not a target.
int64_t bytes_of_targets(const Tokenizer& tokenizer, const TokenData& tokens) {
  int64_t bytes = 0;
  bool begins = true;
  tokens.for_each([&](int64_t at, std::span<const int32_t> ids) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] >= tokenizer.vocab_size() || ids[i] == tokenizer.end_of_text()) continue;
      const auto n = int64_t(tokenizer.decode_next(ids[i], begins).size());
      if (at + int64_t(i) > 0) bytes += n;
    }
  });
  return bytes;
}

void write_logits(const std::string& path, const Gpt& model, const Batch& batch) {
  NoGradScope off;
  const Tensor logits = model.forward(batch.inputs.to(model.device()), {}).to(DType::f32);  // (B, T, V)
  write_safetensors(path, {{"tokens", batch.inputs}, {"logits", logits}});
}

bool holds_logits(std::string_view text) {
  const auto header = detail::parse_safetensors(std::as_bytes(std::span(text)), "--logits");
  return header.tensors.size() == 2 && header.tensors.contains("tokens") && header.tensors.contains("logits");
}

int run_task(const EvalOptions& o, const LoadedModel& m) {
  using Clock = std::chrono::steady_clock;
  const GptConfig& c = m.model.config();
  const Task task = read_task({"eval", o.model, c.vocab_size, m.tokenizer.get(), m.tokenizer_error}, o.task, c.context);
  if (!o.json.empty())
    check_output("eval", "--json", o.json, "report of eval",
                 [](std::string_view text) { return detail::json_or_null(text).contains("acc_norm"); });
  const auto start = Clock::now();
  auto shown = start;
  const TaskScore s = *score_task(task, m.model, o.batch, {}, *Communicator::self(), [&](int64_t done, int64_t all) {
    if (Clock::now() - shown < std::chrono::seconds(3)) return true;
    shown = Clock::now();
    print_note("{} of {} endings", done, all);
    return true;
  });
  const double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  fmt::print("task        {}: acc {:.4f}, acc_norm {:.4f}, of {}, {:.3g} ms each\n", printable(o.task), s.acc,
             s.acc_norm, detail::counted(std::ssize(task.items), "item"), ms / double(task.items.size()));
  if (o.json.empty()) return 0;
  Json report{{"task", o.task}, {"acc", s.acc}, {"acc_norm", s.acc_norm}, {"ms", ms}, {"items", Json::array()}};
  for (size_t i = 0; const TaskItem& item : task.items) {
    const std::vector<double>& sums = s.sums[i++];
    report["items"].push_back({{"label", item.label},
                               {"pick", pick_of(item, sums, false)},
                               {"pick_norm", pick_of(item, sums, true)},
                               {"sums", Json(sums)}});
  }
  detail::write_file_atomically(o.json, detail::text_of(report, 1) + "\n");
  return 0;
}

int run(EvalOptions& o) {
  refuse(o.model.empty() || o.data.empty() == o.task.empty(),
         "eval needs --model DIR and --data FILE..., or --task FILE");
  refuse(!o.task.empty() && (o.window > 0 || !o.logits.empty() || !o.unknown.empty() || !o.settings.empty()),
         "--task has its own form: omit --window, --logits, --unknown and settings of data");
  refuse(o.task.empty() && !o.json.empty(), "--json is for --task; omit it");
  const LoadedModel m = open_model(o);
  if (!o.task.empty()) return run_task(o, m);
  const GptConfig& c = m.model.config();
  const int64_t window = o.window == 0 ? c.context : o.window;
  TG_CHECK(window >= 1 && window <= c.context, value,
           "[eval] window is {}, and the context of {} is {}. It must be from 1 to the context, or 0 for the context.",
           o.window, o.model, c.context);
  const RunData data = read_data({"eval", o.model, c.vocab_size, m.tokenizer.get(), m.tokenizer_error}, o.data,
                                 data_config(o.settings), o.unknown == "skip");
  check_used("eval", o.settings, o.data);
  if (!o.logits.empty()) check_output("eval", "--logits", o.logits, "file of logits", holds_logits);
  const SequentialBatches windows(data.tokens, o.batch, window);
  fmt::print("data        {}: {}, each predicted from up to {} before it\n", printable(name_of_files(o.data)),
             detail::counted(data.tokens.size(), "token"), window);
  if (!o.logits.empty()) write_logits(o.logits, m.model, *windows.at(0));
  double loss = validation_loss(m.model, [&](int64_t i) { return windows.at(i); }, {.device = m.params.device()}).loss;
  if (std::isnan(loss)) loss = std::abs(loss);  // never "-nan"
  fmt::print("loss        {:.6f} nats per token\nperplexity  {:.4f}\n", loss, std::exp(loss));
  if (data.tokenizer) {
    const int64_t bytes = bytes_of_targets(*data.tokenizer, data.tokens);
    const double bits = loss * double(windows.targets()) / std::numbers::ln2;
    if (bytes > 0) fmt::print("bits/byte   {:.6f}\n", bits / double(bytes));
  }
  if (!o.logits.empty()) fmt::print("wrote {}\n", printable(o.logits));
  return 0;
}
void declare(Command& c, EvalOptions& o) {
  add_model_options(c, o);
  c.list("--data", "FILE", kDataFiles, o.data);
  add_settings(c, o.settings, [](std::string_view name) {
    return detail::is_data_setting(name) && !detail::is_example_setting(name) && name != "weights" &&
           !name.starts_with("val_");
  });
  c.option("--window", "tokens of a window, 0: the model's context", o.window, 0);
  c.option("--batch", "windows in a forward pass, or endings", o.batch, 1);
  c.option("--task", "FILE",
           fmt::format("in place of --data, {}: parts of items picked right, by the sum of an "
                       "ending's log-probabilities (acc) and by their mean (acc_norm)",
                       kTaskFile),
           o.task);
  c.option("--json", "FILE", "with --task: write the sums and picks of each item; an earlier report is replaced",
           o.json);
  c.option("--logits", "FILE", "write the tokens and the logits of the first batch, as safetensors", o.logits);
}

}  // namespace

Subcommand eval_command() {
  return subcommand<EvalOptions>("eval", "print the loss of a model on text, or its score on a task", run, declare);
}

}  // namespace tg::apps
