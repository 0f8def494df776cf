#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/core/comm/communicator.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/config/suggest.h>
#include <tapegrad/models/tokenizers/utf8.h>
#include <tapegrad/models/train/run_config.h>

#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <new>
#include <ranges>
#include <system_error>
#include <utility>

namespace tg::apps {
namespace {

template <class T> T number(const std::string& flag, const std::string& word, const char* what) {
  T x{};
  const char* end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, x);
  if (error != std::errc() || stop != end) throw UsageError(fmt::format("{} is '{}'. It takes {}.", flag, word, what));
  return x;
}
constexpr const char *kWhole = "a whole number", *kNumber = "a number";
// `value` is of type T or std::optional<T>.
template <class T, class Value>
Command::Take into(Value& value, const std::string& flag, const char* what, T least = std::numeric_limits<T>::lowest(),
                   T most = std::numeric_limits<T>::max()) {
  return [=, &value](const std::string& word) {
    const T x = number<T>(flag, word, what);
    if constexpr (std::is_floating_point_v<T>)
      if (!std::isfinite(x)) throw UsageError(fmt::format("{} is {}. It must be a finite number.", flag, word));
    if (x < least || x > most)
      throw UsageError(fmt::format("{} is {}. It must be from {} to {}.", flag, word, least, most));
    value = x;
  };
}

// "200MB" with the units {"KB", "MB", "GB"}
int64_t with_unit(const std::string& flag, std::string_view word, const std::array<std::string_view, 3>& units) {
  int64_t n = 0, factor = 1;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), n);
  const std::string_view unit(end, size_t(word.data() + word.size() - end));
  const auto at = std::ranges::find(units, unit);
  if (!unit.empty()) factor = std::array{1000, 1000'000, 1000'000'000, 0}[size_t(at - units.begin())];
  if (error != std::errc() || factor == 0 || n < 1 || __builtin_mul_overflow(n, factor, &n))
    throw UsageError(
        fmt::format("{} is '{}'. It takes a number, as 5{}, 200{} or 1000000.", flag, word, units[2], units[1]));
  return n;
}

std::vector<std::string> split(const std::string& words) {
  std::vector<std::string> list;
  for (const auto word : words | std::views::split(',')) list.emplace_back(word.begin(), word.end());
  return list;
}

std::string with_article(const std::string& kind) { return (kind.starts_with("I") ? "an " : "a ") + kind; }

// A kind of path, and the flags or command that take it.
struct Kind {
  const char *what, *flags;
};
constexpr Kind kRun{"a run", "--resume,plot RUN,reproduce RUN"}, kModel{"a model", "--model,--base"},
    kAdapter{"an adapter", "--adapter"}, kTokenizer{"a tokenizer", "--tokenizer"}, kLog{"the log of a run", "plot RUN"},
    kTokens{"a token file", "--data,--task"}, kText{"a text", "--data,--in,--train,--prompts,--task"},
    kWeights{"a file of weights", "inspect --model"}, kGguf{"a GGUF file", "--model,--base,--tokenizer"},
    kForeign{"a configuration of Hugging Face", ""},
    kJson{"a JSON file", "--config,--data,--in,--train,--prompts,--machine,--tokenizer,--chat-format,--task"};
