// Any layout to contiguous. Values go through i64 or f64, which hold all others: 30 loops, not 100.
#include <tapegrad/core/engine/cast.h>
#include <tapegrad/cpu/simd/loop.h>

#include <algorithm>
#include <limits>
#if TG_ISA_LEVEL >= 3
#include <immintrin.h>
#endif

namespace tg::cpu::TG_ISA_NS {
namespace {
template <class T> using Wide = std::conditional_t<std::is_integral_v<T>, int64_t, double>;

// Floats truncate towards 0 and saturate; NaN becomes 0.
template <class To, class From> To convert(From x) {
  if constexpr (std::is_same_v<To, bool>) {
    return x != From(0);
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    constexpr To lo = std::numeric_limits<To>::min(), hi = std::numeric_limits<To>::max();
    return x != x ? To(0) : x <= From(lo) ? lo : x >= From(hi) ? hi : To(x);
  } else {
    return To(compute_t<To>(x));
  }
}
template <class From, class To> void direct(const Buf& in, const Buf& out) {
  for_rows<2>(out.shape(), {out.strides(), in.strides()}, [&](int64_t n, At<2> at, At<2> step) {
    map_row(
        n, out.data<To>() + at[0], [](auto x) { return x; }, RowOperand<From>(in.data<From>() + at[1], step[1]));
  });
}
template <class From> void widen(const Buf& in, int64_t at, int64_t step, int64_t n, Wide<From>* to) {
  const From* p = in.data<From>() + at;
  for (int64_t i = 0; i < n; ++i) to[i] = Wide<From>(compute_t<From>(p[i * step]));
}
template <class W, class To> void narrow(const W* from, int64_t n, To* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = convert<To>(from[i]);
}
void through_wide(const Buf& in, const Buf& out) {
  for_rows<2>(out.shape(), {out.strides(), in.strides()}, [&](int64_t n, At<2> at, At<2> step) {
    for (int64_t b = 0; b < n; b += kBlock) {
      const int64_t m = std::min(kBlock, n - b), from = at[1] + b * step[1];
      const auto store = [&](const auto* wide) {
        visit_dtype(out.dtype(), [&]<class To>() { narrow(wide, m, out.data<To>() + at[0] + b); });
      };
      int64_t ints[kBlock];
      double floats[kBlock];
      visit_dtype(in.dtype(), [&]<class From>() {
        if constexpr (std::is_integral_v<From>)
          widen<From>(in, from, step[1], m, ints);
        else
          widen<From>(in, from, step[1], m, floats);
      });
      if (is_float(in.dtype()))
        store(floats);
      else
        store(ints);
    }
  });
}
#if TG_ISA_LEVEL >= 3  // F16C. NaN is 0x7fff in f16, and quiet in f32
inline void convert_8(const float* x, f16* y) {
  const __m256 wide = _mm256_loadu_ps(x);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(wide, wide, _CMP_UNORD_Q));
  const __m128i is_nan = _mm_packs_epi32(_mm256_castsi256_si128(nan), _mm256_extracti128_si256(nan, 1));
  const __m128i half = _mm256_cvtps_ph(wide, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(y), _mm_blendv_epi8(half, _mm_set1_epi16(0x7fff), is_nan));
}
inline void convert_8(const f16* x, float* y) {
  _mm256_storeu_ps(y, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))));
}
template <class From, class To> void by_f16c(const Buf& in, const Buf& out) {
  for_rows<2>(out.shape(), {out.strides(), in.strides()}, [&](int64_t n, At<2> at, At<2> step) {
    const From* const x = in.data<From>() + at[1];
    To* const y = out.data<To>() + at[0];
    for (int64_t i = 0; i < n; i += 8) {
      if (i + 8 <= n && step[1] == 1) {
        convert_8(x + i, y + i);
        continue;
      }
      From from[8]{};
      To to[8];
      const int64_t m = std::min<int64_t>(8, n - i);
      for (int64_t j = 0; j < m; ++j) from[j] = x[(i + j) * step[1]];
      convert_8(from, to);
      std::copy_n(to, m, y + i);
    }
  });
}
#endif
void cast(const op::Cast&, Bufs in, Bufs out, Context&) {
  const DType from = in[0].dtype(), to = out[0].dtype();
  if (from == to)
    return kernel::visit_size(to, [&]<class T>() { copy_elements(in[0], out[0].raw<T>(), out[0].strides()); });
  if (from == DType::f32 && to == DType::bf16) return direct<float, bf16>(in[0], out[0]);
  if (from == DType::bf16 && to == DType::f32) return direct<bf16, float>(in[0], out[0]);
  if (from == DType::f32 && to == DType::f64) return direct<float, double>(in[0], out[0]);
  if (from == DType::f64 && to == DType::f32) return direct<double, float>(in[0], out[0]);
#if TG_ISA_LEVEL >= 3
  if (from == DType::f32 && to == DType::f16) return by_f16c<float, f16>(in[0], out[0]);
  if (from == DType::f16 && to == DType::f32) return by_f16c<f16, float>(in[0], out[0]);
#endif
  through_wide(in[0], out[0]);
}
TG_STRIDED_KERNEL(op::Cast, cpu, cast);
}  // namespace
}  // namespace tg::cpu::TG_ISA_NS
