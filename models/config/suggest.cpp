#include <tapegrad/core/check.h>
#include <tapegrad/models/config/suggest.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <ranges>
#include <vector>

namespace tg {
namespace {
// Optimal string alignment distance in three rows.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before.swap(above);
    above.swap(row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row.back();
}
// Our names = names in other programs.
constexpr std::string_view kOtherNames =
    "max_steps steps iters max_iters epochs num_epochs num_train_epochs; batch batch_size bs "
    "per_device_train_batch_size; accumulate gradient_accumulation_steps grad_accum; lr learning_rate; warmup "
    "warmup_steps warmup_iters; schedule lr_scheduler_type lr_scheduler; clip_norm max_grad_norm grad_clip; beta1 "
    "adam_beta1; beta2 adam_beta2; eps adam_epsilon; context block_size context_length ctx_size n_ctx "
    "max_position_embeddings max_seq_len max_seq_length; window block_size context context_length max_seq_len "
    "max_seq_length max_length; layers n_layer num_layers num_hidden_layers; heads n_head num_heads "
    "num_attention_heads; kv_heads num_key_value_heads; width n_embd hidden_size d_model dim; ff_width "
    "intermediate_size d_ff; tied_head tie_word_embeddings; activation hidden_act; norm_eps rms_norm_eps; rank r "
    "lora_r lora_rank; alpha lora_alpha; targets target_modules lora_target_modules; rslora use_rslora; out output "
    "output_dir out_dir o outfile; model m model_name_or_path base_model; adapter lora peft_model; resume "
    "resume_from_checkpoint; data dataset train_file input text; in input text data; train data input text; eval_every "
    "eval_steps eval_interval; checkpoint_every save_steps; val_fraction val_split; dtype bf16 fp16 torch_dtype "
    "precision outtype; base_dtype load_in_8bit load_in_4bit; recompute gradient_checkpointing; tensorboard "
    "logging_dir report_to; max_tokens max_new_tokens n_predict n; samples num_return_sequences; repetition_penalty "
    "repeat_penalty; prompt p text input; chat interactive conversation; system system_prompt; chat_format "
    "chat_template; vocab vocab_size; threads num_threads t; device gpu cuda; adamw adam adamw_torch; bf16 bfloat16 "
    "fp16 float16; f32 float32 fp32; gelu_tanh gelu_new gelu_pytorch_tanh; swiglu swish; rope rotary; learned "
    "absolute; h.*.attn.q q_proj; h.*.attn.k k_proj; h.*.attn.v v_proj; h.*.attn.qkv c_attn qkv_proj q_proj k_proj "
    "v_proj; h.*.attn.proj o_proj out_proj c_proj; h.*.mlp.gate gate_proj; h.*.mlp.up up_proj; h.*.mlp.fc c_fc up_proj "
    "gate_proj; h.*.mlp.proj down_proj; ";
std::string plain(std::string_view flag) {
  std::string name(flag.substr(std::min(flag.find_first_not_of('-'), flag.size())));
  std::ranges::replace(name, '-', '_');
  return name;
}
}  // namespace

bool detail::glob_matches(std::string_view pattern, std::string_view name) {
  constexpr size_t kNone = std::string_view::npos;
  size_t p = 0, n = 0, star = kNone, begin = 0;  // last star, start of its match
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++, begin = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p, ++n;
    } else if (star != kNone) {
      p = star + 1, n = begin + 1;  // the star takes another character
      begin = n;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == kNone;
}
std::string detail::block_pattern(std::string_view name) {
  std::string s;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    s.append(begin ? "." : "").append(number ? "*" : part);
    begin = end + 1;
  }
  return s;
}

std::string detail::nearest(std::string_view word, std::span<const std::string_view> known) {
  for (const auto row : kOtherNames | std::views::split(std::string_view("; "))) {
    const std::string names = std::string(row.begin(), row.end()) + " ";
    if (names.find(" " + plain(word) + " ") == names.npos) continue;
    for (const std::string_view k : known)
      if (names.starts_with(plain(k) + " ")) return std::string(k);
  }
  std::string_view best;
  size_t best_distance = 0;
  for (std::string_view k : known) {
    const size_t d = distance(word, k);
    if (d > std::max<size_t>(1, std::max(word.size(), k.size()) / 3)) continue;
    if (best.empty() || d < best_distance) best = k, best_distance = d;
  }
  return std::string(best);
}
std::string detail::did_you_mean(std::string_view word, std::span<const std::string_view> known) {
  const std::string near = nearest(word, known);
  return near.empty() ? "" : " Did you mean '" + near + "'?";
}
size_t detail::known_place(std::string_view what, std::string_view word, std::span<const std::string_view> known) {
  const size_t i = size_t(std::ranges::find(known, word) - known.begin());
  TG_CHECK(i < known.size(), value, "[{}] '{}' is not known.{} The names are {}.", what, word,
           did_you_mean(word, known), listed(known));
  return i;
}
std::string detail::counted(int64_t n, std::string_view noun) {
  const char* const s = n == 1 ? "" : noun.ends_with("ch") || noun.ends_with("s") ? "es" : "s";
  return fmt::format("{} {}{}", n, noun, s);
}
std::string detail::listed(std::span<const std::string_view> words) {
  return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace tg
