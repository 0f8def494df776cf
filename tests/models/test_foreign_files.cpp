// Model folders: round trips, damage, foreign formats, dangling links, files next to a tokenizer, work on ids without a
// tokenizer.
#include <tapegrad/models/tokenizers/utf8.h>
#include <tapegrad/tools.h>

#include <ranges>

#include "support/hf_folder.h"
#include "support/small_run.h"

using namespace tg;
using namespace std::string_view_literals;

namespace {
void put(const std::string& path, std::string_view text) { detail::write_file_atomically(path, text); }

const std::pair<std::string_view, std::string_view> kForeign[] = {
    {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"sv, "git lfs pull"},
    {"ggjt\3\0\0\0\1\0\0\0"sv, "file of an old llama.cpp"},
    {"PK\3\4\x14\0\0\0\0\0"sv, "zip file"},
    {"\x80\2}q\0(X\3\0\0\0abcq\1"sv, "pickle of PyTorch"},
    {"\x80\2\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19."sv, "pickle of PyTorch"},
    {"\x80\4\x95\0\0\0\0\0\0\0\0"sv, "pickle of PyTorch"},
    {"\x1f\x8b\x08\0\0\0\0\0\0\3"sv, "compressed file"},
    {"\x28\xb5\x2f\xfd\4\0\1\0\0\0"sv, "compressed file"},
    {"BZh91AY&SY\0\1\2"sv, "compressed file"},
    {"\x89HDF\r\n\x1a\n\0\0"sv, "HDF5"},
    {"PAR1\x15\4\x15\x10\0\0"sv, "Parquet"},
};
// Beginnings of files that Pillow, pyarrow, tar and others write, and of texts that only look so.
constexpr std::string_view kNoText =
    "\x89PNG\r\n\x1a\n\0|\xff\xd8\xff\xe0\0\x10JFIF|GIF89a\x28\0\x1e|BM\x66\x0e\0\0\0\0\0\0\x36|II*\0\x08|"
    "ID3\4\0\0\0\0\0#|"
    "RIFF\x70\0\0\0WEBPVP8 |RIFF\xf4\7\0\0WAVEfmt "
    "|\0\0\1\0\7\0\x10\x10|\xff\xfb\x90\x64\0|fLaC\0\0\0\"|OggS\0\2|MThd\0\0|"
    "\0\0\0 ftypisom|\x1a\x45\xdf\xa3\x9f|\177ELF\2\1\1|MZ\x90\0\3|\0asm\1|%PDF-1.7\r\n1 0 obj|%PDF-1.4\n%\xe2|"
    "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1|ARROW1\0\0|\xff\xff\xff\xff\x78\0\0\0|ORC\n\x1c\n|SQLite format 3\0|\xff\xfeh\0|"
    "\x40\0\0\0\0\0\0\0{\"a\"|Rar!\x1a\7\1|\0\1\0\0\0\x12|\x80\2]q\0|\4\"M\30d|any\0thing"sv;
constexpr std::string_view kText =
    "BM is a company|GIF89a is a format|PK\n|%PDF-1.4 is a version|PAR1 and PAR2|GGUF|RIFFabcdWAVE|ID3 tags|MZ-80|ORCs|"
    "Obj|OggS|!<arch> x|OTTO \x1b[1mBismarck|FEA1|II*|MM*x|BZh91AY&SY|\f\v\b|SQLite format 3 is|Rar! said "
    "he|wOFF|caf\xe9|"
    "{\"a\": 1}|\xef\xbb\xbfhi|version https://git-lfs.github.com/spec/ has it"sv;
const std::string_view kPage = "\n <!DOCTYPE HTML><html><head><title>404</title>";
}  // namespace

TEST_CASE("foreign files: other formats in a file's place are named, with the way out") {
  std::string tokens(1024 + 800, '\0');  // llm.c: 256 numbers of 4 bytes, then ids
  tokens.replace(0, 8, "\x88\xd8\x34\1\1\0\0\0"sv);
  CHECK_HAS(detail::foreign_format(tokens), "token file of llm.c");
  CHECK(detail::foreign_format("") == "");
  CHECK(detail::foreign_format("{\"a\": 1}") == "");
  CHECK(detail::foreign_format("The quick brown fox") == "");
  CHECK_HAS(detail::foreign_format("\n\x0e\n\5<unk>\x15\0\0\0\0\x18\2"sv), "SentencePiece");
  Folder f;
  for (const auto& [start, name] : kForeign) {
    CAPTURE(name);
    const std::string start_even = std::string(start) + (start.size() % 2 ? "." : "");
    for (const char* file : {"a.safetensors", "a.json", "a.bin", "a.npy", "a.txt"}) put(f / file, start_even);
    CHECK_SAYS(SafetensorsFile(f / "a.safetensors"), name);
    CHECK_SAYS(read_tokenizer(f / "a.json"), name);
    CHECK_SAYS(TokenData::from_file(f / "a.bin"), name);
    CHECK_SAYS(TokenData::from_file(f / "a.npy"), name);
    const std::vector<std::string> text{f / "a.txt"};
    CHECK_SAYS(read_texts(text), name);
    CHECK_SAYS(load_model(f / "a.bin"), name);  // a file in the folder's place
    HfFolder m("llama");
    put(m / "config.json", start_even);
    CHECK_SAYS(load_model(m.path), name);
    fs::copy(data_folder("llama") + "/config.json", m.path, fs::copy_options::overwrite_existing);
    put(m / "model.safetensors", start_even);
    CHECK_SAYS(load_model(m.path), name);
  }
  put(f / "a.txt", "GGUF\3\0\0\0\1\0\0\0"sv), put(f / "a.npy", "GGUF\3\0\0\0\1\0\0\0"sv);
  CHECK_SAYS(read_texts(std::vector{f / "a.txt"}), "GGUF file of llama.cpp", "Pass it to --model");
  CHECK_SAYS(TokenData::from_file(f / "a.npy"), "GGUF file of llama.cpp", "Pass it to --model");
  put(f / "page", kPage);
  CHECK_SAYS(SafetensorsFile(f / "page"), "a page of HTML");
  CHECK_SAYS(read_tokenizer(f / "page"), "a page of HTML");
  const std::vector<std::string> page{f / "page"};
  CHECK(read_texts(page) == kPage);  // a user may train on this page
  const std::vector<std::string> data{f / "a.txt"};
  for (const auto part : std::views::split(kNoText, '|')) {
    const std::string_view head(part.begin(), part.end());
    CAPTURE(head);
    put(data[0], head);
    CHECK_SAYS(read_texts(data), "To learn its bytes as they are, pass --documents bytes.");
    CHECK(read_texts(data, DocumentKind::bytes) == head);
    CHECK_SAYS(read_examples(data, ByteTokenizer(), {.context = 8}), "[data]");
  }
  for (const auto part : std::views::split(kText, '|')) {
    const std::string_view text(part.begin(), part.end());
    CAPTURE(text);
    put(data[0], text);
    CHECK(read_texts(data) == text);
  }
}

TEST_CASE("foreign files: a tokenizer's other files in its place") {
  Folder f;
  const std::string pass = fmt::format("Pass {0} or {0}/tokenizer.json.", f.path);
  put(f / "tokenizer.json", "{}");
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
                           "config.json", "merges.txt", "tokenizer.model", "generation_config.json"}) {
    put(f / name, has(name, ".json") ? R"({"model": 3, "eos_token": "x"})" : "a b");
    CHECK_SAYS(read_tokenizer(f / name), pass);
  }
  fs::remove(f / "tokenizer.json");
  CHECK_SAYS(read_tokenizer(f / "vocab.json"), fmt::format("Pass {}.", f.path));
  fs::remove(f / "merges.txt");
  CHECK_SAYS(read_tokenizer(f / "tokenizer.model"), "Write tokenizer.json in Python");
  const auto here = fs::current_path();
  fs::current_path(f.path);
  fs::create_directory("base");
  CHECK_SAYS(Settings().set("tokenizer", "base"), "pass ./base");
  CHECK_SAYS(Settings().set("tokenizer", "bass"), "with a '/' or a '.'");
  fs::current_path(here);
}

