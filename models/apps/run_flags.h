// Flags of settings and of training runs.
#pragma once
#include <tapegrad/models/apps/run.h>
#include <tapegrad/models/apps/task.h>
#include <tapegrad/models/io/model_dir.h>

namespace tg::apps {

// Flags of a new adapter and its base.
struct LoraFlags {
  std::string base_dtype;
  std::vector<std::string> targets;
  std::optional<int64_t> rank;
  std::optional<double> alpha, dropout;
  bool rslora = false;
  bool given() const { return rank || alpha || dropout || rslora || !targets.empty() || !base_dtype.empty(); }
  DType base() const { return base_dtype == "bf16" || base_dtype == "nf4" ? DType::bf16 : DType::f32; }
  Blocks blocks() const { return base_dtype == "nf4" ? Blocks::nf4 : Blocks::file; }
  LoraConfig config() const;
};
void add_lora_options(Command&, LoraFlags&);

using WantedSetting = bool (*)(std::string_view name);
void add_settings(Command&, SettingFlags& to, WantedSetting);
DataConfig data_config(const SettingFlags&);
// Includes --config.
void add_settings(Command&, TrainOptions&, WantedSetting);
// `out`: default of --out.
void add_train_options(Command&, TrainOptions&, const char* out, WantedSetting);
Device prepare(const TrainOptions&);  // checks options, sets the threads
// Later ones win: base, config file, flags. may_differ() runs before validation.
RunConfig run_of(const TrainOptions&, const RunConfig& base,
                 const std::function<void(const Difference&)>& may_differ = {});

}  // namespace tg::apps
