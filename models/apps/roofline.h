// `tapegrad inspect --roofline`: what a training step moves and computes, op by op, and the least time for it on some
// machines. User: inspect.cpp.
#pragma once
#include <tapegrad/core/io/json.h>
#include <tapegrad/models/train/roofline.h>
#include <tapegrad/models/train/run_config.h>

namespace tg::apps {

// `where` is --device: a Machine; cpu or cuda stand for all that have names.
Json roofline_of(const std::string& model, const RunConfig&, const std::string& where);
void print_roofline(const Json&);

}  // namespace tg::apps
