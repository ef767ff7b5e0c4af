#include <nlohmann/json.hpp>

#include "attention/backend.h"
#include "tests/cli/command.h"

namespace kdtree::cli_test {
namespace {

TEST(Info, TellsVersionAndBackends) {
  const Outcome outcome = run({"info"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("kdtree 0.1.0 (ABI 1)"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find('\033'), std::string::npos) << "colours in a file";
  for (const Backend& backend : backends()) {
    EXPECT_NE(outcome.out.find(backend.name), std::string::npos);
    EXPECT_NE(outcome.out.find(backend.reason), std::string::npos);
  }
}

TEST(Info, JsonHasTheTableOfBackends) {
  const auto json = nlohmann::json::parse(run({"info", "--json"}).out);
  EXPECT_EQ(json["version"], kdtree_version());
  EXPECT_EQ(json["abi_version"], KDTREE_ABI_VERSION);
  EXPECT_TRUE(json["force_backend"].is_null());
  EXPECT_FALSE(json["simd_compiled"].empty());
  EXPECT_FALSE(json["cpu_features"].empty());
  ASSERT_EQ(json["backends"].size(), backends().size());
  for (size_t i = 0; i < backends().size(); ++i) {
    EXPECT_EQ(json["backends"][i]["name"], backends()[i].name);
    EXPECT_EQ(json["backends"][i]["available"], backends()[i].available);
  }
}

TEST(Info, ShowsTheForcedBackend) {
  const Environment forced = {{"KDTREE_FORCE_BACKEND", "oracle"}};
  EXPECT_NE(run({"info"}, forced).out.find("KDTREE_FORCE_BACKEND=oracle"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(run({"info", "--json"}, forced).out)["force_backend"], "oracle");
}

TEST(Info, ShowsTheForcedCpuTarget) {
  const auto json = nlohmann::json::parse(run({"info", "--json"}).out);
  EXPECT_TRUE(json["cpu_target_error"].is_null());
  for (const auto& target : json["cpu_targets"]) {
    const std::string name = target["name"];
    const auto forced = nlohmann::json::parse(run({"info", "--json"}, {{"KDTREE_CPU_TARGET", name}}).out);
    if (target["supported"].get<bool>()) {
      EXPECT_EQ(forced["cpu_target"], name);
    } else {
      EXPECT_TRUE(forced["cpu_target"].is_null());
      EXPECT_NE(forced["cpu_target_error"].get<std::string>().find(name), std::string::npos);
    }
  }
  EXPECT_NE(
      run({"info"}, {{"KDTREE_CPU_TARGET", "mmx"}}).out.find("KDTREE_CPU_TARGET is \"mmx\", expected one of"),
      std::string::npos);
}

}  // namespace
}  // namespace kdtree::cli_test
