// A mixture of experts as in DeepSeek-V3 (arXiv 2412.19437): sigmoid scores, a correction bias that chooses
// but does not weigh, groups of experts of which each token uses a few.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"
#include "model/ops.h"

namespace kdtree {

// SwiGLU: down(silu(gate x) * up x).
struct Mlp {
  Packed gate;  // [intermediate, hidden]
  Packed up;    // [intermediate, hidden]
  Packed down;  // [hidden, intermediate]
};

struct Moe {
  Packed router;             // [experts, hidden]
  std::vector<float> bias;   // [experts] e_score_correction_bias
  std::vector<Mlp> experts;  // [experts]
  Mlp shared;                // absent (gate empty) without shared experts
};

// Memory that is kept from call to call.
struct MlpScratch {
  std::vector<float> gate, up;
  std::vector<float> scores;         // [rows, experts]
  std::vector<int32_t> chosen;       // [rows, experts_per_token]
  std::vector<float> weights;        // [rows, experts_per_token]
  std::vector<int64_t> first, rows;  // rows of each expert, expert by expert
  std::vector<float> inputs, outputs;
};

// out[r] = mlp(x[r]). [rows, hidden] both, apart.
void mlp_forward(const Mlp& mlp, std::span<const float> x, int64_t rows, float* out, MlpScratch& scratch);

// The experts of one token and their weights. `scores` [experts] are the router's outputs; `experts` in
// descending order of biased score, the smaller index first among equals. Both outputs [experts_per_token].
void route(std::span<const float> scores, std::span<const float> bias, const MoeConfig& config,
           std::span<int32_t> experts, std::span<float> weights);

// out[r] = sum over r's experts, in ascending order, of weight * expert(x[r]), plus the shared experts.
void moe_forward(const Moe& moe, const MoeConfig& config, std::span<const float> x, int64_t rows, float* out,
                 MlpScratch& scratch);

}  // namespace kdtree
