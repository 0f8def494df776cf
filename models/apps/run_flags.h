// Flags of settings and of training runs.
#pragma once
#include <tapegrad/models/apps/run.h>

namespace tg::apps {

using WantedSetting = bool (*)(std::string_view name);
void add_settings(Command&, SettingFlags& to, WantedSetting);
DataConfig data_config(const SettingFlags&);
// And --config.
void add_settings(Command&, TrainOptions&, WantedSetting);
// Flags for all TrainOptions. `out` is the default of --out.
void add_train_options(Command&, TrainOptions&, const char* out, WantedSetting);
Device prepare(const TrainOptions&);  // checks them, sets the number of threads
// The base, the config file, then the flags. may_differ() runs before validation.
RunConfig run_of(const TrainOptions&, const RunConfig& base,
                 const std::function<void(const Difference&)>& may_differ = {});

}  // namespace tg::apps
