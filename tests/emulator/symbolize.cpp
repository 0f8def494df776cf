#include <tapegrad/emulator/symbolize.h>

#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>

namespace simt::engine {
namespace {

std::string addr2line(const void* address, std::size_t back, int want_line) {
  Dl_info info{};
  char fallback[32];
  std::snprintf(fallback, sizeof fallback, "%p", address);
  if (!dladdr(address, &info)) return fallback;
  const auto offset =
      reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(info.dli_fbase) - back;
  char command[4200];
  char exe[4096] = {};
  if (!std::strchr(info.dli_fname, '/') || info.dli_fname[0] == '.')
    if (readlink("/proc/self/exe", exe, sizeof exe - 1) > 0) info.dli_fname = exe;
  std::snprintf(command, sizeof command, "addr2line -sfCe '%s' 0x%zx 2>/dev/null", info.dli_fname, offset);
  FILE* pipe = popen(command, "r");
  if (!pipe) return fallback;
  char text[2][1024] = {};
  for (auto& line : text)
    if (!std::fgets(line, sizeof line, pipe)) break;
  pclose(pipe);
  std::string s = text[want_line];
  while (!s.empty() && s.back() == '\n') s.pop_back();
  if (const auto at = s.find(" (disc"); at != std::string::npos) s.resize(at);
  return s.empty() || s[0] == '?' ? fallback : s;
}

// Cached: each answer takes a process.
const std::string& answer(const void* address, std::size_t back, int want_line) {
  static auto& known = *new std::map<std::pair<const void*, int>, std::string>;
  const auto [at, is_new] = known.try_emplace({address, want_line});
  if (is_new) at->second = addr2line(address, back, want_line);
  return at->second;
}

}  // namespace

std::string source_line(const void* pc) { return answer(pc, 1, 1); }

std::string function_name(const void* function) {
  std::string s = answer(function, 0, 0);
  const std::string anonymous = "(anonymous namespace)::";
  for (std::size_t at; (at = s.find(anonymous)) != std::string::npos;) s.erase(at, anonymous.size());
  return s;
}

}  // namespace simt::engine
