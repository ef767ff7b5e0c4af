#!/usr/bin/env python3
"""A draft tree from logits to accepted tokens, through the C ABI, with nothing but Python's own ctypes.

    python3 examples/python_ctypes.py [LIBRARY]     or with KDTREE_LIBRARY in the environment

A random "drafter" proposes tokens for the next positions; DDTree keeps the most probable prefixes; a
"target" answers one token for each node; the longest path it agrees with is what decoding emits.
"""

import ctypes
import os
import random
import sys
from ctypes import POINTER, byref, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint32, c_void_p

ABI_VERSION = 1
DTYPE_F32 = 1

DEPTH, VOCAB, K, BUDGET = 4, 64, 4, 12
CAPACITY = BUDGET + 1  # the root is not counted in the budget
ROOT_TOKEN = 7


class Block(ctypes.Structure):
    """What every parameter block of kdtree.h starts with. Fields that are left out are zero: the default."""

    _fields_ = [("struct_size", c_uint32), ("flags", c_uint32), ("next", c_void_p)]

    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(self), **fields)


class TopK(Block):  # kdtree_top_k_params
    _fields_ = [
        ("logits", c_void_p),
        ("rows", c_int64),
        ("row_stride", c_int64),
        ("logits_dtype", c_int32),
        ("vocab", c_int32),
        ("k", c_int32),
        ("reserved0", c_int32),
        ("tokens", POINTER(c_int32)),
        ("log_probs", POINTER(c_float)),
    ]


class TreeBuild(Block):  # kdtree_tree_build_params
    _fields_ = [
        ("tokens", POINTER(c_int32)),
        ("log_probs", POINTER(c_float)),
        ("root_tokens", POINTER(c_int32)),
        ("node_budgets", POINTER(c_int32)),
        ("batch", c_int32),
        ("depth", c_int32),
        ("k", c_int32),
        ("node_budget", c_int32),
        ("capacity", c_int64),
        ("qo_indptr", POINTER(c_int32)),
        ("out_tokens", POINTER(c_int32)),
        ("out_parents", POINTER(c_int32)),
        ("out_depths", POINTER(c_int32)),
        ("out_log_weights", c_void_p),
    ]


class TreeAccept(Block):  # kdtree_tree_accept_params
    _fields_ = [
        ("qo_indptr", POINTER(c_int32)),
        ("tokens", POINTER(c_int32)),
        ("parents", POINTER(c_int32)),
        ("target_tokens", POINTER(c_int32)),
        ("eos_tokens", POINTER(c_int32)),
        ("max_tokens", POINTER(c_int32)),
        ("batch", c_int32),
        ("num_eos", c_int32),
        ("path_stride", c_int64),
        ("accept_path", POINTER(c_int32)),
        ("accept_count", POINTER(c_int32)),
        ("emitted_tokens", POINTER(c_int32)),
        ("next_root", POINTER(c_int32)),
        ("finish_reasons", POINTER(c_int32)),
    ]


# A mirror with a wrong field would be read as something else, so its size is checked before its first use.
for block, size in {TopK: 72, TreeBuild: 112, TreeAccept: 120}.items():
    if ctypes.sizeof(block) != size:
        sys.exit(f"{block.__name__} has {ctypes.sizeof(block)} bytes, kdtree.h says {size}")


def load(path):
    """The library with every function's argument and result types set: ctypes guesses otherwise."""
    library = ctypes.CDLL(path)
    library.kdtree_abi_version.restype = c_uint32
    library.kdtree_version.restype = c_char_p
    library.kdtree_status_name.argtypes = [c_int32]
    library.kdtree_status_name.restype = c_char_p
    library.kdtree_last_error.argtypes = [c_char_p, c_size_t]
    library.kdtree_last_error.restype = c_size_t
    for name, block in {"kdtree_top_k": TopK, "kdtree_tree_build": TreeBuild}.items():
        size_query = getattr(library, name + "_workspace_size")
        size_query.argtypes = [POINTER(block), POINTER(c_size_t)]
        size_query.restype = c_int32
        run = getattr(library, name)
        run.argtypes = [POINTER(block), c_void_p, c_size_t, c_void_p]
        run.restype = c_int32
    library.kdtree_tree_accept.argtypes = [POINTER(TreeAccept)]
    library.kdtree_tree_accept.restype = c_int32

    found = library.kdtree_abi_version()
    if found != ABI_VERSION:
        sys.exit(f"{path} has ABI version {found}, expected {ABI_VERSION}")
    return library


