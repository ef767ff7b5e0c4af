// Draws a token from a row of logits.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/status.h"

namespace kdtree {

struct SamplingParams {
  double temperature = 0;  // >= 0; 0 = greedy, and the fields below are without effect
  double top_p = 1;        // (0, 1]; 1 = all
  int32_t top_k = 0;       // >= 0; 0 = all
  double min_p = 0;        // [0, 1]; 0 = all
  uint64_t seed = 0;
};

// Errors: KDTREE_INVALID_ARGUMENT naming the field.
Status validate(const SamplingParams& params);

// Memory that calls reuse; it grows to the largest vocabulary seen. Its contents mean nothing between calls.
struct SamplingScratch {
  std::vector<float> block_max;
  std::vector<double> block_sums;
  std::vector<float> selection;
  std::vector<int32_t> tokens;
  std::vector<double> weights;
  std::vector<double> histogram;
};

// A token for one row of `logits`, one a token of the vocabulary.
//
// Temperature 0: the largest logit, the smaller token among equals. Above 0: a draw from
// softmax(logits / temperature), filtered in the order of Hugging Face's warpers, each filter seeing what the
// one before left as a distribution:
//   top_k  the k most probable tokens,
//   top_p  the fewest most probable tokens whose probabilities sum to at least top_p, at least one,
//   min_p  tokens with at least min_p times the largest probability.
// "Most probable" is by logit, the smaller token first among equals; -inf is never drawn. Probabilities are
// doubles; one below e^-708 of the largest counts as 0.
//
// The draw is the inverse of the cumulative distribution over the tokens left, in ascending order, at
// sampling_uniform(seed, request, position). So the same logits give the same token, whatever was drawn
// before and on every instruction set.
//
// Errors: those of validate(); KDTREE_INVALID_ARGUMENT for no or more than 2^31 - 1 logits;
// KDTREE_NOT_A_NUMBER naming the first token whose logit is NaN or +inf, or when all are -inf.
Result<int32_t> sample_token(std::span<const float> logits, const SamplingParams& params, uint64_t request,
                             uint64_t position, SamplingScratch& scratch);

// [0, 1), 53 bits: the upper bits of words 1 and 0 of Philox4x32-10 with the seed as the key and
// {position, request} as the counter, low words first.
double sampling_uniform(uint64_t seed, uint64_t request, uint64_t position);

// Philox4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

}  // namespace kdtree
