#pragma once
#include <doctest/doctest.h>
#include <tapegrad/cpu/runtime/product_path.h>

#include <string>

#include "support/with_env.h"

namespace tg {

// f(path) under TG_BF16 for each of `paths` that this machine has; reports the others.
template <class Paths, class F> void for_each_path(const Paths& paths, F&& f) {
  for (const cpu::Bf16Path path : paths) {
    const std::string name(name_of(path));
    if (!has(path)) {
      MESSAGE("skipped: this machine or build has no " << name);
      continue;
    }
    const WithEnv env("TG_BF16", name);
    CAPTURE(name);
    f(path);
  }
}

}  // namespace tg
