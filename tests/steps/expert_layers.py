"""Defines a layer of experts that gathers its ranks' tokens and scatters the sums, on ep times dp,
with a shared expert and a loss that keeps the router's logits small."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from models import gradients, made

WIDTH, CLASSES, ROWS, EXPERTS, TOP, EP = 24, 12, 32, 4, 2, 2


class Groups:
    ep = None
    rank, size, mistake = 0, 1, None


class GatherTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        pieces = [torch.empty_like(x) for _ in range(Groups.size)]
        dist.all_gather(pieces, x.contiguous(), group=Groups.ep)
        return torch.cat(pieces)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        if Groups.mistake != "gather keeps the own rows' gradient":
            dist.all_reduce(grad, group=Groups.ep)
        return grad.chunk(Groups.size)[Groups.rank].contiguous()


class ScatterSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x, group=Groups.ep)
        return x.chunk(Groups.size)[Groups.rank].contiguous()

    @staticmethod
    def backward(ctx, grad):
        if Groups.mistake == "sums' gradient padded":
            pieces = [torch.zeros_like(grad) for _ in range(Groups.size)]
            pieces[Groups.rank] = grad
            return torch.cat(pieces)
        pieces = [torch.empty_like(grad) for _ in range(Groups.size)]
        dist.all_gather(pieces, grad.contiguous(), group=Groups.ep)
        return torch.cat(pieces)


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 20), nn.Linear(20, WIDTH)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH) / 3)

    def forward(self, x):
        logits = F.linear(x, self.weight)
        weights, chosen = logits.topk(TOP, -1)
        weights = (logits.softmax(-1).gather(-1, chosen)
                   if Groups.mistake == "softmax over all experts" else weights.softmax(-1))
        return torch.zeros_like(logits).scatter(-1, chosen, weights), logits


class ExpertLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.shared = Router(), Expert()
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))

    def forward(self, x):
        gates, self.logits = self.router(x)
        n = EXPERTS // Groups.size
        mine = range(n * Groups.rank, n * (Groups.rank + 1))
        tokens = GatherTokens.apply(x) if Groups.size > 1 else x
        shares = GatherTokens.apply(gates) if Groups.size > 1 else gates
        if Groups.mistake == "gates detached in the gather":
            shares = shares.detach()
        out = sum(self.experts[e](tokens) * shares[:, e:e + 1] for e in mine)
        shared = self.shared(tokens if Groups.mistake == "shared expert on gathered tokens" else x)
        if Groups.mistake == "shared expert on gathered tokens":
            return ScatterSums.apply(out + shared)
        return (ScatterSums.apply(out) if Groups.size > 1 else out) + shared


class ExpertNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.norm, self.moe, self.leave = nn.Linear(
            WIDTH, WIDTH), nn.LayerNorm(WIDTH), ExpertLayer(), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        h = torch.tanh(self.enter(x))
        return self.leave(h + self.moe(self.norm(h)))


def z_loss(logits, mean=True):
    found = torch.logsumexp(logits, -1).square()
    return 0.3 * (found.mean() if mean else found.sum())


def data(seed, dtype):
    generator = torch.Generator().manual_seed(110 + seed)
    return torch.randn(ROWS, WIDTH, generator=generator).to(dtype), torch.randint(
        CLASSES, (ROWS,), generator=generator)


def whole_gathered_experts(run):
    model = made(ExpertNet, run.seed, run.dtype)
    x, y = data(run.seed, run.dtype)
    (F.cross_entropy(model(x), y) + z_loss(model.moe.logits)).backward()
    return gradients(model)


def gathered_experts(run, mistake=None):
    """Shares the experts among ranks 0, 1 and 2, 3; ranks 0, 2 and 1, 3 have the same ones."""
    n = run.world_size
    eps = [dist.new_group([r, r + 1]) for r in range(0, n, EP)]
    edps = [dist.new_group(list(range(r, n, EP))) for r in range(EP)]
    Groups.ep, Groups.rank, Groups.size, Groups.mistake = eps[run.rank //
                                                              EP], run.rank % EP, EP, mistake
    model = made(ExpertNet, run.seed, run.dtype)
    x, y = (t.chunk(n)[run.rank] for t in data(run.seed, run.dtype))
    loss = F.cross_entropy(model(x), y) + z_loss(model.moe.logits, mistake != "z-loss added up")
    loss.backward()
    found = {}
    for name, p in model.named_parameters():
        is_expert = name.startswith("moe.experts")
        if is_expert and int(name.split(".")[2]) // (EXPERTS // EP) != run.rank % EP:
            continue
        if mistake == "shared expert taken for a routed one" and "shared" in name:
            is_expert = True
        dist.all_reduce(p.grad, group=edps[run.rank % EP] if is_expert else None)
        p.grad /= n // EP if is_expert and mistake == "experts divided by their copies" else n
        found[name] = p.grad
    return found
