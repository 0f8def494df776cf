// core/io/safetensors.h: exact bytes, round trips, and the message for each kind of damage.
#include "support/files.h"

#include <tapegrad/core/io/safetensors.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/shape_ops.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <optional>

namespace {
using namespace tg;

std::string length_bytes(uint64_t n) { return std::string(reinterpret_cast<const char*>(&n), 8); }
std::string image(const std::string& header, const std::string& data) {
  return length_bytes(header.size()) + header + data;
}
std::string open_error(const std::string& content) {
  const Folder folder;
  detail::write_file_atomically(folder / "bad.safetensors", content);
  const auto message = error_of(Error::Kind::io, [&] { SafetensorsFile(folder / "bad.safetensors"); });
  if (message != "no error") CHECK_HAS(message, "[safetensors] " + folder / "bad.safetensors is no safetensors file: ");
  return message;
}
std::string tensor_error(const std::string& fields, size_t bytes) {
  return open_error(image("{\"w\":{" + fields + "}}", std::string(bytes, 'x')));
}

template <class T> bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         (a.numel() == 0 || !std::memcmp(a.data<T>(), b.data<T>(), size_t(a.numel()) * sizeof(T)));
}
bool same(const Tensor& a, const Tensor& b) {
  return visit_dtype(a.dtype(), [&]<class T>() { return same_bits<T>(a, b); });
}
}  // namespace

TEST_CASE("safetensors: the bytes written are those of the format") {
  const Folder folder;
  const std::string path = folder / "a.safetensors";
  write_safetensors(
      path,
      {{"b", tensor<uint8_t>({1, 2, 3}, {3})}, {"a", tensor<float>({1.5f}, {})}, {"c", tensor<float>({-2}, {1, 1})}},
      {{"step", "7"}});
  std::string header =
      R"({"__metadata__":{"step":"7"},"a":{"data_offsets":[0,4],"dtype":"F32","shape":[]},)"
      R"("b":{"data_offsets":[8,11],"dtype":"U8","shape":[3]},"c":{"data_offsets":[4,8],"dtype":"F32","shape":[1,1]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const char data[] = "\0\0\xc0\x3f\0\0\0\xc0\1\2\3";
  CHECK(read_file(path) == image(header, std::string(data, 11)));
}

TEST_CASE("safetensors: every dtype, layout and shape comes back bit for bit") {
  const Folder folder;
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const Tensor f = tensor<float>({0, -0.f, nan, inf, 1e-45f, -3}, {2, 3});
  StateDict all{{"f64", tensor<double>({0.1, -1e300}, {2})},
                {"f32", f},
                {"f16", tensor<f16>({f16(0.1f), f16(-inf)}, {2, 1})},
                {"bf16", tensor<bf16>({bf16(0.1f), bf16(nan)}, {1, 2})},
                {"i64", tensor<int64_t>({INT64_MIN, INT64_MAX}, {2})},
                {"i32", tensor<int32_t>({INT32_MIN, 5}, {2})},
                {"i8", tensor<int8_t>({-128, 127, 0}, {3})},
                {"u16", tensor<uint16_t>({0, 65535}, {2})},
                {"u8", tensor<uint8_t>({255}, {})},
                {"bool", tensor<bool>({true, false, true}, {3})},
                {"none", tensor<float>({}, {0, 4})},
                {"a \"quoted\"\n\xc3\xa9", tensor<uint8_t>({1}, {1})},
                {"transposed", transpose(f, 0, 1)},
                {"row", slice(f, 0, 1, 2)},
                {"leaf", tensor<float>({1, 2}, {2}).requires_grad_()}};
  const std::map<std::string, std::string> metadata{{"config", "{\"layers\": 2}"}, {"", "empty key"}};
  {
    const LazyScope lazy;
    all["lazy"] = f + f;
    write_safetensors(folder / "a", all, metadata);
  }
  const SafetensorsFile file(folder / "a");
  CHECK(file.metadata() == metadata);
  std::vector<std::string> names;
  for (const auto& [name, tensor] : all) names.push_back(name);
  CHECK(file.names() == names);
  for (const auto& [name, tensor] : all) {
    INFO(name);
    CHECK(same(file.tensor(name), tensor.detach().contiguous()));
    CHECK(file.info(name).offset % size_of(tensor.dtype()) == 0);
    CHECK(file.info(name).bytes == tensor.layout().bytes());
  }
  CHECK(file.has("f32"));
  CHECK(!file.has("f3"));
  CHECK_SAYS_OF(value, file.tensor("f3"), "[safetensors] " + folder / "a has no tensor 'f3' among its 16.");
  write_safetensors(folder / "b", file.tensors(), metadata);
  CHECK(read_file(folder / "a") == read_file(folder / "b"));
  write_safetensors(folder / "c", {});
  CHECK(SafetensorsFile(folder / "c").names().empty());
}

