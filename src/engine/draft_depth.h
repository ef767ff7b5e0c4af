// How many positions to draft, for drafters that may be asked for fewer than they propose at most.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kdtree {

// A climb along the depths that may be drafted. A draft of one depth also tells what all smaller ones would
// have been worth: it has their trees. So what a step to the next depth brings is known from the rounds that
// took it, and now and then a round drafts one step deeper than pays, to see.
class DraftDepth {
 public:
  // `depths`: ascending; without any, next() and observe() are never called.
  explicit DraftDepth(std::vector<int64_t> depths);

  const std::vector<int64_t>& depths() const { return depths_; }
  // The index of the depth to draft now.
  size_t next();
  // Tokens a second that a round was worth at each of the first depths; one or more.
  void observe(std::span<const double> rates);

 private:
  struct Step {
    double gain = 0.0;  // logarithm of what the deeper one brings, a moving average
    int64_t seen = 0;
  };

  size_t best() const;

  std::vector<int64_t> depths_;
  std::vector<Step> steps_;  // [depths - 1]
  int64_t since_look_ = 0;
};

}  // namespace kdtree
