"""Defines training loops: a criterion that is a module, accumulation over unequal micro-batches,
masks, a loss scale, clipping, under DDP, FSDP2 and tensor parallel plans of DTensor; torch's own
pipeline schedules; sharded contrastive losses with a sum over all rows."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

from models import gradients, made

WIDTH, CLASSES, ROWS = 24, 10, 24


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(WIDTH, 40), nn.GELU(), nn.LayerNorm(40))
        self.body = nn.ModuleList(
            nn.Sequential(nn.Linear(40, 64), nn.Tanh(), nn.Linear(64, 40)) for _ in range(2))
        self.head = nn.Linear(40, CLASSES)

    def forward(self, x):
        x = self.stem(x)
        for block in self.body:
            x = x + block(x)
        return self.head(x)


def data(seed, dtype):
    generator = torch.Generator().manual_seed(70 + seed)
    return torch.randn(ROWS, WIDTH, generator=generator).to(dtype), torch.randint(
        CLASSES, (ROWS,), generator=generator)


def whole_classifier(run, clip=None):
    model, criterion = made(Classifier, run.seed, run.dtype), nn.CrossEntropyLoss()
    x, y = data(run.seed, run.dtype)
    criterion(model(x), y).backward()
    if clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    return gradients(model)


def ddp_loop(run, mistake=None):
    """Runs micro-batches of 4 and 2 rows on each rank; each loss is weighted by its rows."""
    model, criterion = made(Classifier, run.seed, run.dtype), nn.CrossEntropyLoss()
    if mistake == "head ignored by DDP":
        nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
            model, ["head.weight", "head.bias"])
    wrapped = nn.parallel.DistributedDataParallel(model)
    x, y = (t[run.rank::run.world_size] for t in data(run.seed, run.dtype))
    # The sampler fills the last rank's list of rows, which is too short, from the beginning.
    if mistake == "the sampler's padding":
        index = list(range(ROWS))[run.rank::run.world_size]
        index = index if run.rank < run.world_size - 1 else index[:-1] + [0]
        x, y = (t[index] for t in data(run.seed, run.dtype))
    scale = 64.0 if mistake == "head not unscaled" else 1.0
    pieces = list(zip(x.split(4), y.split(4)))
    for i, (a, b) in enumerate(pieces):
        last = i == len(pieces) - 1
        wrapped.require_backward_grad_sync = last and mistake != "no_sync everywhere"
        loss = criterion(wrapped(a), b)
        weight = 1 / len(pieces) if mistake == "unequal micro-batches averaged" else len(a) / len(x)
        (loss * weight * scale).backward()
    if mistake == "head not unscaled":
        for name, p in model.named_parameters():
            if not name.startswith("head"):
                p.grad /= scale
    if mistake == "accumulated in place twice":
        for p in model.head.parameters():
            p.grad += p.grad.clone()
    return gradients(model)


def fsdp_loop(run, mistake=None, clip=None):
    from torch.distributed.fsdp import fully_shard

    model, criterion = made(Classifier, run.seed, run.dtype), nn.CrossEntropyLoss()
    mesh = init_device_mesh("cpu", (run.world_size,), mesh_dim_names=("dp",))
    ignored = set(model.body[1].parameters()) if mistake == "second block left out" else set()
    for block in [model.body[0], *([] if ignored else [model.body[1]]), model]:
        fully_shard(block, mesh=mesh, ignored_params=ignored)
    x, y = (t.chunk(run.world_size)[run.rank] for t in data(run.seed, run.dtype))
    pieces = list(zip(x.split(3), y.split(3)))
    for i, (a, b) in enumerate(pieces):
        if mistake == "synchronised but for the first":
            model.set_requires_gradient_sync(i == 0)
        (criterion(model(a), b) / len(pieces)).backward()
        if mistake == "clipped in each micro-batch" and i == 0:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
    if clip:
        norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        if mistake == "norm of the own shards":
            norm = torch.stack([p.grad.to_local().norm() for p in model.parameters()]).norm()
        for p in model.parameters():
            p.grad.mul_(torch.clamp(clip / (norm + 1e-6), max=1.0).item())
    return gradients(model)


# --- A plan of DTensor


def planned(run, mistake=None):
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard  # noqa: F401
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                   parallelize_module)

    model, criterion = made(Classifier, run.seed, run.dtype), nn.CrossEntropyLoss()
    mesh = init_device_mesh("cpu", (2, run.world_size // 2), mesh_dim_names=("dp", "tp"))
    plan = {}
    for i in range(2):
        plan[f"body.{i}.0"], plan[f"body.{i}.2"] = ColwiseParallel(), RowwiseParallel()
    plan["head"] = ColwiseParallel(output_layouts=Replicate())
    if mistake == "head's input taken for a shard's":
        plan["head"] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, mesh["tp"], plan)
    if mistake == "block's output hooked":
        model.body[1][0].register_forward_hook(lambda m, i, o: o * 1.0 + 0 * o.detach())
        model.body[1][2].register_full_backward_hook(
            lambda m, gi, go: tuple(g / 2 if g is not None else None for g in gi))
    x, y = (t.chunk(2)[mesh.get_local_rank("dp")] for t in data(run.seed, run.dtype))
    logits = model(x)
    if mistake == "head's input taken for a shard's":
        logits = logits.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
    criterion(logits, y).backward()
    group = mesh.get_group("tp" if mistake == "averaged over tp" else "dp")
    for p in model.parameters():
        local = p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad
        dist.all_reduce(local, group=group)
        local /= 2
    return gradients(model)


# --- torch.distributed.pipelining


class StageOf(nn.Module):
    """Holds a part of the classifier, under the classifier's names."""

    def __init__(self, model, stage, mistake):
        super().__init__()
        self.stage, self.mistake = stage, mistake
        if stage == 0:
            self.stem = model.stem
        elif stage in (1, 2):
            at = stage - 1 if mistake != "blocks in the other order" else 2 - stage
            self.body = nn.ModuleDict({str(at): model.body[at]})
        else:
            self.head = model.head

    def forward(self, x):
        if self.stage == 0:
            return self.stem(x)
        if self.stage == 3:
            return self.head(x)
        block = next(iter(self.body.values()))
        return (x.detach()
                if self.mistake == "residual detached" and self.stage == 2 else x) + block(x)


