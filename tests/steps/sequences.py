"""Defines steps whose sequences are cut over ranks: ring attention, zigzag, and Ulysses on a mesh
of dp and sp."""

import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from models import gradients, made

DIM, HEADS, KV_HEADS, VOCAB, LENGTH, ROWS = 24, 4, 2, 30, 16, 4


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wo = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.wk, self.wv = (nn.Linear(DIM, DIM // HEADS * KV_HEADS, bias=False) for _ in range(2))
        self.core = None  # It computes attention if not all heads are here.

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (-1, DIM // HEADS)).transpose(1, 2)
                   for w in (self.wq, self.wk, self.wv))
        core = self.core or functools.partial(F.scaled_dot_product_attention, is_causal=True)
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
        return self.wo(core(q, k, v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_norm, self.post_norm, self.attention = nn.RMSNorm(DIM), nn.RMSNorm(
            DIM), Attention()
        self.gate, self.up, self.down = nn.Linear(DIM, 40), nn.Linear(DIM, 40), nn.Linear(40, DIM)

    def forward(self, x):
        x = x + self.attention(self.input_norm(x))
        y = self.post_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCAB, DIM), nn.Embedding(LENGTH, DIM)
        self.blocks = nn.ModuleList(Layer() for _ in range(2))
        self.norm, self.lm_head = nn.RMSNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def forward(self, ids, positions):
        x = self.embed(ids) + self.position(positions)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.norm(x))


def batch(seed):
    ids = torch.randint(VOCAB, (ROWS, LENGTH + 1),
                        generator=torch.Generator().manual_seed(seed + 7))
    return ids[:, :-1], ids[:, 1:]


def whole_decoder(run):
    model = made(Decoder, run.seed, run.dtype)
    ids, labels = batch(run.seed)
    F.cross_entropy(model(ids, torch.arange(LENGTH)).flatten(0, 1), labels.flatten()).backward()
    return gradients(model)


def rotated(*tensors):
    """Sends tensors to the next rank, and returns those of the rank before."""
    rank, world = dist.get_rank(), dist.get_world_size()
    received = [torch.empty_like(t) for t in tensors]
    work = [dist.isend(t.contiguous(), (rank + 1) % world, tag=i) for i, t in enumerate(tensors)]
    work += [dist.irecv(t, (rank - 1) % world, tag=i) for i, t in enumerate(received)]
    for w in work:
        w.wait()
    return received


class RingAttention(torch.autograd.Function):
    @staticmethod
    def scores(q, k, diagonal):
        s = q @ k.transpose(-1, -2) * q.size(-1) ** -0.5
        return s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1),
                             float("-inf")) if diagonal else s

    @staticmethod
    def forward(ctx, q, k, v, mistake):
        ctx.mistake, rank, world = mistake, dist.get_rank(), dist.get_world_size()
        here_k, here_v, out, lse = k, v, torch.zeros_like(q), torch.full(
            q.shape[:-1], float("-inf"), dtype=q.dtype)
        for step in range(world):
            source = (rank - step) % world
            if source <= rank or mistake == "the future is seen":
                s = RingAttention.scores(q, here_k, source == rank)
                block_lse = s.logsumexp(-1)
                block = (s - block_lse[..., None]).exp() @ here_v
                both = torch.logaddexp(lse, block_lse)
                if mistake == "sums of exponentials forgotten":
                    out = block if step == 0 else (out + block) / 2
                else:
                    out = (out * (lse - both).exp()[..., None]
                           + block * (block_lse - both).exp()[..., None])
                lse = both
            if step < world - 1:
                here_k, here_v = rotated(here_k, here_v)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        rank, world, mistake = dist.get_rank(), dist.get_world_size(), ctx.mistake
        delta, scale = (grad * out).sum(-1, keepdim=True), q.size(-1) ** -0.5
        if mistake == "softmax's own term forgotten":
            delta = torch.zeros_like(delta)
        if mistake == "scale forgotten in backward":
            scale = 1
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for step in range(world):
            source = (rank - step) % world
            if source <= rank and (source == rank or mistake != "own block alone"):
                p = (RingAttention.scores(q, k, source == rank) - lse[..., None]).exp()
                ds = p * (grad @ v.transpose(-1, -2) - delta) * scale
                dq, dk, dv = dq + ds @ k, dk + ds.transpose(-1, -2) @ q, dv + p.transpose(-1,
                                                                                          -2) @ grad
            if step < world - 1 or mistake != "one turn too few":
                k, v, dk, dv = rotated(k, v, dk, dv)
        return dq, dk, dv, None


