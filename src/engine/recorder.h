// Records verify steps of a generation as bundles.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "engine/engine.h"
#include "io/bundle.h"

namespace kdtree {

class BundleRecorder {
 public:
  struct Options {
    int64_t layer = 0;
    int64_t every = 1;  // rounds from one recorded to the next
    int64_t most = 1;   // bundles
    std::map<std::string, std::string> provenance;
  };
  // Takes a finished bundle and the round's number. An error ends the recording, and is status().
  using Sink = std::function<Status(int64_t round, const Bundle& bundle)>;

  // Watches `engine` from now on, and must stay where it is as long as that.
  BundleRecorder(Engine& engine, Options options, Sink sink);
  BundleRecorder(const BundleRecorder&) = delete;
  BundleRecorder& operator=(const BundleRecorder&) = delete;

  int64_t recorded() const { return recorded_; }
  const Status& status() const { return state_; }

 private:
  Status on_verify(int64_t layer, const VerifyProblem& problem);
  void on_round(const RoundView& round);
  void finish();

  Options options_;
  Sink sink_;
  Status state_;
  int64_t round_ = -1;
  int64_t recorded_ = 0;
  Bundle bundle_;
  int64_t requests_left_ = 0;  // of the bundle at work
  std::vector<std::vector<int32_t>> paths_;
  SamplingScratch sampling_;
};

// A copy of `problem` and of the arrays it points to: of the pool only the rows that it uses, in their order.
// For the problems that TargetModel makes: contiguous, int32 indptr arrays, parents, drafts in the pool.
OwnedProblem copy_problem(const VerifyProblem& problem);

}  // namespace kdtree