std::vector<Kind> kinds_of(const std::string& path) {
  std::error_code none;
  std::vector<Kind> all;
  const std::pair<const char*, Kind> files[] = {{"config.json", kModel},          {"adapter_config.json", kAdapter},
                                                {"checkpoint.safetensors", kRun}, {"log.jsonl", kLog},
                                                {"tokenizer.json", kTokenizer},   {"vocab.json", kTokenizer}};
  for (const auto& [name, kind] : files)
    if (std::filesystem::exists(path + "/" + name, none)) all.push_back(kind);
  if (!std::filesystem::is_regular_file(path, none)) return all;
  const MappedFile file(path);
  const std::string_view head = file.text().substr(0, 1 << 12);
  const auto ends = [&](const char* end) { return path.ends_with(end); };
  const auto has = [&](const char* key) { return head.starts_with("{") && head.find(key) != head.npos; };
  if (head.starts_with("GGUF") || ends(".gguf")) return {kGguf};
  if (ends(".safetensors")) return {kWeights};
  if (ends(".npy") || ends(".bin")) return {kTokens};
  if (ends(".tiktoken") || ends(".model") || has("\"added_tokens\"")) return {kTokenizer};
  if (ends("/log.jsonl") || path == "log.jsonl" || has("\"grad_norm\"")) return {kLog};
  if (has("\"model_type\"") || has("\"architectures\"")) return {kForeign};
  return {has("") && !ends(".jsonl") ? kJson : kText};
}
// The first accepted flag that takes the contents of the path, or "".
template <class F> std::string flag_for(const std::string& path, F has) {
  for (const Kind& k : kinds_of(path))
    for (const std::string& flag : split(k.flags))
      if (has(flag)) return flag;
  return "";
}
void check_path(const CLI::App& app, const std::string& flag, const std::string& path) {
  const auto taken = [&](const Kind& k) {
    const std::vector<std::string> all = split(k.flags);
    return std::ranges::count(all, flag) + std::ranges::count(all, app.get_name() + " " + flag) > 0;
  };
  std::vector<const char*> wanted, held;
  for (const Kind& k : {kRun, kModel, kAdapter, kTokenizer, kLog, kTokens, kText, kWeights, kJson})
    if (taken(k)) wanted.push_back(k.what);
  // Outputs do not count as read; logs have any name.
  if (wanted.empty() || (flag == "RUN" && std::filesystem::is_regular_file(path))) return;
  const std::vector<Kind> kinds = kinds_of(path);
  if (kinds.empty() || std::ranges::any_of(kinds, taken)) return;
  for (const Kind& k : kinds)
    if (held.empty() || k.what != kLog.what) held.push_back(k.what);
  const std::string folder = std::filesystem::path(path).parent_path().string();
  std::string way = std::ranges::any_of(kinds_of(folder), taken) ? flag + " " + folder : "";
  for (const std::string& at : {path, folder})
    if (const auto other = flag_for(at, [&](const std::string& f) { return app.get_option_no_throw(f); });
        way.empty() && !other.empty())
      way = other + " " + at;
  TG_CHECK(false, value, "[{}] {} {} is {}. The flag takes {}. {} {}.", app.get_name(), flag, path,
           fmt::join(held, " and "), fmt::join(wanted, " or "),
           way.empty() && *kinds[0].flags ? "Other commands take it as" : "Pass",
           !way.empty()      ? way
           : *kinds[0].flags ? split(kinds[0].flags)[0]
                             : "the folder of its model");
}
// An empty word usually comes from an unset shell variable.
void check_word(const CLI::App& app, const std::string& flag, const std::string& kind, const std::string& word) {
  if (word.empty() && kind != "TEXT")
    throw UsageError(fmt::format("{} is empty. It takes {}. Give one, or omit {}.", flag, with_article(kind), flag));
  if (kind == "DIR" || kind == "FILE" || kind == "PATH" || flag == "--tokenizer") check_path(app, flag, word);
}

void refuse_values(CLI::Option* flag) {
  flag->each([name = flag->get_name()](const std::string& word) {
    if (word != "true") throw UsageError(fmt::format("{} takes no value. Write it alone.", name));
  });
}

