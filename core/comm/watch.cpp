#include <fmt/format.h>
#include <tapegrad/core/comm/jobs.h>
#include <tapegrad/core/comm/watch.h>

#include <cstdio>
#include <cstdlib>

namespace tg {
CommWatch::CommWatch(int rank) : rank_(rank), thread_(detail::comm_thread([this] { watch(); })) {}
CommWatch::~CommWatch() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  ends_.notify_one();
  thread_.join();
}
CommWatch::Call::Call(CommWatch& w, const char* name) : watch_(w) {
  w.since_ = Clock::now().time_since_epoch().count();
  w.call_ = name;
}
void CommWatch::add(OnDevice& d) {
  const std::lock_guard lock(mutex_);
  devices_.push_back({&d, 0, {}});
}

void CommWatch::watch() {
  std::unique_lock lock(mutex_);
  while (!ends_.wait_for(lock, std::chrono::milliseconds(100), [this] { return done_; })) look();
}
void CommWatch::look() {
  bool on_device = false;
  for (Seen& s : devices_) {
    if (const std::string why = s.device->failure(); !why.empty()) end(why);
    const uint64_t wait = s.device->wait();
    if (wait != s.wait) s.wait = wait, s.since = Clock::now();
    if (wait == 0) continue;
    on_device = true;
    end_if_late(s.since, s.device->name(wait));
  }
  if (on_device) return;  // less exact: a host call may only wait for the device
  const char* const call = call_;
  const Clock::time_point since{Clock::duration(since_)};
  if (call && call == call_) end_if_late(since, call);
}
void CommWatch::end_if_late(Clock::time_point since, const std::string& name) {
  const std::chrono::duration<double> waited = Clock::now() - since;
  if (waited.count() < detail::comm_timeout()) return;
  end(
      fmt::format("{} has waited {:.0f} s for the other ranks. One of them hangs or is slow, or the network is. "
                  "--comm-timeout SECONDS, or TG_COMM_TIMEOUT, waits longer.",
                  name, waited.count()));
}
void CommWatch::end(const std::string& what) {
  std::fputs(fmt::format("tapegrad: [rank {}] {}\n", rank_, what).c_str(), stderr);
  for (const Seen& s : devices_) s.device->abort();
  std::_Exit(1);  // the launcher ends the other ranks
}
}  // namespace tg
