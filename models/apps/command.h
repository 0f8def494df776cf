// Options of a program or of its subcommands, and what parses, runs and reports: the only door to the argument parser,
// so that one file pays for compiling it. Wrong usage ends with status 2, an Error with status 1, both as one message
// on stderr that begins with the program's name; else the body says its status.
// Users: the files of this folder, the benchmarks.
#pragma once
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tg::apps {

// What was typed makes no sense; the message says what would.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Command {
 public:
  using Take = std::function<void(const std::string& word)>;

  // --flag WORD: take gets the word. `kind` stands for the word in the help (INT, FILE ...); `shown` is the default
  // there. An empty word is wrong usage, but for the kind TEXT.
  virtual void option(const std::string& flag, const std::string& kind, const std::string& shown,
                      const std::string& help, Take take) = 0;
  virtual void list(const std::string& flag, const std::string& kind, const std::string& help,
                    std::vector<std::string>& words) = 0;                               // --flag WORD...
  virtual void toggle(const std::string& flag, const std::string& help, bool& on) = 0;  // --flag

  // --flag WORD into a variable whose value now is the default. A number outside of [least, most] is wrong usage, and
  // so is a word that is not among `known`.
  void option(const std::string& flag, const std::string& kind, const std::string& help, std::string& value);
  void option(const std::string& flag, const std::string& help, std::string& value,
              const std::vector<std::string_view>& known);
  void option(const std::string& flag, const std::string& help, int64_t& value, int64_t least = INT64_MIN,
              int64_t most = INT64_MAX);
  void option(const std::string& flag, const std::string& help, uint64_t& value);
  void option(const std::string& flag, const std::string& help, double& value, double least = -HUGE_VAL,
              double most = HUGE_VAL);
  // --flag WORD,WORD into a list whose value now is the default.
  void option(const std::string& flag, const std::string& help, std::vector<std::string>& values);
  void option(const std::string& flag, const std::string& help, std::vector<int64_t>& values);
  // --flag WORD where it matters whether the flag was given; `shown` is the default in the help, if there is one.
  void option(const std::string& flag, const std::string& help, std::optional<int64_t>& value,
              std::optional<int64_t> shown);
  void option(const std::string& flag, const std::string& help, std::optional<double>& value, double shown);

 protected:
  ~Command() = default;
};

struct Subcommand {
  std::string name, help;
  // Registers options; returns what runs once they are parsed, which returns the exit status.
  std::function<std::function<int()>(Command&)> declare;
};

// A text of somebody else's for a terminal: control characters as \x1b, and of words of more than 400 bytes the two
// ends.
std::string printable(std::string_view text);

// What a model wrote, for standard output: on a terminal without control characters, as printable() shows them; else as
// it is.
std::string for_terminal(std::string_view text);

// The whole program `tapegrad`; returns its exit status. `before` an Error's message comes what it returns; `after` it
// is told the status.
int run_command_line(int argc, char** argv, const std::vector<Subcommand>&, std::function<std::string()> before,
                     std::function<void(int)> after);
// The whole of a program that has no subcommands.
int run_program(int argc, char** argv, const Subcommand& program);

Subcommand tokenize_command();
Subcommand train_command();
Subcommand finetune_command();
Subcommand merge_command();
Subcommand export_command();
Subcommand generate_command();
Subcommand eval_command();
Subcommand inspect_command();
Subcommand compare_command();

}  // namespace tg::apps
