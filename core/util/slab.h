// The slab: memory for small objects that every emit makes. Blocks are 64-byte aligned, in classes of 64, 128, ...
// kSlabMax bytes; free blocks are kept for their class.
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
// AddressSanitizer: blocks are not kept, so that it sees each use after free.
#ifdef TG_PLAIN_MEMORY
inline constexpr bool kPlainMemory = true;
#else
inline constexpr bool kPlainMemory = false;
#endif

// Usable at any time of a thread or the process. Blocks larger than kSlabMax come from operator new; with kPlainMemory
// all do.
inline constexpr size_t kSlabMax = 1024;
namespace detail {
void* slab_alloc(size_t bytes);                  // 0 bytes is valid too; std::bad_alloc without memory
void slab_free(void* p, size_t bytes) noexcept;  // any thread; bytes as in slab_alloc()
int64_t slab_bytes();                            // total bytes of chunks, used or free
}  // namespace detail

}  // namespace tg
