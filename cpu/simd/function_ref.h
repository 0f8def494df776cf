// A non-owning function reference, for code compiled once.
#pragma once
#include <tapegrad/cpu/simd/isa.h>

#include <type_traits>

namespace tg::cpu::TG_ISA_NS {

template <class Signature> class FunctionRef;
template <class... A> class FunctionRef<void(A...)> {
 public:
  template <class F>
    requires(!std::is_same_v<std::remove_const_t<F>, FunctionRef>)
  FunctionRef(F& f)
      : call_([](void* g, A... a) { (*static_cast<F*>(g))(a...); }),
        object_(const_cast<void*>(static_cast<const void*>(&f))) {}
  void operator()(A... a) const { call_(object_, a...); }

 private:
  void (*call_)(void*, A...);
  void* object_;
};

}  // namespace tg::cpu::TG_ISA_NS
