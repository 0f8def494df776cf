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

/// A page without script and without links. The panels are the loss against steps, tokens and time, and learning rate,
/// gradient norm and tokens per second against steps; all runs are in each. Numbers that are not finite leave gaps.
/// Time is the sum of `ms`, so without validation. A panel has at most two points per pixel and curve.
std::string plot_html(const std::vector<NamedLog>& runs);

/// The mean training loss per column of dots, in 16 lines of `width` (at least 40) columns, then a line for each run.
/// A letter at the right marks the end of each curve. `colors` adds escape sequences.
std::string plot_braille(const std::vector<NamedLog>& runs, int width, bool colors);

}  // namespace tg
