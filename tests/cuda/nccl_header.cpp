// A difference from nccl.h does not compile.
#include <tapegrad/cuda/nccl/nccl_api.h>
#ifdef TG_NCCL_HEADER
#include TG_NCCL_HEADER

#include <type_traits>

namespace {
using namespace tg::cuda;
template <class T> struct Theirs {
  using type = T;
};
template <class T> using theirs = typename Theirs<T>::type;
template <> struct Theirs<nccl::Result> {
  using type = ncclResult_t;
};
template <> struct Theirs<nccl::DataType> {
  using type = ncclDataType_t;
};
template <> struct Theirs<nccl::UniqueId> {
  using type = ncclUniqueId;
};
template <class T> struct Theirs<T*> {
  using type = theirs<T>*;
};
template <class R, class... A> struct Theirs<R(A...)> {
  using type = theirs<R>(theirs<A>...);
};
namespace prototypes {
using namespace tg::cuda::nccl;
#define TG_SAME(R, name, ...)                                                                   \
  static_assert(std::is_same_v<theirs<R(__VA_ARGS__)>, decltype(::nccl##name)>, "nccl" #name    \
                                                                                " has another " \
                                                                                "prototype");
TG_NCCL_FUNCTIONS(TG_SAME)
}  // namespace prototypes

static_assert(sizeof(nccl::UniqueId) == sizeof(ncclUniqueId) && alignof(nccl::UniqueId) == alignof(ncclUniqueId));
static_assert(sizeof(nccl::Result) == sizeof(ncclResult_t) && sizeof(nccl::DataType) == sizeof(ncclDataType_t));
static_assert(int(nccl::kSuccess) == ncclSuccess && int(nccl::kUnhandledCudaError) == ncclUnhandledCudaError &&
              int(nccl::kSystemError) == ncclSystemError && int(nccl::kInternalError) == ncclInternalError &&
              int(nccl::kInvalidArgument) == ncclInvalidArgument && int(nccl::kInvalidUsage) == ncclInvalidUsage &&
              int(nccl::kRemoteError) == ncclRemoteError && int(nccl::kInProgress) == ncclInProgress);
static_assert(int(nccl::kInt8) == ncclInt8);
}  // namespace
#endif
