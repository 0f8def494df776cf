// The toolkit's CUPTI, or the emulator's under the same names. The first profiler loads it. TG_HAS_CUPTI: the build had
// its headers.
#pragma once
#ifdef TG_CUDA_EMULATED
#include <tapegrad/emulator/cupti.h>
#define TG_HAS_CUPTI 1
#elif defined(TG_HAS_CUPTI)
#include <tapegrad/cuda/runtime/shared_library.h>

#include <cupti.h>

namespace tg::cuda {
SharedLibrary& cupti_library();  // profiler.cpp

#define TG_CUPTI_FUNCTION(name) inline constinit const LibraryFunction<decltype(::name), cupti_library> name(#name)
TG_CUPTI_FUNCTION(cuptiGetResultString);
TG_CUPTI_FUNCTION(cuptiSubscribe);
TG_CUPTI_FUNCTION(cuptiUnsubscribe);
TG_CUPTI_FUNCTION(cuptiEnableCallback);
TG_CUPTI_FUNCTION(cuptiGetCallbackName);
TG_CUPTI_FUNCTION(cuptiGetGraphNodeId);
TG_CUPTI_FUNCTION(cuptiGetTimestamp);
TG_CUPTI_FUNCTION(cuptiActivityRegisterCallbacks);
TG_CUPTI_FUNCTION(cuptiActivityRegisterTimestampCallback);
TG_CUPTI_FUNCTION(cuptiActivityEnable);
TG_CUPTI_FUNCTION(cuptiActivityDisable);
TG_CUPTI_FUNCTION(cuptiActivityFlushAll);
TG_CUPTI_FUNCTION(cuptiActivityGetNextRecord);
TG_CUPTI_FUNCTION(cuptiActivityGetNumDroppedRecords);
TG_CUPTI_FUNCTION(cuptiActivityPushExternalCorrelationId);
TG_CUPTI_FUNCTION(cuptiActivityPopExternalCorrelationId);
#undef TG_CUPTI_FUNCTION
}  // namespace tg::cuda
#endif
