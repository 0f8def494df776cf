#include <tapegrad/core/profile/work.h>

#include <algorithm>

namespace tg {
namespace detail {
constinit thread_local WorkScope* t_work = nullptr;

int64_t distinct_bytes(const Layout& l) {
  auto n = int64_t(size_of(l.dtype));
  for (size_t d = 0; d < l.shape.size(); ++d)
    if (l.strides[d] != 0 || l.shape[d] == 0) n *= l.shape[d];
  return n;
}
}  // namespace detail

OpWork Op::work(Bufs in, Bufs out) const {
  OpWork w;
  for (const Buf& b : in) w.read += detail::distinct_bytes(*b.layout);
  for (const Buf& b : out) w.written += detail::distinct_bytes(*b.layout);
  w.multiply_adds = multiply_adds(in, out);
  return w;
}

void detail::add_work(std::vector<WorkOfOp>& to, const WorkOfOp& more, int64_t times) {
  auto it = std::ranges::find_if(
      to, [&](const WorkOfOp& o) { return o.op == more.op && o.from == more.from && o.to == more.to; });
  if (it == to.end()) it = to.insert(it, {more.op, more.from, more.to});
  it->calls += times * more.calls;
  it->work.read += times * more.work.read;
  it->work.written += times * more.work.written;
  it->work.multiply_adds += double(times) * more.work.multiply_adds;
}

}  // namespace tg
