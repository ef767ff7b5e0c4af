#include <nlohmann/json.hpp>

#include "tests/cli/command.h"

namespace kdtree::cli_test {
namespace {

const std::vector<std::string> kSmall = {"bench",      "--heads",  "2",        "--latent-dim", "32",
                                         "--rope-dim", "16",       "--prefix", "20",           "--nodes",
                                         "5",          "--repeat", "2",        "--vocab",      "100"};

TEST(Bench, TableNamesItsBaseline) {
  const Outcome outcome = run(kSmall);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part : {"verify-attn   oracle", "verify-attn   cpu", "x oracle", "tree-top-k",
                           "tree-build", "tree-compile", "tree-accept", "GFLOP/s"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << outcome.out;
  }
}

TEST(Bench, JsonLinesHaveTheFieldsOfARecord) {
  std::vector<std::string> arguments = kSmall;
  arguments.push_back("--json");
  const Outcome outcome = run(arguments, {{"KDTREE_COMMIT", "abc123"}});
  std::istringstream lines(outcome.out);
  size_t count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const auto json = nlohmann::json::parse(line);
    for (const char* field : {"bench", "backend", "case", "us", "min_us", "baseline", "baseline_us", "ratio",
                              "machine", "date", "commit"}) {
      EXPECT_TRUE(json.contains(field)) << field << " in " << line;
    }
    EXPECT_EQ(json.contains("tflops") + json.contains("gbps") + json.contains("per_s"), 1) << line;
    EXPECT_GT(json["us"].get<double>(), 0.0);
    EXPECT_LE(json["min_us"], json["us"]);
    EXPECT_EQ(json["commit"], "abc123");
    if (json["bench"] == "verify-attn") {
      EXPECT_EQ(json["baseline"], "oracle");
      EXPECT_NEAR(json["ratio"].get<double>(), json["baseline_us"].get<double>() / json["us"].get<double>(),
                  1e-9);
    }
  }
  EXPECT_EQ(count, 6u);
}

TEST(Bench, UnavailableBackendIsAnError) {
  expect_error(run({"bench", "--backend", "cuda-naive"}), 4, "cuda-naive is not available");
}

}  // namespace
}  // namespace kdtree::cli_test
