// The profiled step of a run as it went on in time: its ranges, its kernels by part of the model, and the memory of its
// device, thinned to what a page shows. Users: report.h, whose JSON file keeps it for report.py.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "lm_profile/steps.h"

namespace tg::bench {

struct LmTimeline {  // times are seconds since the step began
  struct Range {     // of the step's thread, under the document's names; the step itself has depth 0
    std::string_view name;
    int64_t depth;
    double begin, end;
  };
  struct Kernels {  // one after the other, of one part, with gaps of less than 1/2000 of the step
    size_t track;   // in tracks
    LmPart part;
    double begin, end;
    size_t count;
  };
  struct Memory {  // up to the next point at most so many bytes are live
    double begin;
    int64_t bytes;
  };
  double seconds = 0;  // of the step
  Device device = {};  // of the memory
  std::vector<Range> ranges = {};
  std::vector<std::string> tracks = {};  // "cpu thread 0", "cuda:0 stream 7"
  std::vector<Kernels> kernels = {};     // by begin
  std::vector<Memory> memory = {};       // at most 600
};
LmTimeline timeline_of(const Profile&, Device);  // an Error when the profile has no profiled step
// On one line: {"seconds", "ranges": [[name, depth, begin, end]], "parts": [name], "tracks": [name], "kernels":
// [[track, part, begin, end, count]], "memory": {"device", "points": [[begin, bytes]]}}.
std::string to_json(const LmTimeline&);

}  // namespace tg::bench
