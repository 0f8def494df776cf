// Counts, names and ids are true; times are from the host. Kernels of one stream never overlap.
#pragma once
#include <cstddef>
#include <cstdint>

enum CUptiResult {
  CUPTI_SUCCESS = 0,
  CUPTI_ERROR_INVALID_PARAMETER = 1,
  CUPTI_ERROR_MAX_LIMIT_REACHED = 12,
  CUPTI_ERROR_INVALID_OPERATION = 14,
  CUPTI_ERROR_QUEUE_EMPTY = 18,
  CUPTI_ERROR_INSUFFICIENT_PRIVILEGES = 35,
  CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 39,
};
CUptiResult cuptiGetResultString(CUptiResult, const char**);

using CUcontext = struct CUctx_st*;
using CUgraphNode = struct CUgraphNode_st*;

enum CUpti_CallbackDomain {
  CUPTI_CB_DOMAIN_DRIVER_API = 1,
  CUPTI_CB_DOMAIN_RUNTIME_API = 2,
  CUPTI_CB_DOMAIN_RESOURCE = 3
};
using CUpti_CallbackId = std::uint32_t;
enum { CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED = 13, CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED = 20 };
struct CUpti_GraphData {
  CUgraphNode node, originalNode;
};
struct CUpti_ResourceData {
  CUcontext context;
  void* resourceDescriptor;
};
using CUpti_SubscriberHandle = struct CUpti_Subscriber_st*;
using CUpti_CallbackFunc = void (*)(void* data, CUpti_CallbackDomain, CUpti_CallbackId, const void*);
CUptiResult cuptiSubscribe(CUpti_SubscriberHandle*, CUpti_CallbackFunc, void* data);
CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle);
CUptiResult cuptiEnableCallback(std::uint32_t on, CUpti_SubscriberHandle, CUpti_CallbackDomain, CUpti_CallbackId);
CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain, std::uint32_t id, const char** name);
CUptiResult cuptiGetGraphNodeId(CUgraphNode, std::uint64_t*);
CUptiResult cuptiGetTimestamp(std::uint64_t*);

enum CUpti_ActivityKind {
  CUPTI_ACTIVITY_KIND_MEMCPY = 1,
  CUPTI_ACTIVITY_KIND_MEMSET = 2,
  CUPTI_ACTIVITY_KIND_DRIVER = 4,
  CUPTI_ACTIVITY_KIND_RUNTIME = 5,
  CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL = 10,
  CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION = 39,
};
enum CUpti_ActivityMemcpyKind {
  CUPTI_ACTIVITY_MEMCPY_KIND_HTOD = 1,
  CUPTI_ACTIVITY_MEMCPY_KIND_DTOH = 2,
  CUPTI_ACTIVITY_MEMCPY_KIND_DTOD = 8
};
struct CUpti_Activity {
  CUpti_ActivityKind kind;
};
struct alignas(8) CUpti_ActivityKernel9 {
  CUpti_ActivityKind kind;
  std::uint64_t start, end;
  std::uint32_t deviceId, streamId, correlationId;
  const char* name;
  std::uint64_t graphNodeId;
};
struct alignas(8) CUpti_ActivityMemcpy5 {
  CUpti_ActivityKind kind;
  std::uint8_t copyKind;
  std::uint64_t bytes, start, end;
  std::uint32_t deviceId, streamId, correlationId;
  std::uint64_t graphNodeId;
};
struct alignas(8) CUpti_ActivityMemset4 {
  CUpti_ActivityKind kind;
  std::uint64_t bytes, start, end;
  std::uint32_t deviceId, streamId, correlationId;
  std::uint64_t graphNodeId;
};
struct alignas(8) CUpti_ActivityAPI {
  CUpti_ActivityKind kind;
  CUpti_CallbackId cbid;
  std::uint64_t start, end;
  std::uint32_t threadId, correlationId;
};
enum CUpti_ExternalCorrelationKind { CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0 = 3 };
struct alignas(8) CUpti_ActivityExternalCorrelation {
  CUpti_ActivityKind kind;
  CUpti_ExternalCorrelationKind externalKind;
  std::uint64_t externalId;
  std::uint32_t correlationId;
};
using CUpti_BuffersCallbackRequestFunc = void (*)(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records);
using CUpti_BuffersCallbackCompleteFunc = void (*)(CUcontext, std::uint32_t stream, std::uint8_t* buffer,
                                                   std::size_t size, std::size_t valid);
using CUpti_TimestampCallbackFunc = std::uint64_t (*)();
enum { CUPTI_ACTIVITY_FLAG_FLUSH_FORCED = 1 };
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc);
CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc);
CUptiResult cuptiActivityEnable(CUpti_ActivityKind);
CUptiResult cuptiActivityDisable(CUpti_ActivityKind);
CUptiResult cuptiActivityFlushAll(std::uint32_t flags);
CUptiResult cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t valid, CUpti_Activity** record);
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, std::uint32_t stream, std::size_t* count);
CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind, std::uint64_t id);
CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind, std::uint64_t* last);

namespace simt {
// Sets the result of cuptiSubscribe, cuptiEnableCallback, cuptiActivityRegisterTimestampCallback or
// cuptiActivityEnable.
void set_cupti(CUptiResult, const char* function = "cuptiSubscribe");
}  // namespace simt
