#pragma once
#include <string>

namespace simt::engine {
std::string source_line(const void* pc);  // "file.cu:42", or the address
std::string function_name(const void* function);
}  // namespace simt::engine
