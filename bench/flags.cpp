#include "flags.h"

#include <CLI/CLI.hpp>

namespace tg::bench {

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
  try {
    app.parse(argc, argv);
    return flags;
  } catch (const CLI::ParseError& e) {
    status = app.exit(e) ? 2 : 0;
    return std::nullopt;
  }
}

}  // namespace tg::bench
