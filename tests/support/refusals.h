// A use, the kind of its Error and the text of its message. Included by doctest files only.
#pragma once
#include <tapegrad/ops/factories.h>

#include "support/helpers.h"

namespace tg {

using Why = Error::Kind;
inline Tensor f32_of(const Shape& s) { return random(s, 1); }
inline Tensor i64_of(const Shape& s) { return zeros(s, DType::i64); }

struct Refusal {
  std::function<void()> use;
  Error::Kind kind;
  std::vector<std::string> says;
};
// A Refusal of an expression: REFUSES(sum(x, {2}), shape, "[sum]", "(2, 3)").
#define REFUSES(use, kind, ...)                                    \
  ::tg::Refusal {                                                  \
    [&] { (void)(use); }, ::tg::Error::Kind::kind, { __VA_ARGS__ } \
  }
inline void expect(const Refusal& r) {
  INFO("expected: ", r.says[0]);
  try {
    r.use();
    FAIL_CHECK("no error");
  } catch (const Error& e) {
    INFO("got: ", std::string(e.what()));
    CHECK(e.kind() == r.kind);
    for (auto& part : r.says) CHECK(has(e.what(), part));
  }
}
// Eager and lazy: the Error may not wait until the op runs.
inline void expect_at_emit(const std::vector<Refusal>& all) {
  for (bool lazy : {false, true}) {
    Mode mode(lazy);
    for (auto& r : all) expect(r);
  }
}

}  // namespace tg
