#include <tapegrad/models/apps/interrupt.h>

#include <atomic>
#include <csignal>
#include <utility>

namespace tg::apps {
namespace {

std::atomic<int> g_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);  // the only kind that a handler may touch
struct sigaction g_former_int, g_former_term;

void note(int signal) {
  int none = 0;
  if (g_signal.compare_exchange_strong(none, signal)) return;
  std::signal(signal, SIG_DFL);  // the second one: it ends the process when this handler returns
  std::raise(signal);
}

}  // namespace

Interrupt::Interrupt() {
  g_signal = 0;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;  // writes that wait go on
  sigemptyset(&action.sa_mask);
  for (const auto& [signal, former] : {std::pair(SIGINT, &g_former_int), std::pair(SIGTERM, &g_former_term)}) {
    sigaction(signal, nullptr, former);
    if (former->sa_handler != SIG_IGN)
      sigaction(signal, &action, nullptr);  // ignored, as in background jobs: it stays so
  }
}
Interrupt::~Interrupt() {
  sigaction(SIGINT, &g_former_int, nullptr);
  sigaction(SIGTERM, &g_former_term, nullptr);
}
int Interrupt::signal() { return g_signal; }

}  // namespace tg::apps
