// Numbers that change every step (learning rate, corrections of AdamW, seeds) where kernels read them: in device memory
// at an address that stays, so that a captured graph of a step can be run again with new ones. The host does not wait.
#pragma once
#include <tapegrad/cuda/stream.h>

#include <span>
#include <vector>

namespace tg::cuda {

class StepScalars {
 public:
  // `count` doubles, not set. `ahead`: how many set()s the host may be ahead of the device before it waits.
  StepScalars(int device, size_t count, size_t ahead = 4);
  ~StepScalars();
  StepScalars(const StepScalars&) = delete;
  StepScalars& operator=(const StepScalars&) = delete;

  // Work queued from now on in the calling thread's stream sees these; what was queued before still sees the old ones.
  // An Error unless there are count of them.
  void set(std::span<const double>);
  const double* data() const { return data_; }  // on the device
  size_t size() const { return count_; }

 private:
  struct Slot {
    double* pinned;
    Event sent;
  };
  int device_;
  size_t count_, next_ = 0;
  double* data_;
  std::vector<Slot> slots_;
};

}  // namespace tg::cuda
