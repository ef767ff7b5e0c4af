#!/usr/bin/env python3
"""The CUDA backends beside another library's kernel: the same tensors, the same process, the same method.

    bench/verify_attn_peers.py --library build/nvcc/libkdtree.so.0 --peer NAME --date D --commit C

Times one peer and, after it, every plan of the backend on the peer's KV pool, as a tree and as a chain: a graph of the
call, replayed with a cold L2, medians. What a library plans once a step outside of its call (FlashInfer's plan, the
tile schedule of FlashMLA, the index lists of a cascade) is outside of the graph; ours plans inside. Prints JSON lines;
a line of the peer's mask has `max_diff` and `rel_diff` between the peer's output and ours, and `wrong` where they lie
too far apart. One process a peer, because their packages exclude each other: set PYTHONPATH for each.

Ends with 3 when the peer cannot be imported, 1 when a row fails or is wrong.
"""

import argparse
import ctypes
import dataclasses
import json
import math
import pathlib
import statistics
import sys

import torch
from peer_kernels import CASES, LATENT, PEERS, ROPE, SCALE, Case, Inputs

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "abi"))
from ctypes_layout import BLOCKS, HEADER  # noqa: E402  the mirror that a test compares with the compiler's layout

WARM_UPS, REPEATS = 3, 25
FLUSH_BYTES = 256 << 20  # more than any L2
# Two kernels that round differently: one bf16 step of an output, and twice what each is away from fp64.
MAX_DIFF = REL_DIFF = 1e-2

OK, ABI_VERSION = 0, 1
DTYPE_BF16, DTYPE_I32 = 3, 16
PLANS = {"balanced": 0, "invariant": 1}
TREES = {"chain": 0, "tree": 1}  # KDTREE_TREE_CHAIN, KDTREE_TREE_PARENTS
MEMORY_HOST, MEMORY_CUDA = 0, 1


def block(name):
    """A zeroed parameter block of the C ABI with its size set."""
    kind = type(name, (ctypes.Structure,), {"_fields_": HEADER + BLOCKS[name]})
    return kind(struct_size=ctypes.sizeof(kind))


