#include <tapegrad/core/check.h>
#include <tapegrad/core/comm/collectives.h>
#include <tapegrad/models/config/fields.h>
#include <tapegrad/models/optim/partition.h>
#include <tapegrad/models/train/data_parallel.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace tg {
namespace {

// Nodes of 8 H100 SXM5: NVLink 4 has 450 GB/s in each direction, and the 400 Gb/s InfiniBand of a GPU 50 GB/s. Sums
// pass the memory of the GPU five times (it moves 2900 GB/s): packed, added up, unpacked.
const std::array kNetworks{Network{"h100", 8, 2, kShareOfDataSheet * 450, 5, kShareOfDataSheet * 50, 2900. / 5}};

void check_ranks(int64_t ranks) {
  TG_CHECK(ranks >= 1 && ranks <= INT32_MAX, value, "[data_parallel] {} ranks. There must be from 1 to {}.", ranks,
           INT32_MAX);
}

}  // namespace

std::vector<std::string_view> network_names() {
  std::vector<std::string_view> names;
  for (const Network& n : kNetworks) names.push_back(n.name);
  return names;
}
Network network(const std::string& name) {
  return figures<Network>("network", "network", name, kNetworks,
                          [](Network& n, auto&& f) { visit_network_fields(n, f); });
}

double exchange_seconds(const Network& n, int64_t ranks, double bytes) {
  check_ranks(ranks);
  const int64_t last = ranks % n.ranks_per_node, here = std::min(ranks, last ? last : n.ranks_per_node);
  const auto messages = [&](int64_t count, double us, double gb_per_s) {
    return double(count) * (1e-6 * us + bytes / (1e9 * gb_per_s));
  };
  return messages(here - 1, n.us_in_node, n.gb_per_s_in_node) +
         messages(ranks - here, n.us_between, n.gb_per_s_between);
}

SumCost sum_cost(const Network& n, int64_t ranks, double sent, double received) {
  check_ranks(ranks);
  SumCost c;
  if (ranks == 1 || sent == 0) return c;
  const double of_rank = sent / double(ranks);
  const auto most = double(bytes_of_round(ranks));
  c.rounds = int64_t(std::ceil(of_rank / most));
  c.message = of_rank / double(c.rounds);
  const double gathered = c.message * received / sent;
  c.all_to_all = double(c.rounds) * exchange_seconds(n, ranks, c.message);
  c.all_gather = double(c.rounds) * exchange_seconds(n, ranks, gathered);
  c.sum = sent / (1e9 * n.gb_per_s_sum);
  const double largest = std::min(of_rank, most);  // the first rounds are full
  c.buffers = double(ranks) * largest * (2 + received / sent);
  return c;
}

double exposed_seconds(int64_t buckets, double seconds, double backward) {
  const double n = double(buckets);
  return buckets == 0 ? 0 : std::max(seconds, n * seconds - (n - 1) / n * backward);
}

DataParallelStep data_parallel_step(const GptConfig& model, const TrainConfig& config, const Machine& machine,
                                    const Network& network, const DataParallelOptions& o, Device device) {
  check_ranks(o.ranks);
  TG_CHECK(o.bucket_bytes >= 0, value,
           "[data_parallel] buckets of {} bytes. They must have more than 0, or 0: as train.", o.bucket_bytes);
  DataParallelStep s;
  s.ranks = o.ranks, s.micro_batches = config.micro_batches_of_rank(o.ranks);
  s.tokens = config.accumulate * config.batch * config.window_in(model.context);
  TrainConfig part = config;
  part.accumulate = s.micro_batches;

  const StepWork work = step_work(model, part, device);
  s.forward = floor_seconds(work.forward, machine), s.backward = floor_seconds(work.backward, machine);
  s.update = floor_seconds(work.update, machine);
  if (o.rank_seconds > 0) {
    const double scale = o.rank_seconds / s.compute();
    s.forward *= scale, s.backward *= scale, s.update *= scale;
  }
  s.alone = s.compute();
  const auto ranks = Communicator::hollow(int(o.ranks));
  s.memory = plan_memory(model, config, device, nullptr, DType::f32, ranks);
  if (o.ranks == 1) return s;
  if (config.shard_optimizer) s.update /= double(o.ranks);

  // One rank keeps gradients as backward computed them: what ranks send.
  TrainConfig whole = config;
  whole.shard_optimizer = false;
  const auto sent = double(plan_memory(model, part, device).gradients),
             received = double(plan_memory(model, whole, device, nullptr, DType::f32, ranks).gradients);
  const double bucket = o.bucket_bytes > 0 ? o.bucket_bytes : 4 * double(bucket_elements(o.ranks));
  s.buckets = int64_t(std::ceil(received / bucket));
  const auto n = double(s.buckets);
  s.bucket = sum_cost(network, o.ranks, sent / n, received / n);
  if (config.shard_optimizer) {
    s.bucket.all_gather = 0;
    s.parameters = n * sum_cost(network, o.ranks, received / n, received / n).all_gather;
  }
  s.sums = s.bucket;
  s.sums.rounds *= s.buckets;
  s.sums.all_to_all *= n, s.sums.all_gather *= n, s.sums.sum *= n;
  // The loss in its own round, the offset of the generator, and whether a signal came.
  s.scalars = 4 * exchange_seconds(network, o.ranks, 8);
  const double beside = s.sums.sum - s.bucket.sum;  // sums that take turns with backward: all but the last
  const double backward = s.backward / double(s.micro_batches) + beside;
  s.exposed = std::min(s.sums.seconds(), beside + exposed_seconds(s.buckets, s.bucket.seconds(), backward));
  return s;
}

}  // namespace tg
