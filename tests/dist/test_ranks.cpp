// Training on several ranks: the bits of one process, also with dropout, clipping, bf16 and compiled steps.
#include <tapegrad/core/backend.h>
#include <tapegrad/core/comm.h>
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
template <class T> void share(std::vector<T>& v) {
  auto n = int64_t(v.size());
  world()->broadcast(&n, sizeof n, 0);
  v.resize(size_t(n));
  world()->broadcast(v.data(), v.size() * sizeof(T), 0);
}
// By one process: rank 0, while the others wait, who share its processors.
Trained trained_alone(const TrainConfig& c, Device device = {}) {
  Trained t;
  if (world()->rank() == 0) t = trained(c, Communicator::self(), device);
  share(t.numbers);
  t.parameters.resize(size_t(world()->max(int64_t(t.parameters.size()))));
  for (std::vector<std::byte>& p : t.parameters) share(p);
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
        const Trained one = trained_alone(c);
        CHECK(trained(c, world()) == one);
        c.seed = 2;
        CHECK(!(trained(c, world()) == one));
      }
}

TEST_CASE("several micro-batches for each rank: compiled as eager, and one process up to the order of sums") {
  TrainConfig c = config(2 * world()->size());
  const Trained eager = trained(c, world()), one = trained_alone(c);
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
  if (world()->local_size() > runtime_of(device).device_count()) {
    MESSAGE("skipped: there are fewer devices than ranks");
    return;
  }
  device.index = world()->local_rank();
  for (const bool compiled : {false, true}) {
    TrainConfig c = config(world()->size());
    c.max_steps = compiled ? 4 : 2, c.eval_every = 2, c.compile = compiled;  // from the third on as one, if it can
    CHECK(trained(c, world(), device) == trained_alone(c, device));
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