// "tapegrad train"
std::string full_name(const CLI::App& app) {
  return app.get_parent() ? app.get_parent()->get_name() + " " + app.get_name() : app.get_name();
}
// Names the flags that the words most likely belong to.
[[noreturn]] void refuse_words(const CLI::App& app, const std::vector<std::string>& rest) {
  std::map<std::string, std::string> words;  // key: flag
  const auto open = [&](const std::string& flag) {
    const CLI::Option* const o = app.get_option_no_throw(flag);
    return o && o->count() == 0 && (!words.contains(flag) || flag == "--prompt" || o->get_items_expected_max() > 1);
  };
  for (const std::string& word : rest) {
    if (word.starts_with("-")) break;
    std::string flag = flag_for(word, open);
    if (flag.empty() && open("--arch") &&
        (" " + detail::model_preset_names() + ",").find(" " + word + ",") != word.npos)
      flag = "--arch";
    for (const char* other : {"--model", "--prompt", "--data", "--in", "--train", "--out"})
      if (flag.empty() && open(other) && (other != std::string("--model") || word.find_first_of(" .") == word.npos))
        flag = other;
    if (!flag.empty()) words[flag] += (words[flag].empty() ? "" : " ") + word;
  }
  std::string meant;
  for (const auto& [flag, word] : words)
    meant += fmt::format(" {} {}", flag, flag == "--prompt" ? '"' + word + '"' : word);
  throw UsageError(fmt::format("unexpected word '{}'.{} `{} --help` shows the usage.", rest.front(),
                               meant.empty() ? "" : fmt::format(" Did you mean{}?", meant), full_name(app)));
}
void refuse_extras(const CLI::App& app) {
  const std::vector<std::string> rest = app.remaining();
  if (rest.empty()) return;
  const std::string word = rest.front().substr(0, rest.front().find('='));
  const bool is_flag = word.starts_with("-");
  std::vector<std::string> known;
  for (const CLI::Option* o : app.get_options())
    for (const std::string& name : o->get_lnames())
      if (is_flag) known.push_back("--" + name);
  for (const CLI::App* command : app.get_subcommands({}))
    if (!is_flag) known.push_back(command->get_name());
  if (known.empty()) refuse_words(app, rest);
  const std::string near = detail::nearest(word, std::vector<std::string_view>(known.begin(), known.end()));
  throw UsageError(fmt::format("unknown {} '{}'.{} `{} --help` shows the usage.", is_flag ? "flag" : "command", word,
                               near.empty() ? "" : fmt::format(" Did you mean '{}'?", near), full_name(app)));
}

// Flags of `--help` by group. The first nine of kCommon that a command has come first.
constexpr std::string_view kCommon =
                               "help,data,in,train,model,prompt,adapter,max-tokens,temperature,top-k,chat,arch,rank,"
                               "max-steps,lr,out,resume,tokenizer,preset",
                           kData = ",config,order,val-fraction,prompts,prompt-ids,unknown,system,chat-format,special,",
                           kOfModel = ",base,preset,arch,rank,alpha,rslora,lora-dropout,targets,",
                           kSpeed =
                               ",device,threads,batch,window,accumulate,global-batch,dtype,base-dtype,matmul-precision,"
                               "recompute,linear,shard-optimizer,split-weights,moments,compile,ignore-memory,"
                               "comm-timeout,no-cache,ranks,",
                           kOutput = ",eval-every,checkpoint-every,seed,";
constexpr std::pair<const char*, const char*> kExamples[] = {
    {"train --data input.txt --tokenizer char --out run --max-steps 200", "models/train_a_gpt.md"},
    {"finetune --model run --data input.txt --out adapter --max-steps 100", "models/finetune.md"},
    {"merge --model run --adapter adapter --out merged", "models/finetune.md"},
    {"export --model run --to hf --out exported", "models/use_anywhere.md"},
    {"generate --model run --prompt \"the \" --max-tokens 50", "models/generate.md"},
    {"eval --model run --data input.txt", "models/finetune.md"},
    {"inspect --model run", "models/train/README.md"},
    {"compare --model run", "bench/compare_backends.md"},
    {"tokenizer --train input.txt --vocab 300 --out bpe", "models/tokenizers/tokenizers.md"},
    {"tokenize --tokenizer bpe --in input.txt --out input.npy", "models/data/README.md"},
    {"reproduce run", "models/train_a_gpt.md"},
    {"plot run --out run.html", "models/train_a_gpt.md"}};
