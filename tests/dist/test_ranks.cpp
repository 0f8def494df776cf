// Training on several ranks has the bits of one process.
#include <tapegrad/tools.h>

#include "dist/rank_values.h"
#include "support/effort.h"
#include "support/small_run.h"

using namespace tg;

namespace {
struct Trained {
  std::vector<double> numbers;
  std::vector<std::vector<std::byte>> parameters;
  bool operator==(const Trained&) const = default;
};
Trained trained(const TrainConfig& c, const std::shared_ptr<Communicator>& comm, Device device = {},
                const GptConfig& g = tiny_model()) {
  const auto [params, model] = new_gpt(g, Params(device, c.seed));
  Trainer trainer(model, params, bytes_of(rhyme()), c, comm);
  Trained t;
  t.numbers = numbers_of(rest_of(trainer));
  for (const auto& [name, tensor] : params.state()) t.parameters.push_back(bits_of(tensor));
  const TrainerState s = trainer.state();
  if (comm->rank() > 0 && c.shard_optimizer) return t;  // rank 0 has the moments
  t.numbers.push_back(double(s.dropout.offset)), t.numbers.push_back(double(s.data.offset));
  for (const auto& [name, tensor] : s.tensors) t.parameters.push_back(bits_of(tensor));
  return t;
}
// Its matrices are large enough for a sharded optimiser to split.
GptConfig wide_model() {
  GptConfig g = tiny_model();
  g.width = 96;
  return g;
}
template <class T> void share(std::vector<T>& v) {
  auto n = int64_t(v.size());
  world()->broadcast(&n, sizeof n, 0);
  v.resize(size_t(n));
  world()->broadcast(v.data(), v.size() * sizeof(T), 0);
}
// Rank 0 computes while the others wait: they share its processors.
Trained trained_alone(const TrainConfig& c, Device device = {}, const GptConfig& g = tiny_model()) {
  Trained t;
  if (world()->rank() == 0) t = trained(c, Communicator::self(), device, g);
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
        CAPTURE_ALL(bf16, compiled);
        TrainConfig c = config(ranks);
        c.compile = compiled, c.recompute = recompute;
        if (bf16) c.dtype = DType::bf16;
        const Trained one = trained_alone(c);
        CHECK(trained(c, world()) == one);
        c.seed = 2;
        CHECK(!(trained(c, world()) == one));
      }
}

TEST_CASE("drawn models, a micro-batch for each rank: the bits of one process") {
  for (int64_t i = 0; i < 10 * test_effort(); ++i) {
    Draw draw{Rng{uint64_t(i)}};
    GptConfig g = some_gpt(draw);
    g.vocab_size = 256, g.context = draw(2, 150), g.dropout = draw.chance(2) ? 0.1 : 0;
    TrainConfig c = config(world()->size());
    c.max_steps = 3, c.batch = draw(1, 4), c.compile = draw.chance(2), c.val_fraction = 0, c.eval_every = 0;
    if (draw.chance(2)) c.dtype = DType::bf16;
    CAPTURE_ALL(i, c.compile, g.dropout);
    CHECK(trained(c, world(), {}, g) == trained_alone(c, {}, g));
  }
}

TEST_CASE("examples, and pairs of preferences: the bits of one process") {
  const auto run = [](bool pairs, const std::shared_ptr<Communicator>& comm) {
    Examples all;
    all.context = 12, all.pairs = pairs;
    Rng rng{7};
    for (int i = 0; i < 30; ++i) {
      Examples::Row& row = all.rows.emplace_back();
      while (row.size() < (pairs ? 2 : 1)) {
        TokenExample e;
        for (uint64_t n = 2 + rng.below(11); n > 0; --n) e.tokens.push_back(int32_t(rng.below(256)));
        e.targets = e.tokens;
        row.push_back(std::make_shared<const TokenExample>(e));
      }
    }
    TrainConfig c = config(world()->size());
    auto [base, model] = new_gpt(tiny_model(), Params(Device(), 1));
    const Lora lora = apply_lora(model, base, {.dropout = 0.1});
    const ExampleBatches batches(all, {.batch = 2, .accumulate = c.accumulate});
    Trainer t(pairs ? Model(DpoModel(model)) : Model(model), lora.params(), example_batches(batches, all), c, comm);
    Trained r{numbers_of(rest_of(t)), {}};
    for (const Parameter& p : lora.params().all()) r.parameters.push_back(bits_of(p.tensor));
    return r;
  };
  for (const bool pairs : {false, true}) CHECK(run(pairs, world()) == run(pairs, Communicator::self()));
}

