/// @file
/// WorkScope: counts what the ops of a program move and compute. With the bandwidth and the speed of a device that is
/// the least time they can take there (the roofline of Williams et al. 2009). In a dry_run() nothing is computed, so
/// the work of steps of any size is known in milliseconds. models/train/roofline.h uses it.
#pragma once
#include <tapegrad/core/op.h>
#include <tapegrad/core/util/scoped_value.h>

#include <string>
#include <vector>

namespace tg {

/// The runs of one op between two dtypes.
struct WorkOfOp {
  std::string op;  ///< a chain of pointwise ops is one: "mul+add+gelu"
  DType from, to;  ///< dtypes of the first input (of the first output, if there is none) and the first output
  int64_t calls = 0;
  OpWork work = {};  ///< of all calls together
};

/// Adds so many times the calls and the work of `more` to those of its op and dtypes in `to`.
void add_work(std::vector<WorkOfOp>& to, const WorkOfOp& more, int64_t times = 1);

/// Counts the work of the ops that the calling thread runs, dry or not, while it lives. Views run nothing. An inner
/// scope counts for itself alone.
class WorkScope {
 public:
  WorkScope() : counting_(detail::t_work, this) {}
  const std::vector<WorkOfOp>& ops() const { return ops_; }  ///< in the order of their first calls
  /// Adds the work of a run.
  void add(std::string_view op, DType from, DType to, const OpWork& w) {
    add_work(ops_, {std::string(op), from, to, 1, w});
  }

 private:
  std::vector<WorkOfOp> ops_;
  ScopedValue<WorkScope*> counting_;
};

namespace detail {
// The bytes of the elements of a layout, each once.
int64_t distinct_bytes(const Layout&);
// An op that is about to run.
void count_work(const Op&, Bufs in, Bufs out);
}  // namespace detail

}  // namespace tg
