// generate, capture and tune on the random checkpoints of tests/model/golden.
#include <fstream>

#include <nlohmann/json.hpp>

#include "core/cpu_features.h"
#include "io/bundle.h"
#include "model/ops.h"
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

TEST(Generate, ProductsAreWhatTheOptionSays) {
  const auto generate = [](const std::string& model, const std::string& products) {
    return run({"generate", "--model", golden(model), "--products", products, "--input-ids", "5,17,3,60",
                "--max-new", "4", "--json"});
  };
  const auto expect = [](const Outcome& outcome, const std::string& products) {
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const Json json = Json::parse(outcome.out);
    EXPECT_EQ(json["products"], products);
    EXPECT_EQ(json["kv_dtype"], products) << "the default follows";
  };
  expect(generate("q_lora", "f32"), "f32");
  expect(generate("q_lora", "auto"),
         fast_bf16_products() && best_ops_target().multiplies_bf16 ? "bf16" : "f32");
  expect(generate("dense", "auto"), "f32");
  if (best_ops_target().multiplies_bf16) {
    expect(generate("q_lora", "bf16"), "bf16");
    expect_error(
        generate("dense", "bf16"), 2,
        "--products: 'bf16', expected auto or f32: the weights of " + golden("dense") + " are not in bf16");
  } else {
    expect_error(generate("q_lora", "bf16"), 2,
                 "--products: 'bf16', expected auto or f32: bf16 needs AVX-512-BF16");
  }
  expect_error(generate("q_lora", "f16"), 2, "--products: 'f16', expected auto|f32|bf16");
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

// Captures one bundle and returns its path.
std::string capture(const TemporaryDirectory& folder, const std::string& name, const Arguments& more) {
  Arguments all = {"--input-ids", "5,17,3,60", "--most", "1", "--out", folder.file(name)};
  all.insert(all.end(), more.begin(), more.end());
  const Outcome outcome = run(with_models("capture", all));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome.out.substr(0, outcome.out.find(':'));
}

Bundle load(const std::string& path) {
  auto bundle = read_bundle(path);
  EXPECT_TRUE(bundle) << bundle.error().message;
  return *std::move(bundle);
}

TEST(Capture, BundlesPassVerification) {
  const TemporaryDirectory folder;
  const Outcome outcome = run(with_models("capture", {"--input-ids", "5,17,3,60", "--nodes", "8", "--layer",
                                                      "1", "--most", "2", "--out", folder.file("steps")}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("00-layer-01.safetensors: 1 request, 9 rows, 13 KV rows, accept length 1\n"),
            std::string::npos)
      << outcome.out;
  const Outcome verified = run({"verify", folder.file("steps"), "--model", golden("q_lora")});
  EXPECT_EQ(verified.code, 0) << verified.err;
  EXPECT_NE(verified.out.find("2 of 2 bundles pass, 2 token-exact\n"), std::string::npos) << verified.out;
  EXPECT_NE(verified.out.find(
                "token-exact yes: 9 of 9 rows, 1 of 1 requests, accepted paths equal; smallest top-two gap "),
            std::string::npos)
      << verified.out;
  const Outcome without = run({"verify", folder.file("steps")});
  EXPECT_EQ(without.code, 0);
  EXPECT_NE(without.out.find("  tokens            not checked (give --model)\n"), std::string::npos)
      << without.out;
  EXPECT_NE(without.out.find("2 of 2 bundles pass\n"), std::string::npos) << without.out;
  expect_error(run(with_models("capture", {"--input-ids", "1", "--nodes", "8", "--layer", "4", "--out",
                                           folder.file("x")})),
               2, "--layer: 4, expected at most 3");
  expect_error(run(with_models("capture", {"--input-ids", "1", "--nodes", "8", "--max-new", "3",
                                           "--from-round", "9", "--out", folder.file("x")})),
               2, "--max-new: 3, --from-round: 9, and no such round");
}

TEST(Capture, RecordsWhatItsOptionsSay) {
  const TemporaryDirectory folder;
  const auto options = [](const std::string& dtype) -> Arguments {
    return {"--input-ids", "1,2",     "--input-ids",  "9,8,7",      "--nodes",   "0,4,9",         "--batch",
            "3",           "--dtype", dtype,          "--kv-dtype", "bf16",      "--layer",       "0",
            "--seed",      "5",       "--from-round", "3",          "--scatter", "--temperature", "0.8"};
  };
  const std::string path = capture(folder, "a", options("bf16"));
  EXPECT_EQ(path, folder.file("a/round-0003-layer-00.safetensors"));
  const Bundle bundle = load(path);
  EXPECT_EQ(bundle.problem.q.dtype, DType::bf16);
  EXPECT_EQ(bundle.problem.kv.dtype, DType::bf16);
  EXPECT_EQ(bundle.problem.out.dtype, DType::bf16);
  EXPECT_EQ(bundle.later_kv.shape[0], 3);
  const auto rows = bundle.problem.qo_indptr.as<int32_t>();
  EXPECT_EQ(std::vector<int32_t>(rows.begin(), rows.end()), (std::vector<int32_t>{0, 1, 6, 16}));
  EXPECT_EQ(bundle.temperature.as<double>()[2], 0.8);
  EXPECT_EQ(bundle.seed.as<uint64_t>()[2], 5u);
  EXPECT_EQ(bundle.request.as<uint64_t>()[2], 2u);
  EXPECT_EQ(bundle.provenance.at("round"), "3");
  EXPECT_EQ(bundle.provenance.at("model"), golden("q_lora"));
  EXPECT_EQ(bundle.provenance.at("slots"), "accepted rows stayed where they were verified");
  EXPECT_EQ(bundle.eos_tokens.as<int32_t>()[0], 1);
  EXPECT_EQ(read_file(capture(folder, "b", options("bf16"))), read_file(path)) << "the same bytes each time";

  // In bf16 a drawn token may turn over; in f32 none does.
  const Outcome outcome = run({"verify", capture(folder, "c", options("f32")), "--model", golden("q_lora"),
                               "--backend", "oracle", "--backend", "cpu", "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  const Json json = Json::parse(outcome.out)["bundles"][0];
  EXPECT_FALSE(json.contains("tokens"));
  ASSERT_EQ(json["backends"].size(), 3u);
  for (const Json& backend : json["backends"]) {
    EXPECT_EQ(backend["tokens"]["exact"], true) << backend;
    EXPECT_EQ(backend["tokens"]["exact_rows"], 16);
    EXPECT_EQ(backend["tokens"]["exact_requests"], 3);
    EXPECT_FALSE(backend["tokens"].contains("smallest_gap")) << "sampled";
  }
  expect_error(run(with_models("capture", {"--input-ids", "1", "--nodes", "8,9", "--out", folder.file("x")})),
               2, "--nodes: 2 values, expected 1 or one for each of 1 prompts");
}

TEST(Verify, TokensOfATamperedAttentionAreNotExact) {
  const TemporaryDirectory folder;
  const std::string path = capture(folder, "a", {"--nodes", "8"});
  // Queries: every backend is right about them, and the model says something else.
  Bundle bundle = load(path);
  const Bundle recorded = bundle;
  for (int64_t i = 0; i < bundle.problem.q.size(); ++i)
    bundle.problem.q.set(i, -40.0 * bundle.problem.q.value(i));
  bundle.problem.out = {};
  ASSERT_TRUE(write_bundle(path, bundle));
  const Arguments verify = {"verify", path, "--model", golden("q_lora"), "--show", "2"};
  Outcome outcome = run(verify);
  EXPECT_EQ(outcome.code, 1) << outcome.out;
  EXPECT_NE(outcome.out.find("cpu               pass"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("    token-exact NO: "), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("; top-two gap "), std::string::npos) << outcome.out;
  EXPECT_EQ(run({"verify", path}).code, 0) << "nothing else is wrong with it";

  // The recorded output of node 4.
  bundle = recorded;
  const int64_t width = bundle.problem.out.size() / bundle.tokens.size();
  for (int64_t i = 4 * width; i < 5 * width; ++i)
    bundle.problem.out.set(i, -50.0 * bundle.problem.out.value(i));
  ASSERT_TRUE(write_bundle(path, bundle));
  Arguments json = verify;
  json.push_back("--json");
  outcome = run(json);
  EXPECT_EQ(outcome.code, 1);
  const Json backends = Json::parse(outcome.out)["bundles"][0]["backends"];
  EXPECT_EQ(backends[0]["tokens"]["exact"], true);
  EXPECT_EQ(backends[1]["name"], "recorded");
  EXPECT_EQ(backends[1]["tokens"]["exact"], false);
  EXPECT_EQ(backends[1]["tokens"]["exact_rows"], 8);
  EXPECT_EQ(backends[1]["tokens"]["mismatches"][0]["node"], 4);
  EXPECT_EQ(run({"verify", path, "--model", golden("q_lora"), "--tolerance", "1000"}).code, 1)
      << "tokens have no tolerance";

  // Recorded tokens that the model does not say; the root's decides the path too.
  bundle = recorded;
  bundle.target_tokens.as<int32_t>()[0] ^= 1;
  ASSERT_TRUE(write_bundle(path, bundle));
  EXPECT_EQ(run(verify).code, 1);
}

TEST(Verify, OnlyTheRecordedModelChecksTokens) {
  const TemporaryDirectory folder;
  const std::string path = capture(folder, "a", {"--nodes", "8"});
  const Bundle bundle = load(path);
  const Outcome wrong = run({"verify", path, "--model", golden("dense")});
  expect_error(wrong, 2, path + ": metadata \"model\" is " + bundle.model + ", expected ");
  expect_error(run({"verify", path, "--model", "nowhere"}), 3, "--model: nowhere/config.json");
  const std::string other = folder.file("other.safetensors");
  ASSERT_EQ(run({"make-case", "--prefix", "5", "--nodes", "3", other}).code, 0);
  const Outcome outcome = run({"verify", path, other, "--model", golden("q_lora")});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_NE(
      outcome.out.find("  tokens            not checked (the bundle does not hold what follows its layer)"),
      std::string::npos)
      << outcome.out;
  EXPECT_NE(outcome.out.find("2 of 2 bundles pass, 1 token-exact\n"), std::string::npos) << outcome.out;
}

TEST(Tune, KeepsCostsForGenerate) {
  const TemporaryDirectory cache;
  const Environment environment = {{"XDG_CACHE_HOME", cache.path()}};
  const Outcome tuned = run(with_models("tune", {"--json"}), environment);
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  const Json json = Json::parse(tuned.out);
  EXPECT_NE(json["key"].get<std::string>().find(" products, "), std::string::npos) << json["key"];
  EXPECT_EQ(json["rows"][0], 1);
  EXPECT_EQ(json["verify_us"][1].size(), json["rows"].size());
  const Outcome used =
      run(with_models("generate", {"--input-ids", "1,2", "--max-new", "8", "--verbose"}), environment);
  EXPECT_EQ(used.code, 0);
  EXPECT_NE(used.err.find("costs from " + json["file"].get<std::string>()), std::string::npos) << used.err;
  EXPECT_NE(used.err.find(" nodes: "), std::string::npos) << used.err;
}

TEST(Generate, TheRecordHasEachPromptsNodes) {
  const auto nodes = [](const std::string& of, const Arguments& prompts) {
    Arguments arguments = {"--nodes", of, "--max-new", "4", "--json"};
    arguments.insert(arguments.end(), prompts.begin(), prompts.end());
    return Json::parse(run(with_models("generate", arguments)).out)["nodes"];
  };
  EXPECT_EQ(nodes("5", {"--input-ids", "1", "--input-ids", "2"}), Json(5));
  EXPECT_EQ(nodes("0,5", {"--input-ids", "1", "--input-ids", "2"}), Json({0, 5}));
}

}  // namespace
}  // namespace kdtree::cli_test
