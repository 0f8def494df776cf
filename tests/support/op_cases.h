// One struct per use of an op, listed in op_cases.cpp; pointwise functions come from UnaryFns, BinaryFns and their
// domains. test_ops.cpp runs every case.
#pragma once
#include <tapegrad/core/op.h>

#include <functional>
#include <string>
#include <vector>

namespace tg {

struct TensorInit {
  Shape shape;
  double lo = -2, hi = 2;      // uniform
  bool index = false;          // i64 in [lo, hi)
  bool differentiable = true;  // false: a constant
  double cell = 0, at = 0.5;   // > 0: within a fifth of `cell` from (k + at) cell, off kinks
};
struct OpCase {
  std::string op, variant;
  std::vector<TensorInit> in;
  std::function<Tensors(Inputs)> fn;
  // max|a - b| / max|b| against f64 from the same inputs; bf16 keeps 8 bits of each result
  double f32 = 1e-5, bf16 = 2e-2;
  double f64 = 1e-11;       // tolerance of another backend
  double gradcheck = 1e-7;  // 0: not differentiable
  std::string name() const { return op + "." + variant; }
};
struct CaseSizes {
  int64_t rows = 3, cols = 5;
};
// TG_CASES=softmax,norm chooses cases whose name has one of these words, TG_CASES_THIRD=0, 1 or 2 a third.
std::vector<OpCase> op_cases(CaseSizes = {});
// Whether the case draws random numbers, which a compiled function refuses.
inline bool draws(const OpCase& c) {
  return c.op == "dropout" || c.op == "multinomial" || c.op == "rand" || c.op == "randint" || c.op == "randn" ||
         c.op == "trunc_normal" || c.variant.starts_with("dropped");
}
bool every_op_case();
void add_layer_cases(std::vector<OpCase>& list, const CaseSizes&);  // op_cases_layers.cpp
void add_code_cases(std::vector<OpCase>& list, const CaseSizes&);   // op_cases_codes.cpp
// Applies TG_CASES and TG_CASES_THIRD. An Error if TG_CASES chooses none at the usual sizes, which have all cases.
void keep_chosen(std::vector<OpCase>& list, bool usual_sizes);  // op_cases_chosen.cpp
// Values of f64, f32 or bf16 that every wider dtype holds exactly; leaves.
std::vector<Tensor> make_inputs(const OpCase&, DType, uint64_t seed = 1);

}  // namespace tg
