#include "lm_profile/timeline.h"

#include <tapegrad/core/json.h>

#include <algorithm>

namespace tg::bench {
namespace {
constexpr int64_t kGaps = 2000, kBuckets = 600;  // of a step

struct Step : Profile::Range {
  double since(int64_t time) const { return double(time - begin) / 1e9; }
};
std::vector<LmTimeline::Range> ranges_of(const Profile& p, const Step& step) {
  std::vector<LmTimeline::Range> found;
  std::vector<int64_t> depths;  // of all: a parent comes before its children
  for (const Profile::Range& r : p.ranges) {
    depths.push_back(r.parent == Profile::kNone ? 0 : depths[r.parent] + 1);
    if (r.thread == step.thread && r.begin >= step.begin && r.end <= step.end)
      found.push_back({r.name, depths.back(), step.since(r.begin), step.since(r.end)});
  }
  return found;
}

std::string track_of(const Profile::Kernel& k) {
  return fmt::format("{} {} {}", k.device, k.device == Device::cpu() ? "thread" : "stream", k.track);
}
void take_kernels(const Profile& p, const Step& step, LmTimeline& t) {
  std::vector<const Profile::Kernel*> all;
  for (const Profile::Kernel& k : p.kernels)
    if (k.begin >= step.begin && k.begin < step.end) all.push_back(&k);
  std::ranges::stable_sort(all, {}, &Profile::Kernel::begin);
  struct Last {
    size_t at;  // in t.kernels
    int64_t end;
  };
  std::vector<Last> last;  // of each track
  for (const Profile::Kernel* k : all) {
    const std::string name = track_of(*k);
    const auto track = size_t(std::ranges::find(t.tracks, name) - t.tracks.begin());
    const LmPart part = part_of(*k);
    if (track == t.tracks.size()) {
      t.tracks.push_back(name);
      last.push_back({});
    } else if (Last& l = last[track];
               t.kernels[l.at].part == part && (k->begin - l.end) * kGaps < step.end - step.begin) {
      l.end = std::max(l.end, k->end);
      t.kernels[l.at].end = step.since(l.end);
      ++t.kernels[l.at].count;
      continue;
    }
    last[track] = {t.kernels.size(), k->end};
    t.kernels.push_back({track, part, step.since(k->begin), step.since(k->end), 1});
  }
}

std::vector<LmTimeline::Memory> memory_of(const Profile& p, Device device, const Step& step) {
  std::vector<LmTimeline::Memory> points;
  auto next = p.memory.begin();
  int64_t live = 0;
  const auto most_until = [&](int64_t time) {  // from what is live on
    int64_t most = live;
    for (; next != p.memory.end() && next->time < time; ++next) {
      if (next->device != device) continue;
      live = next->live;
      most = std::max(most, live);
    }
    return most;
  };
  most_until(step.begin);
  const auto begin_of = [&](int64_t bucket) { return step.begin + (step.end - step.begin) * bucket / kBuckets; };
  for (int64_t i = 0; i < kBuckets; ++i) {
    const int64_t most = most_until(begin_of(i + 1));
    if (points.empty() || points.back().bytes != most) points.push_back({step.since(begin_of(i)), most});
  }
  return points;
}
}  // namespace

LmTimeline timeline_of(const Profile& profile, Device device) {
  const Profile p = document_ranges(profile);
  const Step step{step_range(p)};
  LmTimeline t{.seconds = step.since(step.end), .device = device};
  t.ranges = ranges_of(p, step);
  take_kernels(p, step, t);
  t.memory = memory_of(p, device, step);
  return t;
}

std::string to_json(const LmTimeline& t) {
  Json ranges = Json::array(), parts = Json::array(), kernels = Json::array(), points = Json::array();
  for (const LmTimeline::Range& r : t.ranges) ranges.push_back(Json::array({r.name, r.depth, r.begin, r.end}));
  for (size_t i = 0; i < kLmParts; ++i) parts.push_back(name_of(LmPart(i)));
  for (const LmTimeline::Kernels& k : t.kernels)
    kernels.push_back(Json::array({k.track, size_t(k.part), k.begin, k.end, k.count}));
  for (const LmTimeline::Memory& m : t.memory) points.push_back(Json::array({m.begin, m.bytes}));
  return text_of({{"seconds", t.seconds},
                  {"ranges", ranges},
                  {"parts", parts},
                  {"tracks", t.tracks},
                  {"kernels", kernels},
                  {"memory", {{"device", to_string(t.device)}, {"points", points}}}});
}

}  // namespace tg::bench
