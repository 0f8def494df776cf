// models/train/data_parallel: the cost of messages by hand, its limits, and steps made of it.
#include <tapegrad/models/train/data_parallel.h>
#include <tapegrad/models/train/run_config.h>

#include <tapegrad/core/io/file.h>

#include "support/refusals.h"
#include "support/small_run.h"

using namespace tg;
using doctest::Approx;
namespace {

// 1 us and 1 GB/s within nodes of 4 ranks, 10 us and 0.5 GB/s between them, 2 GB/s of sums.
const Network kNet{"test", 4, 1, 1, 10, 0.5, 2};
const Machine kMachine{"test", 10, 0.1, 0.1, 0.1, 1};

DataParallelStep step_on(int64_t ranks, DataParallelOptions o = {}, const Network& n = kNet, int64_t accumulate = 0,
                         bool shard = false) {
  TrainConfig t = tiny_train();
  t.shard_optimizer = shard;
  t.accumulate = accumulate ? accumulate : ranks;
  o.ranks = ranks;
  return data_parallel_step(tiny_model(), t, kMachine, n, o);
}

}  // namespace

TEST_CASE("exchanges: a message for every other rank, within the node and between nodes, by hand") {
  CHECK(exchange_seconds(kNet, 1, 1e6) == 0);
  CHECK(exchange_seconds(kNet, 2, 1000) == Approx(1e-6 + 1e-6));
  CHECK(exchange_seconds(kNet, 4, 1000) == Approx(3 * 2e-6));
  CHECK(exchange_seconds(kNet, 8, 1000) == Approx(3 * 2e-6 + 4 * 12e-6));
  CHECK(exchange_seconds(kNet, 6, 1000) == Approx(1 * 2e-6 + 4 * 12e-6));  // two ranks on the last node
  CHECK(exchange_seconds(kNet, 8, 0) == Approx(3e-6 + 40e-6));
  double last = 0;
  for (const int64_t ranks : {1, 2, 3, 4, 8, 64, 1024}) {
    CHECK((ranks == 1 || exchange_seconds(kNet, ranks, 100) > last));
    CHECK((ranks == 1 || exchange_seconds(kNet, ranks, 101) > exchange_seconds(kNet, ranks, 100)));
    last = exchange_seconds(kNet, ranks, 100);
  }
  expect({[] { exchange_seconds(kNet, 0, 1); },
          Error::Kind::value,
          {"[data_parallel] 0 ranks. There must be from 1 to 2147483647."}});
}

TEST_CASE("sums over ranks: rounds, bytes, buffers and seconds by hand") {
  const SumCost none = sum_cost(kNet, 1, 1e9, 1e9);
  CHECK((none.seconds() == 0 && none.rounds == 0 && none.buffers == 0));
  CHECK(sum_cost(kNet, 4, 0, 0).seconds() == 0);
  // 4000 bytes of bf16 on 4 ranks: messages of 1000 bytes out, and of 2000 bytes of f32 back.
  const SumCost c = sum_cost(kNet, 4, 4000, 8000);
  CHECK(c.rounds == 1);
  CHECK(c.message == 1000);
  CHECK(c.all_to_all == Approx(3 * (1e-6 + 1e-6)));
  CHECK(c.all_gather == Approx(3 * (1e-6 + 2e-6)));
  CHECK(c.sum == Approx(2e-6));
  CHECK(c.buffers == 4 * 1000 * (1 + 1 + 2));  // packed, received, sums
  // 2.5 rounds of 4 parts of 1 MiB
  const SumCost rounds = sum_cost(kNet, 4, 10 << 20, 10 << 20);
  CHECK(rounds.rounds == 3);
  CHECK(rounds.message * 3 * 4 == Approx(10 << 20));
  CHECK(rounds.all_to_all == Approx(3 * exchange_seconds(kNet, 4, rounds.message)));
  CHECK(rounds.buffers == 4 * (3 << 20));
}

