#include <tapegrad/core/io/file.h>

#include <algorithm>

#include "common/stats.h"
#include "lm_profile/steps.h"

namespace tg::bench {
namespace {
constexpr const char *kForward = "forward_pass", *kBackward = "backward_pass", *kOptimizer = "optimizer_step";

std::string line(std::string_view name, double ms, const std::string& rest) {
  return fmt::format("  {:<34} {:>12.3f} ms{}\n", name, ms, rest);
}
double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }
}  // namespace

std::string label(const LmFigures& f) {
  return fmt::format("{} {} {}", name_of(f.setup.form), name_of(f.setup.precision), name_of(f.type));
}

LmFigures figures_of(const LmRun& run) {
  using Kind = Profile::Copy::Kind;
  const Profile& p = run.profile;
  return {run,
          profiled_step(p),
          copies_of(p, Kind::host_to_device),
          copies_of(p, Kind::device_to_host),
          copies_of(p, Kind::device_to_device),
          profile_tables(document_ranges(p)),
          p.notes};
}

std::string preamble(const LmSetup& s, StepType type) {
  const std::string rule(42, '='), size = s.size;
  const GptConfig& c = s.model;
  return fmt::format(
      "{0}\nModel: {1}, Context Length: {2}\n{0}\n"
      "Profiling: size={1}, context_length={2}, type={3}\n"
      "Using device: {4}\n\n"
      "Model configuration:\n  Size: {1}\n  d_model: {5}\n  d_ff: {6}\n  num_layers: {7}\n  num_heads: {8}\n"
      "  vocab_size: {9}\n  context_length: {2}\n  batch_size: {10}\n  form: {11}\n  precision: {12}\n\n"
      "Initializing model...\nCreating random batch...\n",
      rule, size, c.context, name_of(type), name_of(s.device.backend), c.width, c.ff_width, c.layers, c.heads,
      c.vocab_size, s.batch, name_of(s.form), name_of(s.precision));
}

std::string tables_text(const LmFigures& f) {
  constexpr std::pair<int, std::string_view> kReports[] = {
      {3, "nvtx_sum"},          {5, "allocator_sum"},         {5, "cuda_api_sum"},         {6, "cpu_kern_sum"},
      {6, "cuda_gpu_kern_sum"}, {7, "cuda_gpu_mem_time_sum"}, {8, "cuda_gpu_mem_size_sum"}};
  std::string r;
  for (const auto& [number, name] : kReports) {
    if (name == "allocator_sum")
      r += "[4/8] 'osrt_sum' is not made: calls of the operating system are not traced. nsys traces them.\n\n";
    const auto at = std::ranges::find(f.tables, name, &ProfileTable::report);
    if (at != f.tables.end()) r += fmt::format("[{}/8] '{}' stats report\n\n{}\n", number, name, to_text(*at));
  }
  for (const std::string& note : f.notes) r += fmt::format("note: {}\n", note);
  return r;
}

std::string step_text(const LmFigures& f) {
  const LmStep& s = f.step;
  std::string r = fmt::format("The profiled step, {}: {:.3f} ms, {} kernels of {:.3f} ms\n", label(f), 1e3 * s.seconds,
                              s.all.launches, 1e3 * s.all.kernels);
  for (const char* name : {kForward, "loss_computation", kBackward, kOptimizer}) {
    const auto at = s.phases.find(name);
    if (at == s.phases.end()) continue;
    const LmPhase& p = at->second;
    r += line(name, 1e3 * p.seconds,
              fmt::format(", {} kernels of {:.3f} ms, {:.1f} % of it products", p.launches, 1e3 * p.kernels,
                          percent(p.products, p.kernels)));
  }
  r += "Kernels by part of the model, forward and backward:\n";
  for (size_t i = 0; i < kLmParts; ++i)
    if (s.all.parts[i] > 0)
      r += line(name_of(LmPart(i)), 1e3 * s.all.parts[i],
                fmt::format(", {:.1f} %", percent(s.all.parts[i], s.all.kernels)));
  r += fmt::format(
      "Phases are {:.2f} % of the step; embedding, layers, norm and head are {:.2f} % of forward_pass by kernels, "
      "{:.2f} % by ranges\n",
      100 * s.phases_cover, 100 * s.layers_cover, 100 * s.host_layers_cover);
  return r;
}

