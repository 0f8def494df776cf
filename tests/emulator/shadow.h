#pragma once
#include <cstddef>

namespace simt::engine {
void shadow_memory(std::size_t bytes);                       // size of device memory
void forget_history(std::size_t offset, std::size_t bytes);  // freed pages of 4 KiB
}  // namespace simt::engine
