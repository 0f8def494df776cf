// Options and subcommands of a program. Only command.cpp includes the argument parser, which compiles slowly. Wrong
// usage ends with status 2, an Error with status 1. Both print one message on stderr after the program's name.
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

// Wrong usage. The message says what is valid.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Thrown by a command that a signal stopped: the exit status is 128 + signal, without a message.
struct Stopped {
  int signal;
};

class Command {
 public:
  using Take = std::function<void(const std::string& word)>;
  explicit Command(CLI::App& app) : app_(app) {}

  // --flag WORD: calls take(word). The help shows `kind` (INT, FILE ...) and the default `shown`. An empty word is
  // wrong usage, except for the kind TEXT.
  void option(const std::string& flag, const std::string& kind, const std::string& shown, const std::string& help,
              Take take);
  void list(const std::string& flag, const std::string& kind, const std::string& help,
            std::vector<std::string>& words);                               // --flag WORD...
  void toggle(const std::string& flag, const std::string& help, bool& on);  // --flag

  // --flag WORD. The variable holds the default. A number outside [least, most] or a word not in `known` is wrong
  // usage.
  void option(const std::string& flag, const std::string& kind, const std::string& help, std::string& value);
  void option(const std::string& flag, const std::string& help, std::string& value,
              const std::vector<std::string_view>& known);
  void option(const std::string& flag, const std::string& help, int64_t& value, int64_t least = INT64_MIN,
              int64_t most = INT64_MAX);
  void option(const std::string& flag, const std::string& help, uint64_t& value);
  void option(const std::string& flag, const std::string& help, double& value, double least = -HUGE_VAL,
              double most = HUGE_VAL);
  // --flag 200MB: a number, 1 or more, alone or with one of the units of 10^3, 10^6 and 10^9.
  void option(const std::string& flag, const std::string& kind, const std::string& help, int64_t& value,
              const std::array<std::string_view, 3>& units);
  // --flag WORD,WORD. The list holds the default.
  void option(const std::string& flag, const std::string& help, std::vector<std::string>& values);
  void option(const std::string& flag, const std::string& help, std::vector<int64_t>& values);
  // --flag WORD where it matters whether it was given. The help shows the default `shown`.
  void option(const std::string& flag, const std::string& help, std::optional<int64_t>& value,
              std::optional<int64_t> shown);
  void option(const std::string& flag, const std::string& help, std::optional<double>& value,
              std::optional<double> shown);
  // --flag or --flag K, from 0 to `most`. Alone it is 0.
  void count(const std::string& flag, const std::string& help, std::optional<int64_t>& value, int64_t most);

 private:
  CLI::App& app_;
};

struct Subcommand {
  std::string name, help;
  // Registers options. Returns the body, which runs after parsing and returns the exit status.
  std::function<std::function<int()>(Command&)> declare;
};

// A subcommand with options of the type O: declare(Command&, O&) registers them, run(O&) is the body.
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

// Text from a model for standard output: what printable() escapes is escaped, except newline and tab, and \r unless it
// is a terminal.
std::string shown_text(std::string_view text);

// Runs `tapegrad` and returns its exit status. before() is the prefix of an error message, and after(status) follows
// it.
int run_command_line(int argc, char** argv, const std::vector<Subcommand>&, std::function<std::string()> before,
                     std::function<void(int)> after);
// A program without subcommands.
int run_program(int argc, char** argv, const Subcommand& program);

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

}  // namespace tg::apps