namespace {
using Runs = std::vector<LmFigures>;
const LmFigures* trained(const Runs& all, LmForm form, Precision precision) {
  for (const LmFigures& f : all)
    if (f.type == StepType::train && f.setup.form == form && f.setup.precision == precision) return &f;
  return nullptr;
}
double sum_of(const LmPhase& p, std::initializer_list<LmPart> parts) {
  double sum = 0;
  for (const LmPart part : parts) sum += p.part(part);
  return sum;
}
double attention_of(const LmPhase& p) {
  return sum_of(p, {LmPart::projections, LmPart::attention, LmPart::rope, LmPart::attention_rest});
}
double ffn_of(const LmPhase& p) { return sum_of(p, {LmPart::ffn_products, LmPart::ffn_rest}); }

std::string backward_and_forward(const LmFigures& f) {
  const double forward = f.step.phase_seconds(kForward), backward = f.step.phase_seconds(kBackward);
  return fmt::format(
      "1. Backward and forward: {:.3f} ms and {:.3f} ms, {:.2f} times as long (document: 2.05; products alone make "
      "2).\n",
      1e3 * backward, 1e3 * forward, backward / forward);
}
std::string optimizer(const LmFigures& f) {
  const double t = f.step.phase_seconds(kOptimizer), bytes = 8 * 4 * double(f.parameters);
  return fmt::format(
      "2. Optimizer: {:.3f} ms, {:.1f} % of the step (document: 179 ms, 6.5 %). One op updates all parameters and "
      "moves 7 x 4 bytes of each, and the norm of the gradients 4 more: {:.3f} GB at {:.1f} GB/s. The document's "
      "separate passes move 20 x 4.\n",
      1e3 * t, percent(t, f.step.seconds), 1e-9 * bytes, 1e-9 * bytes / t);
}
std::string sublayers(const LmFigures& f) {
  const LmStep& s = f.step;
  const LmPhase& forward = s.phases.at(kForward);
  return fmt::format(
      "3. Attention and feed-forward, by the time of their kernels: {:.1f} % and {:.1f} % of forward_pass, {:.1f} % "
      "and {:.1f} % of the step. The document's 68.8 % and 25.4 % are ranges of the host, over warm-up and all, by the "
      "profiled step: ours would be {:.1f} % and {:.1f} %.\n",
      percent(attention_of(forward), forward.kernels), percent(ffn_of(forward), forward.kernels),
      percent(attention_of(s.all), s.all.kernels), percent(ffn_of(s.all), s.all.kernels),
      percent(s.ranges_attention, s.seconds), percent(s.ranges_ffn, s.seconds));
}
std::string first_layer(const LmFigures& f) {
  const LmStep& s = f.step;
  if (s.layers.size() < 2) return "4. The first layer: there is no other.\n";
  const double ratio = s.layers[0] / median({s.layers.begin() + 1, s.layers.end()});
  const double first = s.first_host_layers[0], warm = s.host_layers[0];
  return fmt::format(
      "4. The first layer: {:.3f} ms of kernels in the profiled step, {:.2f} times the median of the others. In the "
      "first step of all its range took {:.3f} ms, in the profiled one {:.3f} ms{}.\n",
      1e3 * s.layers[0], ratio, 1e3 * first, 1e3 * warm,
      ratio < 1.25 && first > 2 * warm ? ": slow is the first call, not the first layer" : "");
}
std::string products(const Runs& runs) {
  std::string r = "5. Products of matrices, of the time of kernels:";
  for (const LmFigures& f : runs)
    if (f.type == StepType::train)
      r += fmt::format(" {} {} {:.1f} %;", name_of(f.setup.form), name_of(f.setup.precision),
                       percent(f.step.all.products, f.step.all.kernels));
  return r +
         " products inside attention in blocks are not counted. f32 is multiplied in f32 throughout, on no tensor "
         "cores, as in the document (84.0 %).\n";
}
std::string fusion(const Runs& runs) {
  const LmFigures *apart = trained(runs, LmForm::flash, Precision::f32),
                  *fused = trained(runs, LmForm::fused, Precision::f32);
  if (!apart || !fused) return "6. Fused ops: not measured. Ask for --answers.\n";
  const LmPhase &a = apart->step.all, &b = fused->step.all;
  return fmt::format(
      "6. Fused ops (norm with residual sum, rotation, gate; attention in blocks on both sides): {} kernels in place "
      "of {}, {:.3f} ms in place of {:.3f} ms, {:+.1f} %; tensors of {:.3f} GB made in place of {:.3f} GB; the step "
      "{:.3f} ms in place of {:.3f} ms (document's train step: 6371 kernels).\n",
      b.launches, a.launches, 1e3 * b.kernels, 1e3 * a.kernels, percent(b.kernels, a.kernels) - 100,
      1e-9 * fused->step.allocated, 1e-9 * apart->step.allocated, 1e3 * fused->step.seconds, 1e3 * apart->step.seconds);
}
std::string precisions(const Runs& runs) {
  const LmFigures* f32 = trained(runs, LmForm::fused, Precision::f32);
  if (!f32) return "7. Mixed precision: not measured. Ask for --answers.\n";
  std::string r = fmt::format("7. Mixed precision, the fused step: f32 {:.3f} ms", 1e3 * f32->step.seconds);
  for (const Precision p : {Precision::tf32, Precision::bf16})
    if (const LmFigures* f = trained(runs, LmForm::fused, p))
      r += fmt::format(", {} {:.3f} ms ({:.2f} times as fast)", name_of(p), 1e3 * f->step.seconds,
                       f32->step.seconds / f->step.seconds);
    else
      r += fmt::format(", {} not measured", name_of(p));
  return r + ".\n";
}
std::string flash(const Runs& runs) {
  const LmFigures *matrix = trained(runs, LmForm::document, Precision::f32),
                  *blocks = trained(runs, LmForm::flash, Precision::f32);
  if (!matrix || !blocks) return "8. Attention in blocks: not measured. Ask for --answers.\n";
  const LmSetup& s = matrix->setup;
  const double scores = 4 * double(s.batch) * double(s.model.heads) * double(s.model.context) * double(s.model.context);
  return fmt::format(
      "8. Attention in blocks, all else op by op: scores to values {:.3f} ms in place of {:.3f} ms ({:.1f} % of the "
      "step's kernels), the step {:.3f} ms in place of {:.3f} ms, peak memory {:.3f} GB in place of {:.3f} GB. Two "
      "matrices of scores in each layer are {:.3f} GB.\n",
      1e3 * blocks->step.all.part(LmPart::attention), 1e3 * matrix->step.all.part(LmPart::attention),
      percent(matrix->step.all.part(LmPart::attention), matrix->step.all.kernels), 1e3 * blocks->step.seconds,
      1e3 * matrix->step.seconds, 1e-9 * double(blocks->peak_bytes), 1e-9 * double(matrix->peak_bytes),
      2e-9 * scores * double(s.model.layers));
}
std::string copies(const LmFigures& f) {
  if (f.setup.device == Device::cpu()) return "9. Copies to a device: there is none, the model runs on the host.\n";
  return fmt::format(
      "9. Copies: {} to the device, {:.3f} MB, of which parameters are {:.3f} MB; {} on the device, {:.3f} MB; {} to "
      "the host, {:.6f} MB. The batch is drawn on the device (document: 292 copies, 13627.402 MB).\n",
      f.to_device.count, 1e-6 * f.to_device.bytes, 4e-6 * double(f.parameters), f.on_device.count,
      1e-6 * f.on_device.bytes, f.to_host.count, 1e-6 * f.to_host.bytes);
}
}  // namespace

