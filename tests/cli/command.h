// Runs the `kdtree` binary and keeps what it says.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/temporary_directory.h"

namespace kdtree::cli_test {

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Outcome {
  int code = -1;  // exit code; -signal when a signal ended it
  std::string out;
  std::string err;
};

using Environment = std::vector<std::pair<std::string, std::string>>;

class RunningCommand {
 public:
  explicit RunningCommand(std::vector<std::string> arguments, const Environment& environment = {}) {
    arguments.insert(arguments.begin(), KDTREE_COMMAND);
    std::vector<char*> argv;
    for (std::string& argument : arguments)
      argv.push_back(argument.data());
    argv.push_back(nullptr);
    process_ = fork();
    if (process_ != 0) return;
    redirect(folder_.file("out"), STDOUT_FILENO);
    redirect(folder_.file("err"), STDERR_FILENO);
    unsetenv("KDTREE_FORCE_BACKEND");
    unsetenv("KDTREE_CPU_TARGET");
    unsetenv("KDTREE_COMMIT");
    for (const auto& [name, value] : environment)
      setenv(name.c_str(), value.c_str(), 1);
    execv(argv[0], argv.data());
    _exit(127);
  }

  void interrupt() const { kill(process_, SIGINT); }

  Outcome wait() const {
    int status = 0;
    waitpid(process_, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), read_file(folder_.file("out")),
            read_file(folder_.file("err"))};
  }

 private:
  static void redirect(const std::string& path, int to) {
    const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(descriptor, to);
  }

  TemporaryDirectory folder_;
  pid_t process_ = 0;
};

inline Outcome run(std::vector<std::string> arguments, const Environment& environment = {}) {
  return RunningCommand(std::move(arguments), environment).wait();
}

// An error is one line on standard error, named as such, and nothing on standard output.
inline void expect_error(const Outcome& outcome, int code, const std::string& part) {
  EXPECT_EQ(outcome.code, code) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err.rfind("kdtree: error: ", 0), 0u) << outcome.err;
  EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << outcome.err;
  EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
}

}  // namespace kdtree::cli_test
