// What proposes the next tokens: a distribution for each of the positions that follow a request's last token.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/status.h"

namespace kdtree {

// What a drafter remembers of one request.
class DraftState {
 public:
  virtual ~DraftState() = default;
};

struct DraftQuery {
  DraftState* state;
  int32_t root_token;  // the last token, which the target has not computed yet
};

class Drafter {
 public:
  virtual ~Drafter() = default;

  // Most positions that it proposes, >= 1.
  virtual int64_t depth() const = 0;
  // Fewest that it was made for, >= 1: fewer cost less.
  virtual int64_t least_depth() const { return depth(); }
  // The target's layers whose outputs it is told, for TargetModel::set_feature_layers.
  virtual std::vector<int64_t> feature_layers() const = 0;

  virtual std::unique_ptr<DraftState> start() const = 0;
  // What it remembers of the first `length` tokens of another request.
  virtual std::unique_ptr<DraftState> fork(DraftState& state, int64_t length) = 0;
  // Tokens that the target has committed, and its features of each [tokens, feature layers * hidden].
  virtual void extend(DraftState& state, std::span<const int32_t> tokens,
                      std::span<const float> features) = 0;
  // Logits [queries, depth, vocab] of the tokens behind each root, until the next call. `depth` is one of
  // least_depth() ... depth().
  virtual std::span<const float> propose(std::span<const DraftQuery> queries, int64_t depth) = 0;
};

}  // namespace kdtree
