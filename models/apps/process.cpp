#include <fcntl.h>
#include <sched.h>
#include <tapegrad/core/backend/backend.h>
#include <tapegrad/core/check.h>
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/apps/process.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <iterator>
#include <thread>

namespace tg::apps {
namespace {

std::atomic<int> g_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);  // handlers may only use lock-free atomics
constexpr int kCaught[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};
struct sigaction g_former[std::size(kCaught)];

void note(int signal) {
  int none = 0;
  if (g_signal.compare_exchange_strong(none, signal)) return;
  if (signal == SIGHUP) return;  // a closing terminal repeats it
  std::signal(signal, SIG_DFL);  // a second signal ends the process
  std::raise(signal);
}

bool g_begun = false;
Communicator& world() {
  Communicator& w = *Communicator::world();
  g_begun = true;
  return w;
}
bool several() { return g_begun && world().size() > 1; }

// Machine and CPUs.
std::string place() {
  std::string text(256, '\0');
  if (gethostname(text.data(), text.size() - 1) != 0) text.clear();
  text = text.c_str();
#ifdef __linux__
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof cpus, &cpus) == 0)
    for (int i = 0; i < CPU_SETSIZE; ++i)
      if (CPU_ISSET(size_t(i), &cpus)) text += fmt::format(" {}", i);
#endif
  return text;
}

}  // namespace

void prepare_streams() {
  int fd;
  do fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO);  // open() returns the lowest free number
  if (fd >= 0) close(fd);
  for (const int signal : {SIGXFSZ, SIGPIPE}) std::signal(signal, SIG_IGN);
}

Interrupt::Interrupt() {
  g_signal = 0;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;  // restarts interrupted writes
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < std::size(kCaught); ++i) {
    sigaction(kCaught[i], nullptr, &g_former[i]);
    if (g_former[i].sa_handler != SIG_IGN)  // keeps ignored signals (nohup)
      sigaction(kCaught[i], &action, nullptr);
  }
}
Interrupt::~Interrupt() {
  for (size_t i = 0; i < std::size(kCaught); ++i) sigaction(kCaught[i], &g_former[i], nullptr);
}
int Interrupt::signal() { return g_signal; }

bool is_main_rank() { return world().rank() == 0; }
void print_note(const std::string& text) {
  if (!is_main_rank()) return;
  std::fflush(stdout);
  std::fputs(fmt::format("tapegrad: {}\n", printable(text)).c_str(), stderr);  // may fail
}

Device device_of_rank(std::string_view command, Device d) {
  if (world().size() == 1 || d.backend == Backend::cpu) return d;
  const int devices = detail::runtime_of(d).device_count(), ranks = world().local_size();
  TG_CHECK(ranks <= devices, device,
           "[{}] {} ranks on this machine, and {} device(s) of {}. Each rank needs a separate device. Start at most "
           "as many ranks as devices.",
           command, ranks, devices, name_of(d.backend));
  d.index = world().local_rank();
  return d;
}

void set_threads(int64_t n) {
  if (n != 0) return set_num_threads(int(std::clamp<int64_t>(n, INT32_MIN, INT32_MAX)));
  if (world().size() == 1) return;
  const std::vector<std::string> places = world().gather(place());
  const auto here = std::ranges::count(places, places[size_t(world().rank())]);
  set_num_threads(std::max(1, num_threads() / int(here)));
}

void check_same(std::string_view command, const std::vector<std::pair<std::string, std::string>>& all) {
  if (world().size() == 1) return;
  std::string differences;
  for (const auto& [what, text] : all) {
    const std::vector<std::string> texts = world().gather(text);
    for (size_t r = 1; r < texts.size(); ++r)
      if (texts[r] != texts[0])
        differences += fmt::format("\n  {}: rank {} has {}, rank 0 has {}", what, r, texts[r], texts[0]);
  }
  TG_CHECK(differences.empty(), comm,
           "[{}] the ranks of one run must have the same data, settings and program.{}\nStart all with the same "
           "command, files and build.",
           command, differences);
}

void check_alone(std::string_view command) {
  TG_CHECK(world().size() == 1, comm,
           "[{}] {} processes were started, and each would do all of the work and write the same files. Start one, "
           "without mpirun or srun.",
           command, world().size());
}

int agreed_signal() { return several() ? int(world().max(Interrupt::signal())) : Interrupt::signal(); }

void end_ranks(int status) {
  if (several()) world().abort(status);
}
std::string rank_of_error() {
  if (!several()) return {};
  if (world().rank() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  return fmt::format("[rank {}] ", world().rank());
}
}  // namespace tg::apps