class Library:
    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        self.c.kdtree_abi_version.restype = ctypes.c_uint32
        self.c.kdtree_status_name.argtypes = [ctypes.c_int32]
        self.c.kdtree_status_name.restype = ctypes.c_char_p
        self.c.kdtree_last_error.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        self.c.kdtree_last_error.restype = ctypes.c_size_t
        self.c.kdtree_backend_count.restype = ctypes.c_int32
        self.c.kdtree_get_backend_info.argtypes = [ctypes.c_int32, ctypes.c_void_p]
        self.c.kdtree_verify_attn_workspace_size.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)]
        self.c.kdtree_verify_attn.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        if self.c.kdtree_abi_version() != ABI_VERSION:
            sys.exit(f"{path} has ABI version {self.c.kdtree_abi_version()}, expected {ABI_VERSION}")

    def check(self, status):
        if status == OK:
            return
        message = ctypes.create_string_buffer(512)
        self.c.kdtree_last_error(message, len(message))
        raise RuntimeError(f"{self.c.kdtree_status_name(status).decode()}: {message.value.decode()}")

    def backends(self):
        """Numbers of the available CUDA backends by name, the slowest first; why the others are not."""
        available, reasons = {}, {}
        for index in range(self.c.kdtree_backend_count()):
            info = block("kdtree_backend_info")
            self.check(self.c.kdtree_get_backend_info(index, ctypes.byref(info)))
            if info.name.startswith(b"cuda"):
                (available if info.available else reasons)[info.name.decode()] = (
                    info.backend if info.available else info.reason.decode())
        return available, reasons

    def prepare(self, x, backend, plan, mask):
        case = x.case
        prefix_slots = x.slots[:, :case.prefix].contiguous()
        draft_slots = x.slots[:, case.prefix:].contiguous()
        qo, kv, output = x.indptr(case.nodes), x.indptr(case.prefix), x.empty_output()
        lse = torch.empty(x.rows, case.heads, device=x.device)
        p = block("kdtree_verify_attn_params")
        p.batch, p.heads, p.latent_dim, p.rope_dim = case.batch, case.heads, LATENT, ROPE
        p.backend, p.plan, p.scale = backend, PLANS[plan], SCALE
        p.q_dtype = p.kv_dtype = p.out_dtype = DTYPE_BF16
        p.q, p.out, p.lse = x.query.data_ptr(), output.data_ptr(), lse.data_ptr()
        p.indptr_dtype = p.kv_indices_dtype = DTYPE_I32
        p.qo_indptr, p.kv_indptr = qo.data_ptr(), kv.data_ptr()
        p.kv, p.kv_slots = x.pool.data_ptr(), x.pool.shape[0]
        p.kv_indices, p.draft_slots = prefix_slots.data_ptr(), draft_slots.data_ptr()
        p.tree_encoding = TREES[mask]
        p.parents = x.parents.data_ptr() if mask == "tree" else None
        p.memory = MEMORY_CUDA if x.query.is_cuda else MEMORY_HOST
        p.max_nodes, p.max_rows, p.max_prefix = case.nodes, x.rows, case.prefix
        size = ctypes.c_size_t()
        self.check(self.c.kdtree_verify_attn_workspace_size(ctypes.byref(p), ctypes.byref(size)))
        workspace = torch.empty(size.value, dtype=torch.uint8, device=x.device)

        def call():
            stream = torch.cuda.current_stream().cuda_stream if x.query.is_cuda else None
            self.check(self.c.kdtree_verify_attn(ctypes.byref(p), workspace.data_ptr(), size.value, stream))
            return output

        call.held = (x, prefix_slots, draft_slots, qo, kv, lse)  # the block knows their addresses alone
        return call


