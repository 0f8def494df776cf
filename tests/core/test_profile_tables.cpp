// Tables and traces of profiles: numbers, text, CSV, JSON, Perfetto.
#include <tapegrad/core/io/json.h>
#include <tapegrad/core/profile/profile_tables.h>

#include <map>

#include "support/files.h"
#include "support/helpers.h"

using namespace tg;

namespace {
Profile::Range range(std::string_view name, int64_t begin, int64_t end, uint32_t parent = Profile::kNone,
                     RangeKind kind = RangeKind::range) {
  const Scope* const path = detail::path_within(nullptr, name);
  return {kind, name, 0, parent, begin, end, kind == RangeKind::range ? path : nullptr, nullptr};
}
Profile::Kernel table_kernel(std::string_view name, int64_t ns, const Scope* path = nullptr,
                             const Scope* layer = nullptr) {
  return {name, Device::cuda(), 7, 0, ns, Profile::kNone, name, path, layer};
}
Profile::Copy copy(Profile::Copy::Kind kind, int64_t bytes, int64_t ns) {
  return {kind, Device::cuda(), 7, bytes, 0, ns, Profile::kNone, nullptr};
}
const ProfileTable& table(const std::vector<ProfileTable>& all, std::string_view report) {
  for (const ProfileTable& t : all)
    if (t.report == report) return t;
  FAIL("no table " << report);
  return all[0];
}
}  // namespace

