/// @file
/// Plots of the logs of runs: a page of SVG for a browser, or braille characters for a terminal.
#pragma once
#include <tapegrad/models/train/log.h>

#include <string>
#include <vector>

namespace tg {

/// The log of a run, under its name in legends: UTF-8 without control characters.
struct NamedLog {
  std::string name;
  std::vector<StepRecord> steps;
};

/// A page without script and links: loss by steps, tokens and time; learning rate, gradient norm and tokens per second
/// by steps. Non-finite numbers leave gaps. Time is the sum of `ms`.
std::string plot_html(const std::vector<NamedLog>& runs);

/// The mean training loss per dot column, in 16 lines of `width` (at least 40) columns, then a line per run. A letter
/// marks each curve's end. `colors`: escape sequences.
std::string plot_braille(const std::vector<NamedLog>& runs, int width, bool colors);

}  // namespace tg