def timed(call, flush):
    """Median and least µs of a replay, and the output."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):  # compiles, plans and sets attributes, which a capture may not
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        output = call()
    events = []
    for _ in range(WARM_UPS + REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flush.zero_()
        begin.record()
        graph.replay()
        end.record()
        events.append((begin, end))
    torch.cuda.synchronize()
    times = [begin.elapsed_time(end) * 1e3 for begin, end in events[WARM_UPS:]]
    return statistics.median(times), min(times), output.clone()


def difference(theirs, ours):
    """What a row says of two outputs. Elements beyond 1 count in relation to themselves, as bf16 rounds them."""
    theirs, ours = theirs.float(), ours.float()
    delta = theirs - ours
    largest = (delta.abs() / ours.abs().clamp(min=1)).max().item()
    relative = (delta.norm() / ours.norm()).item()
    wrong = not (largest <= MAX_DIFF and relative <= REL_DIFF)  # NaN is wrong as well
    figures = {"max_diff": largest, "rel_diff": relative}
    shown = {name: round(value, 6) if math.isfinite(value) else None for name, value in figures.items()}
    return {**shown, "wrong": True} if wrong else shown


def attempt(what, flush, prepare, *arguments):
    """As timed; None, and why on stderr, when it fails. An error that the device keeps ends the run."""
    try:
        return timed(prepare(*arguments), flush)
    except Exception as error:
        print(f"{what}: {type(error).__name__}: {str(error)[:500]}", file=sys.stderr, flush=True)
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            sys.exit("the device is lost to this process; no more rows")
        return None


def measure(case, options, peer, prepare, library, backends, flush):
    """Prints the lines of a case; how many of its rows failed or are wrong."""
    x = Inputs(case, peer.page)
    place = {**dataclasses.asdict(case), "page": peer.page}
    end = {"machine": torch.cuda.get_device_name(), "date": options.date, "commit": options.commit}

    def cell(backend, mask, plan, times):
        where = {**place, "mask": mask, **({"plan": plan} if plan else {})}
        return {"bench": "verify-attn-peers", "backend": backend, "case": where, "us": round(times[0], 2),
                "min_us": round(times[1], 2), "tflops": round(case.flops() / times[0] / 1e6, 1)}

    theirs = attempt(f"{options.peer}, {case}", flush, prepare, x)
    cells = [cell(options.peer, peer.mask, None, theirs)] if theirs else []
    failures = 0 if theirs else 1
    for backend, number in backends.items():
        for mask in ("tree", "chain"):
            for plan in PLANS:
                ours = attempt(f"{backend}, {mask}, {plan}, {case}", flush, library.prepare, x, number, plan, mask)
                if not ours:
                    failures += 1
                    continue
                cells.append(cell(backend, mask, plan, ours))
                if not theirs:
                    continue
                if mask == peer.mask:
                    apart = difference(theirs[2], ours[2])
                    cells[-1].update(apart)
                    if "max_diff" not in cells[0]:
                        cells[0].update(apart)
                    if "wrong" in apart:
                        failures += 1
                        print(f"{options.peer} and {backend} differ, {mask}, {plan}, {case}: {apart}", file=sys.stderr)
                cells[-1].update(baseline=options.peer, baseline_us=round(theirs[0], 2),
                                 ratio=round(theirs[0] / ours[0], 2))
    for line in cells:
        print(json.dumps({**line, **end}, separators=(",", ":")), flush=True)
    return failures


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", required=True, choices=PEERS)
    parser.add_argument("--library", help="path of libkdtree.so")
    parser.add_argument("--backend", action="append", help="may be repeated; default: the fastest CUDA backend")
    parser.add_argument("--rows", nargs="+", default=[], metavar="FIELD=VALUE",
                        help="only cases with these, such as heads=8 batch=1; FIELD: heads, batch, nodes, prefix")
    parser.add_argument("--compile", action="store_true",
                        help="only make the peer compile its kernels, so that another process can do so ahead of time")
    parser.add_argument("--date", default="")
    parser.add_argument("--commit", default="")
    options = parser.parse_args()
    if not options.compile and not (options.library and options.date and options.commit):
        parser.error("--library, --date and --commit are required without --compile")
    wanted = []
    for text in options.rows:
        field, _, value = text.partition("=")
        if field not in Case.__dataclass_fields__ or not value.isdigit():
            parser.error(f"--rows {text}: expected FIELD=VALUE with FIELD one of {', '.join(Case.__dataclass_fields__)}")
        wanted.append((field, int(value)))
    options.cases = [case for case in CASES if all(getattr(case, field) == value for field, value in wanted)]
    if not options.cases:
        parser.error(f"--rows {' '.join(options.rows)}: no case is so")
    return options


def main():
    options = arguments()
    peer = PEERS[options.peer]
    if not torch.cuda.is_available():
        sys.exit("torch sees no CUDA device")
    try:
        prepare = peer.load()
    except Exception as error:  # a missing package, a library of another torch, no kernels for this device
        reason = (str(error).splitlines() or [""])[0]
        print(f"{options.peer} cannot be imported: {type(error).__name__}: {reason}", file=sys.stderr)
        return 3
    if options.compile:
        for heads, batch in sorted({(case.heads, case.batch) for case in options.cases}):  # each has a Triton kernel
            prepare(Inputs(Case(heads, batch, 8, 64), peer.page))()
        torch.cuda.synchronize()
        return 0
    library = Library(options.library)
    available, reasons = library.backends()
    chosen = options.backend or list(available)[-1:]
    for name in chosen:
        if name not in available:
            sys.exit(f"{name} is not available: {reasons.get(name, 'there is no such CUDA backend')}")
    if not chosen:
        sys.exit(f"no CUDA backend to time: {reasons}")
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    backends = {name: available[name] for name in chosen}
    failures = [measure(case, options, peer, prepare, library, backends, flush) for case in options.cases]
    return 1 if any(failures) else 0


if __name__ == "__main__":
    sys.exit(main())