TEST_CASE("buckets: the last is never hidden, and no more is than backward lasts") {
  CHECK(exposed_seconds(0, 0, 1) == 0);
  CHECK(exposed_seconds(1, 0.5, 10) == 0.5);                // ready when backward ends
  CHECK(exposed_seconds(10, 0.1, 10) == Approx(0.1));       // all but the last fit
  CHECK(exposed_seconds(10, 2, 10) == Approx(10 * 2 - 9));  // they begin after a tenth of backward
  CHECK(exposed_seconds(10, 1, 10) == Approx(1));           // just
  // against each bucket in turn
  for (const double seconds : {0.01, 0.3, 0.9, 1.1, 5.0}) {
    double end = 0;
    for (int k = 1; k <= 7; ++k) end = std::max(end, 7.0 * k / 7) + seconds;
    CHECK(exposed_seconds(7, seconds, 7) == Approx(end - 7));
  }
}

TEST_CASE("a data parallel step: one rank sends nothing, more ranks take longer and keep less of the moments") {
  const DataParallelStep one = step_on(1);
  CHECK(one.seconds() == one.alone);
  CHECK(one.memory.peak == plan_memory(tiny_model(), tiny_train()).peak);
  CHECK(one.alone == Approx(floor_seconds(step_work(tiny_model(), tiny_train()).all(), kMachine)));
  double last = one.seconds();
  for (const int64_t ranks : {2, 4, 8, 64}) {
    CAPTURE(ranks);
    const DataParallelStep s = step_on(ranks);
    CHECK(s.micro_batches == 1);
    CHECK(s.tokens == ranks * 4 * 16);
    CHECK(s.alone == Approx(one.alone));
    CHECK(s.seconds() > last);
    CHECK(s.sums.message * double(ranks) == Approx(double(4 * s.memory.parameters)));
    CHECK(s.sums.all_to_all == exchange_seconds(kNet, ranks, s.sums.message));
    CHECK(s.scalars == 4 * exchange_seconds(kNet, ranks, 8));
    CHECK(s.seconds() == Approx(s.compute() + s.sums.seconds() + s.scalars));  // one bucket: nothing hides it
    last = s.seconds();

    const DataParallelStep sharded = step_on(ranks, {}, kNet, 0, true);
    CHECK(sharded.memory.moments < s.memory.moments);
    CHECK(sharded.update * double(ranks) == Approx(s.update));
    CHECK(sharded.parameters == s.sums.all_gather);
    CHECK(sharded.sums.seconds() == Approx(s.sums.seconds() - s.sums.all_gather));
    CHECK(sharded.seconds() == Approx(s.seconds() - s.update + sharded.update));  // as many bytes, in another order
  }
  // A fixed batch: more ranks have less to do each.
  CHECK(step_on(4, {}, kNet, 8).micro_batches == 2);
  CHECK(step_on(8, {}, kNet, 8).forward == Approx(step_on(4, {}, kNet, 8).forward / 2));
  // A measured time takes the place of the least one.
  const DataParallelStep slow = step_on(4, {.rank_seconds = 2});
  CHECK(slow.compute() == Approx(2));
  CHECK(slow.sums.seconds() == step_on(4).sums.seconds());
}

TEST_CASE("a data parallel step: a better network and more, smaller buckets") {
  Network fast = kNet;
  fast.gb_per_s_between *= 2;
  CHECK(step_on(8, {}, fast).seconds() < step_on(8).seconds());
  CHECK(step_on(4, {}, fast).seconds() == step_on(4).seconds());  // on one node
  const DataParallelStep many = step_on(4, {.bucket_bytes = 1000});
  CHECK(many.buckets == (many.memory.gradients + 999) / 1000);
  CHECK(many.bucket.seconds() * double(many.buckets) > step_on(4).sums.seconds());  // latency of each
  // Backward hides messages, and takes turns with the sums.
  const DataParallelStep slow = step_on(4, {.bucket_bytes = 1000, .rank_seconds = 100});
  CHECK(slow.exposed == Approx(slow.sums.sum + slow.bucket.all_to_all + slow.bucket.all_gather));
  CHECK(slow.seconds() == Approx(100 + slow.exposed + slow.scalars));
  // No more is exposed than there is, however short backward is.
  Network idle = kNet;
  idle.gb_per_s_sum = 1e-6;
  for (const double seconds : {1e-9, 1e-6, 1e-3}) {
    const DataParallelStep s = step_on(4, {.bucket_bytes = 1000, .rank_seconds = seconds}, idle);
    CHECK(s.exposed <= s.sums.seconds());
  }
}

