// What `kdtree verify` says and exits with when a backend could not run.
#include "cli/verify_report.h"

#include <gtest/gtest.h>

namespace kdtree::cli {
namespace {

BackendReport unable(const char* name, int32_t code) {
  BackendReport report;
  report.name = name;
  report.error = Error{code, std::string(name) + " lacks something"};
  return report;
}

BundleReport bundle(std::vector<BackendReport> backends) {
  BundleReport report;
  report.file = "a.safetensors";
  report.backends = std::move(backends);
  return report;
}

BackendReport passing(const char* name) {
  BackendReport report;
  report.name = name;
  return report;
}

TEST(VerifyReport, ABackendThatLacksSizesOrTypesIsPassedOverWhereAnotherRan) {
  BundleReport report = bundle({passing("cpu"), unable("cuda-flash-paged", KDTREE_UNSUPPORTED)});
  EXPECT_NE(report.first_error(), nullptr) << "a named backend must run";
  EXPECT_EQ(report_json(report)["passed"], false);
  report.pass_over_unsupported();
  EXPECT_EQ(report.first_error(), nullptr);
  EXPECT_FALSE(report.mismatched());
  EXPECT_EQ(report_json(report)["passed"], true);
  EXPECT_EQ(report_json(report)["backends"][1]["status"], "not supported");
  EXPECT_NE(
      report_text(report, false).find("cuda-flash-paged  not supported  cuda-flash-paged lacks something\n"),
      std::string::npos)
      << report_text(report, false);
}

TEST(VerifyReport, TokensAreThoseOfTheBackendsThatRan) {
  BundleReport report = bundle({passing("cpu"), unable("cuda-flash-paged", KDTREE_UNSUPPORTED)});
  report.backends[0].tokens = TokenCheck{};
  ASSERT_TRUE(report.backends[0].tokens->exact());
  EXPECT_FALSE(report.token_exact());
  report.pass_over_unsupported();
  EXPECT_TRUE(report.token_exact());
}

TEST(VerifyReport, NothingPassesByNotBeingRun) {
  BundleReport none = bundle({unable("cpu", KDTREE_UNSUPPORTED), unable("cuda-naive", KDTREE_UNSUPPORTED)});
  none.pass_over_unsupported();
  ASSERT_NE(none.first_error(), nullptr);
  EXPECT_EQ(none.first_error()->message, "cpu lacks something");
  BundleReport broken = bundle({passing("cpu"), unable("cuda-naive", KDTREE_CUDA_ERROR)});
  broken.pass_over_unsupported();
  ASSERT_NE(broken.first_error(), nullptr);
  EXPECT_EQ(broken.first_error()->code, KDTREE_CUDA_ERROR);
}

}  // namespace
}  // namespace kdtree::cli
