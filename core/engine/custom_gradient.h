/// @file
/// CustomGradient: results of other ops with a custom gradient. Only composed ops with a vjp() and custom_vjp() emit
/// it.
#pragma once
#include <tapegrad/core/node.h>

namespace tg::op {

/// (an op's inputs, its outputs without a tape) -> the outputs, with the op's vjp.
struct CustomGradient : ViewOp<CustomGradient> {
  static constexpr auto kName = "own_gradient";
  OpPtr op;
  size_t inputs;
  CustomGradient(OpPtr o, size_t n) : op(std::move(o)), inputs(n) {}
  Layouts infer(Inputs in) const override {
    Layouts l;
    for (size_t i = inputs; i < in.size(); ++i) l.emplace_back(in[i].layout().view_of(i));
    return l;
  }
  Mask saves_in(Mask tracked) const override { return op->saves_in(tracked); }
  Mask saves_out(Mask tracked) const override { return op->saves_out(tracked); }
  Tensors vjp(const Vjp& v) const override {
    Tensors r = op->vjp(v.first(inputs));
    while (r.size() < v.inputs()) r.emplace_back();
    return r;
  }
  void key(StructuralHash& k) const override { k.add(op.get()), k.add(inputs); }
  void replay_key(StructuralHash& k) const override { k.add(op->type()), op->replay_key(k), k.add(inputs); }
};

}  // namespace tg::op
