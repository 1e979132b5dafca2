"""Defines training steps as in practice, on every rank and in one process; each returns {parameter:
gradient}.

`mistake` plants one of the mistakes that catalogue.py lists.
"""

import dataclasses

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from models import (BATCH, LENGTH, Experts, Mlp, Transformer, gradients, loss_of, made, pairs, rows,
                    text)


@dataclasses.dataclass
class Run:
    seed: int
    dtype: torch.dtype
    rank: int = 0
    world_size: int = 1


# --- In one process ---


def whole(kind, batch, run, in_float32=False):
    model = made(kind, run.seed, run.dtype)
    x, target = batch(run.seed, run.dtype)
    logits = model(x)
    loss_of(logits.float() if in_float32 else logits, target).backward()
    return gradients(model)


def contrastive(a, b, all_a, all_b, first):
    """Returns the loss of this rank's rows against all."""
    target = torch.arange(first, first + len(a))
    return (F.cross_entropy(a @ all_b.t() / 4, target) + F.cross_entropy(b @ all_a.t() / 4,
                                                                         target)) / 2


def embedded(model, x):
    return F.normalize(model.final(x + model.second(F.gelu(model.norm(model.first(x))))), dim=-1)


def whole_contrastive(run):
    model = made(Mlp, run.seed, run.dtype)
    a, b = (embedded(model, x) for x in pairs(run.seed, run.dtype))
    contrastive(a, b, a, b, 0).backward()
    return gradients(model)


# --- Data parallel by hand, DDP, FSDP2 ---


