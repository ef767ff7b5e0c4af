// Checks of the arrays that cut ragged batches.
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

}  // namespace kdtree
