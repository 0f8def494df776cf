// Runs a test case in a separate process, because it may end a device or the process: ALONE_CASE(name) is skipped, and
// another test case calls run_alone(ALONE name).
#pragma once
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>

namespace tg {

#define ALONE "alone (skipped: another case starts it in a process of its own): "
#define ALONE_CASE(name) TEST_CASE(ALONE name* doctest::skip())

struct Alone {
  int status;  // exit status; minus the signal that ended it
  std::string output;
};
// `environment`: "A=1 B=2".
inline Alone run_alone(const std::string& test_case, const std::string& environment = "") {
  std::array<char, 4096> path{};
  REQUIRE(readlink("/proc/self/exe", path.data(), path.size() - 1) > 0);
  const std::string command =
      environment + " exec '" + path.data() + "' --no-skip --no-colors '-tc=" + test_case + "' 2>&1";
  FILE* out = popen(command.c_str(), "r");
  REQUIRE(out);
  Alone r;
  for (size_t n; (n = fread(path.data(), 1, path.size(), out)) > 0;) r.output.append(path.data(), n);
  const int s = pclose(out);
  r.status = WIFEXITED(s) ? WEXITSTATUS(s) : -WTERMSIG(s);
  return r;
}

}  // namespace tg