def masked_text(seed, dtype=None):
    """Gives every row fewer valid tokens than the one before, so that a rank's mean is not its
    share of the whole's."""
    tokens, target = text(seed, dtype)
    target = target.clone()
    for row in range(BATCH):
        target[row, 1 + (BATCH - 1 - row) * (LENGTH - 1) // (BATCH - 1):] = -100
    return tokens, target


def part(batch, run, index=None, of=None):
    index, of = (run.rank, run.world_size) if index is None else (index, of)
    return [t.chunk(of)[index] for t in batch(run.seed, run.dtype)]


def by_hand(kind, batch, run, micro_batches=1, mistake=None, in_float32=False):
    model = made(kind, run.seed, run.dtype)
    x, target = part(batch, run)
    weight = 1
    if batch is masked_text and mistake != "tokens not counted":
        weight = run.world_size * (target >= 0).sum() / (batch(run.seed)[1] >= 0).sum()
    if mistake == "not zeroed":
        loss_of(model(x.flip(1)), target).backward()
    for x_part, target_part in zip(x.chunk(micro_batches), target.chunk(micro_batches)):
        if mistake == "last micro-batch only":
            model.zero_grad()
        logits = model(x_part)
        loss = loss_of(logits.float() if in_float32 else logits, target_part) * weight
        (loss if mistake == "micro-batches added" else loss / micro_batches).backward()
    for name, p in model.named_parameters():
        if (mistake == "norm forgotten" and "norm" in name) or (mistake == "a key forgotten"
                                                                and name == "layers.1.k.weight"):
            continue
        if mistake == "a rank's share missing" and run.rank == run.world_size - 1:
            p.grad.zero_()
        own = p.grad.clone()
        if mistake != "not reduced":
            dist.all_reduce(p.grad)
        if mistake == "reduced twice":
            dist.all_reduce(p.grad)
        if mistake not in ("not divided", "not reduced"):
            p.grad /= run.world_size
        if mistake == "divided twice":
            p.grad /= run.world_size
        if mistake == "a rank is stale" and run.rank == 1:
            p.grad = own
    return gradients(model)


def ddp(kind, batch, run, micro_batches=1, scale=0):
    model = nn.parallel.DistributedDataParallel(made(kind, run.seed, run.dtype))
    x, target = part(batch, run)
    parts = list(zip(x.chunk(micro_batches), target.chunk(micro_batches)))
    for i, (x_part, target_part) in enumerate(parts):
        model.require_backward_grad_sync = i == len(parts) - 1
        (loss_of(model(x_part), target_part) * run.world_size**scale / micro_batches).backward()
    return gradients(model)


def fsdp(kind, batch, run, micro_batches=1, scale=0):
    from torch.distributed.fsdp import fully_shard

    model = made(kind, run.seed, run.dtype)
    for layer in [*getattr(model, "layers", ()), model]:
        fully_shard(layer)
    x, target = part(batch, run)
    parts = list(zip(x.chunk(micro_batches), target.chunk(micro_batches)))
    for i, (x_part, target_part) in enumerate(parts):
        model.set_requires_gradient_sync(i == len(parts) - 1)
        (loss_of(model(x_part), target_part) * run.world_size**scale / micro_batches).backward()
    return gradients(model)


# --- Tensor parallel ---


def tensor_parallel(run, sequence=False, shard=False, mistake=None):
    """Runs DTensors over tp. With `sequence` the norms see a part of the sequence; `shard` adds
    FSDP2 over dp."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module)

    dp = 2 if shard else 1
    mesh = init_device_mesh("cpu", (dp, run.world_size // dp), mesh_dim_names=("dp", "tp"))
    model = made(Transformer, run.seed, run.dtype)
    for block in model.layers:
        col, row = ColwiseParallel, RowwiseParallel
        plan = {name: col() for name in ("q", "k", "v", "up")} | {name: row() for name in ("o",
                                                                                           "down")}
        if sequence:
            plan = {name: col(input_layouts=Shard(1)) for name in ("q", "k", "v", "up")}
            plan |= {name: row(output_layouts=Shard(1)) for name in ("o", "down")}
            plan |= {name: SequenceParallel() for name in ("norm1", "norm2")}
        parallelize_module(block, mesh["tp"], plan)
    if sequence:
        parallelize_module(
            model, mesh["tp"],
            {"embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
             "final": SequenceParallel(),
             "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())})
    if shard:
        for layer in [*model.layers, model]:
            fully_shard(layer, mesh=mesh["dp"])
    x, target = part(text, run, mesh.get_local_rank("dp"), dp)
    if mistake == "a layer detached":
        model.layers[1].register_forward_pre_hook(lambda _, args: tuple(a.detach() for a in args))
    loss_of(model(x), target).backward()
    if mistake == "pieces averaged":
        for p in model.parameters():
            local = p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad
            dist.all_reduce(local)
            local /= run.world_size
    return gradients(model)


class Copy(torch.autograd.Function):
    """Enters a tensor parallel region: the cotangents of the ranks' parts must be summed."""

    @staticmethod
    def forward(ctx, x, group, reduce):
        ctx.group, ctx.reduce = group, reduce
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous().clone()
        if ctx.reduce:
            dist.all_reduce(gradient, group=ctx.group)
        return gradient, None, None


class Reduce(torch.autograd.Function):
    """Leaves a tensor parallel region, after which all ranks compute one loss."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def megatron(run, mistake=None):
    """Cuts an MLP over tp (2 ranks) by hand; the other dimension of ranks is data parallel."""
    tp = 2
    groups = [dist.new_group(list(range(at, at + tp))) for at in range(0, run.world_size, tp)]
    along_dp = [dist.new_group(list(range(at, run.world_size, tp))) for at in range(tp)]
    group, dp_group, at = groups[run.rank // tp], along_dp[run.rank % tp], run.rank % tp
    model = made(Mlp, run.seed, run.dtype)
    width = model.first.out_features // tp
    first_w, first_b, second_w = (nn.Parameter(t.detach().clone())
                                  for t in (model.first.weight[at * width:(at + 1) * width],
                                            model.first.bias[at * width:(at + 1) * width],
                                            model.second.weight[:, at * width:(at + 1) * width]))
    norm_w, norm_b = (nn.Parameter(t.detach()[at * width:(at + 1) * width].clone())
                      for t in (model.norm.weight, model.norm.bias))
    x, target = part(rows, run, run.rank // tp, run.world_size // tp)
    entered = Copy.apply(model.final(x), group, mistake != "identity backward")
    hidden = F.gelu(F.linear(entered, first_w, first_b)) * norm_w + norm_b
    out = Reduce.apply(F.linear(hidden, second_w), group)
    bias = model.second.bias * tp if mistake == "bias on every rank" else model.second.bias
    loss_of(model.head(out + bias), target).backward()
    found = (gradients(model) | {"first.weight": first_w.grad, "first.bias": first_b.grad,
                                 "second.weight": second_w.grad, "norm.weight": norm_w.grad,
                                 "norm.bias": norm_b.grad})
    everywhere = mistake == "averaged over all ranks"
    for g in found.values():
        dist.all_reduce(g, group=None if everywhere else group
                        if mistake == "averaged over the wrong group" else dp_group)
        if everywhere:
            g /= run.world_size
        else:
            g /= tp if mistake == "averaged over the wrong group" else run.world_size // tp
    return found


def whole_megatron(run):
    model = made(Mlp, run.seed, run.dtype)
    x, target = rows(run.seed, run.dtype)
    hidden = F.gelu(model.first(model.final(x))) * model.norm.weight + model.norm.bias
    loss_of(model.head(model.second(hidden)), target).backward()
    return gradients(model)


def sequence_by_hand(run, mistake=None):
    """Gives each rank a part of the sequence, as norms see it under sequence parallelism; gradients
    are summed."""
    model = made(Mlp, run.seed, run.dtype)
    x, target = part(rows, run)
    (loss_of(model(x), target) / run.world_size).backward()
    for name, p in model.named_parameters():
        if not (mistake == "norm not reduced" and ("norm" in name or "final" in name)):
            dist.all_reduce(p.grad)
    return gradients(model)


# --- Gathered losses ---


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mistake):
        ctx.mistake = mistake
        pieces = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, x.contiguous())
        return torch.cat(pieces)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous().clone()
        if ctx.mistake == "detached":
            return torch.zeros_like(gradient.chunk(dist.get_world_size())[0]), None
        if ctx.mistake != "own slice":
            dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[dist.get_rank()], None


def gathered(run, mistake=None):
    model = made(Mlp, run.seed, run.dtype)
    a, b = (embedded(model, x) for x in part(pairs, run))
    all_a, all_b = (Gather.apply(t, mistake) for t in (a, b))
    contrastive(a, b, all_a, all_b,
                0 if mistake == "labels without offset" else run.rank * len(a)).backward()
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= run.world_size
    return gradients(model)


def centred(run, mistake=None):
    """All-reduces the batch's mean for (mean of all rows)^2, which is one loss that all ranks
    compute."""
    model = made(Mlp, run.seed, run.dtype)
    x, _ = part(rows, run)
    out = model(x)
    total = out.sum(0)
    total = Reduce.apply(total, None)
    # The ranks' gradients are summed, as each holds the part of its own rows.
    ((total / BATCH) * torch.arange(total.numel()).to(run.dtype).cos()).square().sum().mul(
        run.world_size if mistake == "loss counted by every rank" else 1).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        if mistake == "identity backward under averaging":
            p.grad /= run.world_size
    return gradients(model)


def whole_centred(run):
    model = made(Mlp, run.seed, run.dtype)
    x, _ = rows(run.seed, run.dtype)
    total = model(x).sum(0)
    ((total / BATCH) * torch.arange(total.numel()).to(run.dtype).cos()).square().sum().backward()
    return gradients(model)


# --- Pipelines, experts ---


def pipeline(run, mistake=None):
    """Runs two stages with two micro-batches; 4 ranks are two data parallel pipelines. A rank has
    only its stage's parameters."""
    stages, dp = 2, run.world_size // 2
    stage, replica = run.rank % stages, run.rank // stages
    along_dp = [dist.new_group(list(range(s, run.world_size, stages))) for s in range(stages)]
    model = made(Mlp, run.seed, run.dtype)
    own = {"first": model.first, "norm": model.norm} if stage == 0 else {
        "second": model.second, "final": model.final, "head": model.head}
    x, target = part(rows, run, replica, dp)
    for x_part, target_part in zip(x.chunk(2), target.chunk(2)):
        if stage == 0:
            hidden = F.gelu(model.norm(model.first(x_part)))
            dist.send(hidden.detach(), run.rank + 1)
            cotangent = torch.empty_like(hidden)
            dist.recv(cotangent, run.rank + 1)
            hidden.backward(cotangent / 2 if mistake == "every stage divides" else cotangent)
        else:
            hidden = torch.empty(len(x_part), model.first.out_features,
                                 dtype=run.dtype).requires_grad_()
            dist.recv(hidden.detach(), run.rank - 1)
            (loss_of(model.head(model.final(x_part + model.second(hidden))), target_part) /
             2).backward()
            dist.send(hidden.grad, run.rank - 1)
    found = {f"{name}.{n}": p.grad for name, module in own.items()
             for n, p in module.named_parameters()}
    for g in found.values():
        dist.all_reduce(g, group=along_dp[stage])
        g /= dp
    return found


def experts(run, mistake=None):
    """Puts half of the experts on each of two ranks, which see the same rows; 4 ranks do so twice,
    data parallel."""
    ep, dp = 2, run.world_size // 2
    at, replica = run.rank % ep, run.rank // ep
    along_ep = [dist.new_group(list(range(s, s + ep))) for s in range(0, run.world_size, ep)]
    along_dp = [dist.new_group(list(range(s, run.world_size, ep))) for s in range(ep)]
    model = made(Experts, run.seed, run.dtype)
    x, target = part(rows, run, replica, dp)
    group = along_ep[replica]
    count = model.COUNT // ep
    mine = slice(at * count, (at + 1) * count)
    normed = model.norm(x)
    gates = Copy.apply(model.router(normed).softmax(-1), group, mistake != "router not reduced")
    mixed = Reduce.apply(model.mixed(Copy.apply(normed, group, True), gates, mine), group)
    loss_of(model.head(x + mixed), target).backward()
    found = gradients(model)
    for name in ("weights", "back"):
        found[name] = found[name][mine].clone()
    for name, g in found.items():
        everywhere = mistake == "experts averaged over all ranks" and name in ("weights", "back")
        dist.all_reduce(g, group=along_dp[at])
        g /= run.world_size if everywhere else dp
    return found
