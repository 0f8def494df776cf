// The subset of NVRTC's API that the emulator provides, under its own names: it compiles by the host compiler that
// built the emulator, or the one that TG_EMULATE_COMPILER names, with the flags of kernel sources; options are not
// read. An image is a shared object, which finds the emulator in the program that loads it: one linked with its symbols
// exported.
#pragma once
#include <cstddef>

enum nvrtcResult { NVRTC_SUCCESS = 0, NVRTC_ERROR_COMPILATION = 6, NVRTC_ERROR_INTERNAL_ERROR = 11 };
using nvrtcProgram = struct _nvrtcProgram*;

const char* nvrtcGetErrorString(nvrtcResult);
nvrtcResult nvrtcVersion(int* major, int* minor);  // another one after every build of the program
nvrtcResult nvrtcCreateProgram(nvrtcProgram*, const char* source, const char* name, int headers,
                               const char* const* texts, const char* const* names);
nvrtcResult nvrtcDestroyProgram(nvrtcProgram*);
nvrtcResult nvrtcCompileProgram(nvrtcProgram, int count, const char* const* options);
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, std::size_t*);
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char*);
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, std::size_t*);
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char*);
