#include <tapegrad/core/error.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/config/suggest.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>

namespace tg::apps {
namespace {

// The whole word as a number, or a UsageError that names the flag.
template <class T> T number(const std::string& flag, const std::string& word, const char* what) {
  T x{};
  const char* end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, x);
  if (error != std::errc() || stop != end) throw UsageError(fmt::format("{} is '{}'. It takes {}.", flag, word, what));
  return x;
}

// What an unset variable of a shell leaves behind names no file, folder or anything else.
void refuse_empty(const std::string& flag, const std::string& kind, const std::string& word) {
  if (word.empty() && kind != "TEXT")
    throw UsageError(fmt::format("{} is empty. It takes a {}. Give one, or leave {} away.", flag, kind, flag));
}

class ParserCommand final : public Command {
 public:
  explicit ParserCommand(CLI::App& app) : app_(app) {}
  using Command::option;
  void option(const std::string& flag, const std::string& kind, const std::string& shown, const std::string& help,
              Take take) override {
    const Take checked = [flag, kind, take = std::move(take)](const std::string& word) {
      refuse_empty(flag, kind, word);
      take(word);
    };
    CLI::Option* o = app_.add_option_function<std::string>(flag, checked, help)->type_name(kind);
    if (!shown.empty()) o->default_str(shown);
  }
  void list(const std::string& flag, const std::string& kind, const std::string& help,
            std::vector<std::string>& words) override {
    const auto checked = [flag, kind, &words](const std::vector<std::string>& all) {
      for (const std::string& word : all) refuse_empty(flag, kind, word);
      words = all;
    };
    app_.add_option_function<std::vector<std::string>>(flag, checked, help)
        ->type_name(kind)
        ->expected(1, CLI::detail::expected_max_vector_size);
  }
  void toggle(const std::string& flag, const std::string& help, bool& on) override { app_.add_flag(flag, on, help); }

 private:
  CLI::App& app_;
};

// What nobody asked for is an error that names the nearest thing there is.
void refuse_extras(const CLI::App& app) {
  const std::vector<std::string> rest = app.remaining();
  if (rest.empty()) return;
  const std::string word = rest.front().substr(0, rest.front().find('='));
  const bool is_flag = word.starts_with("-"), is_command = !is_flag && !app.get_parent();
  std::vector<std::string> known;
  if (is_flag) {
    for (const CLI::Option* o : app.get_options())
      for (const std::string& name : o->get_lnames()) known.push_back("--" + name);
    if (!app.get_parent()) known.push_back("--version");
  } else if (is_command) {
    for (const CLI::App* a : app.get_subcommands({})) known.push_back(a->get_name());
  }
  const std::string near = nearest(word, std::vector<std::string_view>(known.begin(), known.end()));
  throw UsageError(fmt::format("{} '{}'.{} `{} --help` lists what there is.",
                               is_flag      ? "unknown flag"
                               : is_command ? "unknown command"
                                            : "a word that no flag takes:",
                               word, near.empty() ? "" : fmt::format(" Did you mean '{}'?", near),
                               app.get_parent() ? "tapegrad " + app.get_name() : "tapegrad"));
}

int report(int status, const char* message) {
  std::fflush(stdout);
  std::fputs(fmt::format("tapegrad: {}\n", message).c_str(), stderr);  // may fail: then there is nobody to tell
  return status;
}

int parse_and_run(CLI::App& app, int argc, char** argv, const std::vector<Subcommand>& subcommands) {
  std::vector<ParserCommand> commands;
  std::vector<std::function<int()>> bodies;
  commands.reserve(subcommands.size());
  for (const Subcommand& s : subcommands) {
    CLI::App& sub = *app.add_subcommand(s.name, s.help)->allow_extras();
    bodies.push_back(s.declare(commands.emplace_back(sub)));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help and --version
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    throw UsageError(e.what());
  }
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  refuse_extras(app);
  if (!chosen.empty()) refuse_extras(*chosen.front());
  if (chosen.empty()) throw UsageError("no command. `tapegrad --help` lists the commands.");
  int status = 0;
  for (size_t i = 0; i < subcommands.size(); ++i)
    if (subcommands[i].name == chosen.front()->get_name()) status = bodies[i]();
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    return report(status ? status : 1, "[io] standard output cannot be written.");
  return status;
}

}  // namespace

void Command::option(const std::string& flag, const std::string& kind, const std::string& help, std::string& value) {
  option(flag, kind, value, help, Take([&value](const std::string& word) { value = word; }));
}
void Command::option(const std::string& flag, const std::string& help, int64_t& value) {
  option(flag, "INT", fmt::format("{}", value), help,
         Take([&value, flag](const std::string& word) { value = number<int64_t>(flag, word, "a whole number"); }));
}
void Command::option(const std::string& flag, const std::string& help, uint64_t& value) {
  option(flag, "INT", fmt::format("{}", value), help, Take([&value, flag](const std::string& word) {
           value = number<uint64_t>(flag, word, "a whole number of at least 0");
         }));
}
void Command::option(const std::string& flag, const std::string& help, double& value) {
  option(flag, "NUMBER", fmt::format("{}", value), help,
         Take([&value, flag](const std::string& word) { value = number<double>(flag, word, "a number"); }));
}

void Command::option(const std::string& flag, const std::string& help, std::optional<int64_t>& value, int64_t shown) {
  option(flag, "INT", fmt::format("{}", shown), help,
         Take([&value, flag](const std::string& word) { value = number<int64_t>(flag, word, "a whole number"); }));
}
void Command::option(const std::string& flag, const std::string& help, std::optional<double>& value, double shown) {
  option(flag, "NUMBER", fmt::format("{}", shown), help,
         Take([&value, flag](const std::string& word) { value = number<double>(flag, word, "a number"); }));
}

int run_command_line(int argc, char** argv, const std::vector<Subcommand>& subcommands) {
  try {
    CLI::App app("tapegrad trains and runs GPT models. `tapegrad COMMAND --help` lists the flags of a command.",
                 "tapegrad");
    app.set_version_flag("--version", "tapegrad " TG_VERSION, "print the version and exit");
    app.set_help_flag("-h,--help", "print this and exit");
    app.get_formatter()->column_width(34);
    app.allow_extras();
    app.require_subcommand(0, 1);  // one command: its words may be named like another
    return parse_and_run(app, argc, argv, subcommands);
  } catch (const UsageError& e) {
    return report(2, e.what());
  } catch (const std::exception& e) {
    return report(1, e.what());
  }
}

}  // namespace tg::apps
