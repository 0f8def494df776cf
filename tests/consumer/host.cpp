// host <path of the plugin>: opens, calls and closes the plugin twice.
#include <dlfcn.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  for (int i = 0; i < 2; ++i) {
    void* const plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!plugin) return std::fprintf(stderr, "%s\n", dlerror()), 1;
    const auto fit = reinterpret_cast<double (*)(int)>(dlsym(plugin, "plugin_fit"));
    if (!fit) return std::fprintf(stderr, "%s\n", dlerror()), 1;
    const double loss = fit(200);
    std::printf("plugin: loss %.2g\n", loss);
    if (!(loss >= 0 && loss < 1e-2)) return 1;
    if (dlclose(plugin)) return 1;
  }
  return 0;
}
