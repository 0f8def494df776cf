// `tapegrad plot`: the logs of runs as a page or terminal output.
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/apps/output.h>
#include <tapegrad/models/apps/process.h>
#include <tapegrad/models/apps/progress.h>
#include <tapegrad/models/apps/run.h>
#include <tapegrad/models/tools/plot.h>
#include <unistd.h>

#include <cstdlib>

namespace tg::apps {
namespace {

struct PlotOptions {
  std::vector<std::string> runs;
  std::string out;
  bool terminal = false;
};

NamedLog read_run(const std::string& run) {
  const std::string path = detail::is_folder(run) ? log_path(run) : run;
  TG_CHECK(detail::path_exists(path), io,
           "[plot] {} is missing. A run is a folder that `train --out` or `finetune --out` made, or a log.jsonl. Check "
           "the path.",
           path);
  LoggedSteps log = read_log(path);
  TG_CHECK(
      !log.steps.empty(), value,
      "[plot] {} has no step{}. A plot needs at least one. Wait for the first step, or name another run.", path,
      log.unreadable > 0 ? fmt::format(", and {} that no log.jsonl has", detail::counted(log.unreadable, "line")) : "");
  if (log.unreadable > 0)
    print_note("{} of {} cannot be read, and skipped", detail::counted(log.unreadable, "line"), path);
  return {printable(run), std::move(log.steps)};
}

int run(PlotOptions& o) {
  refuse(o.runs.empty() || o.out.empty() != o.terminal, "plot needs RUN..., and --out FILE or --terminal, not both");
  TG_CHECK(o.out.empty() || !detail::path_exists(o.out) || !detail::is_folder(o.out), value,
           "[plot] --out {} is a folder. The page is a file. Choose another.", o.out);
  check_alone("plot");
  const std::string page = plot_html({}), head = page.substr(0, page.find("<title>"));
  if (!o.out.empty())
    check_output("plot", "--out", o.out, "page of plot", [&](std::string_view text) { return text.starts_with(head); });
  std::vector<NamedLog> runs;
  for (const std::string& run : o.runs) runs.push_back(read_run(run));
  if (o.terminal) {
    const bool colors = isatty(STDOUT_FILENO) && !std::getenv("NO_COLOR");
    const std::string text = plot_braille(runs, terminal_width(), colors);
    TG_CHECK(!text.empty(), value, "[plot] no step has a finite loss. A plot needs at least one. Name another run.");
    fmt::print("{}", text);
    return 0;
  }
  detail::write_file_atomically(o.out, plot_html(runs));
  fmt::print("wrote {}\n", printable(o.out));
  return 0;
}
void declare(Command& c, PlotOptions& o) {
  c.list("RUN", "DIR", "folders of runs, or files like log.jsonl", o.runs);
  c.option("--out", "FILE", "the page: loss, learning rate, gradient norm and tokens per second", o.out);
  c.toggle("--terminal", "print the loss in braille characters, as wide as COLUMNS or the terminal", o.terminal);
}

}  // namespace

Subcommand plot_command() {
  return subcommand<PlotOptions>("plot", "draw the logs of runs as an HTML page, or on the terminal", run, declare);
}

}  // namespace tg::apps
