// A traced function's summary: equal traces have equal fingerprints. For compile.cpp.
#pragma once
#include <tapegrad/core/engine/trace.h>
#include <tapegrad/core/plan/executable.h>

namespace tg::detail {

class Fingerprint {
 public:
  Fingerprint(const Graph&, const Binding&, const Trace&, std::span<const GeneratorSpan>);
  // The difference of `now` (graph g), "op 3, mul in layer, reads another tensor", or empty.
  std::string difference(const Fingerprint& now, const Graph& g) const;

 private:
  std::vector<uint64_t> attributes_;  // indexed by node
  std::vector<uint64_t> in_;          // inputs, node by node
  std::vector<uint64_t> outputs_, assigned_;
};

}  // namespace tg::detail
