// make-case and verify: what one writes the other passes, and every way of tampering is found.
#include <limits>

#include <nlohmann/json.hpp>

#include "io/bundle.h"
#include "tests/cli/command.h"

namespace kdtree::cli_test {
namespace {

using Json = nlohmann::json;

std::string make_case(const TemporaryDirectory& folder, const std::string& name,
                      std::vector<std::string> options = {}) {
  std::vector<std::string> arguments = {"make-case", "--heads",    "4",   "--latent-dim",
                                        "64",        "--rope-dim", "16",  "--prefix",
                                        "50,0",      "--nodes",    "9,4", "--with-output"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.push_back(folder.file(name));
  const Outcome outcome = run(arguments);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return folder.file(name);
}

Bundle load(const std::string& path) {
  auto bundle = read_bundle(path);
  if (!bundle) {
    ADD_FAILURE() << bundle.error().message;
    return {};
  }
  return *std::move(bundle);
}

void save(const std::string& path, const Bundle& bundle) {
  const Status status = write_bundle(path, bundle);
  ASSERT_TRUE(status) << status.error().message;
}

TEST(MakeCase, RecordsAVerifyStep) {
  const TemporaryDirectory folder;
  const Bundle bundle = load(make_case(folder, "a.safetensors"));
  EXPECT_EQ(bundle.problem.scalars.batch, 2);
  EXPECT_EQ(bundle.tokens.size(), 13);
  EXPECT_EQ(bundle.target_tokens.size(), 13);
  EXPECT_EQ(bundle.accept_count.size(), 2);
  EXPECT_TRUE(bundle.problem.out.present());
  EXPECT_TRUE(bundle.problem.lse.present());
  EXPECT_EQ(bundle.provenance.at("version"), kdtree_version());
  EXPECT_EQ(bundle.provenance.at("seed"), "1");
  EXPECT_EQ(bundle.provenance.at("command").rfind("kdtree make-case --heads 4", 0), 0u);
  EXPECT_EQ(bundle.provenance.at("command").find(folder.path()), std::string::npos);
}

TEST(MakeCase, ProvenanceMakesTheSameBytes) {
  const TemporaryDirectory folder;
  const std::string first = make_case(folder, "a.safetensors", {"--seed", "5", "--shape", "comb"});
  const std::string shell = load(first).provenance.at("command");
  std::vector<std::string> arguments;
  std::istringstream words(shell.substr(std::string("kdtree ").size()));
  for (std::string word; words >> word;)
    arguments.push_back(word);
  arguments.push_back(folder.file("b.safetensors"));
  ASSERT_EQ(run(arguments).code, 0);
  EXPECT_EQ(read_file(folder.file("b.safetensors")), read_file(first));
}

TEST(MakeCase, RejectsWhatNoMachineHolds) {
  expect_error(run({"make-case", "--prefix", "2000000000", "--batch", "60000", "/tmp/x"}), 4,
               "--prefix, --nodes, --batch, --heads: these sizes need");
  expect_error(run({"make-case", "--prefix", "1,2", "--nodes", "3,4,5", "x"}), 2,
               "--prefix: 2 values, expected 1 or 3");
  expect_error(run({"make-case", "--encoding", "chain", "x"}), 2, "expected --shape chain");
  expect_error(run({"make-case", "/nowhere/a.safetensors"}), 3, "/nowhere/a.safetensors");
}

TEST(Verify, PassesEveryKindOfBundle) {
  const TemporaryDirectory folder;
  make_case(folder, "a.safetensors");
  make_case(folder, "b.safetensors", {"--dtype", "f32", "--encoding", "parents", "--index", "i64"});
  make_case(folder, "c.safetensors", {"--dtype", "f16", "--encoding", "mask", "--draft", "separate"});
  make_case(folder, "d.safetensors", {"--kv-dtype", "e4m3", "--encoding", "chain", "--shape", "chain"});
  make_case(folder, "e.safetensors", {"--page-size", "16", "--logit-cap", "30", "--shape", "star"});
  const Outcome outcome = run({"verify", folder.path(), "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json["passed"], true);
  ASSERT_EQ(json["bundles"].size(), 5u);
  EXPECT_EQ(json["bundles"][0]["file"], folder.file("a.safetensors"));
  for (const Json& bundle : json["bundles"]) {
    EXPECT_EQ(bundle["acceptance"]["status"], "pass");
    ASSERT_EQ(bundle["backends"].size(), 2u);
    EXPECT_EQ(bundle["backends"][0]["name"], "cpu");
    EXPECT_EQ(bundle["backends"][1]["name"], "recorded");
    for (const Json& backend : bundle["backends"]) {
      EXPECT_EQ(backend["status"], "pass") << bundle;
      EXPECT_LT(backend["relative_error"], backend["tolerance"]);
      EXPECT_EQ(backend["rows"], 13 * 4);
    }
  }
  EXPECT_NE(run({"verify", folder.path()}).out.find("5 of 5 bundles pass\n"), std::string::npos);
}

TEST(Verify, NamesTheTamperedRow) {
  const TemporaryDirectory folder;
  const std::string path = make_case(folder, "a.safetensors");
  Bundle bundle = load(path);
  // Request 1 starts at row 9: its node 2, head 3, element 17.
  const int64_t element = ((9 + 2) * 4 + 3) * 64 + 17;
  bundle.problem.out.set(element, bundle.problem.out.value(element) + 1.0);
  save(path, bundle);
  const Outcome text = run({"verify", path});
  EXPECT_EQ(text.code, 1);
  EXPECT_NE(text.out.find("1 of 52 rows differ"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("request 1 node 2 head 3: out[17] is "), std::string::npos) << text.out;
  const Json json = Json::parse(run({"verify", path, "--json"}).out);
  EXPECT_EQ(json["passed"], false);
  EXPECT_EQ(json["bundles"][0]["backends"][0]["status"], "pass") << "the backend is right, the record is not";
  const Json& recorded = json["bundles"][0]["backends"][1];
  EXPECT_EQ(recorded["status"], "fail");
  EXPECT_EQ(recorded["mismatches"][0]["index"], 17);
  EXPECT_EQ(run({"verify", path, "--tolerance", "1000"}).code, 0);
}

TEST(Verify, NaNNeverPasses) {
  const TemporaryDirectory folder;
  const std::string path = make_case(folder, "a.safetensors");
  Bundle bundle = load(path);
  bundle.problem.out.set(5, std::numeric_limits<double>::quiet_NaN());
  save(path, bundle);
  const Outcome outcome = run({"verify", path, "--tolerance", "1e300"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.out.find("request 0 node 0 head 0: out[5] is nan"), std::string::npos) << outcome.out;
  EXPECT_TRUE(Json::parse(run({"verify", path, "--json"}).out)["bundles"][0]["backends"][1]["max_abs_error"]
                  .is_null());
}

TEST(Verify, ComparesTheLse) {
  const TemporaryDirectory folder;
  const std::string path = make_case(folder, "a.safetensors");
  Bundle bundle = load(path);
  bundle.problem.lse.set(6, bundle.problem.lse.value(6) + 0.5);
  save(path, bundle);
  const Outcome outcome = run({"verify", path});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.out.find("request 0 node 1 head 2: lse is "), std::string::npos) << outcome.out;
}

TEST(Verify, WalksTheAcceptanceAgain) {
  const TemporaryDirectory folder;
  const std::string path = make_case(folder, "a.safetensors");
  Bundle bundle = load(path);
  // A target token that no child of the root has: the walk stops at once.
  bundle.target_tokens.as<int32_t>()[0] = 1 << 30;
  bundle.accept_count.as<int32_t>()[0] = 1;
  save(path, bundle);
  EXPECT_EQ(run({"verify", path}).code, 0) << "a changed target with its own path is right";
  bundle.accept_count.as<int32_t>()[0] = 0;
  save(path, bundle);
  const Outcome outcome = run({"verify", path});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.out.find("acceptance        FAIL  request 0: path 0, recorded "), std::string::npos)
      << outcome.out;
}

TEST(Verify, AcceptedPathsEndWithTheText) {
  const TemporaryDirectory folder;
  const std::string path = make_case(folder, "a.safetensors", {"--shape", "chain"});
  Bundle bundle = load(path);
  for (size_t node = 0; node < 8; ++node)
    bundle.target_tokens.as<int32_t>()[node] = bundle.tokens.as<int32_t>()[node + 1];
  bundle.eos_tokens = Tensor(DType::i32, {1});
  bundle.eos_tokens.as<int32_t>()[0] = bundle.tokens.as<int32_t>()[3];
  bundle.accept_path = Tensor(DType::i32, {2, 3});
  bundle.accept_path.as<int32_t>()[1] = 1;
  bundle.accept_path.as<int32_t>()[2] = 2;
  bundle.accept_count.as<int32_t>()[0] = 3;
  bundle.target_tokens.as<int32_t>()[9] = 1 << 30;
  bundle.accept_count.as<int32_t>()[1] = 1;
  save(path, bundle);
  EXPECT_EQ(run({"verify", path}).code, 0);
  bundle.eos_tokens = {};
  save(path, bundle);
  EXPECT_EQ(run({"verify", path}).code, 1) << "without it the path goes on";
}

TEST(Verify, ShowLimitsTheRows) {
  const TemporaryDirectory folder;
  const std::string path = make_case(folder, "a.safetensors");
  Bundle bundle = load(path);
  for (int64_t i = 0; i < bundle.problem.out.size(); i += 64)
    bundle.problem.out.set(i, 100.0);
  save(path, bundle);
  const std::string text = run({"verify", path, "--show", "2"}).out;
  EXPECT_NE(text.find("52 of 52 rows differ"), std::string::npos) << text;
  EXPECT_NE(text.find("and 50 more"), std::string::npos) << text;
}

TEST(Verify, ShippedBundlesAreTokenExact) {
  const std::string root = KDTREE_SOURCE_DIR;
  const Outcome outcome =
      run({"verify", root + "/bundles", "--model", root + "/models/tiny/target", "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  const Json json = Json::parse(outcome.out);
  ASSERT_EQ(json["bundles"].size(), 6u);
  for (const Json& bundle : json["bundles"]) {
    ASSERT_EQ(bundle["backends"].size(), 2u);
    for (const Json& backend : bundle["backends"])
      EXPECT_EQ(backend["tokens"]["exact"], true) << bundle["file"];
  }
}

TEST(Verify, AnEmptySelectionIsAnError) {
  const TemporaryDirectory folder;
  expect_error(run({"verify", folder.path()}), 3, "no *.safetensors file");
  expect_error(run({"verify", folder.file("none.safetensors")}), 3, "none.safetensors");
  const std::string path = make_case(folder, "a.safetensors");
  expect_error(run({"verify", path, "--backend", "cqu"}), 2, "did you mean 'cpu'?");
  expect_error(run({"verify", path, "--backend", "cuda-sm90"}), 4, "cuda-sm90 is not available: required");
  expect_error(run({"verify", path}, {{"KDTREE_FORCE_BACKEND", "cuda-sm90"}}), 4, "KDTREE_FORCE_BACKEND");
}

TEST(Verify, ChosenBackendsRunInOrder) {
  const TemporaryDirectory folder;
  const std::string path = make_case(folder, "a.safetensors");
  const Json chosen =
      Json::parse(run({"verify", path, "--backend", "oracle", "--backend", "cpu", "--json"}).out);
  EXPECT_EQ(chosen["bundles"][0]["backends"][0]["name"], "oracle");
  EXPECT_EQ(chosen["bundles"][0]["backends"][1]["name"], "cpu");
  const Json forced = Json::parse(run({"verify", path, "--json"}, {{"KDTREE_FORCE_BACKEND", "oracle"}}).out);
  EXPECT_EQ(forced["bundles"][0]["backends"][0]["name"], "oracle");
}

TEST(Verify, ADamagedFileDoesNotHideTheOthers) {
  const TemporaryDirectory folder;
  const std::string good = make_case(folder, "b.safetensors");
  std::ofstream(folder.file("a.safetensors")) << read_file(good).substr(0, 1000);
  const Outcome outcome = run({"verify", folder.path()});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_NE(outcome.err.find("kdtree: error: " + folder.file("a.safetensors")), std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.out.find("1 of 2 bundles pass"), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace kdtree::cli_test