TEST_CASE("safetensors: what cannot be written is refused and named") {
  const Folder folder;
  const Tensor t = tensor<float>({1}, {1});
  const auto error = [&](const StateDict& tensors, const std::map<std::string, std::string>& metadata = {}) {
    return error_of(Error::Kind::value, [&] { write_safetensors(folder / "a", tensors, metadata); });
  };
  CHECK_HAS(error({{"__metadata__", t}}), "is named '__metadata__'");
  CHECK_HAS(error({{"w", Tensor()}}), "[safetensors] 'w' for " + folder / "a is an empty Tensor");
  CHECK_HAS(error({{"\xff", t}}), "is not UTF-8");
  CHECK_HAS(error({}, {{"k", "\xc3"}}), "is not UTF-8");
  CHECK_HAS(error({}, {{"k", std::string(100'000'000, 'x')}}), "The format allows 100000000.");
  CHECK(folder.entries() == 0);
}

TEST_CASE("safetensors: a damaged frame") {
  const std::string good = R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
  CHECK(open_error(image(good, "xy")) == "no error");
  CHECK(open_error(image(good + "  ", "xy")) == "no error");
  CHECK_HAS(open_error(""), "it has 0 bytes");
  CHECK_HAS(open_error("1234567"), "it has 7 bytes, too few");
  CHECK_HAS(open_error(length_bytes(100) + "{}"), "its header of 100 bytes does not fit into the file of 10 bytes");
  CHECK_HAS(open_error(length_bytes(UINT64_MAX) + "{}"), "a header of 18446744073709551615 bytes");
  CHECK_HAS(open_error(length_bytes(100'000'001) + "{}"), "100000001 bytes, more than the 100000000 allowed");
  CHECK_HAS(open_error(length_bytes(0)), "its header does not begin with '{'");
  CHECK_HAS(open_error(image("[]", "")), "its header does not begin with '{'");
  CHECK_HAS(open_error(image(" {}", "")), "its header does not begin with '{'");
  CHECK_HAS(open_error(image("{", "")), "its header is no JSON at byte ");
  CHECK_HAS(open_error(image("{}x", "")), "its header is no JSON at byte 3");
  CHECK_HAS(open_error(image("{\"\xff\":1}", "")), "its header is no JSON");
  CHECK_HAS(open_error(image(good, "x")), "'w' is at bytes [0, 2) of the data, which has 1 bytes");
  CHECK_HAS(open_error(image(good, "xyz")), "its last 1 bytes belong to no tensor: the header describes 2 bytes");
}

