// Top-k of logit rows with log-probabilities.
#pragma once

#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "core/scratch.h"
#include "core/status.h"

namespace kdtree {

// The k best tokens of one row: larger logit first, the smaller token id among equals; -inf is never
// chosen. log_probs[i] = logit - logsumexp(row), computed in double, rounded once to fp32; an empty span =
// not wanted, which saves the pass of the sum. Missing entries: token -1, log-probability -inf. Every SIMD
// target gives the same bits: the sum uses a fixed number of lanes. `logits` holds `vocab` elements of f32 or
// bf16. `tokens` holds k, `log_probs` k or none. Errors: KDTREE_NOT_A_NUMBER naming the token of a NaN or
// +inf.
Status top_k_row(const void* logits, DType dtype, int32_t vocab, std::span<int32_t> tokens,
                 std::span<float> log_probs, Scratch& scratch);
// What it takes from `scratch`.
void top_k_scratch(int32_t k, Scratch& scratch);

}  // namespace kdtree
