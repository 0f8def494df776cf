// Random programs have the same bits eager and compiled, or compile() refuses them. A check of a replay may only refuse
// changes that C++ cannot see. Each unit of TG_TEST_EFFORT has 1000 programs; TG_PROGRAM=N runs one.
#include <tapegrad/tapegrad.h>

#include "support/effort.h"
#include "support/files.h"
#include "support/helpers.h"

#include <future>
#include <random>

using namespace tg;
namespace {
constexpr int kVariables = 3, kCalls = 4, kCapacity = 5;
// Not an Rng: a trace refuses its draws.
struct Dice {
  std::mt19937_64 words;
  uint64_t below(uint64_t n) { return words() % n; }
  auto& of(auto& list) { return list[below(list.size())]; }
};

// The world of one program: what it captures. Two of them start alike.
struct World {
  std::vector<Tensor> variables, log;
  std::vector<Tensor> handles;  // re-assigned by `=`
  Tensor cache, at;             // (3, kCapacity), and the next row to write
  Tensor parameter;
  std::vector<Tensor> leaves;  // inputs that need a gradient
  std::vector<AdamW> optimiser;
  Rng noise{5}, second{5};
  const Params params{Device::cpu(), 3};
  nn::LoraLinear layer{nn::Linear(params.at("layer"), 3, 3), params.at("delta"), {.rank = 2}};
  double number = 0.5, clip = 1;         // captured
  float host = 1;                        // what a tensor of host data holds
  bool host_moves = false;               // new data in each call, like a loader
  bool elsewhere = false, flag = false;  // branches on the host depend on it
  explicit World(uint64_t seed) {
    layer.delta().b.assign(random({2, 3}, seed * 16 + 14));
    for (int i = 0; i < kVariables; ++i) variables.push_back(random({3}, seed * 16 + uint64_t(i)));
    for (int i = 0; i < 2; ++i) handles.push_back(random({3}, seed * 16 + 8 + uint64_t(i)));
    if (seed % 16 == 0) handles[1] = handles[0];
    cache = random({3, kCapacity}, seed * 16 + 13);
    at = tensor<int64_t>({0, int64_t(seed % kCapacity), 4}, {3});
    parameter = random({3}, seed * 16 + 12).requires_grad_();
    for (int i = 0; i < 2; ++i) leaves.push_back(random({3}, seed * 16 + 10 + uint64_t(i)).requires_grad_());
    optimiser.emplace_back(std::vector<Parameter>{{"p", parameter}}, AdamWConfig{.lr = 0.1});
  }
  std::vector<std::vector<std::byte>> bits() const {
    std::vector<std::vector<std::byte>> r;
    for (const auto* list : {&variables, &handles, &leaves})
      for (const Tensor& t : *list) r.push_back(bits_of(t));
    for (const Tensor& t : {parameter, cache, at, layer.linear().weight}) r.push_back(bits_of(t));
    for (const auto& [name, t] : optimiser[0].state()) r.push_back(bits_of(t));
    return r;
  }
  auto state() const { return std::tuple(noise, second, optimiser[0].steps()); }
  // A change between two calls. True if a replay cannot see it.
  bool change(Dice draw, bool seen_only) {
    switch (draw.below(seen_only ? 6 : 12)) {
      case 0: layer.merged() ? layer.unmerge() : layer.merge(); return false;
      case 1: optimiser[0].set_lr(0.01 * double(1 + draw.below(9))); return false;
      case 2: draw.of(variables).assign(random({3}, draw.below(99))); return false;
      case 3:
        (draw.below(2) ? parameter : draw.of(leaves)).on_grad([](const Tensor& g) { return g * 0.5; });
        return false;
      case 4: second = Rng{draw.below(3) + 4}; return false;
      case 5: {
        const LazyScope lazy;
        draw.of(variables).assign(tanh(draw.of(variables).detach()));
        return false;
      }
      case 6: draw.of(variables) = random({3}, draw.below(99)); return true;
      case 7: std::swap(variables[0], variables[2]); return true;
      case 8: number += 0.25; return true;
      case 9: clip *= 0.5; return true;
      case 10: flag = !flag; return true;
      default: host += 1; return true;
    }
  }
};

// Does what a trace refuses, or what it cannot see.
void act_on_host(Dice& draw, World& w, Inputs in, const Tensor& a, std::vector<Tensor>& pool) {
  const auto in_thread = [](auto f) { return std::async(std::launch::async, f).get(); };
  AdamW& optimiser = w.optimiser[0];
  switch (draw.below(14)) {
    case 0: {
      const Tensor read = draw.below(2) ? a : draw.of(w.variables);
      pool.push_back(in_thread([&] { return exp(read); }) * 1.0);
      break;
    }
    case 1:
      pool.push_back(w.variables[1] * 1.0);
      if (draw.below(2))
        in_thread([&] { w.variables[1].assign(in[0].detach()), w.elsewhere = true; });
      else
        in_thread([&] { w.variables[1].assign(filled({3}, w.host++)), w.elsewhere = true; });
      break;
    case 2: pool.push_back(a * double(in_thread([&, b = sum(a)] { return b.item<float>(); }) > 0)); break;
    case 3: pool.push_back(a * optimiser.lr()); break;
    case 4: pool.push_back(a * double(optimiser.steps())); break;
    case 5: optimiser.uncount_step(); break;
    case 6: optimiser.load_state(optimiser.state(), 1); break;
    case 7: w.noise = Rng{draw.below(2) + 5}; break;
    case 8: in[draw.below(2)].assign(a.detach()); break;
    case 9: w.parameter.on_grad([](const Tensor& g) { return g * 2.0; }); break;
    case 10: w.variables[0].requires_grad_(!w.variables[0].requires_grad()); break;
    case 11: w.variables[2].mutable_data<float>()[0] += 1; break;
    case 12: pool.push_back(a * double(sum(a).item<float>() > 0)); break;
    default: {
      Tensor made = empty(a.layout());
      for (int i = 0; i < 3; ++i) made.mutable_data<float>()[i] = w.host;
      pool.push_back(a + made);
      w.host += float(w.host_moves);
    }
  }
}

// `fails` in some calls, `keeps` what a replay could not make.
std::vector<Tensor> run(uint64_t seed, World& w, Inputs in, bool fail_now) {
  Dice draw{std::mt19937_64(seed)};
  const auto pick = [&](auto& list) -> auto& { return draw.of(list); };
  std::vector<Tensor> pool{in[0], in[1]};
  for (const Tensor& t : w.variables) pool.push_back(t);
  for (const Tensor& t : w.handles) pool.push_back(t);
  const uint64_t n = 2 + draw.below(8);
  for (uint64_t i = 0; i < n; ++i) {
    const Tensor a = pick(pool), b = pick(pool);
    switch (draw.below(27)) {
      case 0: pool.push_back(a + b); break;
      case 1: pool.push_back(a * b); break;
      case 2: pool.push_back(tanh(a)); break;
      case 3: pool.push_back(softmax(a - b)); break;
      case 4: pool.push_back(expand(sum(a), {3}) * 0.25); break;
      case 5: pool.push_back(concat({slice(a, 0, 1, 3), slice(b, 0, 0, 1)}, 0)); break;
      case 6: pool.push_back(dropout(a, 0.5, w.noise)); break;
      case 7: pool.push_back(a.detach()); break;
      case 8: pool.push_back(where(lt(a, b), a, b)); break;
      case 9: pick(w.variables).assign(tanh(a)); break;
      case 10: pick(w.variables).assign(b.detach()); break;
      case 11: {  // two variables swap values
        const Tensor old = w.variables[0].detach();
        w.variables[0].assign(w.variables[1]);
        w.variables[1].assign(old);
        break;
      }
      case 12: {
        const Tensor loss = sum(tanh(w.parameter * a.detach()));
        w.optimiser[0].step(backward(loss), {.clip_norm = w.clip});
        pool.push_back(loss.detach() + b);
        break;
      }
      case 13: pick(w.handles) = tanh(a + b); break;
      case 14:
        if (draw.below(4) == 0) w.log.push_back(pick(pool));
        break;
      case 16: {  // KvCache::with_capacity(), but around the end
        slice_update(w.cache, 1, w.at, reshape(a.detach(), {3, 1}));
        const Tensor next = w.at + 1.0;
        w.at.assign(where(ge(next, double(kCapacity)), 0.0, next));
        break;
      }
      case 17: {  // a view of it, or all of it
        const auto k = int64_t(draw.below(kCapacity));
        pool.push_back(draw.below(2) ? reshape(slice(w.cache, 1, k, k + 1), {3}) : sum(w.cache, {1}));
        break;
      }
      case 18: {
        const NoGradScope off;
        pool.push_back(w.layer.forward(a));
        break;
      }
      case 19: pool.push_back(a * w.number); break;
      case 20: pool.push_back(w.flag ? a - b : exp(a)); break;
      case 21:
        if (draw.below(3)) break;
        if (w.host_moves) w.host += 1;
        pool.push_back(a + tensor(std::vector<float>{w.host, 2, 3}, {3}));
        break;
      case 22:
        if (draw.below(3) == 0) w.optimiser[0].set_lr(0.02 * double(w.host));
        break;
      case 23: {  // gradients of inputs, which may be equal, or captured
        const GradMap g = backward(sum(tanh(in[0] * in[1] * w.parameter * a.detach())));
        pool.push_back(g[w.parameter]);
        if (in[0].requires_grad()) pool.push_back(g[in[0]]);
        break;
      }
      case 24: pool.push_back(dropout(a, 0.5, w.second)); break;
      case 25:
        if (draw.below(seed % 8 ? 8 : 2) == 0) act_on_host(draw, w, in, a, pool);
        break;
      case 26:
        if (draw.below(6)) break;
        try {
          act_on_host(draw, w, in, a, pool);
        } catch (const std::exception&) {
        }
        break;
      case 15:
        if (fail_now) throw std::runtime_error("the program fails");
        break;
    }
  }
  std::vector<Tensor> r;
  for (uint64_t i = 0, m = 1 + draw.below(3); i < m; ++i) r.push_back(pick(pool).detach());
  return r;
}
}  // namespace

