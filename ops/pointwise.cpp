#include <tapegrad/ops/pointwise.h>

namespace tg {
Tensor exp(const Tensor& x) { return emit1(stateless<op::Unary<op::Exp>>(), {x}); }
Tensor log(const Tensor& x) { return emit1(stateless<op::Unary<op::Log>>(), {x}); }
Tensor sqrt(const Tensor& x) { return emit1(stateless<op::Unary<op::Sqrt>>(), {x}); }
Tensor rsqrt(const Tensor& x) { return emit1(stateless<op::Unary<op::Rsqrt>>(), {x}); }
Tensor sin(const Tensor& x) { return emit1(stateless<op::Unary<op::Sin>>(), {x}); }
Tensor cos(const Tensor& x) { return emit1(stateless<op::Unary<op::Cos>>(), {x}); }
Tensor tanh(const Tensor& x) { return emit1(stateless<op::Unary<op::Tanh>>(), {x}); }
Tensor sigmoid(const Tensor& x) { return emit1(stateless<op::Unary<op::Sigmoid>>(), {x}); }
Tensor erf(const Tensor& x) { return emit1(stateless<op::Unary<op::Erf>>(), {x}); }
Tensor neg(const Tensor& x) { return emit1(stateless<op::Unary<op::Neg>>(), {x}); }
Tensor abs(const Tensor& x) { return emit1(stateless<op::Unary<op::Abs>>(), {x}); }
Tensor relu(const Tensor& x) { return emit1(stateless<op::Unary<op::Relu>>(), {x}); }
Tensor silu(const Tensor& x) { return emit1(stateless<op::Unary<op::Silu>>(), {x}); }
Tensor gelu(const Tensor& x) { return emit1(stateless<op::Unary<op::Gelu>>(), {x}); }
Tensor gelu_tanh(const Tensor& x) { return emit1(stateless<op::Unary<op::GeluTanh>>(), {x}); }
}  // namespace tg