std::string answers(const std::vector<LmFigures>& all) {
  const auto first = std::ranges::find(all, StepType::train, &LmFigures::type);
  if (first == all.end()) return "Conclusions of document 003: they are about steps of train, and none was profiled.\n";
  const LmFigures& f = *first;
  return fmt::format(
             "Conclusions of document 003 and what is measured here ({}, form {}, {} where it says no other):\n",
             f.setup.size, name_of(f.setup.form), name_of(f.setup.precision)) +
         backward_and_forward(f) + optimizer(f) + sublayers(f) + first_layer(f) + products(all) + fusion(all) +
         precisions(all) + flash(all) + copies(f);
}

std::string contexts(const std::vector<LmFigures>& all) {
  Table table("{}|{}|{:.1f}|{:.1f}|{:.1f}|{:.1f}|{:.3f}",
              "context|form|step ms|scores to values ms|% of kernels|attention in all %|peak GB");
  for (const LmFigures& f : all) {
    const LmPhase& p = f.step.all;
    table.row(f.setup.model.context, name_of(f.setup.form), 1e3 * f.step.seconds, 1e3 * p.part(LmPart::attention),
              percent(p.part(LmPart::attention), p.kernels), percent(attention_of(p), p.kernels),
              1e-9 * double(f.peak_bytes));
  }
  return table.text("Attention by context: scores to values grow with its square, all else with itself\n");
}

