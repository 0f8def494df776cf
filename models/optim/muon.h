/// @file
/// Muon (Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024): momentum whose updates of
/// matrices are made nearly orthogonal by Newton-Schulz iterations. All other parameters go to AdamW in the same
/// object. The trainer uses it.
#pragma once
#include <tapegrad/models/optim/adamw.h>

namespace tg {

/// By what the orthogonal update of a matrix is multiplied, besides the learning rate.
enum class MuonScale {
  original,  ///< sqrt(max(1, rows / columns)), as in the first publication
  rms        ///< 0.2 sqrt(max(rows, columns)): the size of AdamW's updates, so that its rates serve (Liu et al. 2025)
};
/// The settings of a Muon.
struct MuonConfig {
  double lr = 0.02;  ///< of the matrices
  double momentum = 0.95;
  bool nesterov = true;     ///< the update looks ahead by one step
  double weight_decay = 0;  ///< of the matrices: w *= 1 - lr weight_decay
  int64_t ns_steps = 5;     ///< Newton-Schulz iterations
  /// What the iterations are computed in: bf16, as published, f32, or f64 (over f64 parameters).
  DType ns_dtype = DType::bf16;
  MuonScale scale = MuonScale::original;
  /// Patterns of parameters with two dimensions that go to AdamW all the same: tables and heads. Those of the default
  /// are names of a Gpt, and need not match; others must.
  std::vector<std::string> others = {"wte.weight", "wpe.weight", "lm_head.weight"};
  /// Of all other parameters; skip_non_finite is that of the matrices, too. Their rate is adamw.lr, and after set_lr(x)
  /// it is x adamw.lr / lr.
  AdamWConfig adamw = {};

  /// Throws an Error that names the first wrong field.
  void validate() const;
};

/// An Optimizer with one buffer per matrix, "<name>.momentum" in its state(), and AdamW's "<name>.m" and "<name>.v" for
/// the other parameters. With g a gradient and b its buffer, a step is, as in torch.optim.Muon,
/// @verbatim
/// b = momentum b + (1 - momentum) g;  u = nesterov ? momentum b + (1 - momentum) g : b
/// w = w (1 - lr weight_decay) - lr scale orthogonalize(u)
/// @endverbatim
class Muon : public Optimizer {
 public:
  /// See Optimizer for the rules of parameters, groups and ranks; one rank alone updates a matrix. A group's betas
  /// count for AdamW's parameters. Each of the Parameter::parts is made orthogonal and scaled by itself: a weight of
  /// queries, keys and values is three matrices. An Error if there is no matrix for it, or if parts do not fit. If
  /// memory runs out in the middle of a step, AdamW's parameters may have moved.
  explicit Muon(std::vector<Parameter>, MuonConfig = {}, std::vector<ParameterGroup> = {},
                const std::shared_ptr<Communicator>& = nullptr);
  const MuonConfig& config() const { return config_; }  ///< as it was given; lr() is the current rate
  std::vector<std::string> matrices() const;            ///< the names of the parameters that AdamW does not update

 private:
  struct Matrix {
    Tensor momentum;  // empty: another rank's
    Dims rows;        // of its parts; empty: AdamW's
    SgdOverrides own;
  };
  void update(const Step&) override;
  Tensor direction(const Matrix&, const Tensor& ahead) const;
  MuonConfig config_;
  detail::AdamWMoments adamw_;
  std::vector<Matrix> matrices_;  // by entry
};

/// The matrix nearest to x (rows, columns) whose singular values are equal, roughly: those of the result are between
/// about 0.7 and 1.2, if those of x are not many orders of magnitude apart. It is x / norm(x), then `steps` times
/// @verbatim
/// x = a x + (b x x^T + c (x x^T)^2) x   with (a, b, c) = (3.4445, -4.7750, 2.0315)
/// @endverbatim
/// computed in `dtype`, with the shorter side first. Zeros give zeros. The result is in the dtype of x, f32 or f64.
Tensor orthogonalize(const Tensor& x, int64_t steps = 5, DType dtype = DType::bf16);

}  // namespace tg
