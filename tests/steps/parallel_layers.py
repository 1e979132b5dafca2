"""Defines layers like Megatron's, with sequence parallelism and a parallel cross-entropy, and uses
DTensors and HSDP as users do."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from models import gradients, made
from sequences import DIM, LENGTH, VOCAB, Decoder, batch, whole_decoder  # noqa: F401

FFN, HEADS = 32, 4


class Mode:
    """Holds which ranks share a layer, and the mistake."""

    group, rank, size, mistake = None, 0, 1, None


def summed(x):
    x = x.clone()
    dist.all_reduce(x, group=Mode.group)
    return x


def gathered(x, dim):
    pieces = [torch.empty_like(x) for _ in range(Mode.size)]
    dist.all_gather(pieces, x.contiguous(), group=Mode.group)
    return torch.cat(pieces, dim)


class GatherFromSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return gathered(x, 1)

    @staticmethod
    def backward(ctx, grad):
        total = grad if Mode.mistake == "split instead of reduce-scatter" else summed(grad)
        return total.chunk(Mode.size, 1)[Mode.rank].contiguous()


class ReduceScatterToSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return summed(x).chunk(Mode.size, 1)[Mode.rank].contiguous()

    @staticmethod
    def backward(ctx, grad):
        whole = gathered(grad, 1)
        return whole / Mode.size if Mode.mistake == "reduce-scatter's backward divides" else whole


class ScatterToSequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.chunk(Mode.size, 1)[Mode.rank].contiguous()

    @staticmethod
    def backward(ctx, grad):
        if Mode.mistake == "scatter without gather":
            padded = [torch.zeros_like(grad) for _ in range(Mode.size)]
            padded[Mode.rank] = grad
            return torch.cat(padded, 1)
        return gathered(grad, 1)


class ColumnParallel(nn.Module):
    def __init__(self, whole):
        super().__init__()
        self.weight = nn.Parameter(whole.weight.detach().chunk(Mode.size)[Mode.rank].clone())
        self.bias = (None if whole.bias is None
                     else nn.Parameter(whole.bias.detach().chunk(Mode.size)[Mode.rank].clone()))

    def forward(self, x):
        return F.linear(GatherFromSequence.apply(x), self.weight, self.bias)


class RowParallel(nn.Module):
    def __init__(self, whole):
        super().__init__()
        self.weight = nn.Parameter(whole.weight.detach().chunk(Mode.size, 1)[Mode.rank].clone())
        self.bias = None if whole.bias is None else nn.Parameter(whole.bias.detach().clone())

    def forward(self, x):
        x = F.linear(x, self.weight)
        if self.bias is not None and Mode.mistake == "bias before the reduction":
            x = x + self.bias
        x = ReduceScatterToSequence.apply(x)
        return (x if self.bias is None or Mode.mistake == "bias before the reduction"
                else x + self.bias)


class ParallelEmbedding(nn.Module):
    def __init__(self, whole):
        super().__init__()
        self.weight = nn.Parameter(whole.weight.detach().chunk(Mode.size)[Mode.rank].clone())

    def forward(self, ids):
        first = Mode.rank * len(self.weight)
        outside = (ids < first) | (ids >= first + len(self.weight))
        x = F.embedding((ids - first).masked_fill(outside, 0),
                        self.weight).masked_fill(outside[..., None], 0)
        return ReduceScatterToSequence.apply(x)


class ParallelCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target):
        top = logits.amax(-1, keepdim=True)
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=Mode.group)
        exp = (logits - top).exp()
        total = summed(exp.sum(-1, keepdim=True))
        first = Mode.rank * logits.size(-1)
        outside = (target < first) | (target >= first + logits.size(-1))
        at = (target - first).masked_fill(outside, 0)
        own = (logits - top).gather(-1, at[..., None])[..., 0].masked_fill(outside, 0)
        ctx.save_for_backward(exp / (exp.sum(-1, keepdim=True)
                                     if Mode.mistake == "softmax over the own shard" else total),
                              at, outside)
        return total[..., 0].log() - summed(own)

    @staticmethod
    def backward(ctx, grad):
        softmax, at, outside = ctx.saved_tensors
        hit = torch.ones_like(at) if Mode.mistake == "targets of others not masked" else (~outside)
        one = torch.zeros_like(softmax).scatter_(-1, at[..., None],
                                                 hit.to(softmax.dtype)[..., None])
        return (softmax - one) * grad[..., None], None


def megatron_sp(run, mistake=None):
    """Runs tp of 2 with sequence parallelism; the other dimension of ranks is data parallel."""
    tp, dp = 2, run.world_size // 2
    tp_groups = [dist.new_group([d * tp + t for t in range(tp)]) for d in range(dp)]
    dp_groups = [dist.new_group([d * tp + t for d in range(dp)]) for t in range(tp)]
    Mode.rank, Mode.size, Mode.mistake = run.rank % tp, tp, mistake
    Mode.group = tp_groups[run.rank // tp]
    model = made(Decoder, run.seed, run.dtype)
    model.embed = ParallelEmbedding(model.embed)
    for block in model.blocks:
        a = block.attention
        a.wq, a.wk, a.wv, a.wo = ColumnParallel(a.wq), ColumnParallel(a.wk), ColumnParallel(
            a.wv), RowParallel(a.wo)
        block.gate, block.up, block.down = ColumnParallel(block.gate), ColumnParallel(
            block.up), RowParallel(block.down)
    model.lm_head = ColumnParallel(model.lm_head)
    ids, labels = (t.chunk(dp)[run.rank // tp] for t in batch(run.seed))
    x = model.embed(ids) + ScatterToSequence.apply(model.position(torch.arange(LENGTH))[None])
    for block in model.blocks:
        x = block(x)
    loss = ParallelCrossEntropy.apply(model.lm_head(model.norm(x)), labels)
    loss.mean().backward()
    for name, p in model.named_parameters():
        on_sequence = "norm" in name or name.endswith("down.bias")
        if mistake == "down's bias forgotten" and name.endswith("down.bias"):
            on_sequence = False
        if mistake == "norms forgotten" and "norm" in name:
            on_sequence = False
        if mistake == "last norm forgotten" and name == "norm.weight":
            on_sequence = False
        if on_sequence or (mistake == "position summed, too" and name.startswith("position")):
            dist.all_reduce(p.grad, group=Mode.group)
            if mistake == "norms averaged over tp" and "norm" in name:
                p.grad /= tp
        dist.all_reduce(p.grad, group=dp_groups[run.rank % tp])
        if mistake != "not divided by dp":
            p.grad /= dp
    if mistake == "clipped by the own pieces":
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    return gradients(model)


def whole_clipped(run):
    found = whole_decoder(run)
    norm = torch.stack([g.norm() for g in found.values()]).norm()
    return {name: g * (0.1 / norm) for name, g in found.items()}


# --- DTensor, HSDP


def dtensor(run, mistake=None):
    """Runs tensor parallel blocks under FSDP2; the user takes the head's output out of DTensor."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Partial, Replicate
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                   parallelize_module)

    mesh = init_device_mesh("cpu", (2, run.world_size // 2), mesh_dim_names=("fsdp", "tp"))
    tp, tp_size = mesh["tp"], run.world_size // 2
    model = made(Decoder, run.seed, run.dtype)
    for block in model.blocks:
        parallelize_module(block, tp,
                           {"attention.wq": ColwiseParallel(), "attention.wk": ColwiseParallel(),
                            "attention.wv": ColwiseParallel(), "attention.wo": RowwiseParallel(),
                            "gate": ColwiseParallel(), "up": ColwiseParallel(),
                            "down": RowwiseParallel()})
    parallelize_module(model, tp, {"lm_head": ColwiseParallel(use_local_output=False)})
    for block in model.blocks:
        fully_shard(block, mesh=mesh["fsdp"])
    fully_shard(model, mesh=mesh["fsdp"])
    ids, labels = (t.chunk(2)[mesh.get_local_rank("fsdp")] for t in batch(run.seed))
    logits = model(ids, torch.arange(LENGTH))
    # Each rank takes half of the rows, so its gradient of the whole is a share.
    if mistake == "rows of its own after to_local":
        logits = logits.redistribute(tp, [Replicate()]).to_local()
        at = slice(0, 1) if mesh.get_local_rank("tp") == 0 else slice(1, None)
        loss = F.cross_entropy(logits[at].flatten(0, 1), labels[at].flatten(),
                               reduction="sum") / labels.numel()
    elif mistake == "gradient declared partial":
        logits = logits.redistribute(tp, [Replicate()]).to_local(grad_placements=[Partial()])
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    elif mistake == "rows of its own, declared":  # This is right.
        logits = logits.redistribute(tp, [Replicate()]).to_local(grad_placements=[Partial()])
        at = slice(0, 1) if mesh.get_local_rank("tp") == 0 else slice(1, None)
        loss = F.cross_entropy(logits[at].flatten(0, 1), labels[at].flatten(),
                               reduction="sum") / labels.numel()
    elif mistake == "vocabulary of its own":
        logits = logits.to_local()
        n, first = logits.size(-1), mesh.get_local_rank("tp") * logits.size(-1)
        inside = (labels >= first) & (labels < first + n)
        loss = F.cross_entropy(logits.flatten(0, 1),
                               (labels - first).masked_fill(~inside, -100).flatten())
    else:
        loss = F.cross_entropy(logits.full_tensor().flatten(0, 1), labels.flatten())
    loss.backward()
    if mistake == "norm's gradient doubled by a hook":
        for name, p in model.named_parameters():
            if "post_norm" in name:
                p.grad.mul_(tp_size)
    if mistake == "clipped by max_norm of a shard":
        local = [nn.Parameter(p.grad.to_local()) for p in model.parameters()]
        for p, q in zip(local, model.parameters()):
            p.grad = q.grad.to_local()
        nn.utils.clip_grad_norm_(local, 0.1)
    return gradients(model)


def hsdp(run, mistake=None, micro_batches=2):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh("cpu", (2, run.world_size // 2),
                            mesh_dim_names=("dp_replicate", "dp_shard"))
    model = made(Decoder, run.seed, run.dtype)
    policy = MixedPrecisionPolicy(
        reduce_dtype=torch.bfloat16 if mistake == "reduced in bfloat16" else None)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    at = mesh.get_local_rank("dp_shard") if mistake == "replicas have the same data" else run.rank
    ids, labels = (t.chunk(run.world_size)[at] for t in batch(run.seed))
    ids, labels = (t.chunk(micro_batches, 1) if False else [t] * 1 for t in (ids, labels))
    if mistake == "accumulated without sync at the end":
        model.set_requires_gradient_sync(False)
    if mistake == "block 1 without all-reduce":
        model.blocks[1].set_requires_all_reduce(False, recurse=False)
    if mistake == "block 0 divides by the replicas alone":
        model.blocks[0].set_gradient_divide_factor(2.0)
    for i, (x, y) in enumerate(zip(ids, labels)):
        loss = F.cross_entropy(model(x, torch.arange(LENGTH)).flatten(0, 1), y.flatten())
        loss.backward()
    if mistake == "accumulated without sync at the end":
        return {n: None if p.grad is None else p.grad for n, p in model.named_parameters()}
    return gradients(model)
