// Runs that begin, and that continue from a checkpoint.
#pragma once
#include <tapegrad/core/check.h>
#include <tapegrad/models/apps/run.h>

namespace tg::apps {

// Reads the files of a run; may set the vocabulary size.
using ReadData = std::function<RunData(const std::vector<std::string>& files, RunConfig&)>;
RunSetup new_run(const TrainOptions&, RunConfig, const ReadData&);
// Locks and reads the checkpoint of --resume. An Error if the other command wrote it.
RunSetup open_checkpoint(const TrainOptions&);
// Hashes the initial weights of c.init. An Error if the checkpoint names others.
void check_init(const TrainOptions&, Checkpoint& c, const Params& weights);
RunSetup resumed_run(const TrainOptions&, RunSetup opened, const ReadData&);
// Calls f(), which reads the `what`. Unless the user `named` its path, an Error adds the path's origin.
template <class F> auto explain_missing(const std::string& checkpoint, const char* what, bool named, F f) {
  try {
    return f();
  } catch (const Error& e) {
    if (named) throw;
    throw Error(e.kind(), fmt::format("{}\n{} says that the {} was there. Restore it, or pass its path with --{}.",
                                      e.what(), checkpoint, what, what));
  }
}

}  // namespace tg::apps
