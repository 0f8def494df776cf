#include <tapegrad/core/check.h>
#include <tapegrad/core/error.h>
#include <tapegrad/cuda/runtime/shared_library.h>

#include <dlfcn.h>

namespace tg::cuda {
namespace {
std::string last_error() {
  const char* e = dlerror();
  return e ? e : "no reason was given";
}
}  // namespace

void* SharedLibrary::function(const char* name) {
  const std::lock_guard lock(mutex_);
  if (!handle_) {
    std::string why;
    for (const std::string& path : {file_, folder_ + "/" + file_}) {
      handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_) break;
      why += (why.empty() ? "" : "; ") + last_error();
    }
    TG_CHECK(handle_, cuda, "[cuda] {} cannot be loaded: {}. {}, or add the folder that has it to LD_LIBRARY_PATH.",
             file_, why, install_);
  }
  void* f = dlsym(handle_, name);
  TG_CHECK(f, cuda,
           "[cuda] {} has no function {}: {}. Its version differs from the one that this program was built for. {}.",
           file_, name, last_error(), install_);
  return f;
}

}  // namespace tg::cuda
