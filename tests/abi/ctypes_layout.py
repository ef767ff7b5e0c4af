#!/usr/bin/env python3
"""A ctypes mirror of every parameter block of kdtree.h, as a binding would write it by hand, compared with
the compiler's own layout.

    tests/abi/ctypes_layout.py LAYOUT_PROGRAM
"""

import ctypes
import subprocess
import sys
from ctypes import c_char, c_float as f32, c_int32 as i32, c_int64 as i64, c_uint32 as u32, c_void_p as ptr

HEADER = [("struct_size", u32), ("flags", u32), ("next", ptr)]

BLOCKS = {
    "kdtree_top_k_params": [
        ("logits", ptr),
        ("rows", i64),
        ("row_stride", i64),
        ("logits_dtype", i32),
        ("vocab", i32),
        ("k", i32),
        ("reserved0", i32),
        ("tokens", ptr),
        ("log_probs", ptr),
    ],
    "kdtree_tree_build_params": [
        ("tokens", ptr),
        ("log_probs", ptr),
        ("root_tokens", ptr),
        ("node_budgets", ptr),
        ("batch", i32),
        ("depth", i32),
        ("k", i32),
        ("node_budget", i32),
        ("capacity", i64),
        ("qo_indptr", ptr),
        ("out_tokens", ptr),
        ("out_parents", ptr),
        ("out_depths", ptr),
        ("out_log_weights", ptr),
    ],
    "kdtree_tree_validate_params": [
        ("qo_indptr", ptr),
        ("parents", ptr),
        ("depths", ptr),
        ("tokens", ptr),
        ("batch", i32),
        ("reserved0", i32),
    ],
    "kdtree_tree_compile_params": [
        ("qo_indptr", ptr),
        ("parents", ptr),
        ("start_positions", ptr),
        ("batch", i32),
        ("reserved0", i32),
        ("bits_stride", i64),
        ("depths", ptr),
        ("positions", ptr),
        ("ancestor_bits", ptr),
        ("retrieve_index", ptr),
        ("retrieve_next_token", ptr),
        ("retrieve_next_sibling", ptr),
    ],
    "kdtree_tree_from_retrieve_params": [
        ("qo_indptr", ptr),
        ("retrieve_index", ptr),
        ("retrieve_next_token", ptr),
        ("retrieve_next_sibling", ptr),
        ("batch", i32),
        ("reserved0", i32),
        ("parents", ptr),
    ],
    "kdtree_tree_accept_params": [
        ("qo_indptr", ptr),
        ("tokens", ptr),
        ("parents", ptr),
        ("target_tokens", ptr),
        ("eos_tokens", ptr),
        ("max_tokens", ptr),
        ("batch", i32),
        ("num_eos", i32),
        ("path_stride", i64),
        ("accept_path", ptr),
        ("accept_count", ptr),
        ("emitted_tokens", ptr),
        ("next_root", ptr),
        ("finish_reasons", ptr),
    ],
    "kdtree_compaction_plan_params": [
        ("qo_indptr", ptr),
        ("accept_path", ptr),
        ("accept_count", ptr),
        ("draft_slots", ptr),
        ("start_positions", ptr),
        ("page_table", ptr),
        ("path_stride", i64),
        ("page_table_stride", i64),
        ("page_size", i32),
        ("batch", i32),
        ("slot_dtype", i32),
        ("reserved0", i32),
        ("capacity", i64),
        ("src", ptr),
        ("dst", ptr),
        ("move_indptr", ptr),
    ],
    "kdtree_kv_compact_params": [
        ("layers", ptr),
        ("src", ptr),
        ("dst", ptr),
        ("moves", i64),
        ("slots", i64),
        ("row_bytes", i64),
        ("row_stride_bytes", i64),
        ("num_layers", i32),
        ("reserved0", i32),
    ],
    "kdtree_verify_attn_params": [
        ("batch", i32),
        ("heads", i32),
        ("latent_dim", i32),
        ("rope_dim", i32),
        ("backend", i32),
        ("plan", i32),
        ("scale", f32),
        ("logit_cap", f32),
        ("q_dtype", i32),
        ("out_dtype", i32),
        ("q", ptr),
        ("out", ptr),
        ("q_token_stride", i64),
        ("q_head_stride", i64),
        ("out_token_stride", i64),
        ("out_head_stride", i64),
        ("lse", ptr),
        ("lse_token_stride", i64),
        ("lse_head_stride", i64),
        ("lse_dtype", i32),
        ("indptr_dtype", i32),
        ("qo_indptr", ptr),
        ("kv_indptr", ptr),
        ("kv", ptr),
        ("kv_slots", i64),
        ("kv_row_stride", i64),
        ("kv_dtype", i32),
        ("kv_scale", f32),
        ("kv_indices", ptr),
        ("kv_indices_dtype", i32),
        ("draft_location", i32),
        ("draft_slots", ptr),
        ("draft_kv", ptr),
        ("draft_row_stride", i64),
        ("tree_encoding", i32),
        ("mask_skip_prefix", i32),
        ("parents", ptr),
        ("ancestor_bits", ptr),
        ("bits_stride", i64),
        ("mask", ptr),
        ("mask_indptr", ptr),
        ("mask_row_stride", i64),
        ("mask_column_offset", i64),
        ("memory", i32),
        ("max_nodes", i32),
        ("max_rows", i64),
        ("max_prefix", i64),
    ],
    "kdtree_backend_info": [
        ("backend", i32),
        ("available", i32),
        ("name", c_char * 32),
        ("reason", c_char * 256),
    ],
}


def mirrored():
    """The lines of LAYOUT_PROGRAM that the mirror predicts."""
    for name, fields in BLOCKS.items():
        block = type(name, (ctypes.Structure,), {"_fields_": HEADER + fields})
        yield f"block {name} {ctypes.sizeof(block)}"
        for field, _ in block._fields_:
            place = getattr(block, field)
            yield f"field {name} {field} {place.offset} {place.size}"


def main():
    printed = subprocess.run([sys.argv[1]], check=True, capture_output=True, text=True).stdout.splitlines()
    compiled = [line for line in printed if not line.startswith("constant ")]
    expected = list(mirrored())
    differences = sorted(set(compiled) ^ set(expected))
    for line in differences:
        print(("compiler: " if line in compiled else "ctypes:   ") + line)
    print(f"{len(expected)} sizes and offsets compared, {len(differences)} lines differ")
    return 1 if differences or len(compiled) != len(expected) else 0


if __name__ == "__main__":
    sys.exit(main())
