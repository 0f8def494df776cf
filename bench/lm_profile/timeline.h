// The profiled step over time: ranges, kernels by model part, device memory, thinned for a page. For report.py.
#pragma once
#include "lm_profile/steps.h"

namespace tg::bench {

// Throws without a profiled step. Times are in seconds since its begin:
//   "seconds"   of the step
//   "ranges"    [[name, depth, begin, end]] of the step's thread, under the document's names; the step has depth 0
//   "parts"     [name]: all of LmPart
//   "tracks"    [name]: "cpu thread 0", "cuda:0 stream 7"
//   "kernels"   [[track, part, begin, end, count]] by begin; adjacent ones of one part with gaps below 1/2000 of the
//               step are merged
//   "memory"    {"device", "points": [[begin, bytes]]}, at most 600: the peak until the next point
Json timeline_of(const Profile&, Device);

}  // namespace tg::bench
