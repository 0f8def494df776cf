// `tapegrad_faults` is `tapegrad` with failing system calls that write files. TG_FAULT=<when>-<call>:<n>, or <call>:<n>
// for before, strikes the n-th (from 1) such call of the process.
//   <call>  open, write, fsync, close, rename, mkdir, or any of them
//   <when>  before, after   the process ends there, at once, as by kill -9 (status 137)
//           within          a write passes half of its bytes, then the process ends; with `write` only
//           fail            the call does nothing and fails with ENOSPC, no space left
#include <tapegrad/core/check.h>
#include <tapegrad/core/error.h>
#include <tapegrad/core/io/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "support/amx.h"

namespace {
using namespace tg;
const EmulatedAmx amx;

enum class When { never, before, within, after, fail };
struct Fault {
  When when = When::never;
  std::string call;
  uint64_t n = 0;
};
Fault parse_fault(const char* variable) {
  Fault f;
  if (!variable) return f;
  constexpr std::pair<std::string_view, When> kWhen[] = {
      {"before-", When::before}, {"within-", When::within}, {"after-", When::after}, {"fail-", When::fail}};
  constexpr std::string_view kCalls[] = {"open", "write", "fsync", "close", "rename", "mkdir", "any"};
  std::string_view text = variable;
  const auto found =
      std::find_if(std::begin(kWhen), std::end(kWhen), [&](const auto& w) { return text.starts_with(w.first); });
  f.when = found != std::end(kWhen) ? found->second : When::before;
  if (found != std::end(kWhen)) text.remove_prefix(found->first.size());
  const size_t colon = std::min(text.find(':'), text.size());
  f.call = text.substr(0, colon);
  const bool known = std::find(std::begin(kCalls), std::end(kCalls), f.call) != std::end(kCalls);
  text.remove_prefix(std::min(colon + 1, text.size()));
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), f.n);
  const bool number = error == std::errc() && end == text.data() + text.size() && f.n > 0;
  TG_CHECK(known && number && (f.when != When::within || f.call == "write"), value,
           "[faults] TG_FAULT is '{}'. It must be <open, write, fsync, close, rename, mkdir or any>:<n> with n from 1, "
           "and before-, after- or fail- in front, or within-write:<n>. Unset it, or correct it.",
           variable);
  return f;
}
When fault_at(std::string_view call) {
  static const Fault fault = parse_fault(std::getenv("TG_FAULT"));
  static std::atomic<uint64_t> count{0};
  const bool counted = fault.when != When::never && (fault.call == "any" || fault.call == call);
  return counted && ++count == fault.n ? fault.when : When::never;
}

ptrdiff_t strike(std::string_view name, size_t bytes, const detail::FileCall& call) {
  const When when = fault_at(name);
  if (when == When::never) return call(bytes);
  if (when == When::fail) return errno = ENOSPC, -1;
  if (when == When::within) call(bytes / 2);
  if (when == When::after) call(bytes);
  ::_exit(137);
}
[[maybe_unused]] const bool installed = (detail::file_call_hook = strike, true);
}  // namespace
