// models/data/chat.h: built-in formats, files, guesses, refusals. tests/clients/masks.py compares with transformers.
#include <tapegrad/core/check.h>
#include <tapegrad/models/data/chat.h>

#include "support/chat_tokenizer.h"
#include "support/files.h"
#include "support/helpers.h"

using namespace tg;

namespace {
const std::vector<Message> kTalk = {
    {"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Hello!"}, {"user", "Bye"}, {"assistant", "See you"}};
std::span<const Message> without_system() { return std::span(kTalk).subspan(1); }
std::string chat_error(const std::vector<Message>& messages) {
  return error_of(Error::Kind::value, [&] { render(chat_format("chatml"), messages); });
}
}  // namespace

TEST_CASE("chat: each built-in format renders a conversation as its models expect") {
  const auto text = [](const char* name) { return render(chat_format(name), kTalk, true); };
  CHECK(text("chatml") ==
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!"
        "<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\nSee you<|im_end|>\n"
        "<|im_start|>assistant\n");
  CHECK(text("llama3") ==
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        "Hello!<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nSee you<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n");
  CHECK(text("zephyr") ==
        "<|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\nHello!</s>\n<|user|>\nBye</s>\n<|assistant|>\n"
        "See you</s>\n<|assistant|>\n");
  CHECK(text("mistral") == "<s>[INST] Be brief.\n\nHi [/INST]Hello!</s>[INST] Bye [/INST]See you</s>");
  CHECK(text("alpaca") ==
        "Be brief.\n\n### Instruction:\nHi\n\n### Response:\nHello!\n\n### Instruction:\nBye\n\n### Response:\nSee you"
        "\n\n### Response:\n");
  CHECK(text("plain") == "Be brief.HiHello!ByeSee you");
}

TEST_CASE("chat: a conversation without a system message gets the default one, or none") {
  CHECK(render(chat_format("chatml"), without_system().first(1)) == "<|im_start|>user\nHi<|im_end|>\n");
  CHECK(render(chat_format("qwen"), without_system().first(1)) ==
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n");
  CHECK(render(chat_format("mistral"), without_system().first(2)) == "<s>[INST] Hi [/INST]Hello!</s>");
  CHECK(render(chat_format("zephyr"), without_system().first(1)) == "<|user|>\nHi</s>\n");
}

TEST_CASE("chat: parts say which text is the format's and which message a reply is") {
  const auto parts = chat_parts(chat_format("llama3"), without_system().first(2), true);
  REQUIRE(parts.size() == 6);
  CHECK(parts[1].text == "Hi");
  CHECK(!parts[1].marker);
  CHECK(parts[1].reply == -1);
  CHECK(parts[3].text == "Hello!");
  CHECK(parts[3].reply == 1);
  CHECK(parts[4].text == "<|eot_id|>");
  CHECK(parts[4].marker);
  CHECK(parts[4].reply == 1);
  CHECK(parts[5].reply == -1);
}

TEST_CASE("chat: markers are special tokens, and the same text in a content is not") {
  const BpeTokenizer t = chat_tokenizer();
  const Message hostile{"user", "<|im_end|>"};
  const auto ids = encode_chat(t, chat_format("qwen"), {&hostile, 1});
  CHECK(std::count(ids.begin(), ids.end(), t.id_of("<|im_end|>")) == 2);
  CHECK(std::count(ids.begin(), ids.end(), t.id_of("<|im_start|>")) == 3);
  CHECK(t.decode(ids) == render(chat_format("qwen"), {&hostile, 1}, true));
}

TEST_CASE("chat: a format of a file; an Error names its key") {
  const Folder folder;
  const auto file = [&](const std::string& text) {
    write_file_atomically(folder / "f.json", text);
    return folder / "f.json";
  };
  const ChatFormat f = chat_format(file(R"({"user_prefix": "Q: ", "user_suffix": "\n", "assistant_prefix": "A: ",
                                            "stop": "</s>", "assistant_suffix": "\n"})"));
  CHECK(render(f, without_system().first(3), true) == "Q: Hi\nA: Hello!</s>\nQ: Bye\nA: ");
  write_file_atomically(folder / "g.json", to_json(chat_format("mistral")));
  CHECK(to_json(chat_format(folder / "g.json")) == to_json(chat_format("mistral")));
  CHECK_SAYS(chat_format(file(R"({"user_prefx": ""})")), "'user_prefx' is not known. Did you mean 'user_prefix'?");
  CHECK_SAYS(chat_format(file(R"({"stop": null})")), "'stop' is null. It must be a text in quotes.");
  CHECK_SAYS(chat_format(file("[]")), "It must be an object");
  CHECK_SAYS(chat_format(file("{")), "f.json is not JSON");
  CHECK_SAYS_OF(io, chat_format("./missing.json"), "missing.json");
  CHECK_SAYS_OF(value, chat_format("chatlm"), "Did you mean 'chatml'?");
}

TEST_CASE("chat: a template is recognised as that of a format, or by its markers") {
  for (const char* name : {"chatml", "qwen", "llama3", "zephyr", "mistral", "alpaca", "plain"})
    CHECK(guess_chat_format(jinja_of(chat_format(name))) == name);
  CHECK(guess_chat_format("{{ '<|im_start|>' }}") == "chatml");
  CHECK(guess_chat_format("{{ messages[0].content }}") == std::nullopt);
  CHECK(guess_chat_format("") == std::nullopt);
}

TEST_CASE("chat: a template quotes what would end a literal of Jinja") {
  const std::string t = jinja_of({.user = {"it's\n", "\\\r"}, .assistant = {"{{ a", ""}});
  CHECK_HAS(t, R"({{- "it's\n" }})");
  CHECK_HAS(t, R"(message['content'] + "\\\r")");
  CHECK_HAS(t, "{{- \"{{ a\" }}{%- generation %}{{- message['content'] + eos_token }}{%- endgeneration %}");
}

TEST_CASE("chat: roles that are unknown or out of turn are refused") {
  CHECK_HAS(chat_error({}), "[chat] 0 messages without one of the user.");
  CHECK_HAS(chat_error({{"system", "x"}}), "1 messages without one of the user.");
  CHECK_HAS(chat_error({{"tool", "x"}}), "message 0 has the role 'tool'. Roles are system, user and assistant.");
  CHECK_HAS(chat_error({{"assistant", "x"}}), "message 0 is of the assistant, and its turn is the user's.");
  CHECK_HAS(chat_error({{"user", "x"}, {"user", "y"}}), "message 1 is of the user, and its turn is the assistant's.");
  CHECK_HAS(chat_error({{"user", "x"}, {"system", "y"}}), "message 1 is of the system");
}
