// What every subcommand shares: help, versions, usage errors, signals and pipes.
#include <fmt/format.h>

#include "tests/cli/command.h"

namespace kdtree::cli_test {
namespace {

TEST(Usage, VersionIsTheLibrarys) {
  const Outcome outcome = run({"--version"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "kdtree 0.1.0\n");
}

TEST(Usage, HelpOfEachSubcommandHasExamples) {
  for (const char* command : {"info", "tree", "make-case", "verify", "bench"}) {
    const Outcome outcome = run({command, "--help"});
    EXPECT_EQ(outcome.code, 0) << command;
    EXPECT_NE(outcome.out.find(std::string("  kdtree ") + command), std::string::npos) << outcome.out;
    EXPECT_EQ(outcome.err, "");
  }
  EXPECT_NE(run({"--help"}).out.find("make-case"), std::string::npos);
}

TEST(Usage, ErrorsNameTheOptionTheValueAndWhatWasExpected) {
  expect_error(run({}), 2, "no subcommand, expected one of generate");
  expect_error(run({"tre"}), 2,
               "subcommand 'tre', expected one of generate, tune, capture, info, tree, make-case, verify, "
               "bench; did you mean 'tree'?");
  expect_error(run({"tree", "--random", "--nodes", "-1"}), 2,
               "--nodes: '-1', expected an integer in 0 .. 65536");
  expect_error(run({"tree", "--random", "--nodes", "12x"}), 2, "--nodes: '12x', expected an integer");
  expect_error(run({"tree", "--random", "--seed", "-3"}), 2,
               "--seed: '-3', expected an integer in 0 .. 2^64 - 1");
  expect_error(run({"make-case", "--latent-dim", "100", "x"}), 2,
               "--latent-dim: '100', expected a multiple of 16");
  expect_error(run({"make-case", "--logit-cap", "nan", "x"}), 2, "--logit-cap: 'nan', expected a number");
  expect_error(run({"make-case", "--shape", "combs", "x"}), 2, "did you mean 'comb'?");
  expect_error(run({"make-case", "--nodes", "1,,2", "x"}), 2,
               "--nodes: '', expected an integer in 1 .. 65536");
  expect_error(run({"make-case", "--prefix", "7,8x", "x"}), 2, "--prefix: '8x', expected an integer");
  expect_error(run({"verify"}), 2, "PATH");
  expect_error(run({"tree", "--bogus"}), 2, "--bogus");
}

TEST(Usage, CtrlCStopsWithCode130) {
  // The oracle takes seconds for this shape: it is running when the signal comes.
  const RunningCommand command({"bench", "--heads", "64", "--prefix", "8000", "--nodes", "33", "--json"});
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  command.interrupt();
  const Outcome outcome = command.wait();
  EXPECT_EQ(outcome.code, 130);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "kdtree: interrupted\n");
}

TEST(Usage, CtrlCLeavesNoPartialFile) {
  const TemporaryDirectory folder;
  const RunningCommand command({"make-case", "--heads", "64", "--prefix", "4000", "--nodes", "65",
                                "--with-output", folder.file("a.safetensors")});
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  command.interrupt();
  EXPECT_EQ(command.wait().code, 130);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Usage, ClosedPipeIsHarmless) {
  const TemporaryDirectory folder;
  // The reader leaves at once; the command must say nothing and succeed all the same.
  const std::string script =
      fmt::format("bash -c '{{ {} tree --random --nodes 4000 --json; echo \"code $?\" >&2; }} 2> {} | true'",
                  KDTREE_COMMAND, folder.file("err"));
  EXPECT_EQ(std::system(script.c_str()), 0);
  EXPECT_EQ(read_file(folder.file("err")), "code 0\n");
}

TEST(Usage, AFullDeviceIsAnError) {
  const TemporaryDirectory folder;
  const std::string script =
      fmt::format("{} tree --random > /dev/full 2> {}", KDTREE_COMMAND, folder.file("err"));
  const int status = std::system(script.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 3);
  EXPECT_EQ(read_file(folder.file("err")), "kdtree: error: standard output: No space left on device\n");
}

}  // namespace
}  // namespace kdtree::cli_test
