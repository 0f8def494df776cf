/// @file
/// Everything that a program needs: tensors, ops, backward, models and their training. Files of the library include the
/// headers that they use instead.
#pragma once
#include <tapegrad/autograd/backward.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/core/profile/profile_tables.h>
#include <tapegrad/core/rng.h>
#include <tapegrad/core/safetensors.h>
#include <tapegrad/core/tensor.h>
#include <tapegrad/models/data/dataset.h>
#include <tapegrad/models/data/tokenizer.h>
#include <tapegrad/models/gpt/config_json.h>
#include <tapegrad/models/gpt/generate.h>
#include <tapegrad/models/gpt/lora.h>
#include <tapegrad/models/io/adapter.h>
#include <tapegrad/models/io/checkpoint.h>
#include <tapegrad/models/io/model_dir.h>
#include <tapegrad/models/nn/lora.h>
#include <tapegrad/models/optim/adamw.h>
#include <tapegrad/models/optim/schedule.h>
#include <tapegrad/models/train/accumulate.h>
#include <tapegrad/models/train/compare.h>
#include <tapegrad/models/train/log.h>
#include <tapegrad/models/train/memory_plan.h>
#include <tapegrad/models/train/run_config.h>
#include <tapegrad/models/train/trainer.h>
#include <tapegrad/ops/ops.h>
