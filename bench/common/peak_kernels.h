// Loops of peak.cpp for one instruction set, included once for each, with TG_PEAK_NAME, the attribute
// TG_PEAK_TARGET, the register bytes TG_PEAK_WIDTH, the register chains TG_PEAK_CHAINS, and optionally the non-temporal
// store TG_PEAK_STREAM.
namespace TG_PEAK_NAME {

template <class T> struct Vector {
  typedef T type __attribute__((vector_size(TG_PEAK_WIDTH)));
};

// n rounds of a multiply-add per chain; independent chains hide latency.
template <class T> TG_PEAK_TARGET double multiply_add(int64_t n) {
  using V = typename Vector<T>::type;
  V chain[TG_PEAK_CHAINS], factor = {}, term = {};
  for (size_t i = 0; i < sizeof(V) / sizeof(T); ++i) factor[i] = T(0.999), term[i] = T(i + 1);  // no denormals
  for (int k = 0; k < TG_PEAK_CHAINS; ++k) chain[k] = term + T(k);
  for (; n > 0; --n)
    for (int k = 0; k < TG_PEAK_CHAINS; ++k) chain[k] = chain[k] * factor + term;
  V sum = {};
  for (int k = 0; k < TG_PEAK_CHAINS; ++k) sum += chain[k];
  double result = 0;
  for (size_t i = 0; i < sizeof(V) / sizeof(T); ++i) result += double(sum[i]);
  return result;
}
template <class T> constexpr double flop_per_round() { return 2.0 * TG_PEAK_CHAINS * TG_PEAK_WIDTH / sizeof(T); }

using Floats = Vector<float>::type;
constexpr int64_t kLanes = sizeof(Floats) / sizeof(float);
template <bool streaming> TG_PEAK_TARGET inline void store(float* to, const Floats& x) {
#ifdef TG_PEAK_STREAM
  if constexpr (streaming) {
    asm volatile(TG_PEAK_STREAM " %1, %0" : "=m"(*reinterpret_cast<Floats*>(to)) : "x"(x));
    return;
  }
#endif
  *reinterpret_cast<Floats*>(to) = x;
}
// Arrays are 64-byte aligned, n is a multiple of 16.
template <bool streaming> TG_PEAK_TARGET inline void copy(float* to, const float* a, const float*, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) store<streaming>(to + i, *reinterpret_cast<const Floats*>(a + i));
}
template <bool streaming> TG_PEAK_TARGET inline void triad(float* to, const float* a, const float* b, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes)
    store<streaming>(to + i, *reinterpret_cast<const Floats*>(a + i) + 3.0f * *reinterpret_cast<const Floats*>(b + i));
}
template <bool streaming> TG_PEAK_TARGET inline void update(float* to, const float* a, const float*, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes)
    store<streaming>(to + i, *reinterpret_cast<const Floats*>(a + i) + 0.5f * *reinterpret_cast<const Floats*>(to + i));
}
template <bool streaming> TG_PEAK_TARGET inline void scale(float* to, const float*, const float*, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) store<streaming>(to + i, -*reinterpret_cast<const Floats*>(to + i));
}
TG_PEAK_TARGET inline void read(float* to, const float* a, const float*, int64_t n) {
  constexpr int kChains = 4;
  Floats sum[kChains] = {};
  for (int64_t i = 0; i + kChains * kLanes <= n; i += kChains * kLanes)
    for (int k = 0; k < kChains; ++k) sum[k] += *reinterpret_cast<const Floats*>(a + i + k * kLanes);
  *reinterpret_cast<Floats*>(to) = (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

constexpr Kernels kKernels{multiply_add<float>,           multiply_add<double>,        flop_per_round<float>(),
                           flop_per_round<double>(),      {copy<false>, copy<true>},   {triad<false>, triad<true>},
                           {update<false>, update<true>}, {scale<false>, scale<true>}, {read}};
}  // namespace TG_PEAK_NAME
#undef TG_PEAK_NAME
#undef TG_PEAK_TARGET
#undef TG_PEAK_WIDTH
#undef TG_PEAK_CHAINS
#undef TG_PEAK_STREAM
