// Loops written once for a vector of numbers and for a single one, where compilers make too little of a plain loop: f
// is called with Lanes<C> for as many neighbours as a register holds, then with C for what is left of n. load<V>() and
// store() convert bf16, so that f computes in C.
#pragma once
#include <tapegrad/core/half.h>
#include <tapegrad/cpu/sums.h>

#include <array>
#include <bit>
#include <type_traits>
#include <utility>

namespace tg::cpu::TG_ISA_NS {

inline constexpr int kRegister = TG_ISA_LEVEL == 4 ? 64 : TG_ISA_LEVEL == 3 ? 32 : 16;  // bytes
template <class C> inline constexpr int kWidth = kRegister / int(sizeof(C));
template <class C> struct LanesOf {
  typedef C type __attribute__((vector_size(kRegister)));
};
template <class C> using Lanes = typename LanesOf<C>::type;
typedef uint16_t Halves __attribute__((vector_size(kRegister / 2))), AllHalves __attribute__((vector_size(kRegister)));

// bf16 is the upper half of f32. By shuffles, as compilers convert vectors of integers in more steps.
inline constexpr int kUpper = std::endian::native == std::endian::little;
template <int... I> inline AllHalves from_upper(const Halves& x, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(x, Halves{}, (I % 2 == kUpper ? I / 2 : kWidth<float>)...);
}
template <int... I> inline Halves to_upper(const AllHalves& x, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(x, x, (2 * I + kUpper)...);
}
template <class V, class T> inline V load(const T* p) {
  if constexpr (std::is_same_v<V, compute_t<T>>) {
    return V(*p);
  } else if constexpr (std::is_same_v<T, bf16>) {
    Halves h;
    std::memcpy(&h, p, sizeof h);
    return reinterpret_cast<V>(from_upper(h, std::make_integer_sequence<int, 2 * kWidth<float>>()));
  } else {
    V v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
}
template <class V, class T> inline void store(T* p, const V& v) {
  if constexpr (std::is_same_v<V, compute_t<T>>) {
    *p = T(v);
  } else if constexpr (std::is_same_v<T, bf16>) {
    // As bf16(float), in an order that masked instructions suit.
    using Bits = Lanes<uint32_t>;
    const Bits u = reinterpret_cast<Bits>(v);
    Bits bits = v == v ? u + 0x7fff : Bits{} + 0x7fff0000;
    bits = (u & 0x10000) != 0 ? bits + 1 : bits;
    const Halves h = to_upper(reinterpret_cast<AllHalves>(bits), std::make_integer_sequence<int, kWidth<float>>());
    std::memcpy(static_cast<void*>(p), &h, sizeof h);
  } else {
    std::memcpy(p, &v, sizeof v);
  }
}
// Before a single number: keeps compilers from making vectors again of what is left, in loops as large as the others.
inline void one_left() { asm(""); }

// f.template operator()<V>(j) for all j < n, or for each kWidth<C> of them.
template <class C, class F> inline void for_lanes(int64_t n, F&& f) {
  int64_t j = 0;
  for (; j + kWidth<C> <= n; j += kWidth<C>) f.template operator()<Lanes<C>>(j);
  for (; j < n; ++j) one_left(), f.template operator()<C>(j);
}
// Sums over j < n of N numbers at a time, f.template operator()<V>(j): a std::array<V, N>. 32 running sums of each.
template <size_t N, class C, class F> inline std::array<C, N> lane_sums(int64_t n, F&& f) {
  constexpr int kSums = 32, kParts = kSums / kWidth<C>;
  Lanes<C> sum[N][kParts] = {};
  int64_t j = 0;
  const auto add = [&](int part) {
    const auto x = f.template operator()<Lanes<C>>(j);
    for (size_t k = 0; k < N; ++k) sum[k][part] += x[k];
    j += kWidth<C>;
  };
  [&]<int... P>(std::integer_sequence<int, P...>) {
    while (j + kSums <= n) (add(P), ...);
    ((P + 1 < kParts && j + kWidth<C> <= n ? add(P) : void()), ...);
  }(std::make_integer_sequence<int, kParts>());
  std::array<C, N> all, rest{};
  for (; j < n; ++j) {
    one_left();
    const auto x = f.template operator()<C>(j);
    for (size_t k = 0; k < N; ++k) rest[k] += x[k];
  }
  for (size_t k = 0; k < N; ++k) {
    C lane[kSums];
    std::memcpy(lane, sum[k], sizeof lane);
    all[k] = join_halves<kSums>(lane, [](auto& a, const auto& b) { a += b; }) + rest[k];
  }
  return all;
}

}  // namespace tg::cpu::TG_ISA_NS
