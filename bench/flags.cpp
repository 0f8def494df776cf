#include "flags.h"

#include <CLI/CLI.hpp>

namespace tg::bench {

namespace {
bool parsed(CLI::App& app, int argc, char** argv, int& status) {
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::ParseError& e) {
    status = app.exit(e) ? 2 : 0;
    return false;
  }
}
}  // namespace

std::optional<Flags> parse_flags(int argc, char** argv, int& status) {
  Flags flags;
  CLI::App app("Measures ops and the engine beside what the machine can do. Run it on a quiet machine.");
  app.add_option("--json", flags.json, "write machine, date and rows to this file")->type_name("FILE");
  app.add_option("--filter", flags.filter, "only rows with this in their text: linear, 'softmax 4096', bf16")
      ->type_name("TEXT");
  app.add_option("--device", flags.device, "cpu or cuda")->type_name("NAME")->capture_default_str();
  app.add_option("--seconds", flags.seconds, "at least, for each row")
      ->capture_default_str()
      ->check(CLI::Range(0., 60.));
  app.add_option("--commit", flags.commit, "what was built, kept in the JSON file")->type_name("TEXT");
  app.add_flag("--cpu-time", flags.cpu_time, "one thread, and its processor time: for a machine busy with other work");
  app.add_flag("--quick", flags.quick, "one run of the small rows: does it work?");
  return parsed(app, argc, argv, status) ? std::optional(flags) : std::nullopt;
}

std::optional<TrainingFlags> parse_training_flags(int argc, char** argv, int& status) {
  TrainingFlags flags;
  CLI::App app(
      "Measures document 000's benchmarks, LoRA layers and their training, as Criterion.rs does. Run it on a quiet "
      "machine.");
  app.add_option("--mode", flags.mode, "eager, or compiled: functions of tensors go through tg::compile")
      ->check(CLI::IsMember({"eager", "compiled"}))
      ->capture_default_str();
  app.add_option("--device", flags.device, "cpu or cuda")->type_name("NAME")->capture_default_str();
  app.add_option("--filter", flags.filter, "only ids with this in them: lora_forward, rank_8")->type_name("TEXT");
  app.add_option("--baseline", flags.baseline,
                 "compare with the run before, kept in this folder, and keep this one there; one folder for each mode")
      ->type_name("FOLDER");
  app.add_option("--warmup", flags.warmup, "seconds, for each id")->capture_default_str()->check(CLI::Range(0., 60.));
  app.add_option("--target", flags.target, "seconds, for all samples of an id")
      ->capture_default_str()
      ->check(CLI::Range(0.001, 600.));
  app.add_option("--samples", flags.samples, "of each id; complete_iteration takes 10 at most")
      ->capture_default_str()
      ->check(CLI::Range(2, 10'000));
  app.add_flag("--against-document", flags.against_document, "print the document's figures beside ours");
  app.add_option("--json", flags.json, "write machine, date and figures to this file")->type_name("FILE");
  app.add_option("--svg", flags.svg, "write a plot of each group into this folder")->type_name("FOLDER");
  app.add_option("--commit", flags.commit, "what was built, kept in the JSON file")->type_name("TEXT");
  app.add_flag("--cpu-time", flags.cpu_time, "one thread, and its processor time: for a machine busy with other work");
  app.add_flag("--quick", flags.quick, "two samples of few iterations and no warm-up: does it work?");
  return parsed(app, argc, argv, status) ? std::optional(flags) : std::nullopt;
}

}  // namespace tg::bench
