// The slab: memory for the small objects that every emit makes. 64-byte aligned blocks in classes of 64, 128, ...
// kSlabMax bytes, each kept for the next block of its class. It knows nothing of tensors.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tg {

#if defined(__SANITIZE_ADDRESS__)
#define TG_PLAIN_MEMORY 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TG_PLAIN_MEMORY 1
#endif
#endif
#ifdef TG_PLAIN_MEMORY  // AddressSanitizer: nothing is kept, so that it sees each use after free
inline constexpr bool kPlainMemory = true;
#else
inline constexpr bool kPlainMemory = false;
#endif

// Usable at any time of a thread's or of the process's life. Blocks larger than kSlabMax come from operator new, and
// all blocks do when kPlainMemory.
inline constexpr size_t kSlabMax = 1024;
void* slab_alloc(size_t bytes);                  // 0 bytes is a block too; std::bad_alloc without memory
void slab_free(void* p, size_t bytes) noexcept;  // in any thread; bytes as asked for
int64_t slab_bytes();                            // of the chunks that blocks are cut from, used or free
void slab_release();  // gives back chunks that are free as a whole, except what other running threads keep

}  // namespace tg
