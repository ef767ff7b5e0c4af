#include "model/tokenizer.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <rapidcheck/gtest.h>

#include "cases/random.h"
#include "tests/io/files.h"

namespace kdtree {
namespace {

using Json = nlohmann::json;

// GPT-2's alphabet as its authors build it: printable bytes first, the rest numbered from 256.
std::string character(int byte) {
  std::vector<int> printable(94 + 12 + 82);
  std::iota(printable.begin(), printable.begin() + 94, '!');
  std::iota(printable.begin() + 94, printable.begin() + 106, 0xa1);
  std::iota(printable.begin() + 106, printable.end(), 0xae);
  const auto is_printable = [&](int b) { return std::count(printable.begin(), printable.end(), b) > 0; };
  int code_point = byte;
  if (!is_printable(byte)) {
    code_point = 256;
    for (int b = 0; b < byte; ++b)
      code_point += is_printable(b) ? 0 : 1;
  }
  if (code_point < 128) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xc0 + code_point / 64), static_cast<char>(0x80 + code_point % 64)};
}

// In another order than the bytes', with holes; the largest is 770.
int32_t id_of(int byte) {
  return 3 * (byte * 7 % 256) + 5;
}

// The added token has id 2.
Json good() {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte)
    vocab[character(byte)] = id_of(byte);
  Json json = Json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
    "added_tokens": [{"id": 2, "content": "<|endoftext|>", "special": true}],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "post_processor": null, "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
              "end_of_word_suffix": "", "merges": []}})");
  json["model"]["vocab"] = vocab;
  return json;
}

Result<Tokenizer> parse(const Json& json) {
  return Tokenizer::parse(json.dump(), "f");
}

void expect_refused(const Json& json, int32_t code, const std::string& message) {
  const auto tokenizer = parse(json);
  expect_error(tokenizer, code, "f: " + message);
  expect_error(tokenizer, code, "; token ids can be given instead (--input-ids)");
}
void expect_unsupported(const Json& json, const std::string& message) {
  expect_refused(json, KDTREE_UNSUPPORTED, message);
}
void expect_invalid(const Json& json, const std::string& message) {
  expect_refused(json, KDTREE_INVALID_FILE, message);
}
Json with(const char* pointer, const Json& value) {
  Json json = good();
  json[Json::json_pointer(pointer)] = value;
  return json;
}
Json without(const char* parent, const std::string& key) {
  Json json = good();
  json[Json::json_pointer(parent)].erase(key);
  return json;
}

TEST(Tokenizer, EveryByteThereAndBack) {
  const auto tokenizer = parse(good());
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->vocab_size(), 771);
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text = {static_cast<char>(byte)};
    EXPECT_EQ(tokenizer->encode(text), std::vector<int32_t>{id_of(byte)});
    EXPECT_EQ(tokenizer->decode(id_of(byte)), text);
  }
  EXPECT_TRUE(tokenizer->encode("").empty());
  for (const int32_t id : {-2147483647 - 1, -1, 0, 2, 4, 6, 771, 2147483647})
    EXPECT_EQ(tokenizer->decode(id), "") << id;
}

TEST(Tokenizer, TheAlphabetsCorners) {
  // As printed in GPT-2's vocab.json.
  EXPECT_EQ(character(' '), "Ġ");
  EXPECT_EQ(character('\n'), "Ċ");
  EXPECT_EQ(character(0), "Ā");
  EXPECT_EQ(character('~'), "~");
  EXPECT_EQ(character(0x7f), "ġ");
  EXPECT_EQ(character(0xa0), "ł");
  EXPECT_EQ(character(0xad), "Ń");
  EXPECT_EQ(character(0xff), "ÿ");
  // The file may write them as escapes.
  const auto tokenizer = Tokenizer::parse(good().dump(-1, ' ', /*ensure_ascii=*/true), "f");
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->decode(id_of(' ')), " ");
}

TEST(Tokenizer, ATextCannotNameAddedTokens) {
  const auto ids = parse(good())->encode("<|endoftext|>");
  EXPECT_EQ(ids.size(), 13u);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 2), 0);
}

TEST(Tokenizer, WhatMayDiffer) {
  EXPECT_TRUE(parse(with("/model/vocab/<|endoftext|>", 2)));
  EXPECT_TRUE(parse(without("", "added_tokens")));
  EXPECT_TRUE(parse(without("", "normalizer")));
  EXPECT_TRUE(parse(with("/added_tokens", nullptr)));
  // The largest id may be an added token's.
  const auto tokenizer = parse(with("/added_tokens/0/id", 2147483646));
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ(tokenizer->vocab_size(), 2147483647);
}

