/// @file
/// Tensors, ops, layers, optimisers, training, files, tokenizers and Gpt; tools.h has the rest. tapegrad's own files
/// include the headers that they use instead.
///
/// @namespace tg
/// All of tapegrad. Functions of tensors are here; their ops are in tg::op, layers in tg::nn.
/// @namespace tg::op
/// The ops as structs: parameters, checks, gradient and kernels. Users call the functions of tg.
/// @namespace tg::nn
/// The layers of models: structs of tensors with a forward().
/// @namespace tg::kernel
/// Functions for kernels of own ops.
/// @namespace tg::check
/// Checks that the infer() of many ops share.
/// @namespace tg::math
/// Elementary functions for kernels.
/// @example snippets.cpp
/// A small example of each layer and each important op. A test compiles and runs it.
#pragma once
#include <tapegrad/autograd/backward.h>
#include <tapegrad/autograd/custom_vjp.h>
#include <tapegrad/autograd/recompute.h>
#include <tapegrad/core/backend/dry_run.h>
#include <tapegrad/core/engine/bf16_copy.h>
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/core/io/safetensors.h>
#include <tapegrad/core/observe.h>
#include <tapegrad/core/plan/compile.h>
#include <tapegrad/core/rng.h>
#include <tapegrad/core/tensor.h>
#include <tapegrad/models/config/config_json.h>
#include <tapegrad/models/data/bpe_train.h>
#include <tapegrad/models/data/chat.h>
#include <tapegrad/models/data/dataset.h>
#include <tapegrad/models/data/documents.h>
#include <tapegrad/models/data/examples.h>
#include <tapegrad/models/gpt/gpt.h>
#include <tapegrad/models/io/checkpoint.h>
#include <tapegrad/models/io/gguf.h>
#include <tapegrad/models/io/huggingface.h>
#include <tapegrad/models/io/model_dir.h>
#include <tapegrad/models/io/peft.h>
#include <tapegrad/models/jinja/jinja.h>
#include <tapegrad/models/model/dpo.h>
#include <tapegrad/models/model/generate.h>
#include <tapegrad/models/model/lora.h>
#include <tapegrad/models/nn/fragmented.h>
#include <tapegrad/models/nn/lora.h>
#include <tapegrad/models/optim/adamw.h>
#include <tapegrad/models/optim/muon.h>
#include <tapegrad/models/optim/schedule.h>
#include <tapegrad/models/optim/sgd.h>
#include <tapegrad/models/tokenizers/bpe.h>
#include <tapegrad/models/tokenizers/tokenizer.h>
#include <tapegrad/models/train/accumulate.h>
#include <tapegrad/models/train/reduce.h>
#include <tapegrad/models/train/trainer.h>
#include <tapegrad/ops/ops.h>