void group_flags(CLI::App& app) {
  int common = 0;
  for (const std::string& name : split(std::string(kCommon)))
    if (CLI::Option* o = app.get_option_no_throw("--" + name); o && ++common <= 9) o->group("Commonest flags");
  for (CLI::Option* o : app.get_options()) {
    if (o->get_group() != "Options" || o->get_lnames().empty()) continue;
    std::string name = o->get_lnames()[0];
    const auto in = [word = "," + name + ","](std::string_view names) { return names.find(word) != names.npos; };
    std::ranges::replace(name, '-', '_');
    o->group(in(kData) || detail::is_data_setting(name)       ? "Data"
             : in(kOfModel) || detail::is_model_setting(name) ? "Model"
             : in(kSpeed)                                     ? "Speed and memory"
             : detail::is_train_setting(name) && !in(kOutput) ? "Optimiser"
                                                              : "Output");
  }
}
void set_up(CLI::App& app) {
  refuse_values(app.set_help_flag("-h,--help", "print this and exit"));
  app.get_formatter()->column_width(34);
  app.allow_extras();
}
// Exit status after --help and --version.
std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ArgumentMismatch& e) {
    const auto commands = app.get_subcommands();
    const std::string text = e.what(), flag = text.substr(0, text.find(':'));
    const CLI::Option* const o = (commands.empty() ? app : *commands[0]).get_option_no_throw(flag);
    throw UsageError(o ? fmt::format("{0} has no value. It takes {1}. Give one, or omit {0}.", flag,
                                     with_article(o->get_type_name()))
                       : text);
  } catch (const CLI::ParseError& e) {
    throw UsageError(e.what());
  }
  refuse_extras(app);
  return {};
}

