// Hidden states, heads of classes, own tensors. test_huggingface.cpp and test_peft.cpp compare with other programs.
#include <tapegrad/tapegrad.h>

#include "support/hf_folder.h"
#include "support/tiny_gpt.h"

using namespace tg;

TEST_CASE("gpt: the head over hidden() is forward(), bit for bit, for all options") {
  for (const std::string name : {"gpt2", "gpt2_untied", "llama", "qwen2", "qwen3_classes"})
    for (int i = 0; i < 32; ++i) {
      CAPTURE_ALL(name, i);
      LoadedModel m = load_model(data_folder(name));
      fill(apply_lora(m.model, m.params));
      const GptConfig& c = m.model.config();
      ForwardOptions o{.last_only = bool(i & 1), .recompute = (i & 12) == 4, .adapters = bool(i & 4)};
      if (i & 2) o.lengths = tensor<int64_t>({8, 3}, {2});
      if (i & 16) o.compute = DType::bf16;
      KvCache a = m.model.make_cache(2, 0, o.compute), b = m.model.make_cache(2, 0, o.compute);
      const NoGradScope off;
      if (i & 8) o.cache = &a;
      const Tensor h = m.model.hidden(two_rows(), o);
      CHECK(h.shape() == Shape{2, i & 1 ? 1 : 8, c.width});
      if (c.classes && (i & 9) != 1) continue;
      if (i & 8) o.cache = &b;
      if (c.classes) o.last_only = false;  // a head of classes reads the last token
      const char* head = c.classes ? "score.weight" : c.tied_head ? "wte.weight" : "lm_head.weight";
      CHECK(bits_of(detail::unrounded_linear(h, m.params.state().at(head).to(h.dtype()))) ==
            bits_of(m.model.forward(two_rows(), o)));
    }
}

TEST_CASE("gpt: loss() is cross_entropy() of forward()'s logits, of adapted heads too") {
  for (const std::string name : {"gpt2", "gpt2_untied", "llama", "qwen3_classes"})
    for (const bool adapted : {false, true})
      for (const DType compute : {DType::f32, DType::bf16})
        for (const Reduction reduction : {Reduction::mean, Reduction::none}) {
          CAPTURE_ALL(name, adapted, name_of(compute), int(reduction));
          LoadedModel m = load_model(data_folder(name));
          if (adapted) fill(apply_lora(m.model, m.params, {.targets = {"*"}}));
          const Tensor targets = m.model.config().classes ? tensor<int64_t>({1, Batch::kIgnoreIndex}, {2})
                                                          : where(ge(two_rows(), 5.0), two_rows().to(DType::i64),
                                                                  double(Batch::kIgnoreIndex));
          const CrossEntropyOptions how{.reduction = reduction, .ignore_index = Batch::kIgnoreIndex};
          CHECK(bits_of(Model(m.model).loss({two_rows(), targets}, {.compute = compute}, reduction)) ==
                bits_of(cross_entropy(m.model.forward(two_rows(), {.compute = compute}), targets, how)));
        }
}

TEST_CASE("gpt: a head of classes trains with LoRA and returns from the folders of model and adapter") {
  for (const DType base : {DType::f32, DType::bf16}) {
    const Tensor tokens = two_rows(), lengths = tensor<int64_t>({8, 3}, {2}), wanted = tensor<int64_t>({2, 0}, {2});
    const auto logits = [&](const LoadedModel& l) { return l.model.forward(tokens, {.lengths = lengths}).detach(); };
    const auto fresh = [&] { return with_new_head(load_model(data_folder("llama"), {}, base), 3, /*seed=*/5); };
    LoadedModel m = fresh(), again = fresh(), other = load_model(data_folder("llama"), {}, base);
    const std::string hash = weights_hash(m.params);
    Lora lora = apply_lora(m.model, m.params, {.targets = {"*"}, .rank = 2});
    CHECK(bits_of(logits(m)) == bits_of(logits(again)));
    AdamW optimizer(lora.params().trainable(), {.lr = 1e-2});
    const auto step = compile([&](const Tensor& labels) {
      const Tensor loss = cross_entropy(m.model.forward(tokens, {.lengths = lengths}).to(DType::f32), labels);
      optimizer.step(backward(loss), {.clip_norm = 1});
      return loss.detach();
    });
    for (int i = 0; i < 30; ++i) step(wanted);
    CHECK(step(wanted).item<double>() < 0.1);
    const Tensor y = logits(m);
    const Folder adapter, folders[2];
    save_adapter(adapter.path, lora, {.layout = adapter_layout(m.model.config()), .base = hash});
    CHECK_SAYS(load_adapter(adapter.path, other), "with_new_head() makes one");
    load_adapter(adapter.path, again);
    CHECK(bits_of(logits(again)) == bits_of(y));
    lora.merge();
    save_model(folders[0].path, m);
    save_model(folders[1].path, m.model, m.params);
    for (const Folder& f : folders)
      CHECK(distance(logits(load_model(f.path, {}, base)), y) <= (base == DType::f32 ? 2e-5 : 0.1));
    lora.unmerge();
    CHECK(weights_hash(m.params) == hash);
  }
}

TEST_CASE("checkpoint: own tensors return, and others are refused by name") {
  const Params params(Device(), 1);
  const Tensor w = params.get("w", {2}, Init::constant(1));
  AdamW optimizer(params.trainable());
  const Folder folder;
  const auto saved = [&](const StateDict& s) {
    save_checkpoint(folder / "c", {.config = "{}", .state = training_state(3, params, optimizer, {}, {}, s)});
    return load_checkpoint(folder / "c").state;
  };
  const StateDict own{{"w", zeros({2})}}, longer{{"w", zeros({3})}}, low{{"w", zeros({2}, DType::bf16)}};
  const TrainerState with = saved({{"w", full({2}, 0.5)}}), without = saved({});
  const auto set = [&](const TrainerState& s, const StateDict& to) { restore(s, params, optimizer, to); };
  CHECK_SAYS(set(with, {}), "'own.w' of the state is not part");
  CHECK_SAYS(set(without, own), "the state has no 'own.w'");
  CHECK_SAYS(set(with, longer), "'own.w' is (2) f32");
  CHECK_SAYS(set(with, low), "'own.w'");
  CHECK_SAYS(saved({{"", w}}), "tensor ''");
  CHECK(values(own.at("w")) == std::vector{0.f, 0.f});
  set(with, own);
  CHECK(values(own.at("w")) == std::vector{0.5f, 0.5f});
}