namespace {
// Figures of document 003 per step type: ranges in ms, and the GPU's totals over all four steps.
struct StepFigures {
  StepType type;
  double step, forward, loss, backward, optimizer;
  double kernels, launches, products;  // sums over steps: ms, count, percent
};
constexpr StepFigures kStepFigures[] = {
    {StepType::forward, 844.67, 844.64, 0, 0, 0, 3408.5, 7329, 91.4},
    {StepType::backward, 2580.60, 842.81, 3.26, 1734.46, 0, 10278.5, 20467, 89.7},
    {StepType::train, 2758.09, 843.66, 3.11, 1732.48, 178.76, 11001.7, 26067, 84.0}};
constexpr int kDocumentSteps = 4, kLayers = 32;
}  // namespace

std::string compare_with_document(const std::vector<LmFigures>& all) {
  Table table("{}|{}|{:.2f}|{:.2f}|{:.2f}", "||ours|document|ratio");
  Table shares("{}|{}|{:.2f}|{:.2f}", "|share|ours|document");
  size_t missing = 0;
  for (const LmFigures& f : all) {
    const StepFigures& d = *std::ranges::find(kStepFigures, f.type, &StepFigures::type);
    const auto row = [&](std::string_view what, double ours, double theirs) {
      if (theirs > 0) table.row(label(f), what, ours, theirs, theirs / ours);
    };
    const LmStep& s = f.step;
    const GptConfig& of = f.setup.model;
    if (f.setup.size != "2.7B" || of.layers != kLayers || of.context != 512 || f.setup.batch != 4) {
      const auto share = [&](std::string_view what, double ours, double theirs) {
        if (theirs > 0)
          shares.row(fmt::format("{} {}, context {}", f.setup.size, label(f), of.context), what, ours, theirs);
      };
      ++missing;
      share("backward by forward", s.phase_seconds(kBackward) / s.phase_seconds(kForward), d.backward / d.forward);
      share("optimizer, % of the step", percent(s.phase_seconds(kOptimizer), s.seconds), percent(d.optimizer, d.step));
      share("products, % of kernels", percent(s.all.products, s.all.kernels), d.products);
      share("kernels by layer", double(s.all.launches) / double(of.layers), d.launches / kDocumentSteps / kLayers);
      continue;
    }
    row("profiled_step ms", 1e3 * s.seconds, d.step);
    row("forward_pass ms", 1e3 * s.phase_seconds(kForward), d.forward);
    row("loss_computation ms", 1e3 * s.phase_seconds("loss_computation"), d.loss);
    row("backward_pass ms", 1e3 * s.phase_seconds(kBackward), d.backward);
    row("optimizer_step ms", 1e3 * s.phase_seconds(kOptimizer), d.optimizer);
    row("kernels of a step, ms", 1e3 * s.all.kernels, d.kernels / kDocumentSteps);
    row("kernels of a step", double(s.all.launches), d.launches / kDocumentSteps);
    row("products, %", percent(s.all.products, s.all.kernels), d.products);
  }
  return table.text(
             "Compared with document 003 (PyTorch, f32, on a GPU of the A100 80 GB class that it does not name; "
             "kernels: of its four steps, a quarter)\n") +
         without_figures("003", missing, "size 2.7B, 32 layers, batch 4, context 512", shares);
}

