// generate, capture and tune on the random checkpoints of tests/model/golden.
#include <fstream>

#include <nlohmann/json.hpp>

#include "tests/cli/command.h"
#include "tests/model/byte_tokenizer.h"
#include "tests/model/golden.h"

namespace kdtree::cli_test {
namespace {

using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

Arguments with_models(const std::string& command, const Arguments& more) {
  Arguments all = {command, "--model", golden("q_lora"), "--draft", golden("dflash")};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// A model whose vocabulary is the 256 bytes and one more token: `dense` with more rows.
class ByteModel : public CheckpointCopy {
 public:
  ByteModel() : CheckpointCopy("dense") {
    const std::string path = file("model.safetensors");
    std::map<std::string, Tensor> tensors;
    {
      const auto weights = SafetensorsFile::open(path);
      for (const auto& [name, view] : weights->tensors())
        tensors[name] = view.to_tensor();
    }
    Tensor& embedding = tensors.at("model.embed_tokens.weight");
    const int64_t hidden = embedding.shape[1];
    Tensor larger(embedding.dtype, {257, hidden});
    for (int64_t i = 0; i < larger.size(); ++i)
      larger.set(i, embedding.value(i % embedding.size()) *
                        (1.0 + 0.01 * static_cast<double>(i / embedding.size())));
    embedding = larger;
    std::map<std::string, const Tensor*> out;
    for (const auto& [name, tensor] : tensors)
      out[name] = &tensor;
    EXPECT_TRUE(write_safetensors(path, out, {}));
    edit("config.json", [](Json& json) { json["vocab_size"] = 257; });
    std::ofstream(file("tokenizer.json")) << byte_tokenizer_json().dump();
  }
};

TEST(Generate, EveryModeSaysTheSame) {
  const Arguments prompts = {"--input-ids", "5,17,3,60", "--input-ids", "1,2", "--max-new", "16"};
  const auto tokens = [&](Arguments more) {
    more.insert(more.end(), prompts.begin(), prompts.end());
    const Outcome outcome = run(with_models("generate", more));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.err.find("32 tokens, 30 of them in"), std::string::npos) << outcome.err;
    return outcome.out;
  };
  for (const Arguments& sampling :
       {Arguments{}, Arguments{"--temperature", "0.8", "--top-p", "0.9", "--seed", "4"}}) {
    Arguments plain = sampling;
    plain.insert(plain.end(), {"--mode", "ar", "--batch", "1"});
    const std::string expected = tokens(plain);
    EXPECT_EQ(expected.rfind("=== 1 of 2\n", 0), 0u) << expected;
    for (const Arguments& mode : {Arguments{"--mode", "chain", "--nodes", "4"}, Arguments{"--nodes", "16"},
                                  Arguments{"--nodes", "auto", "--verbose"},
                                  Arguments{"--nodes", "8", "--stream", "--threads", "1"}}) {
      Arguments all = sampling;
      all.insert(all.end(), mode.begin(), mode.end());
      EXPECT_EQ(tokens(all), expected) << mode[1];
    }
  }
}

TEST(Generate, JsonHoldsTextTokensAndStatistics) {
  const ByteModel model;
  const Outcome outcome =
      run({"generate", "--model", model.path(), "--prompt", "def", "--max-new", "20", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  const Json& request = json["requests"][0];
  EXPECT_EQ(json["mode"], "ar");
  EXPECT_EQ(request["prompt_tokens"], 3);
  EXPECT_EQ(request["tokens"].size(), 20u);
  EXPECT_EQ(request["finish_reason"], "length");
  EXPECT_EQ(json["stats"]["emitted"], 19);
  EXPECT_EQ(json["stats"]["accept_lengths"], Json({0, 19}));
  EXPECT_GT(json["peak_memory_bytes"], 0);
  for (const char* stage : {"prefill", "draft", "build", "compile", "verify", "accept", "commit"})
    EXPECT_GE(json["seconds"][stage], 0.0) << stage;

  // Standard output has the same text, and a file or standard input gives the same prompt.
  const std::string text = request["text"];
  EXPECT_EQ(run({"generate", "--model", model.path(), "--prompt", "def", "--max-new", "20"}).out,
            text + "\n");
  std::ofstream(model.file("prompt")) << "def";
  EXPECT_EQ(
      run({"generate", "--model", model.path(), "--prompt-file", model.file("prompt"), "--max-new", "20"})
          .out,
      text + "\n");

  // A stop string in the middle of it.
  const auto bytes = request["tokens"].get<std::vector<int>>();
  const std::string stop = {static_cast<char>(bytes[7]), static_cast<char>(bytes[8])};
  if (bytes[7] < 128 && bytes[8] < 128 && bytes[7] > 31 && bytes[8] > 31) {
    const Json stopped = Json::parse(run({"generate", "--model", model.path(), "--prompt", "def", "--max-new",
                                          "20", "--stop", stop, "--json"})
                                         .out);
    EXPECT_EQ(stopped["requests"][0]["finish_reason"], "stop");
    EXPECT_EQ(stopped["requests"][0]["text"], text.substr(0, text.find(stop)));
  }
}

TEST(Generate, ErrorsNameTheOption) {
  const std::string model = golden("q_lora");
  expect_error(run({"generate", "--model", "nowhere", "--prompt", "x"}), 3, "--model: nowhere/config.json");
  expect_error(run({"generate", "--model", model, "--draft", "nowhere", "--input-ids", "1"}), 3,
               "--draft: nowhere");
  expect_error(run({"generate", "--model", model, "--mode", "tree", "--input-ids", "1"}), 2,
               "--mode: 'tree', expected --draft with it");
  expect_error(run({"generate", "--model", model, "--prompt", "x"}), 3, "--prompt needs a tokenizer: ");
  expect_error(run({"generate", "--model", model, "--input-ids", "1", "--stop", "x"}), 3,
               "--stop needs a tokenizer");
  expect_error(run({"generate", "--model", model, "--input-ids", "1,,2"}), 2, "--input-ids");
  expect_error(run({"generate", "--model", model, "--input-ids", "1,96"}), 2,
               "prompt 1: prompt[1] is token 96, expected 0 .. 95");
  expect_error(run({"generate", "--model", model, "--input-ids", "1", "--max-new", "8", "--kv-slots", "4"}),
               4, "the request takes 9 slots of the KV pool, expected at most its 4");
  expect_error(run({"generate", "--model", model, "--input-ids", "1", "--nodes", "none"}), 2,
               "expected auto or an integer");
  expect_error(run({"generate", "--model", model, "--input-ids", "1", "--temperature", "nan"}), 2,
               "--temperature");
  const ByteModel bytes;
  expect_error(run({"generate", "--model", bytes.path(), "--prompt", ""}), 2, "prompt 1 is empty");
  expect_error(run({"generate", "--model", bytes.path(), "--prompt", "x", "--stop", ""}), 2, "--stop");
  expect_error(run({"generate", "--model", bytes.path(), "--prompt-file", bytes.path()}), 3,
               "--prompt-file: ");
  // A tokenizer of another kind stops text only.
  bytes.edit("tokenizer.json", [](Json& json) { json["model"]["merges"] = {"a b"}; });
  expect_error(run({"generate", "--model", bytes.path(), "--prompt", "x"}), 4, "merges");
  EXPECT_EQ(run({"generate", "--model", bytes.path(), "--input-ids", "1,2", "--max-new", "3"}).code, 0);
}

TEST(Generate, NamesFromFilesDoNotDriveTheTerminal) {
  const CheckpointCopy copy("yarn");
  copy.edit("model.safetensors.index.json",
            [](Json& json) { json["weight_map"].begin().value() = "a/\x1b]0;title\x07"; });
  const Outcome outcome = run({"generate", "--model", copy.path(), "--input-ids", "1"});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.err.find('\x1b'), std::string::npos) << outcome.err;
}

TEST(Capture, BundlesPassVerification) {
  const TemporaryDirectory folder;
  const Outcome outcome = run(with_models("capture", {"--input-ids", "5,17,3,60", "--nodes", "8", "--layer",
                                                      "1", "--most", "2", "--out", folder.file("steps")}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Outcome verified = run({"verify", folder.file("steps")});
  EXPECT_EQ(verified.code, 0) << verified.err;
  EXPECT_NE(verified.out.find("2 of 2 bundles pass"), std::string::npos) << verified.out;
  expect_error(run(with_models("capture", {"--input-ids", "1", "--nodes", "8", "--layer", "4", "--out",
                                           folder.file("x")})),
               2, "--layer: 4, expected at most 3");
}

TEST(Tune, KeepsCostsForGenerate) {
  const TemporaryDirectory cache;
  const Environment environment = {{"XDG_CACHE_HOME", cache.path()}};
  const Outcome tuned = run(with_models("tune", {"--json"}), environment);
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  const Json json = Json::parse(tuned.out);
  EXPECT_EQ(json["rows"][0], 1);
  EXPECT_EQ(json["verify_us"][1].size(), json["rows"].size());
  const Outcome used =
      run(with_models("generate", {"--input-ids", "1,2", "--max-new", "8", "--verbose"}), environment);
  EXPECT_EQ(used.code, 0);
  EXPECT_NE(used.err.find("costs from " + json["file"].get<std::string>()), std::string::npos) << used.err;
  EXPECT_NE(used.err.find(" nodes: "), std::string::npos) << used.err;
}

}  // namespace
}  // namespace kdtree::cli_test