TEST_CASE("a sharded optimiser: the bits of one process, for each optimiser, clipped or not, compiled or not") {
  const int ranks = world()->size();
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd, OptimizerKind::muon})
    for (const bool bf16 : {false, true})
      for (const bool compiled : {false, true})
        for (const double clip : {0.0, 0.5}) {
          CAPTURE_ALL(int(kind), bf16, compiled, clip);
          TrainConfig c = config(ranks);
          c.optimizer = kind, c.compile = compiled, c.clip_norm = clip;
          if (bf16) c.dtype = DType::bf16;
          if (bf16 == compiled && kind != OptimizerKind::sgd) c.moments = DType::bf16;
          c.split_weights = bf16 && kind == OptimizerKind::adamw && clip > 0, c.max_steps = 3;
          Trained one = trained(c, Communicator::self(), {}, wide_model());
          c.shard_optimizer = true;
          const Trained sharded = trained(c, world(), {}, wide_model());
          CHECK(trained(c, Communicator::self(), {}, wide_model()) == one);
          one.numbers.resize(sharded.numbers.size()), one.parameters.resize(sharded.parameters.size());
          CHECK(sharded == one);
        }
}

TEST_CASE("a sharded optimiser: less memory, and states that any number of ranks can take up") {
  const auto [params, model] = new_gpt(wide_model(), Params({}, 1));
  TrainConfig c = config(world()->size());
  const auto with = [&](const std::shared_ptr<Communicator>& comm, bool shard) {
    c.shard_optimizer = shard;
    return detail::make_optimizer(c, params.trainable(), comm);
  };
  int64_t before = memory_stats(Device::cpu()).live;
  const auto whole = with(world(), false);
  const int64_t all = memory_stats(Device::cpu()).live - before;
  before = memory_stats(Device::cpu()).live;
  const auto sharded = with(world(), true);
  const int64_t part = memory_stats(Device::cpu()).live - before;
  CHECK(world()->size() * part <= all + world()->size() * 4 * op::SquareSums::kSegment * int64_t(sizeof(float)));
  StateDict state;
  for (const auto& [name, layout] : whole->state_layouts()) state[name] = random(layout.shape, uint64_t(state.size()));
  for (const auto& o : {sharded.get(), whole.get()}) {
    o->load_state(state, 3);
    CHECK(o->steps() == 3);
    const StateDict got = o->state();
    if (o == sharded.get() && world()->rank() > 0) {
      CHECK(got.empty());
      continue;
    }
    REQUIRE(got.size() == state.size());
    for (const auto& [name, t] : state) CHECK(bits_of(got.at(name)) == bits_of(t));
  }
  const int64_t live = memory_stats(Device::cpu()).live;
  {
    StateDict others;
    for (const auto& [name, t] : state) others[name] = random(t.shape(), 100 + uint64_t(others.size()));
    sharded->load_state(others, 4);
  }
  if (world()->size() > 1) CHECK(memory_stats(Device::cpu()).live <= live);
  state.begin()->second = random({3}, 1);
  CHECK_SAYS(sharded->load_state(state, 3), "(3) f32 in the state and must be");
}

