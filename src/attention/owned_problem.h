// A verify problem together with the arrays it points to: what case generators make and bundles hold.
#pragma once

#include "attention/problem.h"
#include "core/tensor.h"

namespace kdtree {

struct OwnedProblem {
  // Sizes, strides, flags and element types. Its pointers are null; params() fills them in. The *_dtype
  // fields agree with the tensors.
  VerifyProblem scalars = kdtree_init<VerifyProblem>();

  Tensor q;              // [T, H, D] (or wider, per the strides)
  Tensor qo_indptr;      // [b+1]
  Tensor kv_indptr;      // [b+1]
  Tensor kv;             // [slots, row stride]
  Tensor kv_indices;     // [prefix entries]
  Tensor draft_slots;    // [T], with KDTREE_DRAFT_IN_POOL
  Tensor draft_kv;       // [T, row stride], with KDTREE_DRAFT_SEPARATE
  Tensor parents;        // [T] i32
  Tensor ancestor_bits;  // [T, words] u64
  Tensor mask;           // flat u8
  Tensor mask_indptr;    // [b] i64
  Tensor out;            // [T, H, latent_dim]
  Tensor lse;            // [T, H]

  // The problem over this object's arrays; valid until one of them is resized or the object moves.
  VerifyProblem params() {
    VerifyProblem p = scalars;
    p.q = q.pointer();
    p.qo_indptr = qo_indptr.pointer();
    p.kv_indptr = kv_indptr.pointer();
    p.kv = kv.pointer();
    p.kv_indices = kv_indices.pointer();
    p.draft_slots = draft_slots.pointer();
    p.draft_kv = draft_kv.pointer();
    p.parents = static_cast<const int32_t*>(parents.pointer());
    p.ancestor_bits = static_cast<const uint64_t*>(ancestor_bits.pointer());
    p.mask = static_cast<const uint8_t*>(mask.pointer());
    p.mask_indptr = static_cast<const int64_t*>(mask_indptr.pointer());
    p.out = out.pointer();
    p.lse = lse.pointer();
    return p;
  }
};

}  // namespace kdtree
