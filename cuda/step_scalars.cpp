#include <tapegrad/cuda/allocator.h>
#include <tapegrad/cuda/runtime.h>
#include <tapegrad/cuda/step_scalars.h>

#include <cstring>

namespace tg::cuda {

StepScalars::StepScalars(int device, size_t count, size_t ahead) : device_(device), count_(count) {
  TG_CHECK(count > 0 && ahead > 0, value, "[step_scalars] {} numbers, {} ahead. Both must be more than 0.", count,
           ahead);
  for (size_t i = 0; i < ahead; ++i) {
    Slot s{nullptr, Event()};
    check(cudaMallocHost(&s.pinned, count * sizeof(double)), "step_scalars", "pinning memory");
    slots_.push_back(std::move(s));
  }
  data_ = static_cast<double*>(allocator_of(device).allocate(count * sizeof(double)));
}
StepScalars::~StepScalars() {
  for (const Slot& s : slots_) {
    (void)cudaEventSynchronize(s.sent);
    (void)cudaFreeHost(s.pinned);
  }
  allocator_of(device_).deallocate(data_, count_ * sizeof(double));
}
void StepScalars::set(std::span<const double> values) {
  TG_CHECK(values.size() == count_, value, "[step_scalars] {} numbers for {} places. Pass one for each.", values.size(),
           count_);
  const Slot& s = slots_[next_++ % slots_.size()];
  s.sent.synchronize();
  std::memcpy(s.pinned, values.data(), values.size_bytes());
  const cudaStream_t stream = stream_of(device_);
  check(cudaMemcpyAsync(data_, s.pinned, values.size_bytes(), cudaMemcpyHostToDevice, stream), "step_scalars",
        "copying to the device");
  s.sent.record(stream);
}

}  // namespace tg::cuda
