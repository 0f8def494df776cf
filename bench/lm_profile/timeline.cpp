#include "lm_profile/steps.h"

#include <algorithm>

namespace tg::bench {
namespace {
constexpr int64_t kGaps = 2000, kBuckets = 600;  // gaps and buckets of a step

struct Step : Profile::Range {
  double since(int64_t time) const { return double(time - begin) / 1e9; }
};
Json ranges_of(const Profile& p, const Step& step) {
  Json found = Json::array();
  std::vector<int64_t> depths;  // all depths: parents precede children
  for (const Profile::Range& r : p.ranges) {
    depths.push_back(r.parent == Profile::kNone ? 0 : depths[r.parent] + 1);
    if (r.thread == step.thread && r.begin >= step.begin && r.end <= step.end)
      found.push_back(Json::array({r.name, depths.back(), step.since(r.begin), step.since(r.end)}));
  }
  return found;
}

std::string track_of(const Profile::Kernel& k) {
  return fmt::format("{} {} {}", k.device, k.device == Device::cpu() ? "thread" : "stream", k.track);
}
Json kernels_of(const Profile& p, const Step& step, std::vector<std::string>& tracks) {
  std::vector<const Profile::Kernel*> all;
  for (const Profile::Kernel& k : p.kernels)
    if (k.begin >= step.begin && k.begin < step.end) all.push_back(&k);
  std::ranges::stable_sort(all, {}, &Profile::Kernel::begin);
  struct Joined {
    size_t track;
    LmPart part;
    int64_t begin, end;
    size_t count;
  };
  std::vector<Joined> joined;
  std::vector<size_t> last;  // each track's index in `joined`
  for (const Profile::Kernel* k : all) {
    const std::string name = track_of(*k);
    const auto track = size_t(std::ranges::find(tracks, name) - tracks.begin());
    const LmPart part = part_of(*k);
    if (track == tracks.size()) {
      tracks.push_back(name);
      last.push_back(0);
    } else if (Joined& l = joined[last[track]]; l.part == part && (k->begin - l.end) * kGaps < step.end - step.begin) {
      l.end = std::max(l.end, k->end);
      ++l.count;
      continue;
    }
    last[track] = joined.size();
    joined.push_back({track, part, k->begin, k->end, 1});
  }
  return list_of(joined, [&](const Joined& k) {
    return Json::array({k.track, size_t(k.part), step.since(k.begin), step.since(k.end), k.count});
  });
}

Json memory_of(const Profile& p, Device device, const Step& step) {
  Json points = Json::array();
  auto next = p.memory.begin();
  int64_t live = 0, shown = -1;
  const auto most_until = [&](int64_t time) {  // the peak up to `time`, from the live bytes
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
    if (most != shown) points.push_back(Json::array({step.since(begin_of(i)), most}));
    shown = most;
  }
  return points;
}
}  // namespace

Json timeline_of(const Profile& profile, Device device) {
  const Profile p = document_ranges(profile);
  const Step step{step_range(p)};
  std::vector<std::string> tracks;
  const Json kernels = kernels_of(p, step, tracks);
  Json parts = Json::array();
  for (size_t i = 0; i < kLmParts; ++i) parts.push_back(name_of(LmPart(i)));
  return {{"seconds", step.since(step.end)},
          {"ranges", ranges_of(p, step)},
          {"parts", parts},
          {"tracks", tracks},
          {"kernels", kernels},
          {"memory", {{"device", to_string(device)}, {"points", memory_of(p, device, step)}}}};
}

}  // namespace tg::bench
