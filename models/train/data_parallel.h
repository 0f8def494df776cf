/// @file
/// The time and the memory of a data parallel step on any number of ranks, before anything is computed. Computing takes
/// the least time of its ops on a machine (roofline.h). A message of m bytes takes alpha + m beta (Hockney, The
/// communication challenge for MPP, 1994), and a collective the sum of a rank's messages and of what it computes
/// (Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005). `tapegrad
/// inspect --plan --ranks` prints it.
#pragma once
#include <tapegrad/models/train/memory_plan.h>
#include <tapegrad/models/train/roofline.h>

#include <string>
#include <string_view>
#include <vector>

namespace tg {

/// What the messages of a rank take, within a node and between nodes, and what a rank adds up.
struct Network {
  std::string name;
  int64_t ranks_per_node = 1;
  double us_in_node = 0;        ///< alpha, microseconds of each message
  double gb_per_s_in_node = 0;  ///< 1 / beta, of a rank in one direction; 10^9 bytes
  double us_between = 0;
  double gb_per_s_between = 0;
  double gb_per_s_sum = 0;  ///< bytes of gradients that all_reduce() adds up, short ones packed and unpacked
};
/// Calls f(name, field) for each number, in order.
template <class N, class F> void visit_network_fields(N& n, F&& f) {
  f("ranks_per_node", n.ranks_per_node);
  f("us_in_node", n.us_in_node), f("gb_per_s_in_node", n.gb_per_s_in_node);
  f("us_between", n.us_between), f("gb_per_s_between", n.gb_per_s_between);
  f("gb_per_s_sum", n.gb_per_s_sum);
}
/// Of the rates in data sheets, what the named networks reach. Their microseconds are assumed.
constexpr double kShareOfDataSheet = 0.8;
/// "h100", or the path of a JSON file with the fields of Network, as `bench_comm --network` writes it. An Error lists
/// the names, or names the field that is missing, unknown, not a number or not above 0.
Network network(const std::string& name_or_path);
/// The names that network() knows.
std::vector<std::string_view> network_names();

/// Seconds in which each of so many ranks sends every other one a message of so many bytes, one after the other: with R
/// ranks on the smallest node, (R - 1) (alpha + bytes beta) within it and N - R times the same between nodes. It is
/// both Communicator::all_to_all and all_gather. 0 for one rank. An Error for less than one.
double exchange_seconds(const Network&, int64_t ranks, double bytes);

/// The sum of all gradients over the ranks as all_reduce() makes it: in rounds, each an all_to_all of the elements,
/// a sum of the parts, and an all_gather of the sums. Nothing for one rank.
struct SumCost {
  int64_t rounds = 0;
  double message = 0;                              ///< bytes of a message of all_to_all
  double all_to_all = 0, all_gather = 0, sum = 0;  ///< seconds of all rounds; sum: adding up, and copies
  double buffers = 0;  ///< bytes that a rank keeps meanwhile on a GPU, packed, received and summed; on a CPU no more
  double seconds() const { return all_to_all + all_gather + sum; }
};
/// Of `sent` bytes of elements, whose sums have `received` bytes.
SumCost sum_cost(const Network&, int64_t ranks, double sent, double received);

/// What of `buckets` equal sums of so many seconds each is left when backward ends, in which they become ready at equal
/// distances: max(s, n s - (n - 1) / n backward). The last is ready at its end, and one runs at a time.
double exposed_seconds(int64_t buckets, double seconds, double backward);

/// How to run it.
struct DataParallelOptions {
  int64_t ranks = 1;
  double bucket_bytes = 0;  ///< of gradients that are added up at once; 0: those of gradient_buckets()
  /// Seconds that a rank takes for its part of a step by itself, if it was measured; 0: the least time on the machine.
  double rank_seconds = 0;
};
/// What a step takes. Times are seconds of a rank, bytes are those of a rank.
struct DataParallelStep {
  int64_t ranks = 1, micro_batches = 1;  ///< micro-batches of a rank
  int64_t tokens = 0;                    ///< of all ranks
  double forward = 0, backward = 0;      ///< of all micro-batches of the rank
  double update = 0;
  double alone = 0;  ///< seconds of the rank's part without the others: forward, backward and an unsharded update
  int64_t buckets = 0;
  SumCost bucket;         ///< of the gradients of one bucket
  SumCost sums;           ///< of all of them
  double scalars = 0;     ///< seconds of the loss and of two numbers that ranks agree on: four exchanges
  double parameters = 0;  ///< seconds in which ranks of a sharded optimiser gather what each has updated
  double exposed = 0;     ///< seconds of the buckets that backward of the last micro-batch does not hide: all sums
                          ///< are exposed, as they take the processor from it, and messages may be hidden
  MemoryPlan memory;

  double compute() const { return forward + backward + update; }
  /// Seconds of a step.
  double seconds() const { return compute() + exposed + parameters + scalars; }
};
/// A step of a Gpt as Trainer runs it on so many ranks, each with its part of config.accumulate micro-batches. Every
/// rank has the machine for itself. With config.shard_optimizer sums end with the all_to_all and the adding up, and an
/// all_gather of parameters follows the update: nothing hides it. An Error for less than one rank, and if the ranks
/// cannot share the micro-batches.
DataParallelStep data_parallel_step(const GptConfig&, const TrainConfig&, const Machine&, const Network&,
                                    const DataParallelOptions&, Device = {});

}  // namespace tg
