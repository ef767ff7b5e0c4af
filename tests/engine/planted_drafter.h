// A drafter that is right as often as a test wants: it knows how the requests go on and hides the right token
// at some rank of its distribution.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cases/random.h"
#include "model/drafter.h"

namespace kdtree {

class PlantedDrafter : public Drafter {
 public:
  // `truth`: whole sequences, prompts included. Per position the right token is the best with probability
  // `sure`, one of the next few or absent otherwise.
  PlantedDrafter(std::vector<std::vector<int32_t>> truth, int64_t vocab, int64_t depth, double sure)
      : truth_(std::move(truth)), vocab_(vocab), depth_(depth), sure_(sure) {}

  int64_t depth() const override { return depth_; }
  std::vector<int64_t> feature_layers() const override { return {0}; }
  std::unique_ptr<DraftState> start() const override { return std::make_unique<State>(); }
  std::unique_ptr<DraftState> fork(DraftState& state, int64_t length) override {
    auto copy = std::make_unique<State>(static_cast<State&>(state));
    copy->tokens.resize(static_cast<size_t>(length));
    return copy;
  }
  void extend(DraftState& state, std::span<const int32_t> tokens, std::span<const float>) override {
    auto& own = static_cast<State&>(state).tokens;
    own.insert(own.end(), tokens.begin(), tokens.end());
  }
  std::span<const float> propose(std::span<const DraftQuery> queries, int64_t depth) override {
    logits_.clear();
    for (const DraftQuery& query : queries) {
      std::vector<int32_t> seen = static_cast<State*>(query.state)->tokens;
      seen.push_back(query.root_token);
      const auto known = std::find_if(truth_.begin(), truth_.end(), [&](const auto& sequence) {
        return sequence.size() >= seen.size() && std::equal(seen.begin(), seen.end(), sequence.begin());
      });
      for (int64_t d = 0; d < depth; ++d) {
        const size_t position = seen.size() + static_cast<size_t>(d);
        const bool has = known != truth_.end() && position < known->size();
        add_row(has ? (*known)[position] : -1, position);
      }
    }
    return logits_;
  }

 private:
  struct State : DraftState {
    std::vector<int32_t> tokens;
  };

  void add_row(int32_t right, size_t position) {
    Random random(1000 * position + static_cast<size_t>(right + 1));
    const size_t at = logits_.size();
    for (int64_t v = 0; v < vocab_; ++v)
      logits_.push_back(static_cast<float>(random.normal()));
    if (right < 0) return;
    const double u = random.uniform();
    const float boost = u < sure_ ? 6.0f : static_cast<float>(4.0 * random.normal());
    logits_[at + static_cast<size_t>(right)] += boost;
  }

  std::vector<std::vector<int32_t>> truth_;
  int64_t vocab_;
  int64_t depth_;
  double sure_;
  std::vector<float> logits_;
};

}  // namespace kdtree