TEST_CASE("safetensors: a damaged header") {
  const std::string good = R"("w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  const auto error = [](const std::string& header) { return open_error(image(header, "xy")); };
  CHECK_HAS(error("{" + good + "," + good + "}"), "'w' appears twice");
  CHECK_HAS(error("{\"__metadata__\":{},\"__metadata__\":{}," + good + "}"), "'__metadata__' appears twice");
  CHECK_HAS(error("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}," + good + "}"), "'a' of '__metadata__' appears twice");
  CHECK_HAS(error("{\"__metadata__\":{\"a\":1}," + good + "}"), "the number 1 as 'a' of '__metadata__'");
  CHECK_HAS(error("{\"__metadata__\":{\"a\":[]}," + good + "}"), "an array as 'a' of '__metadata__'");
  CHECK_HAS(error("{\"__metadata__\":{\"a\":{}}," + good + "}"), "an object as 'a' of '__metadata__'");
  CHECK_HAS(error("{\"__metadata__\":\"a\"," + good + "}"), "the string 'a' as '__metadata__'");
  CHECK_HAS(error("{\"__metadata__\":[]," + good + "}"), "an array as '__metadata__'");
  CHECK_HAS(error("{\"w\":null}"), "there is null as 'w'");
  CHECK_HAS(error("{\"w\":true}"), "there is a boolean as 'w'");
  CHECK_HAS(error("{" + std::string(1'000'000, '[')), "is no JSON at byte 2");
  for (const std::string field : {"dtype", "shape", "data_offsets"}) {
    std::string nested = "{\"w\":{\"" + field + "\":";
    for (int i = 0; i < 100'000; ++i) nested += "{\"a\":";
    CHECK_HAS(error(nested), "an object as '" + field + "' of 'w'");
  }
}

TEST_CASE("safetensors: damaged fields of a tensor") {
  CHECK_HAS(tensor_error("", 0), "tensor 'w' lacks dtype");
  CHECK_HAS(tensor_error(R"("dtype":"U8","data_offsets":[0,2])", 2), "tensor 'w' lacks shape");
  CHECK_HAS(tensor_error(R"("dtype":"U8","shape":[2])", 2), "tensor 'w' lacks data_offsets");
  CHECK_HAS(tensor_error(R"("dtype":"U8","dtype":"U8")", 2), "'dtype' of 'w' appears twice");
  CHECK_HAS(tensor_error(R"("shape":[1],"shape":[1])", 2), "'shape' of 'w' appears twice");
  CHECK_HAS(tensor_error(R"("data_offsets":[0,1],"data_offsets":[0,1])", 2), "'data_offsets' of 'w' appears twice");
  CHECK_HAS(tensor_error(R"("strides":[1])", 2), "tensor 'w' has the unknown field 'strides'");
  CHECK_HAS(tensor_error(R"("dtype":"X64")", 8), "tensor 'w' has dtype 'X64', which is none of F64 F32 F16 BF16 I64");
  CHECK_HAS(tensor_error(R"("dtype":["U8"])", 8), "an array as 'dtype' of 'w'");
  CHECK_HAS(tensor_error(R"("dtype":3)", 8), "the number 3 as 'dtype' of 'w'");
  CHECK_HAS(tensor_error(R"("shape":"2")", 8), "the string '2' as 'shape' of 'w'");
  CHECK_HAS(tensor_error(R"("shape":[-2])", 8), "the negative number -2 as 'shape' of 'w'");
  CHECK_HAS(tensor_error(R"("shape":[2.0])", 8), "2.0, which is no integer of 64 bits, as 'shape' of 'w'");
  CHECK_HAS(tensor_error(R"("shape":[18446744073709551616])", 8), "18446744073709551616, which is no integer");
  CHECK_HAS(tensor_error(R"("shape":[[2]])", 8), "an array as 'shape' of 'w'");
  CHECK_HAS(tensor_error(R"("shape":[null])", 8), "null as 'shape' of 'w'");
  CHECK_HAS(tensor_error(R"("shape":["2"])", 8), "the string '2' as 'shape' of 'w'");
  CHECK_HAS(tensor_error(R"("shape":[{}])", 8), "an object as 'shape' of 'w'");
  const std::string nine = R"("dtype":"U8","data_offsets":[0,1],"shape":[1,1,1,1,1,1,1,1,1])";
  CHECK_HAS(tensor_error(nine, 1), "has shape (1, 1, 1, 1, 1, 1, 1, 1, 1) of 9 dimensions, more than the 8 supported");
  for (const char* shape :
       {"4294967296,4294967296", "0,4294967296,4294967296", "9223372036854775808", "4611686018427387904"}) {
    const auto message = tensor_error(fmt::format(R"("dtype":"F16","shape":[{}],"data_offsets":[0,0])", shape), 0);
    CHECK_HAS(message, ", whose size in bytes exceeds 63 bits");
  }
}

TEST_CASE("safetensors: damaged offsets") {
  const auto offsets = [](const std::string& o) { return R"("dtype":"F32","shape":[2],"data_offsets":)" + o; };
  CHECK_HAS(tensor_error(offsets("[0]"), 8), "tensor 'w' has 1 data_offsets, which must be 2");
  CHECK_HAS(tensor_error(offsets("[0,8,8]"), 8), "tensor 'w' has 3 data_offsets");
  CHECK_HAS(tensor_error(offsets("[8,0]"), 8), "tensor 'w' is at bytes [8, 0) of the data, which has 8 bytes");
  CHECK_HAS(tensor_error(offsets("[0,16]"), 8), "tensor 'w' is at bytes [0, 16) of the data");
  CHECK_HAS(tensor_error(offsets("[18446744073709551608,18446744073709551615]"), 8), "of the data, which has 8 bytes");
  CHECK_HAS(tensor_error(offsets("[0,7]"), 7),
            "tensor 'w' of shape (2) and dtype f32 takes 8 bytes, but its data_offsets [0, 7] give 7");
  CHECK_HAS(tensor_error(offsets("[-8,0]"), 8), "the negative number -8");
  const auto two = [](const char* a, const char* b, size_t bytes) {
    const auto entry = R"("{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{}]}})";
    return open_error(image(fmt::format("{{{},{}}}", fmt::format(fmt::runtime(entry), "a", 4, a),
                                        fmt::format(fmt::runtime(entry), "b", 4, b)),
                            std::string(bytes, 'x')));
  };
  CHECK(two("0,4", "4,8", 8) == "no error");
  CHECK(two("4,8", "0,4", 8) == "no error");
  CHECK_HAS(two("0,4", "2,6", 6), "tensor 'b' begins at byte 2 of the data, before 'a' ends at 4");
  CHECK_HAS(two("0,4", "3,7", 7), "tensor 'b' begins at byte 3 of the data, before 'a' ends at 4");
  CHECK_HAS(two("0,4", "0,4", 4), "tensor 'b' begins at byte 0 of the data, before 'a' ends at 4");
  CHECK_HAS(two("0,4", "6,10", 10), "bytes [4, 6) of the data, before tensor 'b', belong to no tensor");
  CHECK_HAS(two("1,5", "5,9", 9), "bytes [0, 1) of the data, before tensor 'a', belong to no tensor");
}

