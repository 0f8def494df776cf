#include <tapegrad/core/check.h>
#include <tapegrad/core/comm.h>
#include <tapegrad/core/half.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <optional>

namespace tg {
namespace {

class Self final : public Communicator {
 public:
  Self() : Communicator(0, 1, 0, 1) {}
  void all_to_all(const void* from, void* to, size_t bytes) override { all_gather(from, to, bytes); }
  void all_gather(const void* from, void* to, size_t bytes) override {
    if (bytes > 0) std::memmove(to, from, bytes);  // empty lists may be null
  }
  void broadcast(void*, size_t, int) override {}
  void abort(int status) override { std::_Exit(status); }
};

class Hollow final : public Communicator {
 public:
  explicit Hollow(int size) : Communicator(0, size, 0, size) {}
  void all_to_all(const void*, void*, size_t) override {}
  void all_gather(const void*, void*, size_t) override {}
  void broadcast(void*, size_t, int) override {}
  void abort(int status) override { std::_Exit(status); }
};

std::atomic<double>& seconds_of_patience() {
  static std::atomic<double> seconds = [] {
    const char* word = std::getenv("TG_COMM_TIMEOUT");
    if (!word) return 600.;
    char* end = nullptr;
    const double given = std::strtod(word, &end);
    TG_CHECK(end != word && *end == '\0' && given > 0, value,
             "[comm] TG_COMM_TIMEOUT is '{}'. It must be a number of seconds above 0. Change or unset it.", word);
    return given;
  }();
  return seconds;
}

std::optional<detail::CommunicatorEngine>& engine_of_build() {
  static std::optional<detail::CommunicatorEngine> engine;
  return engine;
}

// How many processes were started together, as what started them says.
struct Launch {
  int64_t ranks = 1;
  std::string variable;
};
Launch launch() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"})
    if (const char* n = std::getenv(name)) return {std::atoll(n), name};
  // srun sets the number of tasks of a step for any program; it offers PMI to those that ask with --mpi.
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
  TG_CHECK(
      world->size() == l.ranks, comm,
      "[comm] {} is {}, and {} sees {} process(es). The mpirun or srun that started this is of another MPI than the "
      "build. Use the one of {}; with Slurm: srun --mpi=pmix.",
      l.variable, l.ranks, engine_of_build()->name(), world->size(), engine_of_build()->name());
  return world;
}

template <class T> void add_in_order(const T* parts, int ranks, int64_t n, compute_t<T>* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = compute_t<T>(parts[i]);
  for (int r = 1; r < ranks; ++r)
    for (int64_t i = 0; i < n; ++i) to[i] += compute_t<T>(parts[r * n + i]);
}
void add_in_order(DType t, const std::byte* parts, int ranks, int64_t n, std::byte* to) {
  const auto add = [&]<class T>(T) {
    add_in_order(reinterpret_cast<const T*>(parts), ranks, n, reinterpret_cast<compute_t<T>*>(to));
  };
  if (t == DType::f64) return add(double());
  if (t == DType::f32) return add(float());
  if (t == DType::bf16) return add(bf16());
  add(int64_t());
}

// A list as one long row of elements of one dtype: where stretches of it lie.
class Row {
 public:
  explicit Row(std::span<const RankSum> all) : all_(all) {}
  // f(tensor, its first element, how many) for the next n elements; they are passed over.
  template <class F> void next(int64_t n, F&& f) {
    while (n > 0) {
      const RankSum& s = all_[at_];
      const int64_t some = std::min(n, s.n - done_);
      f(s, done_, some);
      n -= some, done_ += some;
      if (done_ == s.n) ++at_, done_ = 0;
    }
  }

 private:
  std::span<const RankSum> all_;
  size_t at_ = 0;
  int64_t done_ = 0;
};
}  // namespace

bool detail::register_communicators(const CommunicatorEngine& engine) {
  engine_of_build() = engine;
  return true;
}
const std::shared_ptr<Communicator>& Communicator::self() {
  static const std::shared_ptr<Communicator> self = std::make_shared<Self>();
  return self;
}
const std::shared_ptr<Communicator>& Communicator::world() {
  static const std::shared_ptr<Communicator> world = make_world();
  return world;
}
std::shared_ptr<Communicator> Communicator::hollow(int size) {
  TG_CHECK(size >= 1, value, "[comm] a world of {} ranks. It must have one or more.", size);
  return std::make_shared<Hollow>(size);
}
double Communicator::timeout() { return seconds_of_patience(); }
void Communicator::set_timeout(double seconds) {
  TG_CHECK(seconds > 0, value, "[comm] a timeout of {} s. It must be above 0.", seconds);
  seconds_of_patience() = seconds;
}
std::string Communicator::engine() { return engine_of_build() ? engine_of_build()->name() : "no MPI"; }

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

DType rank_sum_dtype(std::string_view op, DType t) {
  TG_CHECK(t == DType::f64 || t == DType::f32 || t == DType::bf16 || t == DType::i64, dtype,
           "[{}] cannot add up {} over ranks. It must be f64, f32, bf16 or i64.", op, name_of(t));
  return t == DType::bf16 ? DType::f32 : t;
}
void sum_over_ranks(Communicator& comm, std::span<const RankSum> all) {
  const int64_t ranks = comm.size();
  std::vector<std::byte> out, in, sums, gathered;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::i64}) {
    std::vector<RankSum> same;
    int64_t left = 0;
    for (const RankSum& s : all)
      if (s.dtype == dtype && s.n > 0) same.push_back(s), left += s.n;
    const auto size = int64_t(size_of(dtype)), wide = int64_t(size_of(rank_sum_dtype("all_reduce", dtype)));
    Row from(same), to(same);
    while (left > 0) {
      const int64_t n = std::min(left, ranks * (kRankSumBytes / size)), part = (n + ranks - 1) / ranks;
      out.resize(size_t(ranks * part * size)), in.resize(out.size());
      sums.resize(size_t(part * wide)), gathered.resize(size_t(ranks * part * wide));
      std::byte* p = out.data();
      from.next(n, [&](const RankSum& s, int64_t first, int64_t some) {
        std::memcpy(p, static_cast<const std::byte*>(s.from) + first * size, size_t(some * size));
        p += some * size;
      });
      std::fill(p, out.data() + out.size(), std::byte(0));
      comm.all_to_all(out.data(), in.data(), size_t(part * size));
      add_in_order(dtype, in.data(), int(ranks), part, sums.data());
      comm.all_gather(sums.data(), gathered.data(), size_t(part * wide));
      const std::byte* q = gathered.data();
      to.next(n, [&](const RankSum& s, int64_t first, int64_t some) {
        std::memcpy(static_cast<std::byte*>(s.to) + first * wide, q, size_t(some * wide));
        q += some * wide;
      });
      left -= n;
    }
  }
}
}  // namespace tg