TEST(Tokenizer, RefusesOtherKinds) {
  expect_unsupported(with("/model/type", "Unigram"), R"(model.type is "Unigram", expected "BPE")");
  expect_unsupported(without("/model", "type"), R"(model.type is absent, expected "BPE")");
  expect_unsupported(with("/model/merges", {"a b", "c d"}),
                     "model.merges is a list of 2, expected an empty list");
  expect_invalid(without("/model", "merges"), "model.merges is absent, expected an empty list");
  expect_invalid(with("/model/merges", "a b"), "model.merges is \"a b\", expected an empty list");
  expect_unsupported(with("/model/continuing_subword_prefix", "##"),
                     R"(model.continuing_subword_prefix is "##", expected null)");
  expect_unsupported(with("/model/end_of_word_suffix", "</w>"), R"(model.end_of_word_suffix is "</w>")");
  expect_unsupported(with("/normalizer", {{"type", "NFC"}}),
                     "normalizer is an object of 1 keys, expected null");
  expect_unsupported(with("/pre_tokenizer", nullptr),
                     "pre_tokenizer is null, expected an object of type \"ByteLevel\"");
  expect_unsupported(without("", "pre_tokenizer"), "pre_tokenizer is absent");
  expect_unsupported(with("/pre_tokenizer/type", "Metaspace"),
                     R"(pre_tokenizer.type is "Metaspace", expected "Byt)");
  expect_unsupported(with("/pre_tokenizer/add_prefix_space", true),
                     "pre_tokenizer.add_prefix_space is true, expected false");
  expect_unsupported(without("/pre_tokenizer", "add_prefix_space"),
                     "pre_tokenizer.add_prefix_space is absent");
  expect_unsupported(with("/model/vocab/the", 9000), "model.vocab[\"the\"] is 9000, expected no such entry");
  expect_unsupported(with("/model/vocab/Ж", 9000),
                     "model.vocab[\"\\u0416\"] is 9000, expected no such entry");
  expect_unsupported(with("/model/vocab/", 9000), "model.vocab[\"\"] is 9000, expected no such entry");
  expect_unsupported(without("/model/vocab", "A"),
                     "model.vocab[\"A\"] is absent, expected all 256 bytes; this one is 0x41");
  expect_unsupported(without("/model/vocab", "Ā"),
                     "model.vocab[\"\\u0100\"] is absent, expected all 256 bytes; this one is 0x00");
  expect_unsupported(with("/added_tokens/0/content", "Ġ"),
                     "added_tokens[0].content is \"\\u0120\", expected another");
}

TEST(Tokenizer, RefusesBadIds) {
  expect_invalid(with("/model/vocab/A", -1),
                 "model.vocab[\"A\"] is -1, expected an integer in 0 .. 2147483646");
  expect_invalid(with("/model/vocab/A", 2147483647), "model.vocab[\"A\"] is 2147483647, expected");
  expect_invalid(with("/model/vocab/A", uint64_t{1} << 63),
                 "model.vocab[\"A\"] is 9223372036854775808, expected");
  expect_invalid(with("/model/vocab/A", 1.5), "model.vocab[\"A\"] is 1.5, expected");
  expect_invalid(with("/model/vocab/A", "1"), "model.vocab[\"A\"] is \"1\", expected");
  expect_invalid(with("/model/vocab/A", nullptr), "model.vocab[\"A\"] is null, expected");
  // Keys come in the order of their bytes.
  expect_invalid(with("/model/vocab/A", id_of('B')),
                 "model.vocab[\"B\"] is 623, expected an id of its own: \"A\" has");
  expect_invalid(with("/model/vocab/A", 2),
                 "model.vocab[\"A\"] is 2, expected an id of its own: \"<|endoftext|>\" has");
  expect_invalid(with("/model/vocab/<|endoftext|>", 3),
                 "model.vocab[\"<|endoftext|>\"] is 3, expected 2, as in added");
  expect_invalid(with("/added_tokens/0/id", -2), "added_tokens[0].id is -2, expected an integer in 0 ..");
  expect_invalid(without("/added_tokens/0", "id"), "added_tokens[0].id is absent, expected an integer");
  expect_invalid(with("/added_tokens/1", {{"id", 2}, {"content", "<x>"}}),
                 "added_tokens[1].id is 2, expected an id of its own: \"<|endoftext|>\" has this one");
  expect_invalid(with("/added_tokens/1", {{"id", 3}, {"content", "<|endoftext|>"}}),
                 "added_tokens[1].content is \"<|endoftext|>\", expected each token once");
}

TEST(Tokenizer, RefusesOtherShapes) {
  expect_invalid(Json::array(), "the file is something else, expected a JSON object");
  expect_invalid(without("", "model"), "model is absent, expected an object");
  expect_invalid(with("/model", 3), "model is 3, expected an object");
  expect_invalid(without("/model", "vocab"), "model.vocab is absent, expected an object");
  expect_invalid(with("/model/vocab", {1, 2}), "model.vocab is a list of 2, expected an object");
  expect_invalid(with("/added_tokens", "x"), "added_tokens is \"x\", expected a list");
  expect_invalid(with("/added_tokens/0", 7), "added_tokens[0] is 7, expected an object");
  expect_invalid(with("/added_tokens/0/content", ""), "added_tokens[0].content is \"\", expected text");
  expect_invalid(with("/added_tokens/0/content", 1), "added_tokens[0].content is 1, expected text");
}

TEST(Tokenizer, RefusesTextsThatAreNotOneObject) {
  const std::string text = good().dump();
  const auto refused = [](const std::string& json, const std::string& message) {
    expect_error(Tokenizer::parse(json, "f"), KDTREE_INVALID_FILE, "f: " + message);
  };
  const std::string not_json = "the file is something else, expected a JSON object";
  refused("", not_json);
  refused(text + "x", not_json);
  refused(text + std::string(1, '\0') + "x", not_json);
  refused("{\"a\": \"\xff\"}", not_json);
  std::string repeated = text;
  repeated.insert(1, R"("model": {}, )");
  refused(repeated, "the key \"model\" is twice in an object, expected each once");
  std::string deep = text;
  deep.insert(1, "\"a\":" + std::string(100, '[') + std::string(100, ']') + ",");
  refused(deep, "the nesting is above 32, expected at most 32");
  refused(std::string(1'000'000, '['), not_json);
  refused(std::string((size_t{64} << 20) + 1, ' '), "has 67108865 bytes, expected at most 67108864");
  std::string long_key = "{\"model\": {\"type\": \"" + std::string(1000, 'x') + "\"}}";
  const auto tokenizer = Tokenizer::parse(long_key, "f");
  ASSERT_FALSE(tokenizer);
  EXPECT_LT(tokenizer.error().message.size(), 200u);
}

TEST(Tokenizer, LoadNamesThePath) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("tokenizer.json");
  expect_error(Tokenizer::load(path), KDTREE_IO_ERROR, path + ": cannot open");
  write_text(path, "");
  expect_error(Tokenizer::load(path), KDTREE_INVALID_FILE, path + ": the file is");
  write_text(path, good().dump(2));
  const auto tokenizer = Tokenizer::load(path);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  EXPECT_EQ(tokenizer->encode("A"), std::vector<int32_t>{id_of('A')});
}