TEST_CASE("safetensors: a BOOL that is neither 0 nor 1 is found when it is read") {
  const Folder folder;
  const std::string header = R"({"m":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})";
  detail::write_file_atomically(folder / "a", image(header, std::string("\0\1\2", 3)));
  const SafetensorsFile file(folder / "a");
  CHECK_SAYS_OF(io, file.tensor("m"), "element 2 of the BOOL tensor 'm' is 2, neither 0 nor 1");
}

TEST_CASE("safetensors: a file that is cut shorter while it is read is an Error, and no signal") {
  const Folder folder;
  write_safetensors(folder / "a", {{"x", tensor(std::vector<float>(5000, 1), {5000})}});
  const SafetensorsFile file(folder / "a");
  fs::resize_file(folder / "a", 100);
  CHECK_SAYS_OF(io, file.tensors(), "a was changed while it was being read: it had ");
}

// Whether the file opens; if so, its elements and a copy must have the file's bytes.
bool opens_as_written(const Folder& folder, const std::string& content) {
  std::ofstream(folder / "b", std::ios::binary) << content;
  std::optional<SafetensorsFile> file;
  StateDict tensors;
  try {
    tensors = file.emplace(folder / "b").tensors();
  } catch (const Error& e) {
    CHECK(int(e.kind()) == int(Error::Kind::io));
    return false;
  }
  write_safetensors(folder / "c", tensors, file->metadata());
  const SafetensorsFile copy(folder / "c");
  CHECK(copy.metadata() == file->metadata());
  CHECK(copy.names() == file->names());
  for (const auto& [name, tensor] : tensors) {
    const SafetensorsInfo& info = file->info(name);
    CHECK(tensor.shape() == info.shape);
    CHECK(visit_dtype(info.dtype, [&]<class T>() {
      return info.bytes == 0 || !std::memcmp(tensor.data<T>(), content.data() + info.offset, info.bytes);
    }));
    CHECK(same(copy.tensor(name), tensor));
  }
  return true;
}
std::string small_file(const Folder& folder) {
  write_safetensors(
      folder / "a",
      {{"w", tensor<float>({1, 2}, {2})}, {"v", tensor<uint8_t>({1}, {1})}, {"m", tensor<bool>({true}, {})}},
      {{"k", "v"}});
  return read_file(folder / "a");
}

TEST_CASE("safetensors: a file with one byte or bit changed gives an Error or a file, never more") {
  const Folder folder;
  const std::string good = small_file(folder);
  size_t refused = 0, opened = 0, flipped = 0;  // opened: a letter of a name, a blank, an element ...
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    for (const unsigned char byte : {0x00, 0x22, 0x2d, 0x30, 0x39, 0x5b, 0x7d, 0xff}) {
      bad[i] = char(byte);
      if (bad != good) ++(opens_as_written(folder, bad) ? opened : refused);
    }
    for (int bit = 0; bit < 8; ++bit) {
      bad[i] = char(good[i] ^ 1 << bit);
      const bool ok = opens_as_written(folder, bad);
      flipped += ok;
      if (i < 8) CHECK(!ok);  // the header's length
    }
  }
  CHECK(refused > 5 * opened);
  CHECK(flipped >= 8 * 9 + 1);  // elements of w and v, the lowest bit of m
}

