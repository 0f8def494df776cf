// Runs that begin, and that continue from a checkpoint.
#pragma once
#include <tapegrad/core/check.h>
#include <tapegrad/models/apps/run.h>

namespace tg::apps {

// Reads the files of a run. May set its vocabulary.
using ReadData = std::function<RunData(const std::vector<std::string>& files, RunConfig&)>;
RunSetup new_run(const TrainOptions&, RunConfig, const ReadData&);
// Locks and reads the checkpoint of --resume. An Error if the other command wrote it.
RunSetup open_checkpoint(const TrainOptions&);
RunSetup resumed_run(const TrainOptions&, RunSetup opened, const ReadData&);
// f() reads the `what`. Unless its path was `named`, an Error says its origin.
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
