// Called before each load and store of a kernel (-fsanitize=thread,alignment,bounds-strict); no sanitizer is linked.
#include <tapegrad/emulator/internal.h>

using simt::engine::Access;

#define SIMT_HOOK(name, bytes, access) \
  extern "C" void __tsan_##name(void* p) { simt::engine::touch(p, bytes, Access::access, __builtin_return_address(0)); }
#define SIMT_HOOKS(n)                    \
  SIMT_HOOK(read##n, n, read)            \
  SIMT_HOOK(write##n, n, write)          \
  SIMT_HOOK(volatile_read##n, n, read)   \
  SIMT_HOOK(volatile_write##n, n, write) \
  SIMT_HOOK(unaligned_read##n, n, read)  \
  SIMT_HOOK(unaligned_write##n, n, write)
SIMT_HOOKS(1)
SIMT_HOOKS(2)
SIMT_HOOKS(4)
SIMT_HOOKS(8)
SIMT_HOOKS(16)
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void*) {}
void __tsan_vptr_update(void*, void*) {}
void __tsan_read_range(void* p, std::size_t n) { simt::engine::touch(p, n, Access::read, __builtin_return_address(0)); }
void __tsan_write_range(void* p, std::size_t n) {
  simt::engine::touch(p, n, Access::write, __builtin_return_address(0));
}

#define SIMT_ATOMIC(n, T)                                                                               \
  T __tsan_atomic##n##_load(const T* p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }           \
  void __tsan_atomic##n##_store(T* p, T v, int) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }           \
  T __tsan_atomic##n##_exchange(T* p, T v, int) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##n##_fetch_add(T* p, T v, int) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##n##_fetch_sub(T* p, T v, int) { return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST); } \
  bool __tsan_atomic##n##_compare_exchange_strong(T* p, T* e, T v, int, int) {                          \
    return __atomic_compare_exchange_n(p, e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);             \
  }
SIMT_ATOMIC(8, std::uint8_t)
SIMT_ATOMIC(32, std::uint32_t)
SIMT_ATOMIC(64, std::uint64_t)

// -fsanitize=alignment,bounds-strict calls these, in host code too, with this layout.
struct UbsanPlace {
  const char* file;
  unsigned line, column;
};
void __ubsan_handle_type_mismatch_v1(UbsanPlace* at, void* p) {
  simt::engine::fail(simt::Fault::misaligned, {}, "access at %p, line %u of %s", p, at->line, at->file);
}
void __ubsan_handle_out_of_bounds(UbsanPlace* at, void* index) {
  simt::engine::fail(simt::Fault::out_of_bounds, {}, "index %zd of a static array, line %u of %s",
                     reinterpret_cast<std::ptrdiff_t>(index), at->line, at->file);
}
}
