#include <tapegrad/emulator/memory.h>

namespace simt {
using namespace engine;

void note_segment(void* p, std::size_t bytes) {
  const Entry entry;
  mark(p, bytes, freed);
}

void note_allocated(void* p, std::size_t bytes, cudaStream_t stream) {
  const Entry entry;
  char* const at = static_cast<char*>(p);
  if (Stream* const s = engine::find(stream))
    (void)submit(*s, {Kind::memory, [=](const Operation& op) { open_memory(at, bytes, &op); }, {}});
}

void note_freed(void* p, std::size_t bytes, cudaStream_t stream) {
  const Entry entry;
  const auto work = [=](const Operation& op) {
    if (bytes) global_access(p, bytes, Access::write, op, {});
    mark(p, bytes, freed);
  };
  if (Stream* const s = engine::find(stream)) (void)submit(*s, {Kind::memory, work, {}});
}

}  // namespace simt
