// Errors, and (TG_CUDA=ON, no GPU needed) that NCCL has every function.
#include <tapegrad/core/comm/communicator.h>
#include <tapegrad/cuda/nccl/library.h>

#include <cstring>

#include "support/helpers.h"

using namespace tg;
using namespace tg::cuda;

TEST_CASE("NCCL is missing: what needs it, and where it is") {
  SharedLibrary none = nccl::library_of("libnccl_none.so.2");
  CHECK_SAYS(none.function("ncclGetVersion"), "[cuda] libnccl_none.so.2 cannot be loaded: ",
             "Several ranks with GPUs need NCCL 2.16 or newer for CUDA 12 or 13.", "apt install libnccl2",
             "pip install nvidia-nccl-cu13", "or add the folder that has it to LD_LIBRARY_PATH.");
}
TEST_CASE("NCCL is too old") {
  CHECK(nccl::text_of(2804) == "2.8.4");
  CHECK(nccl::text_of(20906) == "2.9.6");
  CHECK(nccl::text_of(22809) == "2.28.9");
  nccl::check_version(21600);
  nccl::check_version(22809);
  for (const auto& [version, text] : {std::pair(2804, "2.8.4"), std::pair(21599, "2.15.99")}) {
    const std::string e = error_of([v = version] { nccl::check_version(v); });
    CHECK_HAS(e, fmt::format("[comm] NCCL {} is too old. Several ranks with GPUs need NCCL 2.16 or newer", text),
              "apt install libnccl2");
  }
}
#ifdef TG_CUDA_EMULATED
TEST_CASE("--version names the stand-in") { CHECK(Communicator::device_engine() == "emulated NCCL 2.28.9"); }
#else
TEST_CASE("the NCCL of this machine, if it has one, has what is called") {
  const std::string engine = Communicator::device_engine();
  MESSAGE(engine);
  if (engine == "no NCCL") {
    CHECK_SAYS(nccl::library().function("ncclSend"), "libnccl.so.2 cannot be loaded");
    return;
  }
  CHECK(engine.starts_with("NCCL 2."));
#define TG_FOUND(R, name, ...) CHECK(nccl::library().function("nccl" #name) != nullptr);
  TG_NCCL_FUNCTIONS(TG_FOUND)
#undef TG_FOUND
  nccl::UniqueId a{}, b{};
  CHECK(nccl::GetUniqueId(&a) == nccl::kSuccess);
  CHECK(nccl::GetUniqueId(&b) == nccl::kSuccess);
  CHECK(std::memcmp(a.bytes, b.bytes, sizeof a.bytes) != 0);
  CHECK(std::string(nccl::GetErrorString(nccl::kInvalidUsage)) ==
        "invalid usage (run with NCCL_DEBUG=WARN for details)");
}
#endif
