// Records verify steps of a generation as bundles.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "io/bundle.h"

namespace kdtree {

class BundleRecorder {
 public:
  struct Options {
    int64_t layer = 0;
    int64_t from = 0;   // first round that is recorded
    int64_t every = 1;  // rounds from one recorded to the next
    int64_t most = 1;   // bundles
    // Element type of q and out, f32 or bf16. What is computed from the rounded q is recorded as out; target
    // tokens and paths are the generation's.
    DType dtype = DType::f32;
    std::map<std::string, std::string> provenance;  // the round's number comes to it
  };
  // Takes a finished bundle and the round's number. An error ends the recording, and is status().
  using Sink = std::function<Status(int64_t round, const Bundle& bundle)>;

  // Watches `engine`, which runs `target`, from now on: it must live as long as the engine takes steps.
  // Errors: those of TargetModel::fingerprint.
  static Result<std::unique_ptr<BundleRecorder>> create(Engine& engine, const TargetModel& target,
                                                        Options options, Sink sink);
  BundleRecorder(const BundleRecorder&) = delete;
  BundleRecorder& operator=(const BundleRecorder&) = delete;

  int64_t recorded() const { return recorded_; }
  const Status& status() const { return state_; }

 private:
  BundleRecorder(Options options, Sink sink, std::string model, std::vector<int32_t> eos_tokens);
  Status on_verify(int64_t layer, const VerifyProblem& problem, std::span<const float> residual);
  Status start(const VerifyProblem& problem, std::span<const float> residual);
  void on_round(const RoundView& round);
  void finish();

  Options options_;
  Sink sink_;
  std::string model_;
  std::vector<int32_t> eos_tokens_;
  Status state_;
  int64_t round_ = -1;
  int64_t recorded_ = 0;
  Bundle bundle_;
  std::vector<int64_t> slots_;  // of the pool, that the bundle has
  int64_t requests_left_ = 0;   // of the bundle at work
  std::vector<std::vector<int32_t>> paths_;
  SamplingScratch sampling_;
};

}  // namespace kdtree
