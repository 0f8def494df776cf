#include <tapegrad/core/check.h>
#include <tapegrad/core/comm/communicator.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

namespace tg {
namespace {

class Alone final : public Communicator {
 public:
  explicit Alone(int size) : Communicator(0, size, 0, size) {}
  void exchange(const char*, std::span<const Message>, std::span<const Message>) override {}
  void all_gather(const void* from, void* to, size_t bytes) override {
    if (size() == 1 && bytes > 0) std::memmove(to, from, bytes);  // empty lists may be null
  }
  void broadcast(void*, size_t, int) override {}
  void abort(int status) override { std::_Exit(status); }
};

std::optional<detail::CommunicatorEngine>& engine_of_build() {
  static std::optional<detail::CommunicatorEngine> engine;
  return engine;
}

std::string (*g_device_engine)() = nullptr;

// Number of processes by the launcher's environment.
struct Launch {
  int64_t ranks = 1;
  std::string variable;
};
Launch launch() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"})
    if (const char* n = std::getenv(name)) return {std::atoll(n), name};
  // srun sets the number of tasks for any program, but offers PMI only with --mpi.
  if (const char* n = std::getenv("SLURM_STEP_NUM_TASKS"); n && std::getenv("SLURM_PROCID"))
    return {std::atoll(n), "SLURM_STEP_NUM_TASKS"};
  return {};
}

std::shared_ptr<Communicator> make_world() {
  const Launch l = launch();
  if (l.ranks <= 1) return Communicator::self();
  TG_CHECK(engine_of_build(), comm,
           "[comm] {} is {}: this process is one of several, and this build has no MPI to reach the others. Install it "
           "(apt install libopenmpi-dev | dnf install openmpi-devel | brew install open-mpi) and configure again with "
           "-DTG_MPI=ON, or start one process.",
           l.variable, l.ranks);
  std::shared_ptr<Communicator> world = engine_of_build()->world();
  TG_CHECK(world->size() == l.ranks, comm,
           "[comm] {} is {}, and {} sees {} process(es). The mpirun or srun that started this process belongs to "
           "another MPI than the build. Use that of {}; with Slurm: srun --mpi=pmix.",
           l.variable, l.ranks, engine_of_build()->name(), world->size(), engine_of_build()->name());
  return world;
}
}  // namespace

bool detail::register_communicators(const CommunicatorEngine& engine) {
  engine_of_build() = engine;
  return true;
}
bool detail::register_device_engine(std::string (*name)()) {
  g_device_engine = name;
  return true;
}
const std::shared_ptr<Communicator>& Communicator::self() {
  static const std::shared_ptr<Communicator> self = std::make_shared<Alone>(1);
  return self;
}
const std::shared_ptr<Communicator>& Communicator::world() {
  static const std::shared_ptr<Communicator> world = make_world();
  return world;
}
std::shared_ptr<Communicator> Communicator::fake(int size) {
  TG_CHECK(size >= 1, value, "[comm] a world of {} ranks. It must have one or more.", size);
  return std::make_shared<Alone>(size);
}
double Communicator::timeout() { return detail::comm_timeout(); }
void Communicator::set_timeout(double seconds) {
  TG_CHECK(seconds > 0, value, "[comm] a timeout of {} s. It must be above 0.", seconds);
  detail::comm_timeout() = seconds;
}
std::string Communicator::engine() { return engine_of_build() ? engine_of_build()->name() : "no MPI"; }
std::string Communicator::device_engine() { return g_device_engine ? g_device_engine() : std::string(); }

void Communicator::submit(const void* key, std::function<void()> job) {
  jobs_ ? jobs_->submit(key, std::move(job)) : job();
}
void Communicator::wait(const void* key) {
  if (jobs_) jobs_->wait(key);
}
void Communicator::wait_for_jobs() {
  if (jobs_) jobs_->wait_for_all();
}
void Communicator::all_to_all(const void* from, void* to, size_t bytes) {
  std::vector<Message> sent, received;
  auto* const p = const_cast<std::byte*>(static_cast<const std::byte*>(from));  // read only
  auto* const q = static_cast<std::byte*>(to);
  for (int k = 1; k < size_; ++k) {
    const int next = (rank_ + k) % size_, last = (rank_ + size_ - k) % size_;
    sent.push_back({next, p + size_t(next) * bytes, bytes});
    received.push_back({last, q + size_t(last) * bytes, bytes});
  }
  const size_t own = size_t(rank_) * bytes;
  if (bytes > 0) std::memcpy(q + own, p + own, bytes);
  exchange("all_to_all", sent, received);
}
void Communicator::barrier() { (void)max(0); }
int64_t Communicator::max(int64_t x) {
  std::vector<int64_t> all(static_cast<size_t>(size_));
  all_gather(&x, all.data(), sizeof x);
  return *std::max_element(all.begin(), all.end());
}
std::vector<std::string> Communicator::gather(std::string_view text) {
  const auto most = size_t(max(int64_t(text.size())));
  std::string mine(text), all(size_t(size()) * (most + 8), '\0');
  mine.resize(most + 8);
  const uint64_t n = text.size();
  std::memcpy(mine.data() + most, &n, 8);
  all_gather(mine.data(), all.data(), mine.size());
  std::vector<std::string> texts;
  for (int r = 0; r < size(); ++r) {
    const char* const p = all.data() + size_t(r) * mine.size();
    uint64_t length;
    std::memcpy(&length, p + most, 8);
    texts.emplace_back(p, length);
  }
  return texts;
}
}  // namespace tg