def scheduled(run, mistake=None):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    model = made(Classifier, run.seed, run.dtype)
    part = StageOf(model, run.rank, mistake)
    stage = PipelineStage(part, run.rank, run.world_size, torch.device("cpu"))
    criterion = nn.CrossEntropyLoss(reduction="sum" if mistake == "sum of the rows" else "mean",
                                    label_smoothing=0.1 if mistake == "labels smoothed" else 0.0)
    schedule = Schedule1F1B(stage, 4, loss_fn=criterion, scale_grads=mistake != "not scaled")
    x, y = data(run.seed, run.dtype)
    if run.rank == 0:
        schedule.step(x)
    else:
        schedule.step(target=y) if run.rank == run.world_size - 1 else schedule.step()
    return {name: p.grad for name, p in part.named_parameters()}


# --- Contrastive


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 16))
        self.text = nn.Sequential(nn.Linear(WIDTH, 28), nn.Tanh(), nn.Linear(28, 16))
        self.logit_scale, self.logit_bias = nn.Parameter(torch.tensor(1.5)), nn.Parameter(
            torch.tensor(-2.0))

    def forward(self, x, z):
        return F.normalize(self.image(x), dim=-1), F.normalize(
            self.text(z), dim=-1), self.logit_scale.exp(), self.logit_bias


def towers_data(seed, dtype):
    generator = torch.Generator().manual_seed(90 + seed)
    x = torch.randn(ROWS, WIDTH, generator=generator)
    return x.to(dtype), (x + torch.randn(ROWS, WIDTH, generator=generator)).to(dtype)


class SigmoidLoss(nn.Module):
    """Computes the loss of own rows' pairs, a block of columns at a time."""

    def forward(self, a, b, scale, bias, is_own=True):
        logits = scale * a @ b.t() + bias
        labels = 2 * torch.eye(len(a), dtype=a.dtype) - 1 if is_own else -torch.ones_like(logits)
        return -F.logsigmoid(labels * logits).sum() / len(a)


class PassOn(torch.autograd.Function):
    """Passes texts round the ranks."""

    @staticmethod
    def sent(x, by):
        rank, n, out = dist.get_rank(), dist.get_world_size(), torch.empty_like(x)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x.contiguous(), (rank + by) % n),
                                            dist.P2POp(dist.irecv, out, (rank - by) % n)]):
            work.wait()
        return out

    @staticmethod
    def forward(ctx, x, mistake):
        ctx.mistake = mistake
        return PassOn.sent(x, 1)

    @staticmethod
    def backward(ctx, grad):
        return (grad if ctx.mistake == "gradients stay where the texts went" else PassOn.sent(
            grad, -1)), None


def whole_siglip(run):
    model = made(TwoTowers, run.seed, run.dtype)
    SigmoidLoss()(*model(*towers_data(run.seed, run.dtype))).backward()
    return gradients(model)


def siglip(run, mistake=None):
    model = made(TwoTowers, run.seed, run.dtype)
    wrapped, criterion = nn.parallel.DistributedDataParallel(model), SigmoidLoss()
    x, z = (t.chunk(run.world_size)[run.rank] for t in towers_data(run.seed, run.dtype))
    a, b, scale, bias = wrapped(x, z)
    loss = criterion(a, b, scale, bias)
    turns = run.world_size - 1 - (mistake == "one turn too few")
    for _ in range(turns):
        b = PassOn.apply(b, mistake)
        loss = (loss + criterion(a, b, scale,
                                 bias.detach() if mistake == "bias of the negatives detached"
                                 else bias, is_own=mistake == "positives in every block"))
    loss.backward()
    return gradients(model)


class Barlow(nn.Module):
    """Computes the cross-correlation of two views over all rows."""

    def __init__(self, group_size=1, mistake=None):
        super().__init__()
        self.group_size, self.mistake = group_size, mistake

    def forward(self, a, b):
        c = a.t() @ b / (len(a) * self.group_size)
        if self.group_size > 1:
            c = SumOfAll.apply(c) if self.mistake != "all-reduced in place" else in_place_sum(c)
        on = torch.eye(len(c), dtype=c.dtype)
        return ((c - on).square() * (on + 0.1 * (1 - on))).sum()


class SumOfAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad


def in_place_sum(c):
    dist.all_reduce(c)
    return c


def whole_barlow(run):
    model = made(TwoTowers, run.seed, run.dtype)
    a, b, *_ = model(*towers_data(run.seed, run.dtype))
    Barlow()(a, b).backward()
    return gradients(model)


def barlow(run, mistake=None):
    model = made(TwoTowers, run.seed, run.dtype)
    model.logit_scale.requires_grad_(False), model.logit_bias.requires_grad_(False)
    wrapped = nn.parallel.DistributedDataParallel(model)
    x, z = (t.chunk(run.world_size)[run.rank] for t in towers_data(run.seed, run.dtype))
    a, b, *_ = wrapped(x, z)
    n = 1 if mistake == "correlation of the own rows" else run.world_size
    Barlow(n, mistake)(a, b).backward()
    return gradients(model)
