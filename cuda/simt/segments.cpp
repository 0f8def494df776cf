// Blocks that an allocator of the host's cuts from device memory: which of its bytes exist, in the order of the
// streams.
#include <cstring>

#include <tapegrad/cuda/simt/internal.h>

namespace simt {

void note_segment(void* p, std::size_t bytes) {
  const engine::Entry entry;
  engine::mark(p, bytes, engine::freed);
}

// Both write the bytes as far as the order of operations is concerned: whoever used them before must be done.
void note_allocated(void* p, std::size_t bytes, cudaStream_t stream) {
  const engine::Entry entry;
  if (!bytes) return;
  engine::enqueue(stream, [=](unsigned op) {
    engine::mark(p, bytes, engine::unwritten);
    engine::global_access(p, bytes, engine::Access::write, op, {});
    std::memset(p, 0xff, bytes);
    engine::mark(p, bytes, engine::unwritten);
  });
}

void note_freed(void* p, std::size_t bytes, cudaStream_t stream) {
  const engine::Entry entry;
  if (!bytes) return;
  engine::enqueue(stream, [=](unsigned op) {
    engine::global_access(p, bytes, engine::Access::write, op, {});
    engine::mark(p, bytes, engine::freed);
  });
}

}  // namespace simt