TEST_CASE("profile tables: one of ranges, worked by hand, as nsys prints it") {
  Profile p;
  p.ranges = {range("warmup", 0, 3'000'000'000), range("step", 0, 1'000'000'000)};
  for (const int64_t ns : {1'000'001, 2'000'000, 3'000'002, 6'000'000}) p.ranges.push_back(range("attention", 0, ns));
  p.ranges.push_back(range("matmul", 0, 5, Profile::kNone, RangeKind::op));  // ops are in the tables of kernels
  const ProfileTable t = table(profile_tables(p), "nvtx_sum");
  CHECK(t.at(":attention", "Total Time (ns)") == 12'000'003);
  CHECK(t.at(":attention", "Instances") == 4);
  CHECK(t.at(":attention", "Avg (ns)") == 3'000'000.75);
  CHECK(t.at(":attention", "Med (ns)") == 2'500'001);
  // Deviations from the mean: -1999999.75, -1000000.75, 1.25, 2999999.25; squares over n - 1 = 3.
  CHECK(t.at(":attention", "StdDev (ns)") == doctest::Approx(2160246.590862777).epsilon(1e-12));
  CHECK(t.at(":step", "StdDev (ns)") == 0);
  CHECK(t.at(":warmup", "Time (%)") == doctest::Approx(100 * 3e9 / 4012000003.0));
  CHECK(to_text(t) ==
        " Time (%)  Total Time (ns)  Instances     Avg (ns)         Med (ns)        Min (ns)       Max (ns)     "
        "StdDev (ns)   Style     Range\n"
        " --------  ---------------  ---------  ---------------  ---------------  -------------  -------------  "
        "-----------  -------  ----------\n"
        "     74.8    3,000,000,000          1  3,000,000,000.0  3,000,000,000.0  3,000,000,000  3,000,000,000  "
        "        0.0  PushPop  :warmup\n"
        "     24.9    1,000,000,000          1  1,000,000,000.0  1,000,000,000.0  1,000,000,000  1,000,000,000  "
        "        0.0  PushPop  :step\n"
        "      0.3       12,000,003          4      3,000,000.8      2,500,001.0      1,000,001      6,000,000  "
        "2,160,246.6  PushPop  :attention\n");
}
TEST_CASE("profile tables: kernels, calls, copies and their sizes, in the order of nsys") {
  Profile p;
  p.kernels = {table_kernel("gemm", 300), table_kernel("gemm", 100),
               table_kernel(std::string_view(R"(f<"a", b>)"), 1000)};
  p.kernels.push_back(table_kernel("on the host", 5));
  p.kernels.back().device = Device();
  p.calls = {{"cudaMalloc", Backend::cuda, 0, 10, 30, Profile::kNone},
             {"allocate", Backend::cpu, 0, 10, 15, Profile::kNone}};
  using Kind = Profile::Copy::Kind;
  p.copies = {copy(Kind::host_to_device, 10'240, 2000), copy(Kind::host_to_device, 104'857'600, 9000),
              copy(Kind::host_to_device, 26'214'400, 4000), copy(Kind::set, 80, 10)};
  const std::vector<ProfileTable> all = profile_tables(p);
  std::vector<std::string> reports;
  for (const ProfileTable& t : all) reports.push_back(t.report);
  CHECK(reports == std::vector<std::string>{"allocator_sum", "cuda_api_sum", "cpu_kern_sum", "cuda_gpu_kern_sum",
                                            "cuda_gpu_mem_time_sum", "cuda_gpu_mem_size_sum"});
  CHECK(table(all, "allocator_sum").at("allocate", "Num Calls") == 1);
  CHECK(table(all, "cuda_api_sum").at("cudaMalloc", "Total Time (ns)") == 20);
  CHECK(table(all, "cpu_kern_sum").at("on the host", "Instances") == 1);
  CHECK(table(all, "cuda_gpu_mem_time_sum").at("[CUDA memcpy Host-to-Device]", "Max (ns)") == 9000);
  CHECK(to_text(table(all, "cuda_gpu_mem_size_sum")) ==
        " Total (MB)  Count  Avg (MB)  Med (MB)  Min (MB)  Max (MB)  StdDev (MB)           Operation\n"
        " ----------  -----  --------  --------  --------  --------  -----------  ----------------------------\n"
        "    131.082      3    43.694    26.214     0.010   104.858       54.566  [CUDA memcpy Host-to-Device]\n"
        "      0.000      1     0.000     0.000     0.000     0.000        0.000  [CUDA memset]\n");
  const ProfileTable& kernels = table(all, "cuda_gpu_kern_sum");
  CHECK(kernels.rows.size() == 2);
  CHECK(std::get<std::string>(kernels.rows[0].back()) == R"(f<"a", b>)");
  CHECK(to_csv(kernels) ==
        "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
        "71.4,1000,1,1000.0,1000.0,1000,1000,0.0,\"f<\"\"a\"\", b>\"\n"
        "28.6,400,2,200.0,200.0,100,300,141.4,gemm\n");
  const Json j = detail::own_json(to_json(kernels));
  CHECK(j["report"] == "cuda_gpu_kern_sum");
  CHECK(j["rows"].size() == 2);
  CHECK(j["rows"][1]["Name"] == "gemm");
  CHECK(j["rows"][1]["Avg (ns)"] == 200.0);
  CHECK(error_of([&] { (void)kernels.at("gem", "Instances"); }) ==
        "[profiler] cuda_gpu_kern_sum has no row 'gem'. Names are those of the last column.");
  CHECK(error_of([&] { (void)kernels.at("gemm", "Name"); }) ==
        "[profiler] cuda_gpu_kern_sum has no column of numbers 'Name'. Titles are those of the table.");
}
TEST_CASE("profile tables: long names are cut at 100 characters, whatever they are made of") {
  Profile p;
  const std::string name = "void f<" + std::string(200, 'x') + ">()", accents = [] {
    std::string s;
    for (int i = 0; i < 101; ++i) s += "é";
    return s;
  }();
  p.kernels = {table_kernel(name, 2), table_kernel(accents, 1)};
  const std::string text = to_text(profile_tables(p)[0]);
  CHECK_HAS(text, "  " + name.substr(0, 99) + "…\n", "  " + accents.substr(0, 2 * 99) + "…\n",
            "  " + std::string(100, '-') + "\n");
}
TEST_CASE("profile tables: kernel time by the range that made the kernels, for each of its instances") {
  Profile p;
  p.ranges = {range("step", 0, 100), range("step", 100, 200)};
  const Scope* const step = detail::path_within(nullptr, "step");
  const Scope* const forward = detail::path_within(step, "forward");
  const NameScope a("gpt"), b("mlp");
  const Scope *const mlp = detail::current_scope(), *const gpt = mlp->parent;
  for (int i = 0; i < 2; ++i) {
    p.kernels.push_back(table_kernel("gemm", 300, forward, mlp));
    p.kernels.push_back(table_kernel("gelu", 50, forward, mlp));
    p.kernels.push_back(table_kernel("norm", 25, forward, gpt));
    p.kernels.push_back(table_kernel("adamw", 100, step));
  }
  p.kernels.push_back(table_kernel("copy", 50));
  const ProfileTable t = kernel_time_by_range(p);
  CHECK(to_csv(t) ==
        "Time (%),Total Time (ns),Instances,Time/Instance (ns),Kernels/Instance,Range\n"
        "95.0,950,2,475.0,4.0,step\n"
        "75.0,750,2,375.0,3.0,  forward\n"
        "75.0,750,2,375.0,3.0,    gpt\n"
        "70.0,700,2,350.0,2.0,      gpt.mlp\n"
        "60.0,600,2,300.0,1.0,        gemm\n"
        "10.0,100,2,50.0,1.0,        gelu\n"
        "5.0,50,2,25.0,1.0,      norm\n"
        "20.0,200,2,100.0,1.0,  adamw\n"
        "5.0,50,1,50.0,1.0,(in no range)\n"
        "5.0,50,1,50.0,1.0,  copy\n");
}
TEST_CASE("profile tables: an empty profile has none") {
  CHECK(profile_tables({}).empty());
  CHECK(kernel_time_by_range({}).empty());
}

TEST_CASE("profile trace: valid JSON, events nest, tracks have names, memory is a counter") {
  Profiler profiler;
  {
    const ProfileRange step("step \"1\"\n");
    const NameScope layer("fc");
    const Tensor y = filled({1000}, 1.f) + filled({1000}, 2.f);
  }
  const Profile p = profiler.stop();
  const Folder folder;
  const std::string path = folder / "trace.json";
  detail::check_writable(path);
  CHECK(folder.entries() == 0);
  write_trace(p, path);
  const Json j = detail::own_json(read_file(path));
  std::map<std::string, int> phases;
  std::map<std::pair<int, int>, std::vector<double>> ends;  // open events' ends, per track
  std::vector<std::string> names;
  for (const Json& e : j["traceEvents"]) {
    ++phases[e["ph"].get<std::string>()];
    if (e["ph"] != "X") continue;
    CHECK(e["dur"].get<double>() >= 0);
    names.push_back(e["name"].get<std::string>());
    auto& open = ends[{e["pid"].get<int>(), e["tid"].get<int>()}];
    const double begin = e["ts"].get<double>(), end = begin + e["dur"].get<double>();
    while (!open.empty() && open.back() <= begin + 1e-6) open.pop_back();
    if (!open.empty()) CHECK(end <= open.back() + 2e-3);  // a nanosecond may be lost in the text
    open.push_back(end);
  }
  CHECK(phases["X"] == int(p.ranges.size() + p.calls.size() + p.kernels.size()));
  CHECK(phases["C"] == int(p.memory.size()));
  CHECK(phases["M"] == 6);  // a process and a track of ranges, calls and kernels
  CHECK(std::count(names.begin(), names.end(), "step \"1\"\n") == 1);
  CHECK(std::count(names.begin(), names.end(), "fc") == 1);
  CHECK(std::count(names.begin(), names.end(), "add") == 2);
  const auto add =
      std::find_if(j["traceEvents"].begin(), j["traceEvents"].end(), [](const Json& e) { return e["name"] == "add"; });
  CHECK((*add)["args"]["in"] == "(1000) f32, (1000) f32");
  CHECK((*add)["args"]["scope"] == "fc");
}
TEST_CASE("profile trace: a place that cannot be written is an error before the work") {
  const Folder folder;
  CHECK_SAYS(detail::check_writable(folder.path), "it is a folder");
  CHECK_SAYS(detail::check_writable(folder / "none/trace.json"), "No such file or directory");
  const std::string path = folder / "old.json";
  detail::write_file_atomically(path, "old");
  detail::check_writable(path);
  CHECK(read_file(path) == "old");
  CHECK(folder.entries() == 1);
}
