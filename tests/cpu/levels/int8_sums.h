#pragma once
#include <cstdint>
#include <functional>
#include <vector>

struct Int8Matrix {  // element (i, j) is p[i * row + j * col]
  const int8_t* p;
  int64_t row, col;
};
using Int8Store = std::function<void(int64_t i, int64_t j, int64_t n, const int32_t* sums)>;
struct Int8Level {
  int level;
  void (*sums)(int64_t m, int64_t n, int64_t k, Int8Matrix a, Int8Matrix b, const Int8Store&);
};
std::vector<Int8Level>& int8_levels();
