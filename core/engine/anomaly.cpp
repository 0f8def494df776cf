// AnomalyScope: finds the op that makes the first NaN or infinity.
#include <tapegrad/core/check.h>
#include <tapegrad/core/engine/run_node.h>
#include <tapegrad/core/engine/trace.h>

#include <cmath>
#include <limits>
#include <vector>

namespace tg {
namespace {
constinit thread_local bool t_anomaly = false;

struct Findings {
  int64_t nan = -1, infinite = -1;  // first element, in row-major order
  double lo = std::numeric_limits<double>::infinity(), hi = -lo;
};
template <class T> Findings search(const Buf& b, const std::byte* bytes) {
  Findings f;
  const T* p = reinterpret_cast<const T*>(bytes);
  const int64_t n = b.numel();
  const bool whole = b.is_contiguous();
  for (int64_t i = 0; i < n; ++i) {
    int64_t at = i;
    if (!whole) {
      at = 0;
      const Dims index = detail::position_of(i, b.shape());
      for (size_t d = 0; d < index.size(); ++d) at += index[d] * b.strides()[d];
    }
    const auto x = double(p[at]);
    if (std::isnan(x)) {
      if (f.nan < 0) f.nan = i;
    } else if (std::isinf(x)) {
      if (f.infinite < 0) f.infinite = i;
    } else {
      f.lo = std::min(f.lo, x), f.hi = std::max(f.hi, x);
    }
  }
  return f;
}
Findings search(const Buf& b, Device device) {
  if (!is_float(b.dtype()) || b.numel() == 0) return {};
  const Layout& l = *b.layout;
  int64_t last = 0;
  for (size_t d = 0; d < l.shape.size(); ++d) last += (l.shape[d] - 1) * l.strides[d];
  const std::byte* from = b.bytes + l.offset * int64_t(size_of(l.dtype));
  std::vector<std::byte> host;
  if (device.backend != Backend::cpu) {
    host.resize(size_t(last + 1) * size_of(l.dtype));
    detail::runtime_of(device).copy_to_host(device.index, host.data(), from, host.size());
    from = host.data();
  }
  return visit_dtype(b.dtype(), [&]<class T>() -> Findings {
    if constexpr (is_float(dtype_of<T>()))
      return search<T>(b, from);
    else
      return {};
  });
}
}  // namespace
AnomalyScope::AnomalyScope() : ScopedValue(t_anomaly, true) {
  detail::forbid_in_trace("AnomalyScope", "results are checked");
}
bool anomaly_enabled() { return t_anomaly; }

namespace detail {
AnomalyCheck::AnomalyCheck(const Node& n, Bufs in) : node_(n) {
  constexpr size_t kListed = 8;  // longer lists show only bad inputs
  size_t listed = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    const Findings f = search(in[i], n.out[0].layout.device);
    nan_ |= f.nan >= 0;
    infinite_ |= f.infinite >= 0;
    if (listed == kListed || (in.size() > kListed && f.nan < 0 && f.infinite < 0)) continue;
    const std::string* label = n.in[i].label;
    inputs_ += fmt::format("{}{} {}", listed++ ? "; " : "",
                           label ? fmt::format("'{}'", *label) : fmt::format("input {}", i), *in[i].layout);
    if (f.lo <= f.hi) inputs_ += fmt::format(" in [{:.4g}, {:.4g}]", f.lo, f.hi);
    if (f.nan >= 0) inputs_ += fmt::format(", NaN at {}", detail::position_of(f.nan, in[i].shape()));
    if (f.infinite >= 0) inputs_ += fmt::format(", infinite at {}", detail::position_of(f.infinite, in[i].shape()));
  }
  if (listed < in.size()) inputs_ += fmt::format("{}{} tensors more", listed ? "; " : "", in.size() - listed);
}
void AnomalyCheck::after(Bufs out) const {
  const Traits traits = node_.op->traits();
  if (traits.asynchronous) wait_for_async();  // outputs may be unfinished
  for (size_t k = 0; k < out.size(); ++k) {
    const Findings f = search(out[k], node_.out[0].layout.device);
    const bool nan = f.nan >= 0, infinite = f.infinite >= 0 && !infinite_ && !nan_ && !traits.may_be_infinite;
    if (!nan && !infinite) continue;
    throw Error(Error::Kind::non_finite,
                fmt::format("[{}] {} {} in output {}, {}, at {}. It reads: {}. {}", node_.op->name(),
                            nan && nan_ ? "passes on" : "makes", nan ? "NaN" : "an infinity", k, *out[k].layout,
                            detail::position_of(nan ? f.nan : f.infinite, out[k].shape()),
                            inputs_.empty() ? "nothing" : inputs_,
                            nan && nan_ ? "The NaN was there before the search began: look at where that input is made."
                                        : "This is the first op that does. Keep its inputs in range: a lower learning "
                                          "rate, clipped gradients, a larger eps."));
  }
}
}  // namespace detail
}  // namespace tg
