// Included after the header of ops; TG_STRIDED_KERNEL(Op, cuda, fn) registers kernels.
//   launch(c, kernel, grid, block, shared_bytes, arguments...)   on the context's stream, errors in the op's name
//   Dense<T> x(c, in[0]);                                        contiguous data or a copy
//   Strided<2> walk(shape, {strides, strides})                   element offsets of any layout
#pragma once
#if !defined(__CUDACC__) && !defined(TG_CUDA_EMULATED)
#error "CUDA kernels are compiled by nvcc, or for the emulator. In CMake, tapegrad_kernels(<target> <file.cu>) does it."
#endif
#include <tapegrad/cuda/runtime/runtime.h>

#include <array>
#include <optional>
#include <utility>
// Included last: it defines names of CUDA's language.
#include <tapegrad/cuda/device/device.h>
#include <tapegrad/cuda/device/grid_loop.h>
#include <tapegrad/cuda/device/numeric.h>
#include <tapegrad/cuda/device/vec.h>

namespace tg::cuda {

/// Dynamic shared memory without opt-in: 48 KiB, less at most 32 KiB of static.
inline constexpr size_t kSharedWithoutOptIn = 16 * 1024;
/// Least shared memory per block, of compute capabilities 8.6, 8.9 and 12.0.
inline constexpr size_t kLeastShared = 99 * 1024;

/// kernel<<<grid, block, shared_bytes, stream of c>>>(args...). A failed launch is an Error with the op's name; the
/// next synchronisation reports failures inside the kernel.
template <class... P, class... A>
void launch(const Context& c, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, A&&... args) {
  const cudaStream_t stream = stream_of(c.device.index);
  if (shared_bytes > kSharedWithoutOptIn) opt_in(c, reinterpret_cast<const void*>(kernel), shared_bytes);
#ifdef __CUDACC__
  kernel<<<grid, block, shared_bytes, stream>>>(std::forward<A>(args)...);
#else
  (void)simt::launch(kernel, grid, block, shared_bytes, stream, std::forward<A>(args)...);
#endif
  launched(c);
}

/// Offsets of the i-th element (row-major) of N operands of one shape, adjacent dimensions merged. Stride 0 broadcasts.
template <size_t N> struct Strided {
  int32_t dims = 0;
  int64_t shape[kMaxDims] = {}, stride[N][kMaxDims] = {};  // innermost first

  Strided(const Shape& s, const std::array<Strides, N>& st) {
    for (size_t d = s.size(); d-- > 0;) {
      if (s[d] == 1) continue;
      bool merge = dims > 0;
      for (size_t k = 0; merge && k < N; ++k) merge = st[k][d] == stride[k][dims - 1] * shape[dims - 1];
      if (merge) {
        shape[dims - 1] *= s[d];
        continue;
      }
      shape[dims] = s[d];
      for (size_t k = 0; k < N; ++k) stride[k][dims] = st[k][d];
      ++dims;
    }
  }
  bool contiguous() const {
    for (size_t k = 0; k < N; ++k)
      if (dims > 1 || (dims == 1 && stride[k][0] != 1)) return false;
    return true;
  }
  __device__ __forceinline__ void offsets(int64_t i, int64_t (&at)[N]) const {
    if (i >> 32 == 0)  // 32-bit divisions are faster
      walk<uint32_t>(uint32_t(i), at);
    else
      walk<uint64_t>(uint64_t(i), at);
  }

 private:
  template <class I> __device__ __forceinline__ void walk(I i, int64_t (&at)[N]) const {
#pragma unroll
    for (size_t k = 0; k < N; ++k) at[k] = 0;
#pragma unroll 1
    for (int32_t d = 0; d < dims; ++d) {  // unrolling would multiply the code
      I index = i, rest = 0;
      if (d + 1 < dims) {
        rest = i / I(shape[d]);
        index = i - rest * I(shape[d]);
      }
      i = rest;
#pragma unroll
      for (size_t k = 0; k < N; ++k) at[k] += int64_t(index) * stride[k][d];
    }
  }
};

void copy_contiguous(const Context&, const Buf& from, void* to);

inline std::byte* first_element(const Buf& b) { return b.bytes + b.layout->offset * int64_t(size_of(b.dtype())); }
/// An operand's own memory if contiguous, else an owned copy.
class Contiguous {
 public:
  Contiguous(const Context& c, const Buf& b) : data_(first_element(b)) {
    if (b.is_contiguous()) return;
    copy_.emplace(c, b.layout->bytes());
    copy_contiguous(c, b, copy_->as<void>());
    data_ = copy_->as<void>();
  }
  const void* data() const { return data_; }

 private:
  const void* data_;
  std::optional<Scratch> copy_;
};
/// Contiguous, of dtype T.
template <class T> class Dense {
 public:
  Dense(const Context& c, const Buf& b) : any_(c, b) {}
  operator const T*() const { return static_cast<const T*>(any_.data()); }

 private:
  Contiguous any_;
};

template <class F> void visit_bits(DType d, double number, F&& f) {
  visit_dtype(d, [&]<class T>() {
    using U = std::conditional_t<
        sizeof(T) == 1, uint8_t,
        std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>>;
    f(std::bit_cast<U>(T(compute_t<T>(number))));
  });
}

}  // namespace tg::cuda
