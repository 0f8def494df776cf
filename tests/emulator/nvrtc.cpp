#include <tapegrad/emulator/nvrtc.h>

#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <tapegrad/emulator/queue.h>

struct _nvrtcProgram {
  std::string source, log, image;
  std::vector<std::pair<std::string, std::string>> headers;  // name, text
};

namespace simt::engine {
namespace {
namespace fs = std::filesystem;

std::string compiler() {
  const char* other = std::getenv("TG_EMULATE_COMPILER");
  return other ? other : SIMT_COMPILER;
}
void write(const fs::path& p, const std::string& text) {
  fs::create_directories(p.parent_path());
  std::ofstream(p) << text;
}
std::string read(const fs::path& p) {
  std::ifstream f(p, std::ios::binary);
  return {std::istreambuf_iterator<char>(f), {}};
}
class Folder {  // holds one compilation's files
 public:
  Folder() {
    std::string name = fs::temp_directory_path() / "simt-XXXXXX";
    path_ = mkdtemp(name.data()) ? fs::path(name) : fs::path();
  }
  ~Folder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  bool run(const std::string& arguments) const {
    const std::string in = "cd '" + path_.string() + "' && '" + compiler() + "' " + arguments + " >>log 2>&1";
    return std::system(in.c_str()) == 0;
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::size_t elf_bytes(const void* image) {
  Elf64_Ehdr h;
  std::memcpy(&h, image, sizeof h);
  return std::memcmp(h.e_ident, ELFMAG, SELFMAG) ? 0 : h.e_shoff + std::size_t{h.e_shnum} * h.e_shentsize;
}
struct Kernel {
  void (*run)(const void* arguments);
  std::size_t bytes;  // size of the arguments
};
}  // namespace
}  // namespace simt::engine

using namespace simt::engine;

const char* nvrtcGetErrorString(nvrtcResult r) {
  return r == NVRTC_SUCCESS             ? "NVRTC_SUCCESS"
         : r == NVRTC_ERROR_COMPILATION ? "NVRTC_ERROR_COMPILATION"
                                        : "NVRTC_ERROR_INTERNAL_ERROR: the host compiler cannot be run";
}
nvrtcResult nvrtcVersion(int* major, int* minor) {
  struct stat program {};
  if (access(compiler().c_str(), X_OK) != 0 || stat("/proc/self/exe", &program) != 0) return NVRTC_ERROR_INTERNAL_ERROR;
  *major = 0;
  *minor = int(program.st_mtime & 0x7fffffff);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCreateProgram(nvrtcProgram* p, const char* source, const char*, int headers, const char* const* texts,
                               const char* const* names) {
  *p = new _nvrtcProgram{source, {}, {}, {}};
  for (int i = 0; i < headers; ++i) (*p)->headers.emplace_back(names[i], texts[i]);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* p) {
  delete *p;
  *p = nullptr;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram p, int, const char* const*) {
  const Folder folder;
  if (folder.path().empty()) return NVRTC_ERROR_INTERNAL_ERROR;
  for (const auto& [name, text] : p->headers) write(folder.path() / name, text);
  write(folder.path() / "kernels.cu", p->source);
  const bool done =
      folder.run("-I. -I'" SIMT_INCLUDE "' -DTG_CUDA_EMULATED " SIMT_FLAGS " -fPIC -c -o kernels.o kernels.cu") &&
      folder.run("-shared -o kernels.so kernels.o");
  p->log = read(folder.path() / "log");
  p->image = read(folder.path() / "kernels.so");
  return done ? NVRTC_SUCCESS : NVRTC_ERROR_COMPILATION;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram p, std::size_t* n) {
  *n = p->log.size() + 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram p, char* to) {
  std::memcpy(to, p->log.c_str(), p->log.size() + 1);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram p, std::size_t* n) {
  *n = p->image.size();
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram p, char* to) {
  std::memcpy(to, p->image.data(), p->image.size());
  return NVRTC_SUCCESS;
}

// Never unloaded: queued kernels run it.
cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* image, cudaJitOption*, void**, unsigned,
                                cudaLibraryOption*, void**, unsigned) {
  const Entry entry;
  const std::size_t bytes = elf_bytes(image);
  const int file = bytes ? memfd_create("kernels", 0) : -1;
  if (file < 0 || ::write(file, image, bytes) != static_cast<ssize_t>(bytes))
    return status(cudaErrorSharedObjectInitFailed);
  // Open for addr2line; the name is unique.
  const std::string name = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file);
  *library = static_cast<cudaLibrary_t>(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL));
  return status(*library ? cudaSuccess : cudaErrorSharedObjectInitFailed);
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) {
  const Entry entry;
  void* const run = dlsym(library, (std::string(name) + "_run").c_str());
  void* const bytes = dlsym(library, (std::string(name) + "_bytes").c_str());
  if (!run || !bytes) return status(cudaErrorSymbolNotFound);
  auto* const k =
      new Kernel{reinterpret_cast<void (*)(const void*)>(run), reinterpret_cast<std::size_t (*)()>(bytes)()};
  *kernel = reinterpret_cast<cudaKernel_t>(k);
  return status();
}
cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared_bytes,
                             cudaStream_t stream) {
  const auto& k = *static_cast<const Kernel*>(kernel);
  const std::shared_ptr<char[]> copy(new char[k.bytes]);
  std::memcpy(copy.get(), arguments[0], k.bytes);
  return launch({k.run, std::shared_ptr<const void>(copy, copy.get()), k.bytes, reinterpret_cast<const void*>(k.run)},
                grid, block, shared_bytes, stream);
}
