// For loops that compilers vectorise badly: f gets V = Vector<C> for full registers, then V = C. load<V>() and store()
// convert bf16, so f computes in C.
#pragma once
#include <tapegrad/core/half.h>
#include <tapegrad/cpu/simd/exp.h>
#include <tapegrad/cpu/simd/sums.h>
#include <tapegrad/cpu/simd/vector.h>

#include <array>
#include <bit>
#include <type_traits>
#include <utility>

#define TG_INLINE __attribute__((always_inline))
namespace tg::cpu::TG_ISA_NS {

typedef uint16_t Halves __attribute__((vector_size(kVectorBytes / 2))),
    AllHalves __attribute__((vector_size(kVectorBytes)));

// bf16 is the upper half of f32. Shuffles take fewer steps than integer conversions.
inline constexpr int kUpper = std::endian::native == std::endian::little;
template <int... I> inline AllHalves from_upper(const Halves& x, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(x, Halves{}, (I % 2 == kUpper ? I / 2 : kVector<float>)...);
}
template <int... I> inline Halves to_upper(const AllHalves& x, std::integer_sequence<int, I...>) {
// AVX2 shuffles bytes within 16: first there, then by quadwords.
#if TG_ISA_LEVEL == 3
  const AllHalves there = __builtin_shufflevector(x, x, (I / 8 * 8 + I % 4 * 2 + kUpper)...);
  const auto eights = reinterpret_cast<Vector<uint64_t>>(there);
  const auto y = reinterpret_cast<AllHalves>(__builtin_shufflevector(eights, eights, 0, 2, 1, 3));
#else
  const AllHalves y = __builtin_shufflevector(x, x, (2 * I % int(sizeof...(I)) + kUpper)...);
#endif
  Halves h;
  std::memcpy(&h, &y, sizeof h);
  return h;
}
template <class V, class T> inline V load(const T* p) {
  if constexpr (std::is_same_v<V, compute_t<T>>) {
    return V(*p);
  } else if constexpr (std::is_same_v<T, bf16>) {
    Halves h;
    std::memcpy(&h, p, sizeof h);
    return reinterpret_cast<V>(from_upper(h, std::make_integer_sequence<int, 2 * kVector<float>>()));
  } else {
    return load_vector(p);
  }
}
template <class V, class T> inline void store(T* p, const V& v) {
  if constexpr (std::is_same_v<V, compute_t<T>>) {
    *p = T(v);
  } else if constexpr (std::is_same_v<T, bf16>) {
    // bf16(float), in a form for masked instructions, or one without them.
    using Bits = Vector<uint32_t>;
    const Bits u = reinterpret_cast<Bits>(v);
    Bits bits;
    if constexpr (kVectorBytes == 64) {
      bits = v == v ? u + 0x7fff : Bits{} + 0x7fff0000;
      bits = (u & 0x10000) != 0 ? bits + 1 : bits;
    } else {
      bits = u + 0x8000 + reinterpret_cast<Bits>((u & 0x10000) == 0);  // true is -1
      bits = v == v ? bits : Bits{} + 0x7fff0000;
    }
    const Halves h = to_upper(reinterpret_cast<AllHalves>(bits), std::make_integer_sequence<int, 2 * kVector<float>>());
    std::memcpy(static_cast<void*>(p), &h, sizeof h);
  } else {
    store_vector(p, v);
  }
}
// Optimisation barrier: the remainder loop must stay scalar.
inline void one_left() { asm(""); }

// Calls f<V>(j) for each kVector<C> of j < n, then for single j.
template <class C, class F> inline void for_lanes(int64_t n, F&& f) {
  int64_t j = 0;
  for (; j + kVector<C> <= n; j += kVector<C>) f.template operator()<Vector<C>>(j);
  for (; j < n; ++j) one_left(), f.template operator()<C>(j);
}
// N sums over begin <= j < end: f<V>(j) returns a std::array<V, N>. 64 accumulators.
template <size_t N, class C, class F> inline std::array<C, N> block_sums(int64_t j, int64_t n, F&& f) {
  constexpr int kSums = 64 / int(N), kParts = kSums / kVector<C>;
  Vector<C> sum[N][kParts];
  std::array<C, N> all, rest{};
  [&]<int... P, size_t... K>(std::integer_sequence<int, P...>, std::index_sequence<K...>) TG_INLINE {
    const auto add = [&]<int Part>(std::integral_constant<int, Part>) TG_INLINE {
      const auto x = f.template operator()<Vector<C>>(j);
      ((sum[K][Part] += x[K]), ...);
      j += kVector<C>;
    };
    const auto clear = [&](Vector<C>(&x)[kParts]) TG_INLINE { ((x[P] = Vector<C>{}), ...); };
    (clear(sum[K]), ...);
    while (j + kSums <= n) (add(std::integral_constant<int, P>()), ...);
    // Whole groups of kLanes at any width of the vector; the rest is one chain.
    const int64_t whole = j + (n - j) / kLanes * kLanes;
    ((P + 1 < kParts && j + kVector<C> <= whole ? add(std::integral_constant<int, P>()) : void()), ...);
    for (; j < n; ++j) {
      one_left();
      const auto x = f.template operator()<C>(j);
      ((rest[K] += x[K]), ...);
    }
    ((all[K] = join_vectors(sum[K], kAdd) + rest[K]), ...);
  }(std::make_integer_sequence<int, kParts>(), std::make_index_sequence<N>());
  return all;
}
// N sums over j < n: a tree of block_sums().
template <size_t N, class C, class F> inline std::array<C, N> lane_sums(int64_t n, F&& f) {
  return tree_of_blocks<N, C>(n, [&](int64_t j, int64_t end) TG_INLINE { return block_sums<N, C>(j, end, f); });
}

// max of x[i], n >= 1. May lose NaN, which reappears in a sum of exponentials.
template <class C, class T> inline C top_of(int64_t n, const T* x) {
  constexpr int kChains = 4, kStep = kVector<C>;
  const auto take = [](auto& a, const auto& b) { a = a < b ? b : a; };
  C top = C(x[0]);
  int64_t j = 0;
  if (n >= kStep) {
    Vector<C> most[kChains];
    for (Vector<C>& m : most) m = load<Vector<C>>(x);
    for (; j + kChains * kStep <= n; j += kChains * kStep)
#pragma GCC unroll 4
      for (int k = 0; k < kChains; ++k) take(most[k], load<Vector<C>>(x + j + k * kStep));
    for (; j + kStep <= n; j += kStep) take(most[0], load<Vector<C>>(x + j));
    take(most[0], most[1]), take(most[2], most[3]), take(most[0], most[2]);
    take(top, join_lanes<kStep>(most[0], take));
  }
  for (; j < n; ++j) one_left(), take(top, C(x[j]));
  return top;
}

// Sum of e^(x[j] - top); keep(j, e) receives each term.
template <class C, class T, class Keep> inline C sum_of_exp(int64_t n, const T* x, C top, Keep&& keep) {
  return lane_sums<1, C>(n, [&]<class V>(int64_t j) {
    const V e = exp_to_zero(V(load<V>(x + j) - top));
    keep(j, e);
    return std::array<V, 1>{e};
  })[0];
}
template <class C, class T> inline C sum_of_exp(int64_t n, const T* x, C top) {
  return sum_of_exp(n, x, top, [](int64_t, const auto&) {});
}

}  // namespace tg::cpu::TG_ISA_NS