TEST_CASE("bf16: gradients are sent as backward computed them, and their sums are f32") {
  TrainConfig t = tiny_train();
  t.accumulate = 2, t.dtype = DType::bf16;
  const DataParallelStep s = data_parallel_step(tiny_model(), t, kMachine, kNet, {.ranks = 2});
  t.accumulate = 1;
  CHECK(s.memory.gradients == 4 * s.memory.parameters);
  CHECK(s.sums.message == Approx(double(plan_memory(tiny_model(), t).gradients) / 2));
  CHECK(s.sums.message < double(s.memory.gradients) / 2);
}

TEST_CASE("ranks that cannot share a step are refused, and so is a bucket of less than nothing") {
  expect({[] { step_on(0, {}, kNet, 4); }, Error::Kind::value, {"[data_parallel] 0 ranks."}});
  expect({[] { step_on(-2, {}, kNet, 4); }, Error::Kind::value, {"[data_parallel] -2 ranks."}});
  expect({[] { step_on(3, {}, kNet, 4); },
          Error::Kind::value,
          {"[train] accumulate is 4, and there are 3 ranks.", "it must be a multiple of 3"}});
  expect({[] { step_on(2, {.bucket_bytes = -1}); }, Error::Kind::value, {"[data_parallel] buckets of -1 bytes."}});
}

TEST_CASE("networks: names and files, and what is wrong with a file") {
  for (const std::string_view name : network_names()) CHECK(network(std::string(name)).name == name);
  CHECK_HAS(error_of([] { network("ethernet"); }),
            "[network] there is no network 'ethernet'. Name h100, or a JSON file with what another one sustains.");
  const Folder dir;
  const std::string path = dir / "network.json";
  const auto error = [&](const std::string& text) {
    write_file_atomically(path, text);
    return error_of([&] { network(path); });
  };
  const std::string most = R"("ranks_per_node": 2, "us_in_node": 0, "gb_per_s_in_node": 3, "us_between": 4, )"
                           R"("gb_per_s_between": 5)";
  CHECK(error("{" + most + R"(, "gb_per_s_sum": 6})") == "no error");
  const Network n = network(path);
  CHECK((n.ranks_per_node == 2 && n.us_in_node == 0 && n.gb_per_s_in_node == 3 && n.us_between == 4));
  CHECK((n.gb_per_s_between == 5 && n.gb_per_s_sum == 6));
  CHECK_HAS(error("{" + most + "}"), "has no 'gb_per_s_sum'. Every field must be there: ranks_per_node, us_in_node");
  CHECK_HAS(error("{" + most + R"(, "gb_per_s_sums": 6})"), "Did you mean 'gb_per_s_sum'?");
  CHECK_HAS(error("{" + most + R"(, "gb_per_s_sum": "fast"})"), "'gb_per_s_sum' is \"fast\". It must be a number.");
  CHECK_HAS(error("{" + most + R"(, "gb_per_s_sum": 0})"), "'gb_per_s_sum' is 0 in ");
  CHECK_HAS(error(R"({"ranks_per_node": 2})"), "has no 'us_in_node'");
  CHECK_HAS(error(R"({"ranks_per_node": 0.5, "us_in_node": 0, "gb_per_s_in_node": 3, "us_between": 4,
                      "gb_per_s_between": 5, "gb_per_s_sum": 6})"),
            "'ranks_per_node' is 0.5. It must be an integer.");
  CHECK_HAS(error("[]"), "holds array. It must be an object with ranks_per_node");
}
