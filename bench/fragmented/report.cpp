#include "fragmented/fragmented.h"

namespace tg::bench {
namespace {
template <class T> double mebibytes(T bytes) { return double(bytes) / (1 << 20); }

std::string block(const FragmentedRow& r) {
  return fmt::format("  Forward time: {:.2f}ms\n  Backward time: {:.2f}ms\n  Peak memory: {:.1f}MB\n  Parameters: {}\n",
                     r.result.forward_ms, r.result.backward_ms, mebibytes(r.result.live_bytes), r.cell.parameters());
}
std::string section(const std::vector<FragmentedRow>& rows, CellMode mode, std::string_view title) {
  std::string text;
  for (const FragmentedRow& r : rows)
    if (r.cell.mode == mode) text += fmt::format("\nFragments: {}\n{}", r.cell.fragments, block(r));
  return text.empty() ? "" : fmt::format("\nFragmentedLinear ({}) Results:\n{}", title, text);
}
Json json_of_cell(const FragmentedRow& r) {
  const FragmentedCell& c = r.cell;
  Json j = {
      {"input_size", c.size},
      {"output_size", c.size},
      {"batch_size", c.batch},
      {"mode", name_of(c.mode)},
      {"fragments", c.fragments > 0 ? Json(c.fragments) : Json()},
      {"step", name_of(r.variant.step)},
      {"run", name_of(r.variant.run)},
      {"parameters", c.parameters()},
      {"forward_ms", r.result.forward_ms},
      {"backward_ms", r.result.backward_ms},
      {"live_bytes", r.result.live_bytes},
      {"reserved_bytes", r.result.reserved_bytes},
      {"first_loss", r.result.first_loss},
      {"last_loss", r.result.last_loss},
      {"document_bytes", document_bytes(c)},
      {"fair_bytes", fair_bytes(c)},
      {"stored_bytes", stored_bytes(c)},
      {"folded_bytes", folded_bytes(c)},
      {"document", Json()},
  };
  if (const Json* of = fragmented_figure(c))
    for (const char* key : {"forward_ms", "backward_ms", "peak_mib"}) j["document"][key] = number_of(*of, key);
  return j;
}
}  // namespace

std::string document_text(const std::vector<FragmentedRow>& rows) {
  const FragmentedCell& first = rows.front().cell;
  std::string text =
      fmt::format("Benchmarking with input_size={}, output_size={}, batch_size={}\n\nDetailed Results:\n", first.size,
                  first.size, first.batch);
  for (const FragmentedRow& r : rows)
    if (r.cell.mode == CellMode::linear) text += "Linear Layer:\n" + block(r);
  return text + section(rows, CellMode::train, "Train") + section(rows, CellMode::inference, "Inference");
}

std::string memory_table(const std::vector<FragmentedRow>& rows) {
  Table table("{}|{}|{:.1f}|{:.1f}|{:.1f}|{:.1f}|{:.1f}|{:.1f}", "|step|live|reserved|document|fair|4 P|3 P");
  for (const auto& [cell, variant, result] : rows)
    table.row(cell.name(), variant.name(), mebibytes(result.live_bytes), mebibytes(result.reserved_bytes),
              mebibytes(document_bytes(cell)), mebibytes(fair_bytes(cell)), mebibytes(stored_bytes(cell)),
              mebibytes(folded_bytes(cell)));
  return table.text(
      "Peak memory in MiB. live, reserved: ours, of tensors and of the allocator. By formulas: document, with the "
      "linear\nlayer that its harness keeps; fair, the same framework without it; P, the parameters.\n");
}

std::string compare_with_document(const std::vector<FragmentedRow>& rows, const std::string& ours) {
  Table table("{}|{}|{:.2f}|{:.2f}|{:.1f}|{:.2f}|{:.2f}|{:.1f}|{:.0f} %",
              "|step|ours forward|backward|peak|document forward|backward|peak|peak, ours of it");
  Table shares("{}|{}|{:.2f}|{}", "|step|backward by forward|document, this mode");
  size_t missing = 0;
  for (const auto& [cell, variant, result] : rows) {
    const double peak = mebibytes(result.live_bytes);
    if (const Json* of = fragmented_figure(cell))
      table.row(cell.name(), variant.name(), result.forward_ms, result.backward_ms, peak, number_of(*of, "forward_ms"),
                number_of(*of, "backward_ms"), number_of(*of, "peak_mib"), 100 * peak / number_of(*of, "peak_mib"));
    else {
      Span span;
      for (const FragmentedCell& other : fragmented_grid())
        if (const Json* like = fragmented_figure(other); other.mode == cell.mode)
          span.take(number_of(*like, "backward_ms") / number_of(*like, "forward_ms"));
      ++missing, shares.row(cell.name(), variant.name(), result.backward_ms / result.forward_ms, span.text());
    }
  }
  return table.text(fmt::format(
             "Compared with document 002 (PyTorch on a GPU that it does not name, f32, means of 100 steps). Ours: {}.\n"
             "Times in ms, peaks in MiB.\n",
             ours)) +
         without_figures("002", missing, "sizes 2048, 4096 and 8192, batches 1, 8 and 16, fragments 2, 8, 32 and 128",
                         shares);
}

void write_fragmented_json(const std::string& path, const FragmentedReport& r) {
  Json j = json_of(r);
  j["warmup"] = r.setup.warmup, j["steps"] = r.setup.steps, j["seed"] = r.setup.seed, j["dtype"] = "f32";
  j["cells"] = list_of(r.rows, json_of_cell);
  write_json(path, j);
}

}  // namespace tg::bench
