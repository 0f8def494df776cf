// Shared by the benchmark programs: flags, the origin in result files, refusal of impossible runs.
#pragma once
#include "common/harness.h"

#include <tapegrad/core/io/json.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/train/memory_plan.h>

namespace tg::bench {

using apps::Command;

struct SharedFlags {
  std::string json, commit, device = "cpu", filter;
  bool cpu_time = false, against_document = false;
};
void declare_results(Command&, SharedFlags&);
void declare_filter(Command&, SharedFlags&, const std::string& help);
void declare_cpu_time(Command&, SharedFlags&);
void declare_document(Command&, SharedFlags&);  // --against-document
// An Error "[program] --flag ..." unless least <= x <= most.
void check_within(std::string_view program, std::string_view flag, int64_t x, int64_t least, int64_t most);

struct Origin {  // of results
  Machine machine;
  std::string clock, commit, command;  // clock: "wall" or "processor"
};
// Sets clock and threads (0: all), prints the machine and `how`. Throws if --json is not writable.
Origin begin(const SharedFlags&, int argc, char** argv, std::string_view how = "", int64_t threads = 0);
Json json_of(const Origin&);  // with the date; the head of all result files
// One line per key and per object of a list. Atomic; throws on failure.
void write_json(const std::string& path, const Json&);

// Throws an Error of kind memory if bytes(batch), from a dry_run() (core/backend/dry_run.h), exceeds the device's
// memory. It suggests the first halved batch and the variants of `others` that fit.
void check_fits(const std::string& run, int64_t batch, const std::function<int64_t(int64_t batch)>& bytes,
                const std::vector<Variant>& others, Device);

}  // namespace tg::bench
