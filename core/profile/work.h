/// @file
/// WorkScope: counts bytes and operations of a program's ops. A device's bandwidth and speed then give the minimal time
/// (the roofline of Williams et al., 2009). In a dry_run() this takes milliseconds for steps of any size.
/// models/tools/roofline.h uses it.
#pragma once
#include <tapegrad/core/op.h>
#include <tapegrad/core/util/scoped_value.h>

#include <string>
#include <vector>

namespace tg {

/// An op's runs between two dtypes.
struct WorkOfOp {
  std::string op;  ///< chains: "mul+add+gelu"
  DType from, to;  ///< first input (else output), first output
  int64_t calls = 0;
  OpWork work = {};  ///< all calls
};

namespace detail {
/// Adds `more` times `times` to the entry of its op and dtypes in `to`.
void add_work(std::vector<WorkOfOp>& to, const WorkOfOp& more, int64_t times = 1);
}  // namespace detail

/// Counts the work of the thread's ops, dry or not, without views. An inner scope counts separately.
class WorkScope {
 public:
  [[nodiscard]] WorkScope() : counting_(detail::t_work, this) {}
  const std::vector<WorkOfOp>& ops() const { return ops_; }  ///< order of first calls
  void add(std::string_view op, DType from, DType to, const OpWork& w) {
    detail::add_work(ops_, {std::string(op), from, to, 1, w});
  }

 private:
  std::vector<WorkOfOp> ops_;
  ScopedValue<WorkScope*> counting_;
};

namespace detail {
// Bytes of distinct elements.
int64_t distinct_bytes(const Layout&);
}  // namespace detail

}  // namespace tg
