"""Defines pipelines of several stages, and experts to which tokens travel by counts."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from models import gradients, made

WIDTH, CLASSES, ROWS, MICRO = 20, 9, 16, 4


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 36), nn.Linear(
            36, WIDTH)

    def forward(self, x):
        return x + self.narrow(torch.tanh(self.wide(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList(Stage() for _ in range(4))
        self.classifier = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return self.classifier(x)


def data(seed, dtype):
    generator = torch.Generator().manual_seed(seed + 3)
    return torch.randn(ROWS, WIDTH, generator=generator).to(dtype), torch.randint(
        CLASSES, (ROWS,), generator=generator)


def whole_net(run):
    model = made(Net, run.seed, run.dtype)
    x, y = data(run.seed, run.dtype)
    F.cross_entropy(model(x), y).backward()
    return gradients(model)


def one_f_one_b(run, mistake=None):
    """Runs one stage per rank and 4 micro-batches: warm-up, then forward and backward in turn."""
    model = made(Net, run.seed, run.dtype)
    rank, last = run.rank, run.world_size - 1
    stage = model.stages[rank]
    x, y = data(run.seed, run.dtype)
    xs, ys = x.chunk(MICRO), y.chunk(MICRO)
    if mistake == "labels of micro-batches 2 and 3 swapped":
        ys = [ys[0], ys[2], ys[1], ys[3]]
    inputs, outputs, sending = [], [], []

    def forward(i):
        if rank == 0:
            h = xs[i]
        else:
            h = torch.empty(ROWS // MICRO, WIDTH, dtype=run.dtype)
            dist.recv(h, rank - 1, tag=i)
            h.requires_grad_(not (mistake == "stage 2's input without gradient" and rank == 2))
        out = stage(h)
        if rank == last:
            out = F.cross_entropy(model.classifier(out), ys[i])
            if mistake == "last stage divides twice":
                out = out / MICRO
            if mistake != "not divided by the micro-batches":
                out = out / MICRO
        else:
            sending.append(dist.isend(out.detach(), rank + 1, tag=i))
        inputs.append(h)
        outputs.append(out)

    def backward(i):
        if rank == last:
            outputs[i].backward()
        else:
            g = torch.empty_like(outputs[i])
            dist.recv(g, rank + 1, tag=MICRO + i)
            at = i
            if mistake == "stage 1 goes back through the newest" and rank == 1:
                at = len(outputs) - 1
                outputs[at].backward(g, retain_graph=True)
            else:
                outputs[i].backward(g)
        if mistake == "stage 1 zeroes after the first" and rank == 1 and i == 0:
            stage.zero_grad()
        if rank > 0:
            g = inputs[i].grad if inputs[i].grad is not None else torch.zeros_like(inputs[i])
            if mistake == "stage 3 sends half" and rank == 3:
                g = g / 2
            sending.append(dist.isend(g, rank - 1, tag=MICRO + i))

    warm = min(MICRO, last - rank)
    for i in range(warm):
        forward(i)
    for i in range(MICRO - warm):
        forward(warm + i)
        backward(i)
    for i in range(MICRO - warm, MICRO):
        backward(i)
    for work in sending:
        work.wait()
    own = {f"stages.{rank}.{n}": p.grad for n, p in stage.named_parameters()}
    if rank == last:
        own |= {f"classifier.{n}": p.grad for n, p in model.classifier.named_parameters()}
    return own


# --- Experts: tokens travel by counts


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2 = nn.Linear(WIDTH, 28), nn.Linear(28, WIDTH)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)))


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sent, received, mistake):
        ctx.sent, ctx.received, ctx.mistake = sent, received, mistake
        out = x.new_empty(sum(received), x.size(1))
        dist.all_to_all_single(out, x.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(sum(ctx.sent), grad.size(1))
        dist.all_to_all_single(out, grad.contiguous(), ctx.sent, ctx.received)
        if ctx.mistake == "dispatch averages in backward":
            out /= dist.get_world_size()
        if ctx.mistake == "combine keeps the own tokens alone":
            at = sum(ctx.sent[:dist.get_rank()])
            kept = torch.zeros_like(out)
            kept[at:at + ctx.sent[dist.get_rank()]] = out[at:at + ctx.sent[dist.get_rank()]]
            out = kept
        return out, None, None, None


class Moe(nn.Module):
    TOP = 2

    def __init__(self):
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(4))

    def route(self, x):
        probabilities = self.gate(x).softmax(-1)
        weights, chosen = probabilities.topk(self.TOP, -1)
        return probabilities, weights, chosen

    def forward(self, x):
        h = self.norm(x)
        self.probabilities, weights, chosen = self.route(h)
        self.chosen = chosen
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            row, slot = (chosen == e).nonzero(as_tuple=True)
            out = out.index_add(0, row, expert(h[row]) * weights[row, slot][:, None])
        return x + out


class MoeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.moe, self.leave = nn.Linear(WIDTH, WIDTH), Moe(), nn.Linear(WIDTH, CLASSES)


def balance(probabilities, chosen):
    share = F.one_hot(chosen, 4).sum(1).to(probabilities.dtype).mean(0)
    return 0.5 * 4 * (share * probabilities.mean(0)).sum()


def moe(run, mistake=None):
    """Runs data parallel, with expert r on rank r."""
    model = made(MoeNet, run.seed, run.dtype)
    rank, world = run.rank, run.world_size
    x, y = (t.chunk(world)[rank] for t in data(run.seed, run.dtype))
    layer, expert = model.moe, model.moe.experts[rank]
    h = model.enter(x)
    normed = layer.norm(h)
    probabilities, weights, chosen = layer.route(normed)
    if mistake == "weights of the router detached":
        weights = weights.detach()
    if mistake == "weights made to add up to 1":
        weights = weights / weights.sum(-1, keepdim=True)
    order = chosen.flatten().argsort(stable=True)
    token = order // layer.TOP
    sent = torch.bincount(chosen.flatten(), minlength=world)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    sent, received = sent.tolist(), received.tolist()
    arrived = AllToAll.apply(normed[token], sent, received,
                             mistake if mistake and mistake.startswith("dispatch") else None)
    done = expert(arrived)
    back = AllToAll.apply(done, received, sent,
                          mistake if mistake and mistake.startswith("combine") else None)
    if mistake == "combined in the order of the experts":
        token = token.sort().values
    out = torch.zeros_like(h).index_add(0, token, back * weights.flatten()[order][:, None])
    if mistake == "dropped by capacity":
        kept = torch.arange(len(order)) % 8 != 7
        out = torch.zeros_like(h).index_add(0, token[kept],
                                            (back * weights.flatten()[order][:, None])[kept])
    loss = F.cross_entropy(model.leave(h + out), y)
    aux = balance(probabilities, chosen)
    loss = loss + (aux * world if mistake == "balance times the ranks" else aux)
    loss.backward()
    found = {}
    for name, p in model.named_parameters():
        if name.startswith("moe.experts"):
            if name.startswith(f"moe.experts.{rank}."):
                found[name] = p.grad / (1 if mistake == "experts not divided" else world)
                if mistake == "experts reduced like the rest":
                    dist.all_reduce(p.grad)
                    found[name] = p.grad / world
            continue
        if not (mistake == "gate taken for an expert" and "gate" in name):
            dist.all_reduce(p.grad)
            p.grad /= world
        found[name] = p.grad
    return found


def whole_moe(run, world=4):
    model = made(MoeNet, run.seed, run.dtype)
    x, y = data(run.seed, run.dtype)
    h = model.enter(x)
    out = model.moe(h)
    aux = sum(balance(p, c) for p, c in zip(model.moe.probabilities.chunk(world),
                                            model.moe.chosen.chunk(world))) / world
    (F.cross_entropy(model.leave(out), y) + aux).backward()
    return gradients(model)
