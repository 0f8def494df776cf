#include <fcntl.h>
#include <tapegrad/models/apps/interrupt.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <iterator>

namespace tg::apps {
namespace {

std::atomic<int> g_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);  // handlers may only use lock-free atomics
constexpr int kCaught[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
struct sigaction g_former[std::size(kCaught)];

void note(int signal) {
  int none = 0;
  if (g_signal.compare_exchange_strong(none, signal)) return;
  if (signal == SIGHUP) return;  // a closing terminal sends it more than once
  std::signal(signal, SIG_DFL);  // the second: ends the process after this handler
  std::raise(signal);
}

}  // namespace

void writes_fail_with_errors() {
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
}

void open_standard_streams() {
  int fd;
  do fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO);  // open() returns the lowest free number
  if (fd >= 0) close(fd);
}

Interrupt::Interrupt() {
  g_signal = 0;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;  // restarts interrupted writes
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < std::size(kCaught); ++i) {
    sigaction(kCaught[i], nullptr, &g_former[i]);
    if (g_former[i].sa_handler != SIG_IGN)  // keeps an ignored signal (background jobs, nohup)
      sigaction(kCaught[i], &action, nullptr);
  }
}
Interrupt::~Interrupt() {
  for (size_t i = 0; i < std::size(kCaught); ++i) sigaction(kCaught[i], &g_former[i], nullptr);
}
int Interrupt::signal() { return g_signal; }

}  // namespace tg::apps
