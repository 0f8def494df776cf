/// @file
/// Every public function on tensors: a list of includes for tapegrad.h. Authors of ops and kernels include single
/// headers, so that a change of one op rebuilds little.
#pragma once
#include <tapegrad/ops/attention.h>
#include <tapegrad/ops/comparison.h>
#include <tapegrad/ops/composed.h>
#include <tapegrad/ops/dropout.h>
#include <tapegrad/ops/factories.h>
#include <tapegrad/ops/fragments.h>
#include <tapegrad/ops/indexing.h>
#include <tapegrad/ops/lora.h>
#include <tapegrad/ops/loss.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/norm.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/quantized/fp8.h>
#include <tapegrad/ops/quantized/quantize.h>
#include <tapegrad/ops/quantized/switchback.h>
#include <tapegrad/ops/quantized/switchback_mlp.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/rope.h>
#include <tapegrad/ops/shape_ops.h>
#include <tapegrad/ops/softmax.h>
#include <tapegrad/ops/swiglu.h>
#include <tapegrad/ops/topk.h>
#include <tapegrad/ops/training/collective.h>
#include <tapegrad/ops/training/optim_step.h>