TEST_CASE("safetensors: cut anywhere, or longer by a byte, no file opens") {
  const Folder folder;
  const std::string good = small_file(folder);
  CHECK(opens_as_written(folder, good));
  for (size_t n = 0; n < good.size(); ++n) CHECK(!opens_as_written(folder, good.substr(0, n)));
  CHECK(!opens_as_written(folder, good + '\0'));
}

TEST_CASE("safetensors: lengths of a header around the limits") {
  const std::string header = R"({"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
  const auto with_length = [&](uint64_t n) { return open_error(length_bytes(n) + header + "xy"); };
  CHECK(with_length(header.size()) == "no error");
  CHECK_HAS(with_length(header.size() - 1), "is no JSON");
  CHECK_HAS(with_length(header.size() + 1), "is no JSON");
  CHECK_HAS(with_length(header.size() + 2), "is no JSON");  // all of the file
  CHECK_HAS(with_length(header.size() + 3), "does not fit into the file of");
  CHECK_HAS(with_length(100'000'000), "its header of 100000000 bytes does not fit");
  for (const uint64_t n : {uint64_t(INT64_MAX), UINT64_MAX - 7, UINT64_MAX - 8})  // begin + length wraps around
    CHECK_HAS(with_length(n), "more than the 100000000 allowed");
}

TEST_CASE("safetensors: numbers that JSON or the format does not have") {
  const auto shape = [](const std::string& n) {
    return tensor_error(R"("dtype":"U8","shape":[)" + n + R"(],"data_offsets":[0,2])", 2);
  };
  CHECK(shape("2") == "no error");
  for (const char* n : {"NaN", "Infinity", "-Infinity", "1e999", "02", "+2", "0x2", "2.", ".5", "1_0"}) {
    CAPTURE(n);
    CHECK_HAS(shape(n), "its header is no JSON at byte ");
  }
  CHECK_HAS(shape("-0"), "the negative number 0 as 'shape'");
  CHECK_HAS(shape("2e0"), "2e0, which is no integer of 64 bits,");
  CHECK_HAS(shape("1e308"), "1e308, which is no integer of 64 bits,");
  CHECK_HAS(shape(std::string(100'000, '9')), "is no JSON at byte ");
  CHECK_HAS(shape("18446744073709551615"), "has shape (18446744073709551615), whose size in bytes exceeds 63 bits");
  CHECK_HAS(tensor_error(R"("dtype":"U8","shape":[2],"data_offsets":[0,2.0])", 2), "2.0, which is no integer");
}

TEST_CASE("safetensors: a shape of a million sizes, names and messages of a megabyte") {
  std::string sizes = "1";
  for (int i = 0; i < 1'000'000; ++i) sizes += ",1";
  const auto message = tensor_error(R"("dtype":"U8","data_offsets":[0,1],"shape":[)" + sizes + "]", 1);
  CHECK(message.size() < 3000);
  CHECK_HAS(message, "tensor 'w' has shape (1, 1, 1");
  const std::string name(1'000'000, 'n');
  CHECK(open_error(image("{\"" + name + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x")) == "no error");
  CHECK(open_error(image("{\"" + name + "\":1}", "")).size() < 3000);
}

TEST_CASE("safetensors: a header in memory is checked as that of a file is") {
  const Folder folder;
  const std::string good = small_file(folder);
  const SafetensorsHeader header = detail::parse_safetensors(std::as_bytes(std::span(good)), "memory");
  const SafetensorsFile file(folder / "a");
  CHECK(header.metadata == file.metadata());
  CHECK(header.tensors.size() == 3);
  for (const auto& [name, info] : header.tensors) {
    CHECK(info.shape == file.info(name).shape);
    CHECK(info.offset == file.info(name).offset);
  }
  CHECK_SAYS_OF(io, detail::parse_safetensors({}, "memory"),
                "[safetensors] memory is no safetensors file: it has 0 bytes");
}