double flops_of_step(const LmSetup& s, StepType type) {
  const double d = double(s.model.width), ff = double(s.model.ff_width), context = double(s.model.context);
  const double layers = double(s.model.layers), tokens = double(s.batch) * context;
  const double weights = layers * (4 * d * d + 3 * d * ff) + double(s.model.vocab_size) * d;
  const double forward = 2 * tokens * weights + 4 * tokens * context * d * layers;
  return type == StepType::forward ? forward : 3 * forward;
}

std::string utilisation(const LmReport& report) {
  std::string r =
      "Model FLOPs of a forward pass: 2 T (L (4 d^2 + 3 d ff) + V d) + 4 T C d L; of a step with gradients three times "
      "as many. MFU: their rate by the peak that products reach here, measured in this run.\n";
  for (const LmFigures& f : report.runs) {
    const double flops = flops_of_step(f.setup, f.type), rate = 1e-9 * flops / f.step.seconds;
    r += fmt::format("  {:<24} {:>12.6g} GFLOP in {:>10.3f} ms: {:>10.1f} GFLOP/s", label(f), 1e-9 * flops,
                     1e3 * f.step.seconds, rate);
    if (const auto peak = report.peaks.find(f.setup.precision); peak != report.peaks.end())
      r += fmt::format(", {:.1f} % of {:.0f}", 100 * rate / peak->second, peak->second);
    r += "\n";
  }
  return r;
}

namespace {
Json json_of(const LmPhase& p) {
  Json parts;
  for (size_t i = 0; i < kLmParts; ++i)
    if (p.parts[i] > 0) parts[std::string(name_of(LmPart(i)))] = p.parts[i];
  return {{"seconds", p.seconds},
          {"kernel_seconds", p.kernels},
          {"kernels", p.launches},
          {"product_seconds", p.products},
          {"part_seconds", parts}};
}
Json json_of(const LmCopies& c) { return {{"count", c.count}, {"bytes", c.bytes}, {"seconds", c.seconds}}; }
Json run_json(const LmFigures& f) {
  const LmSetup& s = f.setup;
  const GptConfig& c = s.model;
  Json j = {
      {"size", s.size},
      {"type", name_of(f.type)},
      {"form", name_of(s.form)},
      {"precision", name_of(s.precision)},
      {"d_model", c.width},
      {"d_ff", c.ff_width},
      {"num_layers", c.layers},
      {"num_heads", c.heads},
      {"vocab_size", c.vocab_size},
      {"context_length", c.context},
      {"batch_size", s.batch},
      {"warmup_steps", s.warmup},
      {"parameters", f.parameters},
      {"peak_bytes", f.peak_bytes},
      {"result", f.result},
  };
  j["step"] = json_of(f.step.all);
  j["step"]["seconds"] = f.step.seconds;
  j["step"]["allocated_bytes"] = f.step.allocated;
  j["step"]["flops"] = flops_of_step(s, f.type);
  for (const auto& [name, phase] : f.step.phases) j["phases"][name] = json_of(phase);
  j["layer_kernel_seconds"] = f.step.layers;
  j["cover"] = {
      {"phases", f.step.phases_cover}, {"layers", f.step.layers_cover}, {"layers_by_ranges", f.step.host_layers_cover}};
  j["copies"] = {{"host_to_device", json_of(f.to_device)},
                 {"device_to_host", json_of(f.to_host)},
                 {"device_to_device", json_of(f.on_device)}};
  j["tables"] = list_of(f.tables, [](const ProfileTable& t) { return detail::own_json(to_json(t)); });
  j["notes"] = f.notes;
  return j;
}
}  // namespace

void write_csv(const std::string& folder, const LmFigures& f) {
  detail::make_folder(folder);
  std::string run = fmt::format("{} {}", f.setup.size, label(f));
  std::ranges::replace(run, ' ', '_');
  for (const ProfileTable& t : f.tables)
    detail::write_file_atomically(fmt::format("{}/{}_{}.csv", folder, run, t.report), to_csv(t));
}
void write_lm_json(const std::string& path, const LmReport& r) {
  Json j = json_of(r);
  for (const auto& [precision, gflops] : r.peaks) j["peak_gflops"][std::string(name_of(precision))] = gflops;
  j["runs"] = list_of(r.runs, run_json);
  write_json(path, j);
}

}  // namespace tg::bench