RC_GTEST_PROP(TokenizerProperty, TextThereAndBack, (const std::string& text)) {
  static const Tokenizer tokenizer = *parse(good());
  std::string back;
  for (const int32_t id : tokenizer.encode(text))
    back += tokenizer.decode(id);
  RC_ASSERT(back == text);
}

// Damage is refused with a message or makes another tokenizer, and nothing else.
TEST(Tokenizer, DamagedFiles) {
  const std::string text = good().dump();
  Random random(21);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = text;
    for (int64_t changes = random.below(4); changes >= 0; --changes) {
      const auto position = static_cast<size_t>(random.below(static_cast<int64_t>(damaged.size())));
      const char kLikely[] = "\"{}[],:0-9\\e\xc4\xff";
      const auto likely = kLikely[random.below(sizeof kLikely)];
      if (random.below(3) == 0) {
        damaged.erase(position, static_cast<size_t>(1 + random.below(20)));
      } else if (random.below(2) == 0) {
        damaged.insert(position, 1, likely);
      } else {
        damaged[position] = likely;
      }
    }
    if (random.below(8) == 0)
      damaged.resize(static_cast<size_t>(random.below(static_cast<int64_t>(damaged.size()))));
    const auto tokenizer = Tokenizer::parse(damaged, "f");
    if (tokenizer) {
      ASSERT_EQ(tokenizer->encode("abc").size(), 3u);
    } else {
      ++refused;
      ASSERT_TRUE(tokenizer.error().code == KDTREE_INVALID_FILE ||
                  tokenizer.error().code == KDTREE_UNSUPPORTED);
      ASSERT_TRUE(tokenizer.error().message.starts_with("f: "));
    }
  }
  EXPECT_GT(refused, 2000);
}

}  // namespace
}  // namespace kdtree
