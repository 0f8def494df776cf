#include "common/flags.h"

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
  app.add_option("--commit", flags.commit, "what was built, kept in the JSON file")->type_name("TEXT");
  app.add_flag("--cpu-time", flags.cpu_time, "one thread, and its processor time: for a machine busy with other work");
  app.add_flag("--quick", flags.quick, "two samples of few iterations and no warm-up: does it work?");
  return parsed(app, argc, argv, status) ? std::optional(flags) : std::nullopt;
}

std::optional<TimeitFlags> parse_timeit_flags(int argc, char** argv, int& status) {
  TimeitFlags flags;
  CLI::App app(
      "Document 004's profile of a GPT: forward, backward and both, with and without a warm-up step and mixed "
      "precision, a few timed steps each. Run it on a quiet machine.");
  const auto list = [&](const char* name, auto& to, const char* help) {
    app.add_option(name, to, help)->delimiter(',')->type_name("LIST")->capture_default_str();
  };
  const auto number = [&](const char* name, auto& to, const char* help) {
    app.add_option(name, to, help)->type_name("N")->capture_default_str();
  };
  list("--sizes", flags.sizes, "of small, medium, and tiny, which is for trying");
  list("--computations", flags.computations, "of forward, backward, forward_backward");
  list("--warmups", flags.warmups, "numbers of steps before the timed ones");
  list("--mixed", flags.mixed, "of False and True: bf16 over f32 parameters");
  number("--steps", flags.steps, "timed ones of each run");
  number("--batch", flags.batch, "sequences");
  number("--context", flags.context, "tokens of each");
  number("--vocab", flags.vocab, "token ids");
  number("--seed", flags.seed, "of weights and tokens, the same for each run");
  number("--threads", flags.threads, "of the CPU backend, 0: all");
  app.add_option("--mode", flags.mode, "eager, or compiled: each step goes through tg::compile")
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--device", flags.device, "cpu or cuda")->type_name("NAME")->capture_default_str();
  app.add_option("--filter", flags.filter, "only runs with this in their name: small_forward_warmup")
      ->type_name("TEXT");
  app.add_flag("--matrix-only", flags.matrix_only, "without the two runs on one model that come before the matrix");
  app.add_flag("--against-document", flags.against_document, "print the document's figures beside ours");
  app.add_flag("--check-warmup", flags.check_warmup,
               "end with status 1 unless each run with a warm-up step varies less than the one without");
  app.add_option("--json", flags.json, "write machine, date and figures to this file")->type_name("FILE");
  app.add_option("--commit", flags.commit, "what was built, kept in the JSON file")->type_name("TEXT");
  app.add_flag("--cpu-time", flags.cpu_time, "one thread, and its processor time: for a machine busy with other work");
  return parsed(app, argc, argv, status) ? std::optional(flags) : std::nullopt;
}

std::optional<LmFlags> parse_lm_flags(int argc, char** argv, int& status) {
  LmFlags flags;
  CLI::App app(
      "Document 003's profiles of a language model: steps to warm up, then one whose parts are timed, in tables as "
      "nsys "
      "prints them.");
  const auto number = [&](const char* name, auto& to, const char* help) {
    app.add_option(name, to, help)->type_name("N")->capture_default_str();
  };
  const auto word = [&](const char* name, std::string& to, const char* help) {
    app.add_option(name, to, help)->type_name("NAME")->capture_default_str();
  };
  word("--size", flags.size, "small, medium, large, xl, 2.7B, or tiny, which is for trying");
  app.add_option("--types", flags.types, "of forward, backward, train")
      ->delimiter(',')
      ->type_name("LIST")
      ->capture_default_str();
  word("--form", flags.form, "document: op by op; flash: the same with attention in blocks; fused: Gpt");
  word("--precision", flags.precision, "of products: f32, tf32 (on a GPU), bf16 (form fused)");
  word("--device", flags.device, "cpu or cuda");
  number("--batch", flags.batch, "sequences");
  number("--context", flags.context, "tokens of each");
  number("--vocab", flags.vocab, "token ids");
  number("--layers", flags.layers, "0: those of the size");
  number("--warmup", flags.warmup, "steps before the profiled one");
  number("--threads", flags.threads, "of the CPU backend, 0: all");
  number("--seed", flags.seed, "of weights and tokens");
  app.add_flag("--answers", flags.answers,
               "profile the other forms and precisions too, and answer the document's nine conclusions");
  app.add_flag("--against-document", flags.against_document, "print the document's figures beside ours");
  app.add_option("--json", flags.json, "write machine, date, tables and figures to this file")->type_name("FILE");
  app.add_option("--csv", flags.csv, "write each table of each run to a file in this folder")->type_name("FOLDER");
  app.add_option("--trace", flags.trace, "write the last profile to this file, for Perfetto")->type_name("FILE");
  app.add_option("--commit", flags.commit, "what was built, kept in the JSON file")->type_name("TEXT");
  return parsed(app, argc, argv, status) ? std::optional(flags) : std::nullopt;
}

}  // namespace tg::bench
