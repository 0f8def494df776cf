// A caller's mistake between two calls is an Error, never a crash, a wrong value or a lost model.
#include <tapegrad/tapegrad.h>

#include "support/helpers.h"

using namespace tg;

TEST_CASE("an empty tensor is an Error in every member") {
  const Tensor none;
  Tensor mutable_none;
  const Tensor w = ones({2}).requires_grad_();
  const GradMap grads = backward(sum(w));
  for (const std::function<void()>& use : std::vector<std::function<void()>>{
           [&] { (void)grads[none]; }, [&] { (void)none.id(); }, [&] { (void)none.label(); }, [&] { none.detach(); },
           [&] { (void)none.materialized(); }, [&] { mutable_none.label("b"); }, [&] { mutable_none.requires_grad_(); },
           [&] { mutable_none.on_grad([](const Tensor& g) { return g; }); }, [&] { (void)none.shape(); }})
    CHECK_HAS(error_of(use), "an empty tensor was read");
}
TEST_CASE("a hook must return a gradient like the one it got, and runs on the loss too") {
  for (auto wrong : {ones({1}), ones({2, 3}, DType::f64)}) {
    Tensor x = random({2, 3}, 1).requires_grad_();
    const Tensor h = softmax(x);
    Tensor(h).on_grad([&](const Tensor&) { return wrong; });
    CHECK_SAYS(backward(sum(h * h)), "[on_grad] returned");
  }
  const Tensor x = ones({2}).requires_grad_();
  Tensor loss = sum(x);
  loss.on_grad([](const Tensor& g) { return g * 3.0; });
  CHECK(backward(loss)[x].to_vector<float>() == std::vector<float>(2, 3));
}
TEST_CASE("shapes that no memory can hold are refused, not wrapped around") {
  const int64_t n = int64_t(1) << 32, most = INT64_MAX;
  const Tensor one = ones({1, 1});
  CHECK_SAYS(matmul(expand(one, {n, 1}), expand(one, {1, n})), "more elements than");
  CHECK_SAYS(expand(one, {n, 1}) + expand(one, {1, n}), "more elements than");
  CHECK_SAYS(reshape(zeros({0}), {n, n}), "[reshape]");
  CHECK_SAYS(split(zeros({4}), {most, most, 6}), "[split]");
}
TEST_CASE("an error outside of every scope names none, and one inside names it") {
  const Tensor x = ones({2}).requires_grad_(), loss = sum(x);
  (void)backward(loss);
  CHECK_SAYS(backward(loss), "earlier backward. Pass {.retain_graph = true} to that one.\n    called at ");
  const Tensor inner = [&] {
    const NameScope here("head");
    return sum(x);
  }();
  (void)backward(inner);
  CHECK_SAYS(backward(inner), "to that one.\n    in head");
}
TEST_CASE("split has as many parts as it is asked for, more than a shape has dimensions too") {
  const Tensor x = arange(0, 10, 1, DType::f32).requires_grad_();
  const Tensors parts = split(x, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 0);
  REQUIRE(parts.size() == 10);
  CHECK(parts[9].item<float>() == 9);
  CHECK(backward(sum(parts[8] * 3.0))[x].to_vector<float>() == std::vector<float>{0, 0, 0, 0, 0, 0, 0, 0, 3, 0});
}
TEST_CASE("a lazy value that was changed after it ran is found by what still needs it") {
  LazyScope lazy;
  const Tensor x = ones({2});
  Tensor a = x + 1.0;
  const Tensor b = a * 2.0;
  a.mutable_data<float>()[0] = 100;
  CHECK_SAYS(b.to_vector<float>(), "was changed after it was captured");
}
TEST_CASE("linear with no outputs, of a strided input") {
  const Tensor x = transpose(random({3, 4, 5}, 1), 0, 1);
  CHECK(linear(x, zeros({0, 5})).shape() == Shape{4, 3, 0});
}
TEST_CASE("numbers that an integer dtype does not have") {
  CHECK_SAYS(full({2}, 1.5, DType::i32), "[full] 1.5 is no value of i32");
  CHECK_SAYS(full({2}, -1, DType::u8), "from 0 to 255");
  CHECK_SAYS(full({2}, NAN, DType::i64), "[full]");
  CHECK_SAYS(arange(0, 1000, 1, DType::u8), "[arange] 999 is no value of u8");
  CHECK_SAYS(zeros({2}, DType::i32) + 3e9, "[add]");
  CHECK(full({1}, 255, DType::u8).item<int32_t>() == 255);
}
TEST_CASE("a cache of another model is refused") {
  const GptConfig two{.vocab_size = 5, .context = 8, .layers = 2, .heads = 1, .width = 4};
  GptConfig three = two;
  three.layers = 3;
  const Gpt a(Params(), two), b(Params(), three);
  NoGradScope off;
  KvCache cache;
  const Tensor tokens = zeros({1, 2}, DType::i64);
  a.forward(tokens, {.cache = &cache});
  CHECK_SAYS(b.forward(tokens, {.cache = &cache}), "[kv_cache] layer 2 is new");
}
TEST_CASE("a run that diverges is an Error at the step that did it") {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 400; ++i) ids.push_back(i % 7);
  const Params params;
  const Gpt model(params, {.vocab_size = 7, .context = 8, .layers = 1, .heads = 1, .width = 8});
  Trainer trainer(model, params, TokenData::from_tokens(ids),
                  {.max_steps = 4, .lr = 1e38, .warmup = 0, .eval_every = 1});
  CHECK_SAYS(trainer.step(), "[train] the validation loss of step 1 is");
}
TEST_CASE("inputs on different devices are refused by every op that takes two") {
  const auto elsewhere = [](const Shape& s,
                            DType t = DType::f32) {  // never computed, so no device is needed
    return Tensor(make_ref<Value>(Layout::contiguous(s, t, Device::cuda(1))));
  };
  const Tensor x = ones({2, 2}), ids = zeros({2}, DType::i64), heads = ones({1, 1, 2, 2});
  const Tensor far = elsewhere({2, 2}), row = elsewhere({2}), far_heads = elsewhere({1, 1, 2, 2}),
               far_ids = elsewhere({2}, DType::i64);
  const std::vector<Tensor> both{x, far};
  const std::vector<std::pair<std::string_view, std::function<void()>>> uses{
      {"add", [&] { (void)(x + far); }},
      {"sub", [&] { (void)(x - far); }},
      {"mul", [&] { (void)(x * far); }},
      {"div", [&] { (void)(x / far); }},
      {"matmul", [&] { matmul(x, far); }},
      {"linear", [&] { linear(x, far); }},
      {"linear", [&] { linear(x, x, row); }},
      {"layer_norm", [&] { layer_norm(x, row); }},
      {"rms_norm", [&] { rms_norm(x, row); }},
      {"add_layer_norm", [&] { add_layer_norm(x, far); }},
      {"add_rms_norm", [&] { add_rms_norm(x, x, row); }},
      {"embedding", [&] { embedding(ids, far); }},
      {"cross_entropy", [&] { cross_entropy(x, far_ids); }},
      {"attention", [&] { attention(heads, heads, far_heads); }},
      {"concat", [&] { concat(both); }},
      {"square_sums", [&] { global_norm(both); }}};
  for (auto& [op, use] : uses) {
    CAPTURE(op);
    const std::string e = error_of(use);
    CAPTURE(e);
    CHECK_HAS(e, fmt::format("[{}] inputs are on different devices: input 0 is ", op), "on cuda:1",
              "Move one with .to(device).");
  }
}