TEST_CASE("GradientReducer: sums of several buckets, in whatever order their gradients come") {
  const int ranks = world()->size(), rank = world()->rank();
  const Params params({}, 1);
  std::vector<Shape> shapes = {{2000, 3000}, {3}, {0}, {900, 1000}, {1}, {7'000'001}, {40, 50}};
  for (size_t i = 0; i < shapes.size(); ++i) params.get(fmt::format("w{}", i), shapes[i], Init::constant(0));
  const std::vector<Parameter> all = params.trainable();
  const auto buckets = detail::gradient_buckets(all, ranks);
  REQUIRE(buckets.size() == 3);
  CHECK(buckets[1].first == 4);
  CHECK(buckets[2].last == all.size());
  std::vector<std::vector<Tensor>> gradients(shapes.size());
  for (size_t i = 0; i < shapes.size(); ++i)
    for (int r = 0; r < ranks; ++r) {
      Rng rng{10 * i + uint64_t(r)};
      gradients[i].push_back(rand(shapes[i], rng, -1, 1, i % 2 ? DType::bf16 : DType::f32));
    }
  const auto gradient = [&](size_t i, int r) { return copy_of(gradients[i][size_t(r)]); };
  const auto partition =
      std::make_shared<Partition>(all, std::vector<bool>{false, false, false, true, false, false, true}, world());
  for (const bool sharded : {false, true})
    for (const bool forward : {false, true}) {
      GradientReducer reducer(all, world(), sharded ? partition.get() : nullptr);
      GradMap rest;
      for (size_t k = 0; k < all.size(); ++k) {
        const size_t i = forward == (rank % 2 == 0) ? k : all.size() - 1 - k;  // ranks differ
        Tensor g = gradient(i, rank);
        if (i == 3) {  // one that backward did not reach in the last micro-batch
          rest.map()[all[i].tensor.id()] = g;
          continue;
        }
        reducer.add(all[i].tensor.id(), g);
        CHECK(!g);
      }
      Tensor other = ones({2});
      reducer.add(other.id(), other);
      CHECK(other);
      const GradMap sums = reducer.finish(rest);
      GradMap whole;
      for (size_t i = 0; i < all.size(); ++i) {
        Tensor want = gradient(i, 0).to(DType::f32);
        for (int r = 1; r < ranks; ++r) want = want + gradient(i, r).to(DType::f32);
        whole.map()[all[i].tensor.id()] = want;
        const Shard p = partition->part(i);
        if (partition->is_whole(i)) CHECK((p.n == 0 || p.n == want.numel()));
        if (sharded) want = slice(reshape(want, {want.numel()}), 0, p.first, p.first + p.n);
        CHECK(bits_of(sums.native(all[i].tensor)) == bits_of(want));
      }
      std::vector<Tensor> list;
      for (const Parameter& p : all) list.push_back(whole[p.tensor]);
      if (sharded) CHECK(bits_of(partition->norm(sums)) == bits_of(global_norm(list)));
    }
  for (const bool sharded : {false, true}) {
    GradientReducer reducer(all, world(), sharded ? partition.get() : nullptr);
    GradMap rest;  // another parameter is missing on each rank
    for (size_t i = 0; i < all.size(); ++i)
      if (i != size_t(rank % 4)) rest.map()[all[i].tensor.id()] = gradient(i, rank);
    CHECK_SAYS(reducer.finish(rest), fmt::format("'w{}' {} has no gradient", rank % 4, shapes[size_t(rank % 4)]));
    GradientReducer dropped(all, world(), sharded ? partition.get() : nullptr);
    for (size_t i = all.size() - 1; i > 3; --i) {
      Tensor g = gradient(i, rank);
      dropped.add(all[i].tensor.id(), g);
    }
  }
  Tensor want = gradient(0, 0);
  for (int r = 1; r < ranks; ++r) want = want + gradient(0, r);
  CHECK(bits_of(all_reduce(std::array{gradient(0, rank)}, world())[0]) == bits_of(want));
}

namespace {
// Micro-batches reach a, b or both; each is a bucket.
struct Fork {
  static constexpr ForwardSupport kSupport{};
  Tensor a, b;
  explicit Fork(const Params& p) : a(p.get("a", {7'000'000}, {})), b(p.get("b", {7'000'000}, {})) {}
  Tensor forward(const Tensor&, const ForwardOptions&) const { return a; }
  Tensor loss(const Batch& batch, const ForwardOptions&) const {
    const int64_t reach = batch.inputs.item<int64_t>() % 4;
    const auto of = [](const Tensor& w) { return mean(w.to(DType::bf16)).to(DType::f32); };
    return reach == 1 ? of(a) : reach == 3 ? of(b) * 4.0 : of(a) + of(b) * 4.0;
  }
};
}  // namespace
TEST_CASE("micro-batches that reach different parameters: the bits of one process") {
  const auto trained_fork = [](const std::shared_ptr<Communicator>& comm) {
    const Params params({}, 1);
    const BatchSource source{.next = [](Rng& rng) {
      return Batch{full({1, 1}, double(rng.offset++), DType::i32), zeros({1, 1}, DType::i32)};
    }};
    TrainConfig c = config(2 * world()->size());
    c.max_steps = 1, c.eval_every = 0, c.optimizer = OptimizerKind::sgd, c.compile = false;
    Trainer(Fork(params), params, source, c, comm).step();
    return std::pair(bits_of(params.all()[0].tensor), bits_of(params.all()[1].tensor));
  };
  CHECK(trained_fork(world()) == trained_fork(Communicator::self()));
}

