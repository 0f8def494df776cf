#include <tapegrad/core/check.h>
#include <tapegrad/core/io/file.h>
#include <tapegrad/cuda/gemm/gemm_file.h>

#include <cmath>
#include <filesystem>

namespace tg::cuda {
namespace {
constexpr auto kFormat = "tapegrad gemm algorithms";

std::string to_hex(const cublasLtMatmulAlgo_t& a) {
  std::string s;
  for (uint64_t word : a.data) s += fmt::format("{:016x}", word);
  return s;
}
cublasLtMatmulAlgo_t from_hex(const std::string& s) {
  cublasLtMatmulAlgo_t a{};
  constexpr size_t words = std::size(a.data);
  TG_CHECK(s.size() == 16 * words && s.find_first_not_of("0123456789abcdef") == s.npos, io,
           "an algorithm is not {} hexadecimal digits", 16 * words);
  for (size_t i = 0; i < words; ++i) a.data[i] = std::stoull(s.substr(16 * i, 16), nullptr, 16);
  return a;
}

Json to_json(const GemmKey& k) {
  return {{"dtype", std::string(name_of(k.dtype))},
          {"precision", std::string(name_of(k.products))},
          {"size", {k.m, k.n, k.k, k.batch}},
          {"ld", {k.lda, k.ldb, k.ldd}},
          {"stride", {k.stride_a, k.stride_b, k.stride_d}},
          {"transposed", {k.trans_a != 0, k.trans_b != 0}},
          {"bias", k.bias != 0},
          {"alignment", {1 << k.align_a, 1 << k.align_b, 1 << k.align_d, 1 << k.align_bias}}};
}
uint8_t alignment_from(int bytes) {
  TG_CHECK(bytes > 0 && bytes <= 256 && (bytes & (bytes - 1)) == 0, io, "the alignment {} is no power of two up to 256",
           bytes);
  return key_alignment(std::countr_zero(unsigned(bytes)));
}
MatmulPrecision precision_from(const std::string& name) {
  for (const auto p : {MatmulPrecision::highest, MatmulPrecision::high, MatmulPrecision::medium})
    if (name == name_of(p)) return p;
  detail::fail(Error::Kind::io, fmt::format("'{}' is no precision", name));
}
GemmKey key_from(const Json& j) {
  GemmKey k;
  k.dtype = tg::detail::dtype_from_name(j.at("dtype").get<std::string>());
  k.products = precision_from(j.at("precision").get<std::string>());
  int64_t* const sizes[] = {&k.m, &k.n, &k.k, &k.batch};
  int64_t* const lds[] = {&k.lda, &k.ldb, &k.ldd};
  int64_t* const strides[] = {&k.stride_a, &k.stride_b, &k.stride_d};
  uint8_t* const alignments[] = {&k.align_a, &k.align_b, &k.align_d, &k.align_bias};
  for (size_t i = 0; i < 4; ++i) *sizes[i] = j.at("size").at(i).get<int64_t>();
  for (size_t i = 0; i < 3; ++i) *lds[i] = j.at("ld").at(i).get<int64_t>();
  for (size_t i = 0; i < 3; ++i) *strides[i] = j.at("stride").at(i).get<int64_t>();
  for (size_t i = 0; i < 4; ++i) *alignments[i] = alignment_from(j.at("alignment").at(i).get<int>());
  for (int64_t* s : sizes) TG_CHECK(*s > 0, io, "a size is {}", *s);
  k.trans_a = j.at("transposed").at(0).get<bool>();
  k.trans_b = j.at("transposed").at(1).get<bool>();
  k.bias = j.at("bias").get<bool>();
  return k;
}
}  // namespace

Json with_checksum(Json entry) {
  entry.erase("checksum");
  uint64_t h = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : tg::detail::text_of(entry)) h = (h ^ uint8_t(c)) * 0x100000001b3;
  entry["checksum"] = fmt::format("{:016x}", h);
  return entry;
}

GemmFile::GemmFile(std::string path, std::string gpu, std::span<const std::string_view> shipped)
    : path_(std::move(path)), gpu_(std::move(gpu)) {
  for (const std::string_view text : shipped) read(text, true);
  if (path_.empty() || !std::filesystem::exists(path_)) return;
  const MappedFile file(path_);
  try {
    read(file.text(), false);
  } catch (const Error& e) {
    damaged(e.what());
  }
}
void GemmFile::read(std::string_view text, bool shipped) {
  const Json all = detail::own_json(text);
  TG_CHECK(all.at("format") == kFormat, io, "its format is not '{}'", kFormat);
  for (const Json& j : all.at("algorithms")) {
    TG_CHECK(j == with_checksum(j), io, "the checksum of an entry is wrong");
    const auto version = j.at("cublaslt").get<size_t>();
    const auto on = j.at("gpu").get<std::string>();
    const GemmKey key = key_from(j);
    const Entry e{from_hex(j.at("algorithm").get<std::string>()), j.at("us").get<double>(), shipped};
    if (version == cublasLtGetVersion() && on == gpu_)
      entries_[key] = e;
    else if (!shipped)
      foreign_.push_back(tg::detail::text_of(j));
  }
}

void GemmFile::damaged(std::string_view what) const {
  throw Error(Error::Kind::io, fmt::format("[gemm] the file of measured algorithms '{}' is damaged: {}. Delete it, or "
                                           "choose another with TG_GEMM_CACHE; TG_AUTOTUNE=1 makes a new one.",
                                           path_, what));
}

const GemmFile::Entry* GemmFile::find(const GemmKey& k) const {
  const auto it = entries_.find(k);
  return it == entries_.end() ? nullptr : &it->second;
}

void GemmFile::add(const GemmKey& key, const Entry& entry) {
  entries_[key] = entry;
  Json all = Json::array();
  for (const auto& [k, e] : entries_) {
    if (e.shipped) continue;
    Json j = to_json(k);
    j["cublaslt"] = cublasLtGetVersion();
    j["gpu"] = gpu_;
    j["algorithm"] = to_hex(e.algorithm);
    j["us"] = std::round(e.microseconds * 1e3) / 1e3;
    all.push_back(with_checksum(std::move(j)));
  }
  for (const auto& j : foreign_) all.push_back(detail::own_json(j));
  std::string text = fmt::format("{{\"format\": \"{}\", \"algorithms\": [\n", kFormat);
  for (size_t i = 0; i < all.size(); ++i) text += tg::detail::text_of(all[i]) + (i + 1 < all.size() ? ",\n" : "\n");
  detail::write_file_atomically(path_, text + "]}\n");
}

}  // namespace tg::cuda
