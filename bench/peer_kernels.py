"""The inputs of bench/verify_attn_peers.py, and calls of other libraries' kernels on them."""

import dataclasses
from collections.abc import Callable

import torch

LATENT, ROPE = 512, 64
WIDTH = LATENT + ROPE
SCALE = 192**-0.5


@dataclasses.dataclass(frozen=True)
class Case:
    heads: int
    batch: int
    nodes: int
    prefix: int

    def flops(self):
        return 2 * self.heads * self.batch * self.nodes * (self.prefix + self.nodes) * (WIDTH + LATENT)


# The rows of bench/verify_attn_cuda.cu.
CASES = [
    Case(heads, batch, nodes, prefix)
    for heads, all_nodes in ((8, (8, 16, 32, 64)), (16, (16, 64)))
    for batch in (1, 8, 32)
    for nodes in all_nodes
    for prefix in (1024, 8192, 65536)
    if batch == 1 or prefix < 65536
]


class Inputs:
    """Random queries and keys, pages scattered over the pool, a random tree for each request."""

    def __init__(self, case, page, device="cuda"):
        self.case, self.page, self.device = case, page, device
        self.keys = case.prefix + case.nodes
        pages = -(-self.keys // page)
        random = torch.Generator(device).manual_seed(7)
        values = {"generator": random, "device": device, "dtype": torch.bfloat16}
        self.rows = case.batch * case.nodes
        self.query = torch.randn(self.rows, case.heads, WIDTH, **values)
        self.pool = torch.randn(case.batch * pages * page, 1, WIDTH, **values)
        order = torch.randperm(case.batch * pages, generator=random, device=device)
        self.pages = order.view(case.batch, pages).to(torch.int32)
        position = torch.arange(self.keys, device=device)
        self.slots = (self.pages[:, position // page] * page + position % page).to(torch.int32)

        host = torch.Generator().manual_seed(7)
        parents = torch.full((case.batch, case.nodes), -1)
        visible = torch.eye(case.nodes, dtype=torch.bool).repeat(case.batch, 1, 1)
        for node in range(1, case.nodes):
            parents[:, node] = torch.randint(node, (case.batch,), generator=host)
            visible[:, node] |= visible[torch.arange(case.batch), parents[:, node]]
        self.parents = parents.to(device, torch.int32)
        self.visible = visible.to(device)  # [b, N, N] of node and ancestor

    def split_query(self):
        return self.query[..., :LATENT].contiguous(), self.query[..., LATENT:].contiguous()

    def lengths(self, each):
        return torch.full((self.case.batch,), each, dtype=torch.int32, device=self.device)

    def indptr(self, each, count=None, dtype=torch.int32):
        return (torch.arange((count or self.case.batch) + 1, device=self.device) * each).to(dtype)

    def empty_output(self):
        return torch.empty(self.rows, self.case.heads, LATENT, dtype=torch.bfloat16, device=self.device)


# ---- peers: each imports its library, then makes calls that return [rows, heads, LATENT] ---------------------------


def sglang_triton():
    """What SGLang verifies MLA trees with by default; reads the draft's keys from a tensor of its own."""
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

    def prepare(x):
        case = x.case
        draft = x.pool[x.slots[:, case.prefix:].reshape(-1).long()]
        draft_values = draft[..., :LATENT].contiguous()
        prefix_slots = x.slots[:, :case.prefix].reshape(-1).long()
        seen = torch.ones(case.batch, case.nodes, case.prefix, dtype=torch.bool, device=x.device)
        mask = torch.cat([seen, x.visible], -1).to(torch.uint8).reshape(-1)
        qo, kv, mask_starts = x.indptr(case.nodes), x.indptr(case.prefix), x.indptr(case.nodes * x.keys, dtype=torch.int64)
        output = x.empty_output()

        def call():
            extend_attention_fwd(
                x.query, draft, draft_values, output, x.pool, x.pool[..., :LATENT], qo, kv, prefix_slots,
                custom_mask=mask, is_causal=True, mask_indptr=mask_starts, max_len_extend=case.nodes, k_scale=1.0,
                v_scale=1.0, sm_scale=SCALE)
            return output

        return call

    return prepare


def fa3(flash_attn_with_kvcache, x, **arguments):
    """FlashAttention 3 takes the latent part of the query apart: it is q's product with the values."""
    latent, rope = x.split_query()
    keys = x.pool[..., LATENT:].view(-1, x.page, 1, ROPE)
    values = x.pool[..., :LATENT].view(-1, x.page, 1, LATENT)

    def call():
        return flash_attn_with_kvcache(
            q=rope, qv=latent, k_cache=keys, v_cache=values, softmax_scale=SCALE, **arguments)

    return call


def fa3_chain():
    from sgl_kernel.flash_attn import flash_attn_with_kvcache

    def prepare(x):
        return fa3(
            flash_attn_with_kvcache, x, page_table=x.pages, cache_seqlens=x.lengths(x.keys),
            cu_seqlens_q=x.indptr(x.case.nodes), cu_seqlens_k_new=x.indptr(x.keys), max_seqlen_q=x.case.nodes,
            causal=True)

    return prepare


def fa3_cascade():
    """As SGLang does it on Hopper: the prefix for all nodes, each node's ancestors as a request of its own, a merge."""
    from sgl_kernel import merge_state_v2
    from sgl_kernel.flash_attn import flash_attn_with_kvcache

    def prepare(x):
        case = x.case
        prefix = fa3(
            flash_attn_with_kvcache, x, page_table=x.slots[:, :case.prefix].contiguous(),
            cache_seqlens=x.lengths(case.prefix), cu_seqlens_q=x.indptr(case.nodes),
            cu_seqlens_k_new=x.indptr(case.prefix), max_seqlen_q=case.nodes, causal=False, return_softmax_lse=True)
        visible = x.visible.view(x.rows, case.nodes)
        ancestors_first = torch.sort((~visible).to(torch.uint8), dim=1, stable=True).indices
        table = x.slots[:, case.prefix:].repeat_interleave(case.nodes, 0).gather(1, ancestors_first)
        counts = visible.sum(1).to(torch.int32)
        starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
        tree = fa3(
            flash_attn_with_kvcache, x, page_table=table.contiguous(), cache_seqlens=counts,
            cu_seqlens_q=x.indptr(1, x.rows), cu_seqlens_k_new=starts, max_seqlen_q=1, causal=False,
            return_softmax_lse=True)

        def call():
            of_prefix, prefix_lse, *_ = prefix()
            of_tree, tree_lse, *_ = tree()
            output, _ = merge_state_v2(of_prefix, prefix_lse.T.contiguous(), of_tree, tree_lse.T.contiguous())
            return output

        return call

    return prepare


def flashinfer(backend):
    def load():
        from flashinfer.mla import BatchMLAPagedAttentionWrapper

        workspaces = []

        def prepare(x):
            case = x.case
            if not workspaces:
                workspaces.append(torch.empty(256 << 20, dtype=torch.int8, device=x.device))
            wrapper = BatchMLAPagedAttentionWrapper(workspaces[0], backend=backend)
            wrapper.plan(
                x.indptr(case.nodes), x.indptr(x.pages.shape[1]), x.pages.reshape(-1), x.lengths(x.keys), case.heads,
                LATENT, ROPE, x.page, True, SCALE, torch.bfloat16, torch.bfloat16)
            latent, rope = x.split_query()
            pool = x.pool.view(-1, x.page, WIDTH)
            output = x.empty_output()

            def call():
                wrapper.run(latent, rope, pool[..., :LATENT], pool[..., LATENT:], out=output)
                return output

            return call

        return prepare

    return load


def flashmla_chain():
    from sgl_kernel import flashmla_ops  # noqa: F401  flash_mla alone would put a failure off until the first call
    from sgl_kernel.flash_mla import flash_mla_with_kvcache, get_mla_metadata

    def prepare(x):
        case = x.case
        query = x.query.view(case.batch, case.nodes, case.heads, WIDTH)
        pool = x.pool.view(-1, x.page, 1, WIDTH)
        lengths = x.lengths(x.keys)
        schedule, splits = get_mla_metadata(lengths, case.nodes * case.heads, 1)

        def call():
            output, _ = flash_mla_with_kvcache(
                query, pool, x.pages, lengths, LATENT, schedule, splits, softmax_scale=SCALE, causal=True)
            return output.view(x.rows, case.heads, LATENT)

        return call

    return prepare


@dataclasses.dataclass(frozen=True)
class Peer:
    load: Callable  # imports; returns what makes a call of Inputs
    mask: str
    page: int


PEERS = {
    "sglang-triton": Peer(sglang_triton, "tree", 1),
    "fa3-cascade": Peer(fa3_cascade, "tree", 1),
    "fa3-chain": Peer(fa3_chain, "chain", 64),
    "flashinfer-fa2-chain": Peer(flashinfer("fa2"), "chain", 1),
    "flashinfer-fa3-chain": Peer(flashinfer("fa3"), "chain", 1),
    "flashmla-chain": Peer(flashmla_chain, "chain", 64),
}