TEST_CASE("several buckets of gradients: the bits of one process, and less memory") {
  GptConfig g = tiny_model();
  g.width = 512, g.layers = 3;  // 9.6 million parameters
  TrainConfig c = config(world()->size());
  c.max_steps = 2, c.eval_every = 0, c.batch = 1, c.val_fraction = 0;
  Trained one = trained(c, Communicator::self(), {}, g);
  CHECK(trained(c, world(), {}, g) == one);
  c.shard_optimizer = true;
  const Trained sharded = trained(c, world(), {}, g);
  one.numbers.resize(sharded.numbers.size()), one.parameters.resize(sharded.parameters.size());
  CHECK(sharded == one);
  if (const int ranks = world()->size(); ranks > 1) {
    const auto plan = [&](bool shard, int n) {
      c.shard_optimizer = shard;
      return plan_memory(g, c, {}, nullptr, DType::f32, Communicator::fake(n));
    };
    const MemoryPlan whole = plan(false, ranks), part = plan(true, ranks);
    CHECK(whole.moments == 8 * whole.parameters);
    CHECK(double(part.moments) == doctest::Approx(8.0 * double(whole.parameters) / double(ranks)).epsilon(0.1));
    CHECK(part.gradients < whole.gradients);
    CHECK(part.peak < whole.peak);
  }
}

TEST_CASE("a sharded optimiser: what it cannot take is refused") {
  if (world()->size() == 1) return;
  const auto [params, model] = new_gpt(tiny_model(), Params({}, 1));
  AdamW optimizer(params.trainable(), {}, {}, world());
  const auto loss = [&] { return Model(model).loss({zeros({1, 4}, DType::i64), zeros({1, 4}, DType::i64)}); };
  CHECK_SAYS(optimizer.step(backward(loss())), "Pass the gradients of GradientReducer::finish().");
  CHECK_SAYS(optimizer.backward_and_step(loss()), "of a sharded optimiser");
  CHECK_SAYS(optimizer.step({}, {.missing_grad = MissingGrad::skip}), "is missing, and this rank owns");
  GradientReducer reducer(params.trainable(), world(), optimizer.partition());
  optimizer.step(reducer.finish(backward(loss())), {.clip_norm = 1});
  CHECK(optimizer.steps() == 1);
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
  if (world()->local_size() > detail::runtime_of(device).device_count()) {
    MESSAGE("skipped: there are fewer devices than ranks");
    return;
  }
  device.index = world()->local_rank();
  for (const bool compiled : {false, true}) {
    TrainConfig c = config(world()->size());
    c.max_steps = compiled ? 4 : 2, c.eval_every = 2, c.compile = compiled;  // runs as one from the third on, if it can
    const Trained one = trained_alone(c, device);
    CHECK(trained(c, world(), device) == one);
    c.shard_optimizer = true;
    const Trained sharded = trained(c, world(), device);
    CHECK(sharded.numbers[0] == one.numbers[0]);
    for (size_t i = 0; i < sharded.parameters.size(); ++i) CHECK(sharded.parameters[i] == one.parameters[i]);
  }
}

TEST_CASE("a plan of memory for ranks: what each then takes, to the byte") {
  for (const int64_t each : {1, 3})
    for (const bool bf16 : {false, true})
      for (const bool sharded : {false, true}) {
        CAPTURE_ALL(each, bf16);
        TrainConfig c = config(each * world()->size());
        c.max_steps = 2, c.eval_every = 0, c.shard_optimizer = sharded;
        if (bf16) c.dtype = DType::bf16;
        const MemoryPlan plan = plan_memory(tiny_model(), c, {}, nullptr, DType::f32, world());
        if (!sharded || world()->rank() == 0)  // a fake world is that of the first rank
          CHECK(plan.peak ==
                plan_memory(tiny_model(), c, {}, nullptr, DType::f32, Communicator::fake(world()->size())).peak);
        reset_peak();
        const int64_t before = memory_stats().live;
        const Params params({}, c.seed);  // state() would gather the moments
        const Gpt model(params, tiny_model());
        Trainer trainer(model, params, bytes_of(rhyme()), c, world());
        (void)rest_of(trainer);
        CHECK(plan.peak == memory_stats().peak - before);
      }
}

TEST_CASE("a number of micro-batches that the ranks cannot share is refused") {
  const int ranks = world()->size();
  if (ranks == 1) return;  // one rank shares any number
  CHECK_SAYS(trained(config(ranks + 1), world()),
             fmt::format("[train] accumulate is {}, and there are {} ranks. They share the micro-batches of a step "
                         "equally: it must be a multiple of {}.",
                         ranks + 1, ranks, ranks));
}
