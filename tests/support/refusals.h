// For tests of what ops refuse: a use, the kind of its Error and what the message says (the op, what it got, the rule).
// Included by doctest files only.
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
// Checks of shapes and dtypes do not wait for the op to run.
inline void expect_at_emit(const std::vector<Refusal>& all) {
  for (bool lazy : {false, true}) {
    Mode mode(lazy);
    for (auto& r : all) expect(r);
  }
}

}  // namespace tg
