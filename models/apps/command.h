// Options and subcommands of a program. Only command.cpp includes the slow argument parser. Wrong usage ends with
// status 2, an Error with status 1. Both print one message on stderr after the program's name.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}
namespace tg::apps {

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void refuse(bool wrong, const char* usage) {
  if (wrong) throw UsageError(usage);
}
// A signal stopped the command: exit status is 128 + signal, no message.
struct Stopped {
  int signal;
};

class Command {
 public:
  using Text = const std::string&;
  using Take = std::function<void(const std::string& word)>;
  explicit Command(CLI::App& app) : app_(app) {}

  // --flag WORD: calls take(word), not empty except for the `kind` TEXT. The help shows `kind` and the default `shown`.
  void option(Text flag, Text kind, Text shown, Text help, Take take);
  void list(Text flag, Text kind, Text help,
            std::vector<std::string>& words);   // --flag WORD...
  void toggle(Text flag, Text help, bool& on);  // --flag

  // --flag WORD. `known` has all words.
  void option(Text flag, Text kind, Text help, std::string& value);
  void option(Text flag, Text help, std::string& value, const std::vector<std::string_view>& known);
  void option(Text flag, Text help, int64_t& value, int64_t least = INT64_MIN, int64_t most = INT64_MAX);
  void option(Text flag, Text help, uint64_t& value);
  void option(Text flag, Text help, double& value, double least = -HUGE_VAL, double most = HUGE_VAL);
  // --flag 200MB: a number >= 1, or with a unit of 10^3, 10^6 or 10^9.
  void option(Text flag, Text kind, Text help, int64_t& value, const std::array<std::string_view, 3>& units);
  void option(Text flag, Text help, std::vector<std::string>& values);  // --flag WORD,WORD
  void option(Text flag, Text help, std::vector<int64_t>& values);
  void option(Text flag, Text help, std::optional<int64_t>& value, std::optional<int64_t> shown);
  void option(Text flag, Text help, std::optional<double>& value, std::optional<double> shown);
  // --flag or --flag K, from 0 to `most`. Alone it is 0.
  void count(Text flag, Text help, std::optional<int64_t>& value, int64_t most);

 private:
  CLI::App& app_;
};

struct Subcommand {
  std::string name, help;
  // Registers options. Returns the body, which returns the exit status.
  std::function<std::function<int()>(Command&)> declare;
};

// A subcommand whose options O declare(Command&, O&) registers; run(O&) is the body.
template <class O>
Subcommand subcommand(const char* name, const char* help, int (*run)(O&), void (*declare)(Command&, O&)) {
  return {name, help, [=](Command& c) -> std::function<int()> {
            const auto o = std::make_shared<O>();
            declare(c, *o);
            return [=] { return run(*o); };
          }};
}

// Untrusted text for a terminal: control characters become \x1b, and only the ends of words over 400 bytes are kept.
std::string printable(std::string_view text);

// printable(), but keeps newline, tab, and \r unless standard output is a terminal.
std::string shown_text(std::string_view text);

// Returns the exit status. before() is an error message's prefix; after(status) follows it.
int run_command_line(int argc, char** argv, const std::vector<Subcommand>&, std::function<std::string()> before,
                     std::function<void(int)> after);
int run_program(int argc, char** argv, const Subcommand& program);

// "0.1.0 3f6719ba": version and git commit; "+" after it: changed files; no commit: built without git.
std::string program_version();

Subcommand tokenizer_command();
Subcommand tokenize_command();
Subcommand train_command();
Subcommand finetune_command();
Subcommand merge_command();
Subcommand export_command();
Subcommand generate_command();
Subcommand eval_command();
Subcommand inspect_command();
Subcommand compare_command();
Subcommand plot_command();
Subcommand reproduce_command();
Subcommand selftest_command();

}  // namespace tg::apps
