// Whether what is timed was computed: results of 8-bit codes beside those of the same numbers in full.
#pragma once
#include <tapegrad/core/tensor.h>

#include <string_view>

namespace tg::bench {

// Of the first rows of two matrices of one shape: |a - b| / |b|, by their Euclidean norms.
double relative_distance(const Tensor& a, const Tensor& b);
// An Error of kind state for a distance that is more than 0.05: 8-bit codes of normal numbers are off by 0.01 to 0.02.
void check_near(std::string_view what, double distance);

}  // namespace tg::bench