def check(library, status):
    if status != 0:
        message = ctypes.create_string_buffer(512)
        library.kdtree_last_error(message, len(message))
        raise RuntimeError(f"{library.kdtree_status_name(status).decode()}: {message.value.decode()}")


def run_with_workspace(library, name, params):
    """Asks for the scratch bytes, then runs. A server keeps one workspace for all its calls."""
    needed = c_size_t()
    check(library, getattr(library, name + "_workspace_size")(byref(params), byref(needed)))
    block = ctypes.create_string_buffer(needed.value + 64)
    aligned = (ctypes.addressof(block) + 63) // 64 * 64
    check(library, getattr(library, name)(byref(params), aligned, needed, None))


def main():
    default = "libkdtree.so.0"
    library = load(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("KDTREE_LIBRARY", default))
    print("kdtree", library.kdtree_version().decode())

    # 1. The drafter's logits, a row a position, and the K best tokens of each row.
    drafter = random.Random(7)
    logits = (c_float * (DEPTH * VOCAB))(*(drafter.gauss(0, 3) for _ in range(DEPTH * VOCAB)))
    tokens = (c_int32 * (DEPTH * K))()
    log_probs = (c_float * (DEPTH * K))()
    top_k = TopK(logits=ctypes.addressof(logits), rows=DEPTH, logits_dtype=DTYPE_F32, vocab=VOCAB, k=K,
                 tokens=tokens, log_probs=log_probs)
    run_with_workspace(library, "kdtree_top_k", top_k)
    for d in range(DEPTH):
        row = slice(d * K, (d + 1) * K)
        best = "  ".join(f"{t}:{p:.2f}" for t, p in zip(tokens[row], log_probs[row]))
        print(f"position {d + 1}: token:log-probability {best}")

    # 2. The draft tree: the BUDGET most probable prefixes.
    qo_indptr = (c_int32 * 2)()
    node_tokens, parents, depths = ((c_int32 * CAPACITY)() for _ in range(3))
    build = TreeBuild(tokens=tokens, log_probs=log_probs, root_tokens=(c_int32 * 1)(ROOT_TOKEN), batch=1,
                      depth=DEPTH, k=K, node_budget=BUDGET, capacity=CAPACITY, qo_indptr=qo_indptr,
                      out_tokens=node_tokens, out_parents=parents, out_depths=depths)
    run_with_workspace(library, "kdtree_tree_build", build)
    nodes = qo_indptr[1]
    print(f"draft tree of {nodes} nodes:")
    for i in range(nodes):
        print(f"  {'  ' * depths[i]}node {i}: token {node_tokens[i]}, parent {parents[i]}")

    # 3. The target's token at each node. This target likes the second-best first token and then follows the
    #    drafter, which a single drafted chain would have missed.
    def target_token(depth):
        return tokens[1] if depth == 0 else tokens[depth * K] if depth < DEPTH else 0

    target_tokens = (c_int32 * CAPACITY)(*(target_token(depths[i]) for i in range(nodes)))

    # 4. The longest path the target agrees with, and its bonus token.
    path, emitted = ((c_int32 * (DEPTH + 1))() for _ in range(2))
    count, next_root = c_int32(), c_int32()
    accept = TreeAccept(qo_indptr=qo_indptr, tokens=node_tokens, parents=parents, target_tokens=target_tokens,
                        batch=1, path_stride=DEPTH + 1, accept_path=path,
                        accept_count=ctypes.pointer(count), emitted_tokens=emitted,
                        next_root=ctypes.pointer(next_root))
    check(library, library.kdtree_tree_accept(byref(accept)))
    print(f"accepted {count.value} tokens: {emitted[:count.value]}, by way of nodes {path[:count.value]}")

    # What must hold whatever was drafted: each emitted token is the target's own on its own path.
    assert path[0] == 0 and emitted[0] == tokens[1] and count.value >= 2
    assert all(emitted[j] == target_tokens[path[j]] for j in range(count.value))
    assert next_root.value == emitted[count.value - 1]


if __name__ == "__main__":
    main()
