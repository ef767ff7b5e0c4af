// Checks of index arrays: the ones that cut ragged batches, and slots of a pool.
#pragma once

#include "core/dtype.h"
#include "core/status.h"

namespace kdtree {

// indptr[0] == 0 and 0 <= indptr[r + 1] - indptr[r] <= most_step over `batch` requests.
inline Status check_indptr(const char* field, const IndexArray& indptr, int64_t batch, int64_t most_step) {
  if (indptr[0] != 0) return fail(KDTREE_INVALID_ARGUMENT, "{}[0] is {}, expected 0", field, indptr[0]);
  for (int64_t r = 0; r < batch; ++r) {
    // Ascending from 0, so the difference cannot overflow.
    if (indptr[r + 1] < indptr[r] || indptr[r + 1] - indptr[r] > most_step) {
      return fail(KDTREE_INVALID_ARGUMENT, "{}[{}] is {} after {}, expected 0 .. {} more", field, r + 1,
                  indptr[r + 1], indptr[r], most_step);
    }
  }
  return {};
}

// 0 <= slots[i] < pool for the first `count` slots.
inline Status check_slots(const char* field, const IndexArray& slots, int64_t count, int64_t pool) {
  for (int64_t i = 0; i < count; ++i) {
    if (slots[i] >= 0 && slots[i] < pool) continue;
    return fail(KDTREE_INVALID_ARGUMENT, "{}[{}] is {}, expected a slot in [0, {})", field, i, slots[i],
                pool);
  }
  return {};
}

}  // namespace kdtree
