// Every tree encoding of a verify problem, read into parents: the one form host code works on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/problem.h"

namespace kdtree {

// Parents of one request's tree, KDTREE_PARENT_PADDING for padding rows. `parents` holds N entries; `bits`
// ceil(N / 64) * N words of scratch (used by the bool mask alone). Validates. Errors: KDTREE_INVALID_TREE.
Status read_parents(const VerifyProblem& problem, int64_t request, std::span<int32_t> parents,
                    std::span<uint64_t> bits);
// The same with memory of its own.
Result<std::vector<int32_t>> read_parents(const VerifyProblem& problem, int64_t request);

}  // namespace kdtree
