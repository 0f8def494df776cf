#pragma once
#include <cstddef>

namespace simt::engine {
void shadow_memory(std::size_t bytes);                       // history of that much device memory
void forget_history(std::size_t offset, std::size_t bytes);  // history of freed pages of 4 KiB
}  // namespace simt::engine
