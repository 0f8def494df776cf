// core/file.h and core/safetensors.h: exact bytes, round trips, and each way in which a file can be damaged, with the
// message it gives. POSIX limits stand in for a full disk; root may write anywhere, so no test relies on permissions.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <tapegrad/core/mode.h>
#include <tapegrad/core/safetensors.h>
#include <tapegrad/ops/pointwise.h>
#include <tapegrad/ops/shape_ops.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>

namespace {
namespace fs = std::filesystem;
using namespace tg;

struct Folder {  // an own folder for each test, removed at its end
  std::string path;
  Folder() : path((fs::temp_directory_path() / fmt::format("tapegrad-files-{}-XXXXXX", getpid())).string()) {
    REQUIRE(mkdtemp(path.data()));
  }
  ~Folder() { fs::remove_all(path); }
  std::string operator/(std::string_view name) const { return fmt::format("{}/{}", path, name); }
  size_t entries() const { return size_t(std::distance(fs::directory_iterator(path), fs::directory_iterator())); }
};

// What f throws, which must be an Error of this kind.
template <class F> std::string error_of(Error::Kind kind, F f) {
  try {
    f();
  } catch (const Error& e) {
    CHECK(int(e.kind()) == int(kind));
    return e.what();
  }
  return "no error";
}
#define CHECK_HAS(message, part)                           \
  do {                                                     \
    const std::string m_ = (message);                      \
    CHECK_MESSAGE(m_.find(part) != std::string::npos, m_); \
  } while (0)

std::string read(const std::string& path) { return std::string(MappedFile(path).text()); }
std::string length_bytes(uint64_t n) { return std::string(reinterpret_cast<const char*>(&n), 8); }
std::string image(const std::string& header, const std::string& data) {
  return length_bytes(header.size()) + header + data;
}
// What a file of these bytes gives when opened.
std::string open_error(const std::string& content) {
  const Folder folder;
  write_file_atomically(folder / "bad.safetensors", content);
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

TEST_CASE("file: a mapping reads a file, survives its replacement and names what cannot be read") {
  const Folder folder;
  write_file_atomically(folder / "a", "some bytes");
  MappedFile file(folder / "a");
  CHECK(file.text() == "some bytes");
  write_file_atomically(folder / "a", "other");
  CHECK(file.text() == "some bytes");
  CHECK(read(folder / "a") == "other");
  MappedFile moved = std::move(file);
  CHECK(moved.text() == "some bytes");
  CHECK(file.bytes().empty());  // NOLINT: what is left of a moved mapping
  moved = MappedFile(folder / "a");
  CHECK(moved.text() == "other");

  write_file_atomically(folder / "empty", "");
  CHECK(MappedFile(folder / "empty").bytes().empty());

  CHECK_HAS(error_of(Error::Kind::io, [&] { MappedFile(folder / "none"); }),
            "[file] cannot read " + folder / "none: No such file or directory.");
  CHECK_HAS(error_of(Error::Kind::io, [&] { MappedFile f(folder.path); }), folder.path + ": it is a folder.");
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_HAS(error_of(Error::Kind::io, [&] { MappedFile(folder / "pipe"); }), "it is a device, pipe or socket");
}

TEST_CASE("file: a write that fails leaves the former file and nothing else") {
  const Folder folder;
  const std::string path = folder / "a";
  write_file_atomically(path, "former");
  SUBCASE("the producer throws in the middle") {
    CHECK_THROWS_AS(write_file_atomically(path,
                                          [](const Sink& write) {
                                            write(std::as_bytes(std::span("part")));
                                            throw std::runtime_error("stop");
                                          }),
                    std::runtime_error);
  }
  SUBCASE("the disk is full") {
    rlimit before;
    REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
    const auto former_handler = signal(SIGXFSZ, SIG_IGN);
    const rlimit small{4096, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
    const auto message = error_of(Error::Kind::io, [&] { write_file_atomically(path, std::string(10'000, 'x')); });
    REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
    signal(SIGXFSZ, former_handler);
    CHECK_HAS(message, "[file] cannot write " + path + ": write of " + path + ".");
    CHECK_HAS(message, "failed: File too large. What was there before is unchanged. Free space");
  }
  SUBCASE("a tensor cannot be evaluated") {
    const Tensor x = from<float>({1, 2}, {2});
    const LazyScope lazy;
    const Tensor sum = add(x, x);
    Tensor(x).mutable_data<float>()[0] = 3;  // what the pending sum was to read is gone
    CHECK_HAS(error_of(Error::Kind::state, [&] { write_safetensors(path, {{"a", x}, {"b", sum}}); }), "[add]");
  }
  CHECK(read(path) == "former");
  CHECK(folder.entries() == 1);
}

TEST_CASE("file: targets that cannot be written are named with the reason") {
  const Folder folder;
  write_file_atomically(folder / "a", "former");
  const auto write_error = [](const std::string& path) {
    return error_of(Error::Kind::io, [&] { write_file_atomically(path, "x"); });
  };
  CHECK_HAS(write_error(folder / "none/a"), "its folder cannot be opened: No such file or directory.");
  CHECK_HAS(write_error(folder / "none/a"), "Make the folder first");
  CHECK_HAS(write_error(folder / "a/b"),
            "[file] cannot write " + folder / "a/b: its folder cannot be opened: Not a dir");
  CHECK_HAS(write_error(folder.path), folder.path + ": it is a folder.");
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_HAS(write_error(folder / "pipe"), "it is a device, pipe or socket");
  CHECK_HAS(write_error(folder / std::string(250, 'n')), "File name too long");
  CHECK(folder.entries() == 2);
}

TEST_CASE("file: make_folder makes parents, takes existing ones, refuses files") {
  const Folder folder;
  make_folder(folder / "a/b/c");
  make_folder(folder / "a/b/c/");
  CHECK(fs::is_directory(folder / "a/b/c"));
  write_file_atomically(folder / "file", "x");
  const auto error = [](const std::string& path) { return error_of(Error::Kind::io, [&] { make_folder(path); }); };
  CHECK_HAS(error(folder / "file/sub"),
            "[file] cannot make or use the folder " + folder / "file/sub: Not a directory.");
  CHECK_HAS(error(folder / "file"), "Not a directory.");
  CHECK_HAS(error(""), "[file] cannot make or use the folder : ");
}

TEST_CASE("safetensors: the bytes written are those of the format") {
  const Folder folder;
  const std::string path = folder / "a.safetensors";
  write_safetensors(
      path, {{"b", from<uint8_t>({1, 2, 3}, {3})}, {"a", from<float>({1.5f}, {})}, {"c", from<float>({-2}, {1, 1})}},
      {{"step", "7"}});
  std::string header =
      R"({"__metadata__":{"step":"7"},"a":{"data_offsets":[0,4],"dtype":"F32","shape":[]},)"
      R"("b":{"data_offsets":[8,11],"dtype":"U8","shape":[3]},"c":{"data_offsets":[4,8],"dtype":"F32","shape":[1,1]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const char data[] = "\0\0\xc0\x3f\0\0\0\xc0\1\2\3";
  CHECK(read(path) == image(header, std::string(data, 11)));
}

TEST_CASE("safetensors: every dtype, layout and shape comes back bit for bit") {
  const Folder folder;
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const Tensor f = from<float>({0, -0.f, nan, inf, 1e-45f, -3}, {2, 3});
  StateDict all{{"f64", from<double>({0.1, -1e300}, {2})},
                {"f32", f},
                {"f16", from<f16>({f16(0.1f), f16(-inf)}, {2, 1})},
                {"bf16", from<bf16>({bf16(0.1f), bf16(nan)}, {1, 2})},
                {"i64", from<int64_t>({INT64_MIN, INT64_MAX}, {2})},
                {"i32", from<int32_t>({INT32_MIN, 5}, {2})},
                {"i8", from<int8_t>({-128, 127, 0}, {3})},
                {"u16", from<uint16_t>({0, 65535}, {2})},
                {"u8", from<uint8_t>({255}, {})},
                {"bool", from<bool>({true, false, true}, {3})},
                {"none", from<float>({}, {0, 4})},
                {"a \"quoted\"\n\xc3\xa9", from<uint8_t>({1}, {1})},
                {"transposed", transpose(f, 0, 1)},
                {"row", slice(f, 0, 1, 2)},
                {"leaf", from<float>({1, 2}, {2}).requires_grad_()}};
  const std::map<std::string, std::string> metadata{{"config", "{\"layers\": 2}"}, {"", "empty key"}};
  {
    const LazyScope lazy;
    all["lazy"] = add(f, f);
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
  CHECK_HAS(error_of(Error::Kind::value, [&] { file.tensor("f3"); }),
            "[safetensors] " + folder / "a has no tensor 'f3' among its 16.");

  write_safetensors(folder / "b", file.tensors(), metadata);  // the same values give the same bytes
  CHECK(read(folder / "a") == read(folder / "b"));
  write_safetensors(folder / "c", {});
  CHECK(SafetensorsFile(folder / "c").names().empty());
}

TEST_CASE("safetensors: what cannot be written is refused and named") {
  const Folder folder;
  const Tensor t = from<float>({1}, {1});
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

TEST_CASE("safetensors: a fixture written elsewhere") {
  const SafetensorsFile file(TG_TEST_DATA "/ops.safetensors");
  CHECK(file.metadata().at("add.same") == "{}");
  const Tensor a = file.tensor("add.same.in0"), b = file.tensor("add.same.in1"), sum = file.tensor("add.same.out0");
  CHECK(a.dtype() == DType::f64);
  const auto x = a.to_vector<double>(), y = b.to_vector<double>(), z = sum.to_vector<double>();
  REQUIRE(!z.empty());
  for (size_t i = 0; i < z.size(); ++i) CHECK(z[i] == x[i] + y[i]);  // one correctly rounded addition: equal
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
  CHECK_HAS(open_error(image(good, "x")), "'w' lies at bytes [0, 2) of the data, which has 1 bytes");
  CHECK_HAS(open_error(image(good, "xyz")), "its last 1 bytes belong to no tensor: the header describes 2 bytes");
  for (size_t cut = 0; cut < 8 + good.size() + 2; ++cut)
    CHECK(open_error(image(good, "xy").substr(0, cut)) != "no error");
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
  CHECK_HAS(tensor_error(R"("dtype":"C64")", 8), "tensor 'w' has dtype 'C64', which is none of F64 F32 F16 BF16 I64");
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
    CHECK_HAS(message, ", whose bytes 63 bits cannot count");
  }
}

TEST_CASE("safetensors: damaged offsets") {
  const auto offsets = [](const std::string& o) { return R"("dtype":"F32","shape":[2],"data_offsets":)" + o; };
  CHECK_HAS(tensor_error(offsets("[0]"), 8), "tensor 'w' has 1 data_offsets, which must be 2");
  CHECK_HAS(tensor_error(offsets("[0,8,8]"), 8), "tensor 'w' has 3 data_offsets");
  CHECK_HAS(tensor_error(offsets("[8,0]"), 8), "tensor 'w' lies at bytes [8, 0) of the data, which has 8 bytes");
  CHECK_HAS(tensor_error(offsets("[0,16]"), 8), "tensor 'w' lies at bytes [0, 16) of the data");
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
  write_file_atomically(folder / "a", image(header, std::string("\0\1\2", 3)));
  const SafetensorsFile file(folder / "a");
  CHECK_HAS(error_of(Error::Kind::io, [&] { file.tensor("m"); }),
            "element 2 of the BOOL tensor 'm' is 2, neither 0 nor 1");
}

TEST_CASE("safetensors: any single byte of a header changed gives an Error or a file, never more") {
  const Folder folder;
  write_safetensors(folder / "a", {{"w", from<float>({1, 2}, {2})}, {"v", from<uint8_t>({1}, {1})}}, {{"k", "v"}});
  const std::string good = read(folder / "a");
  size_t refused = 0, opened = 0;
  for (size_t i = 0; i < good.size() - 9; ++i) {
    for (const unsigned char byte : {0x00, 0x22, 0x2d, 0x30, 0x39, 0x5b, 0x7d, 0xff}) {
      std::string bad = good;
      if (bad[i] == char(byte)) continue;
      bad[i] = char(byte);
      std::ofstream(folder / "b", std::ios::binary) << bad;
      try {
        SafetensorsFile(folder / "b").tensors();
        ++opened;  // a letter of a name, a blank ...
      } catch (const Error& e) {
        CHECK(int(e.kind()) == int(Error::Kind::io));
        ++refused;
      }
    }
  }
  CHECK(refused > 10 * opened);
}
