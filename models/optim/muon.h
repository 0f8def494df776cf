/// @file
/// Muon (Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024): momentum whose matrix updates
/// are made nearly orthogonal by Newton-Schulz iterations. The same object updates all other parameters with AdamW.
#pragma once
#include <tapegrad/models/optim/adamw.h>

namespace tg {

/// Factor of the orthogonal update, next to the learning rate.
enum class MuonScale {
  original,  ///< sqrt(max(1, rows / columns)), as in the first publication
  /// 0.2 sqrt(max(rows, columns)): sized like AdamW's updates, so its rates fit (Liu et al., 2025).
  rms
};
/// Coefficients of a Newton-Schulz iteration x = a x + (b x x^T + c (x x^T)^2) x. The defaults, those of the first
/// publication, leave singular values between about 0.7 and 1.2; (2, -1.5, 0.5) converges to 1.
struct NewtonSchulz {
  double a = 3.4445, b = -4.7750, c = 2.0315;
};
/// Settings of a Muon.
struct MuonConfig {
  double lr = 0.02;  ///< learning rate of matrices
  double momentum = 0.95;
  bool nesterov = true;     ///< the update looks one step ahead
  double weight_decay = 0;  ///< matrices: w *= 1 - lr weight_decay
  int64_t ns_steps = 5;     ///< Newton-Schulz iterations
  NewtonSchulz ns = {};     ///< their coefficients
  /// Dtype of the iterations: bf16, as published, f32, or f64 (over f64 parameters).
  DType ns_dtype = DType::bf16;
  MuonScale scale = MuonScale::original;
  /// Patterns of matrices for AdamW: tables and heads. The defaults (a Gpt's names) need not match; others must.
  std::vector<std::string> others = {"wte.weight", "wpe.weight", "lm_head.weight"};
  /// For all others; skip_non_finite also counts for matrices. Their rate after set_lr(x) is x adamw.lr / lr.
  AdamWConfig adamw = {};

  /// Throws an Error that names the first wrong field.
  void validate() const;
};

/// An Optimizer with a buffer per matrix, "<name>.momentum" in its state(), and AdamW's "<name>.m" and "<name>.v" for
/// the others. With gradient g and buffer b a step is that of torch.optim.Muon:
/// @verbatim
/// b = momentum b + (1 - momentum) g;  u = nesterov ? momentum b + (1 - momentum) g : b
/// w = w (1 - lr weight_decay) - lr scale orthogonalize(u)
/// @endverbatim
class Muon : public Optimizer {
 public:
  /// Optimizer has the rules of parameters, groups and ranks; a single rank updates a matrix. Betas of a group are for
  /// AdamW's parameters. Parameter::row_splits are separate matrices: three in a qkv weight. An Error without a matrix,
  /// or if parts do not fit. If memory runs out in a step, AdamW's parameters may have moved.
  explicit Muon(std::vector<Parameter>, MuonConfig = {}, std::vector<ParameterGroup> = {},
                const std::shared_ptr<Communicator>& = nullptr);
  const MuonConfig& config() const { return config_; }
  std::vector<std::string> matrices() const;  ///< parameters that AdamW does not update

 private:
  struct Matrix {
    Tensor momentum;  // empty if another rank owns it
    Dims rows;        // rows of parts; empty: AdamW updates it
    SgdOverrides own;
  };
  void update(const Step&) override;
  Tensor direction(const Matrix&, const Tensor& ahead) const;
  MuonConfig config_;
  detail::AdamWMoments adamw_;
  std::vector<Matrix> matrices_;  // indexed by entry
};

namespace detail {
/// Approximates the matrix nearest to x (rows, columns) with equal singular values, unless those of x are many orders
/// of magnitude apart: x / norm(x), then `steps` iterations, computed in `dtype`, transposed if x is tall. Zeros give
/// zeros. The result has x's dtype, f32 or f64.
Tensor orthogonalize(const Tensor& x, int64_t steps = 5, DType dtype = DType::bf16, NewtonSchulz = {});
}  // namespace detail

}  // namespace tg
