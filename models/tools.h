/// @file
/// tapegrad.h, and what the command line uses: named runs, plans of memory and time, comparisons, logs and plots.
#pragma once
#include <tapegrad/core/profile/profile_tables.h>
#include <tapegrad/models/data/data_config.h>
#include <tapegrad/models/data/token_file.h>
#include <tapegrad/models/tools/compare.h>
#include <tapegrad/models/tools/memory_plan.h>
#include <tapegrad/models/tools/plot.h>
#include <tapegrad/models/tools/roofline.h>
#include <tapegrad/models/train/events.h>
#include <tapegrad/models/train/log.h>
#include <tapegrad/models/train/run_config.h>
#include <tapegrad/tapegrad.h>
