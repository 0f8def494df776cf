// What the programs of this folder share besides measuring: flags, what a result file says of its origin, and refusals
// of runs that cannot be.
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
void declare_results(Command&, SharedFlags&);  // --device, --json, --commit
void declare_filter(Command&, SharedFlags&, const std::string& help);
void declare_cpu_time(Command&, SharedFlags&);
void declare_document(Command&, SharedFlags&);  // --against-document
// Wrong usage as the library says it: an Error that begins with "[program] --flag".
void check_within(std::string_view program, std::string_view flag, int64_t x, int64_t least, int64_t most);

struct Origin {  // of figures
  Machine machine;
  std::string clock, commit, command;  // clock: wall or processor
};
// Sets the clock and the number of threads, 0: all; prints the machine and `how` it measures. An Error when --json
// cannot be written.
Origin begin(const SharedFlags&, int argc, char** argv, std::string_view how = "", int64_t threads = 0);
Json json_of(const Origin&);  // with the date: what all result files begin with
// A line for each key and for each object of a list. Atomically; an Error when the file cannot be written.
void write_json(const std::string& path, const Json&);

// An Error of kind memory when a run takes more than the device has in all: bytes(batch), by a dry_run()
// (core/backend/dry_run.h) of the run itself. It names what would fit: the first of the batches halved again and again,
// and each of the others.
void check_fits(const std::string& run, int64_t batch, const std::function<int64_t(int64_t batch)>& bytes,
                const std::vector<Variant>& others, Device);

}  // namespace tg::bench