def ring(run, mistake=None):
    model = made(Decoder, run.seed, run.dtype)
    for block in model.blocks:
        block.attention.core = lambda q, k, v: RingAttention.apply(q, k, v, mistake)
    n = LENGTH // run.world_size
    here = slice(run.rank * n, (run.rank + 1) * n)
    ids, labels = (t[:, here] for t in batch(run.seed))
    logits = model(ids, torch.arange(LENGTH)[here])
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    if mistake != "sum over the ranks of means":
        loss = loss / run.world_size
    loss.backward()
    for name, p in model.named_parameters():
        if mistake == "positions not reduced" and name.startswith("position"):
            continue
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        if mistake == "averaged as data parallel":
            p.grad /= run.world_size
    return gradients(model)


# --- Each rank has the chunks r and 2N-1-r; keys and values are gathered


class GatherKeys(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        pieces = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, x.contiguous())
        return torch.cat(pieces, 2)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size(), 2)[dist.get_rank()]


def zigzag(run, mistake=None):
    model = made(Decoder, run.seed, run.dtype)
    rank, world = run.rank, run.world_size
    n = LENGTH // (2 * world)
    order = torch.cat(
        [torch.arange(c * n, (c + 1) * n) for r in range(world) for c in (r, 2 * world - 1 - r)])
    mine = order.chunk(world)[rank]
    contiguous = torch.arange(LENGTH).chunk(world)[rank]

    def core(q, k, v):
        if mistake == "the others' keys have no gradient":
            pieces = [[torch.empty_like(t) for _ in range(world)] for t in (k, v)]
            for p, t in zip(pieces, (k, v)):
                dist.all_gather(p, t.detach().contiguous())
                p[rank] = t
            k, v = (torch.cat(p, 2) for p in pieces)
        else:
            k, v = (GatherKeys.apply(t) for t in (k, v))
        where = torch.arange(LENGTH) if mistake == "keys in the order of the ranks" else order
        mask = where[None, :] <= mine[:, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    for block in model.blocks:
        block.attention.core = core
    ids, labels = batch(run.seed)
    targets = labels[:, contiguous if mistake == "labels of a contiguous shard" else mine]
    weight = 1 / world
    if mistake == "labels shifted in each chunk":
        parts = [F.pad(c[:, 1:], (0, 1), value=-100) for c in ids[:, mine].split(n, 1)]
        targets = torch.cat(parts, 1)
    logits = model(ids[:, mine],
                   contiguous if mistake == "positions of a contiguous shard" else mine)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten()) * weight
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    return gradients(model)


# --- Ulysses on a mesh of dp and sp


class SwapHeadsAndSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scatter, gather, group, mistake):
        ctx.more = scatter, gather, group, mistake
        return swapped(x, scatter, gather, group)

    @staticmethod
    def backward(ctx, grad):
        scatter, gather, group, mistake = ctx.more
        if mistake == "the world's mean in backward":
            grad = grad / dist.get_world_size(group)
        if mistake == "same direction in backward":
            back = swapped(grad, gather, scatter, group)
            return torch.roll(back, back.size(scatter) // 2, scatter), None, None, None, None
        return swapped(grad, gather, scatter, group), None, None, None, None


def swapped(x, scatter, gather, group):
    sent = torch.stack([t.contiguous() for t in x.chunk(dist.get_world_size(group), scatter)])
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return torch.cat(list(received), gather)


def ulysses(run, mistake=None):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (run.world_size // 2, 2), mesh_dim_names=("dp", "sp"))
    dp, sp, group = mesh.get_local_rank("dp"), mesh.get_local_rank("sp"), mesh.get_group("sp")
    model = made(Decoder, run.seed, run.dtype)

    def core(q, k, v):
        wrong = mistake if mistake in ("the world's mean in backward",
                                       "same direction in backward") else None
        q, k, v = (SwapHeadsAndSequence.apply(t, 1, 2, group, wrong if t is k else None)
                   for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = SwapHeadsAndSequence.apply(out, 2, 1, group, None)
        if mistake == "heads come back in another order":
            out = out.flip(1)
        return out

    for block in model.blocks:
        block.attention.core = core
    ids, labels = (t.chunk(run.world_size // 2)[dp].chunk(2, 1)[sp] for t in batch(run.seed))
    positions = torch.arange(LENGTH).chunk(2)[0 if mistake == "positions of the first half" else sp]
    loss = F.cross_entropy(model(ids, positions).flatten(0, 1), labels.flatten())
    (loss * 2 if mistake == "loss times sp" else loss).backward()
    for name, p in model.named_parameters():
        group = mesh.get_group("dp") if mistake == "reduced over dp alone" else None
        dist.all_reduce(p.grad, group=group)
        p.grad /= dist.get_world_size(group)
    if mistake == "clipped by each rank before":
        nn.utils.clip_grad_norm_(model.parameters(), 0.3 * (1 + run.rank))
    return gradients(model)
