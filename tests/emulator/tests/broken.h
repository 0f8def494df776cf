// Correct without `mistake`. Trailing numbers are required sizes.
#pragma once
#include <tapegrad/cuda/device/device.h>

namespace broken {

cudaError_t missing_barrier(const float* x, float* y, bool mistake, cudaStream_t);   // 128
cudaError_t missing_syncwarp(const float* x, float* y, bool mistake, cudaStream_t);  // 32
cudaError_t bound(const float* x, float* y, int n, bool mistake, cudaStream_t);
cudaError_t missing_copy_wait(const float* x, float* y, bool mistake, cudaStream_t);     // 128
cudaError_t copy_without_barrier(const float* x, float* y, bool mistake, cudaStream_t);  // 128
cudaError_t reused_stage(const float* x, float* y, bool mistake, cudaStream_t);          // 4 x 128
cudaError_t divergent_barrier(float* y, bool mistake, cudaStream_t);                     // 64
cudaError_t two_barriers(float* y, bool mistake, cudaStream_t);                          // 64
cudaError_t early_return(float* y, int n, bool mistake, cudaStream_t);                   // 64
cudaError_t unwritten_shared(const float* x, float* y, bool mistake, cudaStream_t);      // 64
cudaError_t shuffle_mask(const float* x, float* y, bool mistake, cudaStream_t);          // 32
cudaError_t shuffle_absent(const float* x, float* y, bool mistake, cudaStream_t);        // 32
cudaError_t own_lane(const float* x, float* y, bool mistake, cudaStream_t);              // 32
cudaError_t divergent_shuffle(const float* x, float* y, bool mistake, cudaStream_t);     // 32
cudaError_t misaligned(const float* x, float* y, bool mistake, cudaStream_t);            // 8
cudaError_t misaligned_store(float* y, bool mistake, cudaStream_t);                      // 6
cudaError_t global_store(float* y, bool mistake, cudaStream_t);                          // 1
cudaError_t shared_store(float* y, bool mistake, cudaStream_t);                          // 4
cudaError_t atomic_add(float* y, bool mistake, cudaStream_t);                            // 1
cudaError_t missing_fence(float* scratch, unsigned* ticket, float* y, bool mistake, cudaStream_t);
cudaError_t shared_output(float* y, bool mistake, cudaStream_t);                    // 64
cudaError_t in_place(float* x, bool mistake, cudaStream_t);                         // 64
cudaError_t neighbour(float* x, bool mistake, cudaStream_t);                        // 65
int host_index(int i);                                                              // index below 4; on the host
cudaError_t static_index(const float* x, float* y, bool mistake, cudaStream_t);     // 32
cudaError_t dynamic_index(const float* x, float* y, bool mistake, cudaStream_t);    // 32
cudaError_t lonely_named_barrier(float* y, bool mistake, cudaStream_t);             // 64
cudaError_t two_readers(const float* x, float* y, bool mistake, cudaStream_t);      // 32
cudaError_t two_global_readers(float* y, bool mistake, cudaStream_t);               // 64
cudaError_t arrive(const float* x, float* y, bool mistake, cudaStream_t);           // 64
cudaError_t arrive_twice(float* y, bool mistake, cudaStream_t);                     // 64
cudaError_t wrong_count(float* y, bool mistake, cudaStream_t);                      // 64
cudaError_t unwaited_copy(const float* x, float* y, bool mistake, cudaStream_t);    // 512, 128
cudaError_t one_group_short(const float* x, float* y, bool mistake, cudaStream_t);  // 1024, 128
cudaError_t misaligned_copy(const float* x, float* y, bool mistake, cudaStream_t);  // 8
cudaError_t locals_of_another(float* y, bool mistake, cudaStream_t);                // 64
cudaError_t many_warp_barriers(int n, cudaStream_t);                                // wrong above 65534
cudaError_t wide_shared(float* y, bool opt_in, cudaStream_t);                       // 1
cudaError_t fixed_and_dynamic_shared(float* y, bool mistake, cudaStream_t);         // 32
int resident(int threads, std::size_t shared_bytes);                                // blocks per multiprocessor
cudaError_t add_one(const float* x, float* y, int n, cudaStream_t);                 // correct
cudaError_t many_barriers(int n, cudaStream_t);                                     // correct

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
