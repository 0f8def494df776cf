// `tapegrad inspect --roofline`: bytes, FLOPs and least time of a training step by op.
#pragma once
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/train/roofline.h>
#include <tapegrad/models/train/run_config.h>

namespace tg::apps {

// `where`: a Machine, or cpu or cuda for all named machines.
Json roofline_of(const std::string& model, const RunConfig&, const std::string& where);
void print_roofline(const Json&);

}  // namespace tg::apps
