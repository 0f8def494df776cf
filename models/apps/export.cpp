// `tapegrad export`: a model folder in another program's format.
#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/core/io/gguf.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/apps/model_data.h>
#include <tapegrad/models/apps/output.h>
#include <tapegrad/models/apps/process.h>
#include <tapegrad/models/io/gguf.h>
#include <tapegrad/models/io/model_dir.h>
#include <tapegrad/models/io/peft.h>

namespace tg::apps {
namespace {

struct ExportOptions {
  std::string model, adapter, base, to = "hf", out, dtype = "same";
  int64_t max_shard = 0;
};

void write_folder(const std::string& out, const LoadedModel& m, const ExportOptions& o) {
  HuggingfaceOptions options;
  if (o.max_shard > 0) options.max_shard = o.max_shard;
  if (o.dtype != "same") options.dtype = detail::dtype_from_name(o.dtype);
  if (m.origin)
    options.origin = &*m.origin;
  else
    options.tokenizer = m.tokenizer.get();
  options.chat_template = chat_template_over(m, o.model, o.adapter);
  (void)detail::gpt_config_to_huggingface(m.model.config());  // throws before the folder exists
  write_new_folder(out, {}, [&](const std::string& folder) {
    save_huggingface(folder, m.model.config(), m.params, options);
    if (m.tokenizer) detail::save_ends(folder, ends_of(m, o.model, o.adapter), *m.tokenizer);
  });
}
void write_gguf(const std::string& out, const LoadedModel& m, const ExportOptions& o) {
  if (!m.tokenizer_error.empty()) throw Error(Error::Kind::value, m.tokenizer_error);
  GgufOptions options{.tokenizer = m.tokenizer.get(),
                      .origin = m.origin ? &*m.origin : nullptr,
                      .chat_template = chat_template_over(m, o.model, o.adapter),
                      .eos_tokens = ends_of(m, o.model, o.adapter)};
  if (const size_t n = options.eos_tokens.size(); n > 3)
    print_note("{} tokens end a text, and a GGUF file names three: pass the others as reverse prompts", n);
  if (o.dtype != "same") options.type = detail::gguf_type(o.dtype);
  save_gguf(out, m.model.config(), m.params, options);
}

std::string base_of(const ExportOptions& o) {
  const std::string base = o.base.empty() ? detail::adapter_base(o.adapter).folder : o.base;
  TG_CHECK(!base.empty() && (detail::path_exists(base + "/config.json") || detail::is_gguf(base)), value,
           "[export] '{}', the base of {} ({}), is no folder of a model. The order of its rows depends on that model. "
           "Pass its folder with --base.",
           base, o.adapter, o.base.empty() ? "base_model_name_or_path" : "--base");
  return base;
}

int run(ExportOptions& o) {
  const bool gguf = o.to == "gguf", alone = gguf && o.model.empty() && !o.adapter.empty();
  refuse((o.model.empty() && !alone) || o.out.empty(),
         "export needs --model DIR and --out PATH, or --adapter DIR, --to gguf and --out FILE. An adapter alone is a "
         "folder of Hugging Face's PEFT already");
  refuse(!alone && !o.base.empty(), "--base is for an adapter alone: --adapter and --to gguf without --model");
  refuse(alone && o.dtype != "same", "--dtype is for models: an adapter is written in f32");
  refuse(gguf && o.max_shard > 0, "--max-shard is for --to hf: a GGUF file is never divided.");
  refuse(!gguf && o.dtype == "q8_0", "--dtype q8_0 is for --to gguf: --to hf takes f32, bf16 or f16.");
  refuse(!gguf && o.out.ends_with(".gguf"), "--out ends in .gguf, and --to hf makes a folder. Pass --to gguf.");
  check_alone("export");
  const std::string out = new_output("export", o.out, gguf ? "file" : "folder");
  const std::string base = alone ? base_of(o) : o.model;
  check_dtype_given("export", base, o.adapter, alone || o.dtype != "same");
  LoadedModel m = dequantized_model(base, o.adapter);
  std::string what = fmt::format("a {}", name_of(detail::family_of(m.model.config())));
  if (alone) {
    const Lora lora = adapted(o.adapter, m, base);
    save_gguf_adapter(out, m.model.config(), lora);
    if (lora.base_dtype() == DType::bf16)
      print_note("the adapter was trained over weights in bf16: export its model with --dtype bf16");
    what = fmt::format("an adapter of {} over {}", detail::counted(lora.params().numel(), "parameter"), what);
  } else {
    if (!o.adapter.empty()) adapted(o.adapter, m, o.model).merge();
    (gguf ? write_gguf : write_folder)(out, m, o);
    what += fmt::format(" of {} parameters", m.params.numel());
  }
  fmt::print("wrote {}, {} for {}\n", o.out, what, gguf ? "llama.cpp" : "transformers");
  return 0;
}
void declare(Command& c, ExportOptions& o) {
  c.option("--model", "DIR", fmt::format("the model: {}", kModelPaths), o.model);
  c.option("--adapter", "DIR",
           "what `finetune --out DIR` or PEFT wrote over that model: merged first; without --model: alone", o.adapter);
  c.option("--base", "DIR", "of an adapter alone: its model; default: as adapter_config.json says", o.base);
  c.option("--to", "hf: a folder for Hugging Face's transformers; gguf: a file for llama.cpp", o.to, {"hf", "gguf"});
  c.option("--out", "PATH", "the folder or file to make", o.out);
  c.option("--dtype", "of the weights; same: as in a folder of Hugging Face, otherwise f32; q8_0: GGUF only", o.dtype,
           {"same", "f32", "bf16", "f16", "q8_0"});
  c.option("--max-shard", "SIZE", "most bytes of tensors in a file of --to hf; default: 5GB", o.max_shard,
           {"KB", "MB", "GB"});
}

}  // namespace

Subcommand export_command() {
  return subcommand<ExportOptions>("export", "write a model for other programs", run, declare);
}

}  // namespace tg::apps