// Invalid UTF-8, control characters (C0, DEL, C1) outside of `kept` and direction changes become \x1b.
std::string escaped(std::string_view text, std::string_view kept) {
  std::string all;
  while (!text.empty()) {
    const auto [c, length] = detail::first_of(text);
    const bool control = c < 0x20 || (c >= 0x7F && c < 0xA0),
               turns = (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
    const bool shown = kept.find(text[0]) != kept.npos || (!control && !turns);  // an invalid byte has the code 0
    all += shown ? std::string(text.substr(0, length)) : fmt::format("\\x{:02x}", uint8_t(text[0]));
    text.remove_prefix(shown ? length : 1);
  }
  return all;
}

// Whether standard output is a pipe without a reader, as after `head`.
bool reader_is_gone() {
  pollfd out{STDOUT_FILENO, 0, 0};
  return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

int reported(
    const std::string& program, const std::function<int()>& f,
    const std::function<std::string()>& before = [] { return ""; },
    const std::function<void(int)>& after = [](int) {}) {
  const auto fail = [&](int status, const std::string& message) {
    std::fflush(stdout);
    std::fputs(fmt::format("{}: {}\n", program, printable(before() + message)).c_str(),
               stderr);  // may fail
    after(status);
    return status;
  };
  const auto unread = [&](int status) {  // silent, like other programs
    if (status == 0) status = 128 + SIGPIPE;
    after(status);
    return status;
  };
  try {
    const int status = f();
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
    return reader_is_gone() ? unread(status) : fail(std::max(status, 1), "[io] standard output cannot be written.");
  } catch (const UsageError& e) {
    return fail(2, e.what());
  } catch (const Stopped& e) {
    return 128 + e.signal;
  } catch (const std::bad_alloc&) {
    return fail(1,
                "[memory] the system gives this process no more memory. Free some, raise the limit (ulimit -v), or "
                "take smaller files or settings.");
  } catch (const std::system_error& e) {  // fmt's message says "file"
    if (e.code() == std::errc::broken_pipe) return unread(0);
    const bool printing = std::ferror(stdout) && !reader_is_gone();
    return fail(1,
                printing ? fmt::format("[io] standard output cannot be written: {}.", e.code().message()) : e.what());
  } catch (const std::exception& e) {
    return fail(1, e.what());
  }
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr size_t kLongest = 400, kFront = 200, kBack = 100;
  std::string all;
  for (size_t end; !text.empty(); text.remove_prefix(end)) {
    end = std::min(text.find_first_of(" \n"), text.size());
    const std::string word = escaped(text.substr(0, end), "");
    all += word.size() <= kLongest ? word
                                   : fmt::format("{}...({} bytes)...{}", word.substr(0, kFront), word.size(),
                                                 word.substr(word.size() - kBack));
    if (end < text.size()) all += text[end++];
  }
  return all;
}
std::string shown_text(std::string_view text) { return escaped(text, isatty(STDOUT_FILENO) ? "\n\t" : "\n\t\r"); }

void Command::option(Text flag, Text kind, Text shown, Text help, Take take) {
  const auto checked = [&app = app_, flag, kind, take = std::move(take)](const std::vector<std::string>& words) {
    for (const std::string& word : words) check_word(app, flag, kind, word);
    if (words.size() > 1 && words[words.size() - 2] != words.back())
      std::fputs(fmt::format("note: {} is given {} times; the last value, '{}', is used\n", flag, words.size(),
                             printable(words.back()))
                     .c_str(),
                 stderr);
    take(words.back());
  };
  const bool alone = kind == "BOOL" || kind == "[K]";  // optional value
  CLI::Option* o = app_.add_option_function<std::vector<std::string>>(flag, checked, help)
                       ->type_name(kind)
                       ->expected(alone ? 0 : 1, 1)
                       ->allow_extra_args(false)  // the next word is no value
                       ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  if (alone)
    o->default_str(kind == "BOOL" ? "true" : "0")->option_text(kind == "BOOL" ? fmt::format("BOOL={}", shown) : kind);
  else if (!shown.empty())
    o->default_str(shown);
}
void Command::list(Text flag, Text kind, Text help, std::vector<std::string>& words) {
  const auto checked = [&app = app_, flag, kind, &words](const std::vector<std::string>& all) {
    for (const std::string& word : all) check_word(app, flag, kind, word);
    words = all;
  };
  app_.add_option_function<std::vector<std::string>>(flag, checked, help)
      ->type_name(kind)
      ->expected(1, CLI::detail::expected_max_vector_size);
}
void Command::toggle(Text flag, Text help, bool& on) { refuse_values(app_.add_flag(flag, on, help)); }
void Command::option(Text flag, Text kind, Text help, std::string& value) {
  option(flag, kind, value, help, Take([&value](const std::string& word) { value = word; }));
}
void Command::option(Text flag, Text help, std::string& value, const std::vector<std::string_view>& known) {
  option(flag, "NAME", value, help, Take([=, &value](const std::string& word) {
           if (std::ranges::find(known, word) == known.end())
             throw UsageError(fmt::format("{} is '{}'.{} It is one of {}.", flag, word,
                                          detail::did_you_mean(word, known), detail::listed(known)));
           value = word;
         }));
}
void Command::option(Text flag, Text help, int64_t& value, int64_t least, int64_t most) {
  option(flag, "INT", fmt::format("{}", value), help, into<int64_t>(value, flag, kWhole, least, most));
}
void Command::option(Text flag, Text help, uint64_t& value) {
  option(flag, "INT", fmt::format("{}", value), help, into<uint64_t>(value, flag, "a whole number of at least 0"));
}
void Command::option(Text flag, Text help, double& value, double least, double most) {
  option(flag, "NUMBER", fmt::format("{}", value), help, into<double>(value, flag, kNumber, least, most));
}
void Command::option(Text flag, Text kind, Text help, int64_t& value, const std::array<std::string_view, 3>& units) {
  option(flag, kind, "", help, Take([=, &value](const std::string& word) { value = with_unit(flag, word, units); }));
}
void Command::option(Text flag, Text help, std::vector<std::string>& values) {
  option(flag, "LIST", fmt::format("{}", fmt::join(values, ",")), help,
         Take([&values](const std::string& words) { values = split(words); }));
}
void Command::option(Text flag, Text help, std::vector<int64_t>& values) {
  option(flag, "LIST", fmt::format("{}", fmt::join(values, ",")), help, Take([&values, flag](const std::string& words) {
           values.clear();
           for (const std::string& word : split(words))
             values.push_back(number<int64_t>(flag, word, "whole numbers with commas between them"));
         }));
}
void Command::option(Text flag, Text help, std::optional<int64_t>& value, std::optional<int64_t> shown) {
  option(flag, "INT", shown ? std::to_string(*shown) : "", help, into<int64_t>(value, flag, kWhole));
}
void Command::option(Text flag, Text help, std::optional<double>& value, std::optional<double> shown) {
  option(flag, "NUMBER", shown ? fmt::format("{}", *shown) : "", help, into<double>(value, flag, kNumber));
}
void Command::count(Text flag, Text help, std::optional<int64_t>& value, int64_t most) {
  option(flag, "[K]", "", help, into<int64_t>(value, flag, kWhole, 0, most));
}

int run_command_line(int argc, char** argv, const std::vector<Subcommand>& subcommands,
                     std::function<std::string()> before, std::function<void(int)> after) {
  const auto run = [&] {
    CLI::App app("tapegrad trains and runs GPT models. `tapegrad COMMAND --help` lists the flags of a command.",
                 "tapegrad");
    const auto version = [] {
      const std::string devices = Communicator::device_engine();
      return fmt::format("tapegrad {} ({}{}{}, bf16 by {})", program_version(), Communicator::engine(),
                         devices.empty() ? "" : ", ", devices, detail::runtime_of(Device::cpu()).bf16_method());
    };
    refuse_values(
        app.set_version_flag("--version", std::function<std::string()>(version), "print the version and exit"));
    set_up(app);
    app.require_subcommand(0, 1);  // one: its values may equal command names
    std::map<std::string, std::function<int()>> bodies;
    for (const Subcommand& s : subcommands) {
      CLI::App& sub = *app.add_subcommand(s.name, s.help)->allow_extras();
      Command command(sub);
      bodies[s.name] = s.declare(command);
      group_flags(sub);
      for (const auto& [example, page] : kExamples)
        if (std::string_view(example).starts_with(s.name + " "))
          sub.footer(fmt::format("\nExample: tapegrad {}\nPage: {}", example, page));
    }
    std::vector<char*> words(argv, argv + argc);
    char help[] = "--help";
    if (argc > 1 && std::string_view(argv[1]) == "help") {
      words.erase(words.begin() + 1);
      if (argc == 2 || bodies.contains(argv[2])) words.push_back(help);
    }
    if (const std::optional<int> done = parse(app, int(words.size()), words.data())) return *done;
    refuse(app.get_subcommands().empty(), "no command. `tapegrad --help` lists the commands.");
    const CLI::App& chosen = *app.get_subcommands().front();
    refuse_extras(chosen);
    return bodies.at(chosen.get_name())();
  };
  return reported("tapegrad", run, before, after);
}
int run_program(int argc, char** argv, const Subcommand& program) {
  return reported(program.name, [&] {
    CLI::App app(program.help, program.name);
    set_up(app);
    Command command(app);
    const std::function<int()> body = program.declare(command);
    const std::optional<int> done = parse(app, argc, argv);
    return done ? *done : body();
  });
}

}  // namespace tg::apps
