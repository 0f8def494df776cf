// Compiles with the emulator's host compiler, or TG_EMULATE_COMPILER, ignoring options. An image is a shared object,
// for programs that export the emulator's symbols.
#pragma once
#include <cstddef>

enum nvrtcResult { NVRTC_SUCCESS = 0, NVRTC_ERROR_COMPILATION = 6, NVRTC_ERROR_INTERNAL_ERROR = 11 };
using nvrtcProgram = struct _nvrtcProgram*;

const char* nvrtcGetErrorString(nvrtcResult);
nvrtcResult nvrtcVersion(int* major, int* minor);  // changes with every build
nvrtcResult nvrtcCreateProgram(nvrtcProgram*, const char* source, const char* name, int headers,
                               const char* const* texts, const char* const* names);
nvrtcResult nvrtcDestroyProgram(nvrtcProgram*);
nvrtcResult nvrtcCompileProgram(nvrtcProgram, int count, const char* const* options);
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, std::size_t*);
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char*);
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, std::size_t*);
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char*);
