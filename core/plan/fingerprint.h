// What a traced function does, in a form that outlives the trace: two calls that trace alike have equal fingerprints.
// For compile.cpp.
#pragma once
#include <tapegrad/core/engine/trace.h>
#include <tapegrad/core/plan/executable.h>

namespace tg::detail {

class Fingerprint {
 public:
  Fingerprint(const Graph&, const Binding&, const Trace&, std::span<const GeneratorSpan>);
  // What `now`, of graph g, does differently: "op 3, mul in layer, reads another tensor". Empty: nothing.
  std::string difference(const Fingerprint& now, const Graph& g) const;

 private:
  std::vector<uint64_t> attributes_;  // by node
  std::vector<uint64_t> in_;          // what the nodes read, one after another
  std::vector<uint64_t> outputs_, assigned_;
};

}  // namespace tg::detail
