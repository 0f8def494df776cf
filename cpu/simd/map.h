// out[i] = f(in[i]...) with broadcasting, any layout, a dtype per operand. Walk, gather and bf16 conversion are
// compiled once per number of operands; functions and compute types add one contiguous loop.
#pragma once
#include <tapegrad/cpu/simd/loop.h>

namespace tg::cpu::TG_ISA_NS {

enum class Bf16 { as_f32, as_bits };  // form of bf16 in loops

class BlockOperand {
 public:
  BlockOperand(const Buf& b, Bf16 how, int64_t at, int64_t step, int64_t n)
      : dtype_(b.dtype()), size_(size_of(dtype_)), step_(step), widen_(dtype_ == DType::bf16 && how == Bf16::as_f32) {
    p_ = b.bytes + (b.layout->offset + at) * int64_t(size_);
    if (step_ == 0) gather(0, std::min(kBlock, n));  // once for all blocks
  }
  const void* block(int64_t at, int64_t n) {
    if (step_ == 1 && !widen_) return p_ + at * int64_t(size_);
    if (step_ != 0) gather(at, n);
    return buffer_;
  }

 private:
  template <class T> void gather_as(int64_t at, int64_t n) {
    const T* p = reinterpret_cast<const T*>(p_) + at * step_;
    auto* to = reinterpret_cast<T*>(buffer_);
    if (step_ == 0)
      std::fill_n(to, n, *p);
    else
      for (int64_t i = 0; i < n; ++i) to[i] = p[i * step_];
  }
  void gather_bf16(int64_t at, int64_t n) {
    const bf16* p = reinterpret_cast<const bf16*>(p_) + at * step_;
    auto* to = reinterpret_cast<float*>(buffer_);
    if (step_ == 1)
      for (int64_t i = 0; i < n; ++i) to[i] = float(p[i]);
    else
      for (int64_t i = 0; i < n; ++i) to[i] = float(p[i * step_]);
  }
  [[gnu::noinline]] void gather(int64_t at, int64_t n) {
    if (widen_) return gather_bf16(at, n);
    kernel::visit_size(dtype_, [&]<class U>() { gather_as<U>(at, n); });
  }
  const std::byte* p_;
  DType dtype_;
  size_t size_;
  int64_t step_;
  bool widen_;
  alignas(64) std::byte buffer_[kBlock * 8];
};

template <size_t N> using BlockLoop = FunctionRef<void(int64_t n, void* out, const std::array<const void*, N>& in)>;
template <size_t N>
void bf16_block(int64_t n, std::byte* out, const std::array<const void*, N>& in, BlockLoop<N> loop) {
  alignas(64) float wide[kBlock];
  loop(n, wide, in);
  auto* y = reinterpret_cast<bf16*>(out);
  for (int64_t i = 0; i < n; ++i) y[i] = bf16(wide[i]);
}
// out is contiguous; each block is read before it is written.
template <size_t N> void map_blocks(Bufs in, const Buf& out, Bf16 how, BlockLoop<N> loop) {
  const Shape& s = out.shape();
  const auto width = int64_t(size_of(out.dtype()));
  const auto converts = [how](const Buf& b) { return b.dtype() == DType::bf16 && how == Bf16::as_f32; };
  const bool narrow = converts(out);
  std::byte* y = out.bytes + out.layout->offset * width;
  const int64_t size = s.product();
  if (size <= kBlock && !narrow) {  // a walk would cost more
    std::array<const void*, N> x;
    bool plain = true;
    for (size_t k = 0; plain && k < N; ++k) {
      plain = !converts(in[k]) && in[k].shape() == s && in[k].is_contiguous();
      x[k] = in[k].bytes + in[k].layout->offset * int64_t(size_of(in[k].dtype()));
    }
    if (plain) return loop(size, y, x);
  }
  std::array<Strides, N + 1> strides{out.strides()};
  for (size_t k = 0; k < N; ++k) strides[k + 1] = tg::detail::broadcast_strides(*in[k].layout, s);
  for_rows<N + 1>(s, strides, [&](int64_t n, const At<N + 1>& at, const At<N + 1>& step) {
    [&]<size_t... K>(std::index_sequence<K...>) {
      std::array<BlockOperand, N> x{BlockOperand(in[K], how, at[K + 1], step[K + 1], n)...};
      for (int64_t i = 0; i < n; i += kBlock) {
        const int64_t m = std::min(kBlock, n - i);
        const std::array<const void*, N> p{x[K].block(i, m)...};
        std::byte* to = y + (at[0] + i) * width;
        if (narrow)
          bf16_block<N>(m, to, p, loop);
        else
          loop(m, to, p);
      }
    }(std::make_index_sequence<N>());
  });
}

// f from X... to Y. bf16 is float, or uint16_t where bits move alone.
template <class Y, class... X, class F> void map(Bufs in, Bufs out, F f) {
  const auto loop = [f](int64_t n, void* to, const std::array<const void*, sizeof...(X)>& from) {
    [&]<size_t... K>(std::index_sequence<K...>) {
      [f, n](Y* y, const X*... x) {
        TG_SAME_INDEX
        for (int64_t i = 0; i < n; ++i) y[i] = f(x[i]...);
      }(static_cast<Y*>(to), static_cast<const X*>(from[K])...);
    }(std::index_sequence_for<X...>());
  };
  constexpr bool bits = std::is_same_v<Y, uint16_t>;
  map_blocks<sizeof...(X)>(in, out[0], bits ? Bf16::as_bits : Bf16::as_f32, BlockLoop<sizeof...(X)>(loop));
}

template <class F> void visit_computed(DType d, F&& f) { kernel::visit_among<double, float>(d, f); }

}  // namespace tg::cpu::TG_ISA_NS
