// Where a tree's distributions come from: a file, or a seed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "tree/draft_tree.h"

namespace kdtree::cli {

// Logits [L, V] of a .npy or .safetensors file, f32 or bf16 (f16 is widened to f32). `tensor` may be empty
// when the file holds one. Errors: KDTREE_IO_ERROR, KDTREE_INVALID_FILE, KDTREE_INVALID_ARGUMENT (no such
// tensor).
Result<Tensor> read_logits(const std::string& path, const std::string& tensor);

// f32 [positions, vocab]: Zipf-like with noise, less sure from position to position, as a drafter's are.
Tensor random_logits(uint64_t seed, int64_t positions, int64_t vocab);

// Target tokens [nodes] of an int32 or int64 .npy file.
Result<std::vector<int32_t>> read_target_tokens(const std::string& path, int64_t nodes);

enum class Simulation { greedy, sample };

// The target tokens of a target that agrees with the drafter: each row's token is the best of, or drawn from,
// the position after its node. A node at the last position uses that position again: only its bonus token
// comes from there.
std::vector<int32_t> simulate_targets(const Tensor& logits, const DraftTree& tree, Simulation simulation,
                                      uint64_t seed);

}  // namespace kdtree::cli