TEST_CASE("random programs: compiled they do what they do eagerly, or are refused") {
  const char* one = std::getenv("TG_PROGRAM");
  const uint64_t begin = one ? std::stoull(one) : 1, n = one ? 1 : 1000 * uint64_t(test_effort());
  uint64_t refused = 0, replays = 0, failures = 0, found = 0;
  for (uint64_t seed = begin; seed < begin + n; ++seed) {
    CAPTURE(seed);
    World eager(seed), world(seed);
    Dice draw{std::mt19937_64(~seed)};
    const bool declares = draw.below(2) == 0;  // the handles, as state
    bool fail_now = false, unseen = false;
    CompileOptions options{
        .generators = {&world.noise, &world.second}, .constants = draw.below(2) == 0, .verify = size_t(draw.below(3))};
    world.host_moves = eager.host_moves = !options.constants;
    if (declares) options.state = {&world.handles[0], &world.handles[1]};
    const Compiled f = compile([&](Inputs in) { return run(seed, world, in, fail_now); }, options);
    std::vector<Tensor> in{random({3}, seed * 16 + 14), random({3}, seed * 16 + 15)}, eager_in = in;
    bool ok = true;
    for (int call = 0; call < kCalls && ok; ++call) {
      fail_now = call == 0 && draw.below(3) == 0;
      if (call > 0 && draw.below(2) == 0) {
        const Dice change{std::mt19937_64(draw.words())};
        eager.change(change, options.verify != 1);
        unseen |= world.change(change, options.verify != 1);
      }
      for (size_t k = 0; k < 2; ++k)
        if (const uint64_t from = draw.below(seed % 8 == 1 ? 6 : 20); from < 4) {
          in[k] = from < 2 ? world.leaves[from] : from == 2 ? world.parameter : in[0];
          eager_in[k] = from < 2 ? eager.leaves[from] : from == 2 ? eager.parameter : eager_in[0];
        }
      const auto before = world.bits();
      const auto at = world.state();
      std::vector<Tensor> got, want;
      std::string error, expected;
      const auto try_call = [&] {
        error = "";
        try {
          got = f({in[0], in[1]});
        } catch (const Error& e) {
          error = e.what();
        } catch (const std::runtime_error& e) {
          expected = e.what();
        }
      };
      try_call();
      if (has(error, "now differs from its replays")) {
        CHECK_MESSAGE(unseen, error);
        CHECK(world.bits() == before);
        ++found;
        try_call();
        CHECK_MESSAGE(!has(error, "now differs from its replays"), error);
      }
      if (!expected.empty()) {
        ++failures;  // changed handles that are not state
        if (declares && !world.elsewhere) CHECK(world.bits() == before);
        CHECK(world.state() == at);
        ok = declares;
        continue;
      }
      if (!error.empty()) {
        if (!has(error, "[compile] ") && !has(error, "a compiled function")) {
          const std::string of_eager = error_of([&] { run(seed, eager, eager_in, false); });
          CHECK_HAS(error, of_eager.substr(0, of_eager.find('\n')));
        }
        CHECK(world.state() == at);
        ++refused;
        ok = false;
        continue;
      }
      want = run(seed, eager, eager_in, false);
      check_same_bits(got, want);
      CHECK(world.bits() == eager.bits());
      CHECK(world.state() == eager.state());
      const size_t k = draw.below(2);
      in[k] = eager_in[k] = got[0].detach();  // a result of this call is read by the next
    }
    replays += f.stats().replays;
  }
  MESSAGE("covered: " << n << " random programs");
  MESSAGE(replays << " replays, " << refused << " refused, " << failures << " failed, " << found
                  << " that a check found out of date");
  if (n > 100) {
    CHECK(replays > n);
    CHECK(refused > n / 20);
    CHECK(failures > n / 100);
    CHECK(found > n / 50);
  }
}
