// Correct without `mistake`. Trailing numbers are required sizes.
#pragma once
#include <tapegrad/cuda/device/device.h>

namespace broken {

// From x (2048) to y (128): threads, bytes of dynamic shared memory.
#define BROKEN_COPIES(X)                      \
  X(missing_barrier, 128, 0)                  \
  X(missing_syncwarp, 32, 0)                  \
  X(missing_copy_wait, 128, 0)                \
  X(copy_without_barrier, 128, 0)             \
  X(reused_stage, 128, 0)                     \
  X(unwritten_shared, 64, 64 * sizeof(float)) \
  X(shuffle_mask, 32, 0)                      \
  X(shuffle_absent, 32, 0)                    \
  X(own_lane, 32, 0)                          \
  X(divergent_shuffle, 32, 0)                 \
  X(misaligned, 1, 0)                         \
  X(static_index, 32, 0)                      \
  X(dynamic_index, 32, 32 * sizeof(float))    \
  X(two_readers, 32, 0)                       \
  X(arrive, 64, 0)                            \
  X(unwaited_copy, 128, 0)                    \
  X(one_group_short, 128, 0)                  \
  X(misaligned_copy, 32, 0)
// Into y (65): blocks, threads.
#define BROKEN_WRITES(X)       \
  X(misaligned_store, 1, 1)    \
  X(global_store, 1, 1)        \
  X(shared_store, 1, 1)        \
  X(atomic_add, 1, 1)          \
  X(two_global_readers, 1, 32) \
  X(arrive_twice, 1, 64)       \
  X(wrong_count, 1, 64)        \
  X(locals_of_another, 1, 64)  \
  X(divergent_barrier, 1, 64)  \
  X(two_barriers, 1, 64)       \
  X(shared_output, 2, 32)      \
  X(in_place, 1, 64)           \
  X(neighbour, 2, 32)          \
  X(lonely_named_barrier, 1, 64)
#define BROKEN_COPY(name, ...) cudaError_t name(const float* x, float* y, bool mistake, cudaStream_t);
#define BROKEN_WRITE(name, ...) cudaError_t name(float* y, bool mistake, cudaStream_t);
BROKEN_COPIES(BROKEN_COPY)
BROKEN_WRITES(BROKEN_WRITE)
#undef BROKEN_COPY
#undef BROKEN_WRITE

cudaError_t bound(const float* x, float* y, int n, bool mistake, cudaStream_t);
cudaError_t early_return(float* y, int n, bool mistake, cudaStream_t);  // 64
cudaError_t missing_fence(float* scratch, unsigned* ticket, float* y, bool mistake, cudaStream_t);
int host_index(int i);                                                       // index below 4; on the host
cudaError_t many_warp_barriers(int n, cudaStream_t);                         // wrong above 65534
cudaError_t wide_shared(float* y, bool opt_in, cudaStream_t);                // 1
cudaError_t fixed_and_dynamic_shared(float* y, bool mistake, cudaStream_t);  // 32
int resident(int threads, std::size_t shared_bytes);                         // blocks per multiprocessor
cudaError_t add_one(const float* x, float* y, int n, cudaStream_t);          // correct
cudaError_t many_barriers(int n, cudaStream_t);                              // correct

// y[128 x 64] = x[128 x 64] times the identity, through two stages.
enum class Hopper {
  none,
  no_full_wait,
  no_empty_wait,
  no_product_wait,
  other_registers,
  early_release,
  no_arrive,
  few_bytes,
  no_init_fence
};
cudaError_t hopper(const __nv_bfloat16* x, const __nv_bfloat16* identity, float* y, Hopper, cudaStream_t);
// Identity, stored by threads and multiplied by itself.
cudaError_t stored_operand(float* y, bool mistake, cudaStream_t);

}  // namespace broken
