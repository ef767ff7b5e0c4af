#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "io/npy.h"
#include "io/safetensors.h"
#include "tests/cli/command.h"
#include "tests/cli/xml_check.h"

namespace kdtree::cli_test {
namespace {

using Json = nlohmann::json;

// Two positions over four tokens with probabilities that are known: [.5 .25 .125 .125], [.75 .25 0 0].
Tensor small_logits(DType dtype) {
  Tensor logits(dtype, {2, 4});
  const double probabilities[] = {0.5, 0.25, 0.125, 0.125, 0.75, 0.25, 0.0, 0.0};
  for (int64_t i = 0; i < 8; ++i)
    logits.set(i, std::log(probabilities[i]));
  return logits;
}

void write(const std::string& path, const Tensor& tensor) {
  const Status status = write_npy(path, tensor);
  ASSERT_TRUE(status) << status.error().message;
}

Tensor target_tokens(const std::vector<int64_t>& tokens) {
  return Tensor::from<int64_t>(DType::i64, tokens);
}

TEST(Tree, FileGivesTheMostProbablePrefixes) {
  const TemporaryDirectory folder;
  for (const DType dtype : {DType::f32, DType::f16}) {
    write(folder.file("logits.npy"), small_logits(dtype));
    const Outcome outcome = run(
        {"tree", folder.file("logits.npy"), "--nodes", "4", "--root-token", "9", "--start", "100", "--json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const Json json = Json::parse(outcome.out);
    // By weight: "0" .5, "0 0" .375, "1" .25, "1 0" .1875.
    EXPECT_EQ(json["tokens"], Json({9, 0, 0, 1, 0}));
    EXPECT_EQ(json["parents"], Json({-1, 0, 1, 0, 3}));
    EXPECT_EQ(json["depths"], Json({0, 1, 2, 1, 2}));
    EXPECT_EQ(json["positions"], Json({100, 101, 102, 101, 102}));
    EXPECT_EQ(json["retrieve_next_token"], Json({1, 2, -1, 4, -1}));
    EXPECT_EQ(json["retrieve_next_sibling"], Json({-1, 3, -1, -1, -1}));
    EXPECT_EQ(json["ancestor_bits"][4], "0x0000000000000019");
    EXPECT_NEAR(json["expected_accept_length"].get<double>(), 1 + .5 + .375 + .25 + .1875, 1e-3);
    EXPECT_NEAR(json["probabilities"][2].get<double>(), 0.75, 1e-3);
    EXPECT_FALSE(json.contains("accept_path")) << "no target was given";
  }
}

TEST(Tree, TargetFileSelectsTheAcceptedPath) {
  const TemporaryDirectory folder;
  write(folder.file("logits.npy"), small_logits(DType::f32));
  write(folder.file("target.npy"), target_tokens({1, 5, 5, 0, 3}));
  const std::vector<std::string> arguments = {"tree",     folder.file("logits.npy"), "--nodes", "4",
                                              "--target", folder.file("target.npy")};
  auto json_arguments = arguments;
  json_arguments.push_back("--json");
  const Json json = Json::parse(run(json_arguments).out);
  EXPECT_EQ(json["accept_path"], Json({0, 3, 4}));
  EXPECT_EQ(json["emitted_tokens"], Json({1, 0, 3}));
  EXPECT_EQ(json["next_root"], 3);
  EXPECT_EQ(json["accept_count"], 3);

  const std::string text = run(arguments, {{"LC_ALL", "C"}}).out;
  EXPECT_NE(text.find("  |- 0     0.5000  0.5000\n"
                      "  |  `- 0  0.7500  0.3750\n"
                      "* `- 1     0.2500  0.2500\n"
                      "*    `- 0  0.7500  0.1875\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("4 nodes and the root, depth 2, expected accept length 2.31, accept length 3"),
            std::string::npos)
      << text;
  EXPECT_NE(run(arguments, {{"LC_ALL", "C.UTF-8"}}).out.find("●    └─ 0"), std::string::npos);
}

TEST(Tree, SafetensorsNeedANameWhenThereAreSeveral) {
  const TemporaryDirectory folder;
  const std::string path = folder.file("logits.safetensors");
  const Tensor a = small_logits(DType::bf16);
  const Tensor b(DType::i32, {3});
  ASSERT_TRUE(write_safetensors(path, {{"draft", &a}, {"other", &b}}, {}));
  EXPECT_EQ(run({"tree", path, "--tensor", "draft", "--nodes", "3"}).code, 0);
  expect_error(run({"tree", path}), 2, "holds 2 tensors, expected the name of one: draft, other");
  expect_error(run({"tree", path, "--tensor", "drift"}), 2, "--tensor: 'drift' is not in");
  expect_error(run({"tree", path, "--tensor", "other"}), 3, "shape [3], expected [positions, vocab]");
}

TEST(Tree, RandomIsTheSameForTheSameSeed) {
  const std::vector<std::string> arguments = {"tree", "--random", "--seed", "7", "--json"};
  const std::string first = run(arguments).out;
  EXPECT_EQ(run(arguments).out, first);
  const Json json = Json::parse(first);
  EXPECT_EQ(json["nodes"], 17);
  EXPECT_TRUE(json.contains("accept_path")) << "a target is simulated";
  EXPECT_NE(run({"tree", "--random", "--seed", "8", "--json"}).out, first);
  const Json greedy =
      Json::parse(run({"tree", "--random", "--seed", "7", "--accept", "greedy", "--json"}).out);
  // A target that takes the drafter's best token everywhere accepts the most probable chain.
  EXPECT_EQ(greedy["accept_count"].get<int>(), greedy["depth"].get<int>() + 1);
  EXPECT_FALSE(
      Json::parse(run({"tree", "--random", "--accept", "none", "--json"}).out).contains("accept_path"));
}

TEST(Tree, BudgetZeroIsTheRootAlone) {
  const Json json = Json::parse(run({"tree", "--random", "--nodes", "0", "--json"}).out);
  EXPECT_EQ(json["nodes"], 1);
  EXPECT_EQ(json["accept_count"], 1);
}

TEST(Tree, SvgIsWellFormed) {
  const TemporaryDirectory folder;
  for (const char* nodes : {"0", "1", "24", "700"}) {
    ASSERT_EQ(run({"tree", "--random", "--nodes", nodes, "--svg", folder.file("tree.svg")}).code, 0);
    const std::string svg = read_file(folder.file("tree.svg"));
    EXPECT_EQ(xml_problem(svg), "") << nodes;
    EXPECT_EQ(svg.rfind("<svg xmlns=\"http://www.w3.org/2000/svg\"", 0), 0u);
    // One box and one tooltip a node, and a background of its own.
    size_t boxes = 0;
    for (size_t at = svg.find("<rect class=\"node"); at != std::string::npos;
         at = svg.find("<rect class=\"node", at + 1))
      ++boxes;
    EXPECT_EQ(boxes, std::stoul(nodes) + 1);
    EXPECT_NE(svg.find("fill=\"#fcfdfe\""), std::string::npos);
    EXPECT_NE(svg.find("class=\"node on\""), std::string::npos) << "the root is always accepted";
  }
}

TEST(Tree, XmlCheckItselfRejects) {
  EXPECT_NE(xml_problem("<a><b></a></b>"), "");
  EXPECT_NE(xml_problem("<a x=\"1\" x=\"2\"/>"), "");
  EXPECT_NE(xml_problem("<a>1 & 2</a>"), "");
  EXPECT_NE(xml_problem("<a>"), "");
  EXPECT_EQ(xml_problem("<a x=\"1\">1 &lt; 2<b/></a>\n"), "");
}

TEST(Tree, BadInputIsNamed) {
  const TemporaryDirectory folder;
  expect_error(run({"tree"}), 2, "LOGITS: none, expected a file or --random");
  expect_error(run({"tree", "a.npy", "--random"}), 2, "not both");
  expect_error(run({"tree", "a.npy", "--vocab", "9"}), 2, "--vocab requires --random");
  expect_error(run({"tree", "logits.txt"}), 2, "expected a .npy or .safetensors file");
  expect_error(run({"tree", folder.file("none.npy")}), 3, "none.npy");
  expect_error(run({"tree", "--random", "--vocab", "10", "--top-k", "11"}), 2,
               "expected at most the vocabulary's 10");
  expect_error(run({"tree", "--random", "--svg", "/nowhere/tree.svg"}), 3, "/nowhere/tree.svg");

  Tensor logits = small_logits(DType::f32);
  logits.set(5, std::numeric_limits<double>::quiet_NaN());
  write(folder.file("nan.npy"), logits);
  expect_error(run({"tree", folder.file("nan.npy")}), 3, "position 1");
  write(folder.file("flat.npy"), Tensor(DType::f32, {8}));
  expect_error(run({"tree", folder.file("flat.npy")}), 3, "shape [8], expected [positions, vocab]");
  write(folder.file("double.npy"), Tensor(DType::f64, {2, 4}));
  expect_error(run({"tree", folder.file("double.npy")}), 3, "element type f64, expected f32, bf16 or f16");
  write(folder.file("logits.npy"), small_logits(DType::f32));
  write(folder.file("short.npy"), target_tokens({1, 2}));
  expect_error(run({"tree", folder.file("logits.npy"), "--nodes", "4", "--target", folder.file("short.npy")}),
               3, "shape [2], expected [5]");
  write(folder.file("negative.npy"), target_tokens({1, 2, 3, -4, 0}));
  expect_error(
      run({"tree", folder.file("logits.npy"), "--nodes", "4", "--target", folder.file("negative.npy")}), 3,
      "element 3 is -4");
}

}  // namespace
}  // namespace kdtree::cli_test
