// Every public function on tensors. For users; op authors include the header they need.
#pragma once
#include <tapegrad/ops/attention.h>
#include <tapegrad/ops/choose.h>
#include <tapegrad/ops/create.h>
#include <tapegrad/ops/dropout.h>
#include <tapegrad/ops/embedding.h>
#include <tapegrad/ops/loss.h>
#include <tapegrad/ops/matmul.h>
#include <tapegrad/ops/norm.h>
#include <tapegrad/ops/optim_step.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/reduce.h>
#include <tapegrad/ops/select.h>
#include <tapegrad/ops/shape_ops.h>
#include <tapegrad/ops/softmax.h>