TEST_CASE("foreign files: a message about content of any length is short") {
  HfFolder m("llama");
  const std::string file = m / "a.jsonl", key(kSanitized ? 50'000 : 1'000'000, 'k');
  const std::vector<std::string> lines{file};
  Json many = Json::object();
  for (int i = 0; i < 10'000; ++i) many[fmt::format("key{}", i)] = 1;
  for (const std::string& text : {key, "{\"" + key + "\": 1}", detail::text_of(many), "\"" + key,
                                  "{\"model\": {\"type\": \"" + key + "\"}}", "[" + key}) {
    for (const char* name : {"a.jsonl", "config.json", "adapter_config.json"}) put(m / name, text);
    const std::vector<std::function<void()>> readers{[&] { read_texts(lines); },
                                                     [&] { read_examples(lines, ByteTokenizer(), {.context = 8}); },
                                                     [&] { read_tokenizer(file); },
                                                     [&] { Tokenizer::from_json(text); },
                                                     [&] { SafetensorsFile{file}; },
                                                     [&] { load_model(m.path); },
                                                     [&] { detail::adapter_base(m.path); },
                                                     [&] { detail::run_config_from_json(text, file); }};
    for (const auto& read : readers) {
      const std::string e = error_of(read);
      CHECK(e != "no error");
      CHECK(e.size() < 1800);
    }
  }
}

TEST_CASE("foreign files: code points that are newer than utf8proc, and bytes that are no UTF-8") {
  for (const char32_t c :
       {U'e', U'\u0301', U'\ue000', U'\U000f0000', U'\ufdd0', U'\ufffe', U'\U0010ffff', U'\U0001f600'})
    CHECK(!detail::nfc_lacks(c));
  for (const char32_t c : {U'\u0378', U'\U0003ff00', U'\U000e0fff'}) CHECK(detail::nfc_lacks(c));
  detail::nfc("x\U0003ff00");
  CHECK_HAS(detail::note_of_nfc(), "of utf8proc lacks");
  detail::nfc("x\U0003ff00");
  CHECK(detail::note_of_nfc() == "");
  CHECK(detail::invalid_bytes("12345678"
                              "caf\xe9"
                              "\xc3\xa9\xff\xed\xa0\x80") == 5);
}

TEST_CASE("foreign files: dtypes of others in sound safetensors are named, and are no damage") {
  Folder f;
  for (const auto& [dtype, bytes] :
       {std::pair("U32", 4), {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U64", 8}, {"I16", 2}, {"F4", 1}}) {
    std::string header = fmt::format(R"({{"w":{{"dtype":"{}","shape":[1],"data_offsets":[0,{}]}}}})", dtype, bytes);
    header.resize((header.size() + 7) / 8 * 8, ' ');
    std::string file(8, '\0');
    file[0] = char(header.size());
    put(f / "a.safetensors", file + header + std::string(size_t(bytes), 'x'));
    const std::string e = error_of([&] { SafetensorsFile(f / "a.safetensors"); });
    CHECK_HAS(e, fmt::format("has the tensor 'w' of {}, which is not read", dtype));
    CHECK(!has(e, "is no safetensors file"));
  }
}

TEST_CASE("foreign files: a link that leads nowhere is named") {
  for (const char* name : {"model.safetensors", "config.json", "tokenizer.json", "generation_config.json"}) {
    HfFolder m("llama");
    fs::remove(m / name);
    fs::create_symlink("../blobs/none", m / name);
    std::string tokenizer_error;
    const std::string e = error_of([&] { tokenizer_error = load_model(m.path).tokenizer_error; });
    const bool loads = name == "tokenizer.json"sv;
    CHECK((e == "no error") == loads);
    CHECK_HAS(loads ? tokenizer_error : e,
              fmt::format("{}/{} is a link to ../blobs/none, which does not exist", m.path, name));
  }
}

namespace {
// 256 bytes after <|endoftext|>, and two merges: "th" is 257 and "the" 258.
void write_vocab(const std::string& folder, const char* config) {
  static const std::string text = [] {
    Json vocab = Json::object();
    vocab["<|endoftext|>"] = 0;
    const Json bytes = detail::own_json(tokenizer_json(ByteTokenizer()));
    for (const auto& [letter, id] : bytes["model"]["vocab"].items()) vocab[letter] = id.get<int64_t>() + 1;
    vocab["th"] = 257, vocab["the"] = 258;
    return detail::text_of(vocab);
  }();
  put(folder + "/vocab.json", text);
  put(folder + "/merges.txt", "#version: 0.2\nt h\nth e\n");
  if (config) put(folder + "/tokenizer_config.json", config);
}
using Ids = std::vector<int64_t>;
Ids ids_of(const std::string& folder, std::string_view text, bool special = true) {
  return read_tokenizer(folder).encode(text, EncodeOptions{.parse_special = special});
}
constexpr int64_t id(char c) { return int64_t(uint8_t(c)) + 1; }
}  // namespace

TEST_CASE("foreign files: the ids of transformers with each key beside a tokenizer.json, or the key is refused") {
  const Json all = detail::own_json(read_file(TG_TEST_DATA "/tokenizer_keys.json"));
  for (const Json& c : all.at("cases")) {
    CAPTURE(detail::text_of(c.at("files")));
    Folder f;
    put(f / "tokenizer.json", detail::text_of(all.at("tokenizer")));
    for (const auto& [name, content] : c.at("files").items()) put(f / name, detail::text_of(content));
    try {
      const Ids ids = ids_of(f.path, all.at("text").get<std::string>());
      CHECK(ids == c.at("ids").get<Ids>());
    } catch (const Error& e) {
      CHECK_HAS(e.what(), "sets split_special_tokens");
      CHECK(c.at("ids") != all.at("cases")[0].at("ids"));
    }
  }
}

TEST_CASE("foreign files: vocab.json and merges.txt are read by the class that tokenizer_config.json names") {
  Folder f;
  const std::string accent = "e\xcc\x81";  // NFC: U+00E9, two bytes
  for (const char* config : {(const char*)nullptr, "{}", R"({"tokenizer_class": "GPT2Tokenizer"})",
                             R"({"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": false})"}) {
    write_vocab(f.path, config);
    CHECK(ids_of(f.path, "the" + accent) == Ids{258, id('e'), id('\xcc'), id('\x81')});
    CHECK(ids_of(f.path, "<|endoftext|>the") == Ids{0, 258});
  }
  for (const char* name : {"Qwen2Tokenizer", "Qwen2TokenizerFast"}) {
    write_vocab(f.path, fmt::format(R"({{"tokenizer_class": "{}"}})", name).c_str());
    CHECK(ids_of(f.path, "the" + accent) == Ids{258, id('\xc3'), id('\xa9')});
  }
  write_vocab(f.path, R"({"add_prefix_space": true})");
  CHECK(ids_of(f.path, "the") == Ids{id(' '), 258});
  for (const auto& [config, part] :
       {std::pair(R"({"tokenizer_class": "RobertaTokenizer"})", "names the class RobertaTokenizer"),
        {R"({"add_bos_token": true})", "sets add_bos_token"},
        {R"({"split_special_tokens": true})", "sets split_special_tokens"},
        {R"([])", "is not an object"},
        {R"({"added_tokens_decoder": {"x": {"content": "y"}}})", "has the id \"x\""},
        {R"({"added_tokens_decoder": {"7": {"content": "the"}}})", "gives \"the\" the id 7, and the vocabulary 258"}}) {
    write_vocab(f.path, config);
    CHECK_SAYS(read_tokenizer(f.path), part);
  }
}

TEST_CASE("foreign files: added and special tokens of the files beside a tokenizer, in both forms") {
  for (const bool whole : {false, true}) {
    Folder f;
    write_vocab(f.path, nullptr);
    if (whole) {
      put(f / "tokenizer.json", read_tokenizer(f.path).to_json());
      fs::remove(f / "vocab.json");
      fs::remove(f / "merges.txt");
    }
    const auto fresh = [&](const char* file, const char* text) {
      for (const char* name : {"tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"})
        fs::remove(f / name);
      put(f / file, text);
    };
    fresh("added_tokens.json", R"({"<user>": 259, "<tool>": 300})");
    CHECK(ids_of(f.path, "<user>the<tool>", false) == Ids{259, 258, 300});
    CHECK(read_tokenizer(f.path).decode(Ids{259, 258, 300}) == "<user>the<tool>");
    fresh("tokenizer_config.json",
          R"({"added_tokens_decoder": {"259": {"content": "<user>", "lstrip": true, "special": true}}})");
    CHECK(ids_of(f.path, "the <user>the") == Ids{258, 259, 258});
    CHECK(ids_of(f.path, "<user>", false).size() == 6);  // special: not of a plain text
    fresh("special_tokens_map.json",
          R"({"pad_token": {"content": "[PAD]"}, "additional_special_tokens": ["<a>", "the"]})");
    CHECK(ids_of(f.path, "[PAD]<a>the") == Ids{259, 260, 258});  // new ones follow the last id
    fresh("tokenizer_config.json",
          R"({"extra_special_tokens": {"image_token": "<image>"}, "eos_token": "<|endoftext|>"})");
    CHECK(ids_of(f.path, "<image><|endoftext|>") == Ids{259, 0});
    fresh("tokenizer_config.json", R"({"split_special_tokens": true})");
    CHECK_SAYS(read_tokenizer(f.path), "sets split_special_tokens");
  }
}

TEST_CASE("foreign files: truncation and padding of a tokenizer.json change no ids") {
  Folder f;
  write_vocab(f.path, nullptr);
  Json json = detail::own_json(read_tokenizer(f.path).to_json());
  json["truncation"] = Json{{"max_length", 2}, {"strategy", "LongestFirst"}, {"stride", 0}, {"direction", "Right"}};
  json["padding"] = Json{{"strategy", "BatchLongest"}, {"pad_id", 0}, {"pad_token", "<|endoftext|>"}};
  put(f / "tokenizer.json", detail::text_of(json));
  CHECK(ids_of(f.path, "thethethe") == Ids{258, 258, 258});
}

TEST_CASE("foreign files: a tokenizer that cannot be read stops nothing but text; one that has changed counts") {
  HfFolder m("gpt2");
  for (const char* name : {"vocab.json", "merges.txt", "tokenizer_config.json"}) fs::remove(m / name);
  for (const char* text : {"{}", "not JSON", R"({"model": {"type": "Unigram"}})"}) {
    put(m / "tokenizer.json", text);
    const LoadedModel loaded = load_model(m.path);
    CHECK(!loaded.tokenizer);
    CHECK_HAS(loaded.tokenizer_error, m / "tokenizer.json");
    CHECK_SAYS(detail::check_tokenizer(loaded.tokenizer.get(), loaded.tokenizer_error, "none"), m / "tokenizer.json");
  }
  fs::remove(m / "tokenizer.json");
  CHECK(load_model(m.path).tokenizer_error.empty());
  put(m / "tokenizer.model", "x");
  CHECK_HAS(load_model(m.path).tokenizer_error, "For a tokenizer.model write tokenizer.json in Python");
  fs::remove(m / "tokenizer.model");
  write_vocab(m.path, nullptr);
  CHECK_HAS(load_model(m.path).tokenizer_error, "the tokenizer has 259 tokens and the model ");

  // The model lacks the padding token; texts without it still work.
  Folder small;
  write_vocab(small.path, R"({"pad_token": "[PAD]"})");
  const BpeTokenizer padded = read_tokenizer(small.path);
  CHECK(padded.vocab_size() == 260);
  CHECK(padded.plain_vocab_size() == 259);
  ModelFile file;
  file.tokenizer = std::make_unique<BpeTokenizer>(padded);
  detail::check_fits("folder", file, 259);
  CHECK(file.tokenizer_error.empty());
  detail::check_fits("folder", file, 258);
  CHECK_HAS(file.tokenizer_error, "the tokenizer has 260 tokens and the model 258");

  // Exported with a tokenizer of bytes; then the user adds a token.
  const Run run(tiny_train());
  Folder out;
  const ByteTokenizer bytes;
  GptConfig c = run.model.config();
  c.positions = Positions::learned, c.norm = NormKind::layer_norm, c.activation = Activation::gelu_tanh, c.bias = true;
  c.vocab_size = 300;
  const auto [params, model] = new_gpt(c, Params(Device::cpu(), 1));
  save_huggingface(out.path, c, params, {.tokenizer = &bytes});
  CHECK(load_model(out.path).tokenizer->encode("<user>").size() == 6);
  CHECK(dynamic_cast<const ByteTokenizer*>(load_model(out.path).tokenizer.get()));  // the file is unchanged: fast
  Json json = detail::own_json(read_file(out / "tokenizer.json"));
  json["added_tokens"].push_back(Json{{"id", 256}, {"content", "<user>"}, {"special", false}});
  put(out / "tokenizer.json", detail::text_of(json));
  CHECK(load_model(out.path).tokenizer->encode("<user>the") == Ids{256, 't', 'h', 'e'});
}

TEST_CASE("model folder: what is saved comes back and writes the same text") {
  Folder folder;
  TrainConfig c = tiny_train();
  c.max_steps = 3;
  Run run(c);
  run.trainer.run();
  const ByteTokenizer bytes;
  save_model(folder.path, run.model, run.params, &bytes, to_json(c));
  const LoadedModel m = load_model(folder.path);
  CHECK(m.model.config() == tiny_model());
  REQUIRE(m.tokenizer);
  CHECK(m.tokenizer->to_json() == bytes.to_json());
  const auto before = run.params.all(), after = m.params.all();
  REQUIRE(before.size() == after.size());
  for (size_t i = 0; i < before.size(); ++i) {
    CHECK(before[i].name == after[i].name);
    CHECK(before[i].tensor.to_vector<float>() == after[i].tensor.to_vector<float>());
  }
  const auto prompt = bytes.encode("the ");
  CHECK(generate(run.model, prompt, 20, {.seed = 3}) == generate(m.model, prompt, 20, {.seed = 3}));
  CHECK(detail::own_json(detail::model_config_text(folder.path)).at("train").at("max_steps") == 3);

  Settings settings;  // a run like that one
  settings.read(detail::model_config_text(folder.path), "config.json");
  const RunConfig again = settings.run();
  CHECK(again.model == tiny_model());
  CHECK(to_json(again.train) == to_json(c));

  CHECK_SAYS(load_model(folder / "nowhere"), "nowhere does not exist. A model is a folder");
  const auto with_model = [&](auto change) {  // message about the changed config.json
    auto j = detail::own_json("{\"model\":" + to_json(tiny_model()) + "}");
    change(j["model"]);
    detail::write_file_atomically(folder / "config.json", detail::text_of(j));
    return error_of([&] { load_model(folder.path); });
  };
  const std::string place = "\n    in " + folder.path;
  CHECK_HAS(with_model([](auto& g) { g["heads"] = 3; }), place + "/config.json");
  for (const char* field : {"vocab_size", "dropout", "norm", "init_std"})
    CHECK_HAS(with_model([&](auto& g) { g.erase(field); }), fmt::format("\"model\" has no '{}'. Every field", field));
  CHECK_HAS(with_model([](auto& g) { g["width"] = 64; }), "is (256, 64) in the model and (256, 32) f32",
            place + "/model.safetensors");
  CHECK_HAS(with_model([](auto& g) { g["layers"] = 2; }), place + "/model.safetensors");
  const std::string deep = std::string(400000, '[') + std::string(400000, ']');
  for (const auto& [text, part] :
       {std::pair<std::string, const char*>{R"({"modle": {}, "model": {}})", "Did you mean 'model'?"},
        {"[1]", "has no object \"model\""},
        {"{", "config.json is not JSON"},
        {R"({"model":)" + deep + "}", "nested too deeply"},
        {R"({"model":{"heads":2,"heads":4}})", "'heads' comes twice"}}) {
    detail::write_file_atomically(folder / "config.json", text);
    CHECK_SAYS(load_model(folder.path), part);
  }
}

TEST_CASE("model folder: a tokenizer.json stands beside config.json") {
  Folder folder;
  const Run run(tiny_train());
  const auto bytes = BpeTokenizer::from_json(tokenizer_json(ByteTokenizer()), "bytes");
  save_model(folder.path, run.model, run.params, &bytes);
  CHECK(read_file(folder / "tokenizer.json") == bytes.to_json());
  CHECK(detail::own_json(detail::model_config_text(folder.path))["tokenizer"] == "tokenizer.json");
  const LoadedModel m = load_model(folder.path);
  REQUIRE(m.tokenizer);
  CHECK(m.tokenizer->encode("\xff the") == bytes.encode("\xff the"));
  Settings settings;  // a run like that one takes the tokenizer from there
  settings.read(detail::model_config_text(folder.path), folder / "config.json");
  CHECK(settings.run().tokenizer == folder / "tokenizer.json");
  detail::write_file_atomically(folder / "tokenizer.json", "{}");
  CHECK_HAS(load_model(folder.path).tokenizer_error, (folder / "tokenizer.json") + ": model is not an object");
  detail::write_file_atomically(folder / "config.json",
                                "{\"model\":" + to_json(tiny_model()) + ",\"tokenizer\":\"../t.json\"}");
  CHECK_HAS(load_model(folder.path).tokenizer_error, "it is no JSON object");
}
