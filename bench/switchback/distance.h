// Checks that timed work was computed: int8 results against full precision.
#pragma once
#include <tapegrad/core/tensor.h>

#include <string_view>

namespace tg::bench {

// |a - b| / |b| by Euclidean norms, over the first rows of two equal shapes.
double relative_distance(const Tensor& a, const Tensor& b);
// Throws an Error of kind state above 0.05; int8 values of normal numbers are off by 0.01 to 0.02.
void check_near(std::string_view what, double distance);

}  // namespace tg::bench
