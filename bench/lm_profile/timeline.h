// The profiled step of a run as it went on in time: its ranges, its kernels by part of the model, and the memory of its
// device, thinned to what a page shows. Users: report.h, whose JSON file keeps it for report.py.
#pragma once
#include "lm_profile/steps.h"

namespace tg::bench {

// An Error when the profile has no profiled step. Else, in seconds since that began:
//   "seconds"   of the step
//   "ranges"    [[name, depth, begin, end]] of the step's thread, under the document's names; the step has depth 0
//   "parts"     [name]: all of LmPart
//   "tracks"    [name]: "cpu thread 0", "cuda:0 stream 7"
//   "kernels"   [[track, part, begin, end, count]] by begin; those of one part, one after the other with gaps of less
//               than 1/2000 of the step, are one
//   "memory"    {"device", "points": [[begin, bytes]]}, at most 600: up to the next one at most so many bytes are live
Json timeline_of(const Profile&, Device);

}  // namespace tg::bench
