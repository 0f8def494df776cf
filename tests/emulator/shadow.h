// Who touched the card's memory last (shadow.cpp), as memory.cpp makes and clears it. For the emulator's own sources.
#pragma once
#include <cstddef>

namespace simt::engine {
void shadow_memory(std::size_t bytes);                       // of so much device memory
void forget_history(std::size_t offset, std::size_t bytes);  // of whole pages that were freed
}  // namespace simt::engine
