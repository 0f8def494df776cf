#pragma once
#include <doctest/doctest.h>
#include <tapegrad/cpu/runtime/product_path.h>

#include <optional>
#include <string>

#include "support/amx.h"
#include "support/with_env.h"

namespace tg {

// f(path) under TG_BF16 or TG_INT8 for each of `paths` that this machine has or emulates; reports the others.
template <class Paths, class F> void for_each_path(const Paths& paths, F&& f) {
  for (const auto path : paths) {
    const std::string name(name_of(path));
    if (!has(path)) {
      MESSAGE("skipped: this machine or build has no " << name);
      continue;
    }
    const WithEnv env(std::is_same_v<decltype(path), const cpu::Bf16Path> ? "TG_BF16" : "TG_INT8", name);
    std::optional<EmulatedAmx> amx;
    if (name == "amx") amx.emplace();
    CAPTURE(name);
    f(path);
  }
}

}  // namespace tg
