// Goes on from the attention of a recorded round to its target tokens.
#pragma once

#include <string>
#include <vector>

#include "io/bundle.h"
#include "model/sampling.h"
#include "model/target_model.h"

namespace kdtree {

// A row of a bundle's trees; padding rows are none.
struct ReplayedRow {
  int64_t row = 0;  // in the [T, ...] arrays
  int32_t request = 0;
  int32_t node = 0;
  int32_t token = 0;  // the target's, as the recorded settings sample it; -1: a logit is not a number
  bool sampled = false;
  float gap = 0.0f;  // the largest logit above the second: how close another greedy token was
};

class BundleReplay {
 public:
  // `target` must outlive the object. Errors: those of TargetModel::fingerprint.
  static Result<BundleReplay> create(TargetModel& target);

  // Whether `bundle`, which is resumable(), is of this model. Errors: KDTREE_INVALID_ARGUMENT with the hashes
  // of both where it is of another; KDTREE_INVALID_FILE with the field, its value and the model's.
  Status check(const Bundle& bundle) const;

  // The rows when attention gave `result`.out: what follows its layer runs here, in the CPU's arithmetic. The
  // sizes of `result` are those of the bundle. Errors: those of check(); KDTREE_INVALID_FILE for sampling
  // settings; KDTREE_INVALID_TREE; those of KV pool and model.
  Result<std::vector<ReplayedRow>> run(const Bundle& bundle, const VerifyProblem& result);

 private:
  BundleReplay(TargetModel& target, std::string model) : target_(target), model_(std::move(model)) {}

  TargetModel& target_;
  std::string model_;
  SamplingScratch sampling_;
};

}  // namespace kdtree
