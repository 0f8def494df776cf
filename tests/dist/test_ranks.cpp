// Training on several ranks: the bits of one process, also with dropout, clipping, bf16 and compiled steps.
#include <tapegrad/core/backend.h>
#include <tapegrad/core/comm.h>
#include <tapegrad/models/train/memory_plan.h>
#include <tapegrad/models/train/trainer.h>

#include "support/helpers.h"
#include "support/small_run.h"

using namespace tg;

namespace {
const std::shared_ptr<Communicator>& world() { return Communicator::world(); }
struct Trained {
  std::vector<double> numbers;
  std::vector<std::vector<std::byte>> parameters;
  bool operator==(const Trained&) const = default;
};
Trained trained(const TrainConfig& c, const std::shared_ptr<Communicator>& comm, Device device = {}) {
  const Params params(device, c.seed);
  const Gpt model(params, tiny_model());
  Trainer trainer(model, params, bytes_of(rhyme()), c, comm);
  Trained t;
  t.numbers = numbers_of(rest_of(trainer));
  for (const Parameter& p : params.all()) t.parameters.push_back(bits_of(p.tensor));
  const TrainerState s = trainer.state();
  t.numbers.push_back(double(s.dropout.offset)), t.numbers.push_back(double(s.data.offset));
  for (const auto& [name, tensor] : s.tensors) t.parameters.push_back(bits_of(tensor));
  return t;
}
TrainConfig config(int64_t accumulate) {
  TrainConfig c = tiny_train();
  c.max_steps = 6, c.eval_every = 3, c.accumulate = accumulate;
  return c;
}
}  // namespace

TEST_CASE("a micro-batch for each rank: parameters, moments, losses and norms of one process, bit for bit") {
  const int ranks = world()->size();
  for (const bool bf16 : {false, true})
    for (const bool compiled : {false, true})
      for (const Recompute recompute : {Recompute::none, Recompute::block}) {
        CAPTURE(bf16);
        CAPTURE(compiled);
        TrainConfig c = config(ranks);
        c.compile = compiled, c.recompute = recompute;
        if (bf16) c.dtype = DType::bf16;
        const Trained one = trained(c, Communicator::self());
        CHECK(trained(c, world()) == one);
        c.seed = 2;
        CHECK(!(trained(c, world()) == one));
      }
}

TEST_CASE("several micro-batches for each rank: compiled as eager, and one process up to the order of sums") {
  TrainConfig c = config(2 * world()->size());
  const Trained eager = trained(c, world()), one = trained(c, Communicator::self());
  c.compile = true;
  CHECK(trained(c, world()) == eager);
  for (size_t i = 0; i < one.numbers.size(); ++i)
    CHECK(eager.numbers[i] == doctest::Approx(one.numbers[i]).epsilon(1e-3));
}

TEST_CASE("ranks on a GPU each, or on its emulator: the bits of one process") {
  Device device = Device::cpu();
  device.backend = Backend::cuda;
  if (!has_device(device)) {
    MESSAGE("skipped: this machine or build has no " << name_of(device.backend));
    return;
  }
  device.index = world()->local_rank() % runtime_of(device).device_count();
  for (const bool compiled : {false, true}) {
    TrainConfig c = config(world()->size());
    c.max_steps = 4, c.eval_every = 2, c.compile = compiled;
    CHECK(trained(c, world(), device) == trained(c, Communicator::self(), device));
  }
}

TEST_CASE("a plan of memory for ranks: what each then takes, to the byte") {
  for (const int64_t each : {1, 3})
    for (const bool bf16 : {false, true}) {
      CAPTURE(each);
      CAPTURE(bf16);
      TrainConfig c = config(each * world()->size());
      c.max_steps = 2, c.eval_every = 0;
      if (bf16) c.dtype = DType::bf16;
      const MemoryPlan plan = plan_memory(tiny_model(), c, {}, nullptr, DType::f32, world());
      CHECK(plan.peak ==
            plan_memory(tiny_model(), c, {}, nullptr, DType::f32, Communicator::hollow(world()->size())).peak);
      reset_peak();
      const int64_t before = memory_stats().live;
      (void)trained(c, world());
      CHECK(plan.peak == memory_stats().peak - before);
    }
}

TEST_CASE("a number of micro-batches that the ranks cannot share is refused") {
  const int ranks = world()->size();
  if (ranks == 1) return;  // they share any
  CHECK(has(error_of([&] { trained(config(ranks + 1), world()); }),
            fmt::format("[train] accumulate is {}, and there are {} ranks. They share the micro-batches of a step "
                        "equally: it must be a multiple of {}.",
                        ranks + 1, ranks, ranks)));
}
