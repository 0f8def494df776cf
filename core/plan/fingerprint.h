// A summary of a traced function that outlives the trace: equal traces have equal fingerprints. For compile.cpp.
#pragma once
#include <tapegrad/core/engine/trace.h>
#include <tapegrad/core/plan/executable.h>

namespace tg::detail {

class Fingerprint {
 public:
  Fingerprint(const Graph&, const Binding&, const Trace&, std::span<const GeneratorSpan>);
  // How `now`, of graph g, differs: "op 3, mul in layer, reads another tensor". Empty: not at all.
  std::string difference(const Fingerprint& now, const Graph& g) const;

 private:
  std::vector<uint64_t> attributes_;  // by node
  std::vector<uint64_t> in_;          // inputs of all nodes, node by node
  std::vector<uint64_t> outputs_, assigned_;
};

}  // namespace tg::detail
