"""Tests check_gradients beside its verdicts on steps (tests/steps/run_measured.py): what it leaves
unchanged, what it cannot judge, bad input, and what each rank is told.

    python src/python/tests/test_check_gradients.py
"""

import contextlib
import functools
import math
import random
import re
import sys
import time
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.utils import clip_grad_value_  # as users import it

sys.path.insert(0, str(Path(__file__).resolve().parent))

from gradchecks import ranks  # noqa: E402

import distgrad  # noqa: E402
from distgrad import callbacks  # noqa: E402
from distgrad.gradient_check import team  # noqa: E402
from distgrad.step.outputs import Place, departure  # noqa: E402

RANKS = 3


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.second = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)

    def forward(self, x):
        return self.second(nn.functional.gelu(self.norm(self.first(x))))


class Overwriting(Model):
    """Halves what backward needs, through .data."""

    def __init__(self):
        super().__init__()
        del self.norm

    def forward(self, x):
        h = torch.tanh(self.first(x))
        y = self.second(h)
        h.data.mul_(0.5)
        return y


class Float32Inside(nn.Module):
    """Computes in float32 inside, as norms of released models do."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        h = self.first(x).float()
        return self.second((h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype))


class BesideBfloat16(nn.Module):
    """Has a residual stream in the parameters' dtype, beside a product in bfloat16."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 1)
        self.inner = nn.Parameter(torch.randn(8, 8) / 3)

    def forward(self, x):
        h = self.first(x)
        return self.second(torch.tanh(h + (h.bfloat16() @ self.inner.bfloat16()).to(h.dtype)))


def averaged(model, dtype=torch.float64, dropout=0.0, change=lambda model: None, ends=None,
             seed=None):
    """Returns a step that is right unless change() makes it wrong after the reduction; it returns
    ends(loss). Ranks have data of their own, or those of `seed`."""
    seed = dist.get_rank() if seed is None else seed
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed)).to(dtype)

    def step():
        model.zero_grad()
        loss = nn.functional.dropout(model(x), dropout).square().mean()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        change(model)
        return ends(loss) if ends else loss

    return step


def doubled_bias(model):
    model.second.bias.grad *= 2


def doubled_in_float64(model):
    def ends(loss):
        if loss.dtype == torch.float64:
            model.second.weight.grad *= 2
        return loss

    return ends


def times(factor):
    def change(model):
        for p in model.parameters():
            p.grad *= factor

    return change


def clipped_by_own_norm(model):
    """Clips by the norm of this rank's own pieces, which differs from rank to rank."""
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm() * (1 + dist.get_rank())
    for p in model.parameters():
        p.grad *= min(1.0, 0.01 / float(norm))


def clipped(*parts, **more):
    """Returns a change that clips each part by itself, as torch does."""
    def change(model):
        for part in parts:
            nn.utils.clip_grad_norm_(getattr(model, part).parameters(), 0.01, **more)

    return change


def clipped_on_rank_0(most, **more):
    """Returns a change that clips one rank's copies, to a norm or, with most=0, to nothing."""
    def change(model):
        if dist.get_rank() == 0:
            nn.utils.clip_grad_norm_(model.parameters(), most, **more)

    return change


def clipped_before_the_reduction(most, clip=nn.utils.clip_grad_norm_):
    """Returns a step in which clipping sees only each rank's own gradients."""
    model = Model().double()

    def step():
        model.zero_grad()
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(dist.get_rank())).double()
        loss = model(x).square().mean()
        loss.backward()
        clip(model.parameters(), most)
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        return loss

    return model, step


def cut(times=1.0, ranks=(0, 1, 2), then=lambda model: None):
    """Returns a change that multiplies gradients, and cuts most of their elements on ranks."""
    def change(model):
        for p in model.parameters():
            p.grad *= times
        if dist.get_rank() in ranks:
            clip_grad_value_(model.parameters(), 1e-6)
        then(model)

    return change


def clipped_again(most):
    """Returns a change that clips a part, and then all to a norm, which may be infinite."""
    def change(model):
        clipped("second")(model)
        nn.utils.clip_grad_norm_(model.parameters(), most)

    return change


def clipped_on_each_rank_and_again(model):
    """Clips by norms of the ranks' own, takes the mean over the ranks, and clips that."""
    nn.utils.clip_grad_norm_(model.parameters(), 0.02 / (1 + dist.get_rank()))
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()
    nn.utils.clip_grad_norm_(model.parameters(), 0.001)


def clipped_and_not_reduced():
    """Returns a step in which each rank clips its own gradients, which nothing reduces."""
    model = Model().double()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(dist.get_rank())).double()

    def step():
        model.zero_grad()
        loss = model(x).square().mean() * (1 + dist.get_rank())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        return loss

    return model, step


def under_two_names(reduces):
    """Shares a weight that rank 0 calls `embedding` and rank 2 `head`; rank 1 has another."""
    model = nn.Module()
    name = ("embedding", "middle", "head")[dist.get_rank()]
    generator = torch.Generator().manual_seed(3 + (dist.get_rank() == 1))
    weight = nn.Parameter(torch.randn(4, 3, generator=generator, dtype=torch.float64))
    model.register_parameter(name, weight)
    group = dist.new_group([0, 2])

    def step():
        weight.grad = None
        loss = (weight * (1 + dist.get_rank())).sin().sum()
        loss.backward()
        if reduces and name != "middle":
            dist.all_reduce(weight.grad, group=group)
        return loss

    return model, step


def tripled_after_clipping(model):
    clipped("first", "second")(model)
    for p in model.parameters():
        p.grad *= 3


def in_bfloat16(model):
    """Puts the sum in place of the mean, in bfloat16."""
    for p in model.parameters():
        p.grad = (p.grad * dist.get_world_size()).bfloat16().to(p.dtype)


def clipped_by_what_the_rank_sees(most):
    """Returns a change that clips by a norm from which rank r leaves out its r-th parameter."""
    def change(model):
        chosen = [p for i, p in enumerate(model.parameters()) if i != dist.get_rank()]
        norm = nn.utils.get_total_norm([p.grad for p in chosen])
        nn.utils.clip_grads_with_norm_(list(model.parameters()), most, norm)

    return change


def counted_without_waiting(_):
    dist.all_reduce(torch.ones(1), async_op=True)


def waited_for_on_rank_2_alone(model):
    """Lets rank 2 come last, so that the others have what they wait for only then."""
    def step():
        model.zero_grad()
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(dist.get_rank())).double()
        loss = model(x).square().mean() / dist.get_world_size()
        loss.backward()
        time.sleep(0.1 if dist.get_rank() == 2 else 0)
        works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
        if dist.get_rank() == 2:
            for work in works:
                work.wait()
        return loss

    return model, step


def loss_without_waiting(loss):
    """Returns the mean of all ranks' losses, to which rank 2 comes late."""
    time.sleep(0.1 if dist.get_rank() == 2 else 0)
    value = loss.detach().clone()
    dist.all_reduce(value, async_op=True)
    return value / dist.get_world_size()


def reduced_from_the_second_time_on():
    """Returns a step whose first run leaves each rank its own gradients."""
    model, times = Model().double(), []
    right = averaged(model)

    def step():
        times.append(0)
        if len(times) > 1:
            return right()
        model.zero_grad()
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(dist.get_rank())).double()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return model, step


def at_a_kink(factor=1.0):
    """Takes a ReLU of zeros: rows of padding, and a bias that is zero at the start."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    nn.init.zeros_(model[0].bias)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(dist.get_rank())).double()
    x[3:] = 0
    model = nn.parallel.DistributedDataParallel(model)

    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        model.module[2].bias.grad *= factor
        return loss

    return model, step


def pieces_off_by_rank():
    """Gives each rank a piece of its own, and multiplies its gradient by its rank plus 2."""
    model = nn.Linear(4, 2).double()
    nn.init.normal_(model.weight, generator=torch.Generator().manual_seed(dist.get_rank()))
    nn.init.normal_(model.bias, generator=torch.Generator().manual_seed(9 + dist.get_rank()))
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(20)).double()

    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        for p in model.parameters():
            p.grad *= 2 + dist.get_rank()
        return loss

    return model, step


def not_divided(dtype=torch.float64):
    """Runs two micro-batches, and returns the mean of their losses."""
    model = nn.parallel.DistributedDataParallel(Model().to(dtype))
    x = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(dist.get_rank())).to(dtype)

    def step():
        model.zero_grad()
        total = 0
        for part in x:
            loss = model(part).square().mean()
            loss.backward()
            total = total + loss.detach()
        return total / 2

    return model, step


def off_by(factor, name, dtype):
    """Returns a model in whose step one small gradient is wrong."""
    model = Model().to(dtype)

    def change(model):
        dict(model.named_parameters())[name].grad.mul_(factor)

    return model, averaged(model, dtype, change=change)


def weighted_by_ranks(seed, factor=0):
    """Returns a step whose gradients are those of the mean over ranks, and whose loss is that over
    rows, of which both ranks have different numbers; with a factor, they are off by it alone."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    model = nn.parallel.DistributedDataParallel(model)
    n = 4 + 3 * dist.get_rank()
    generator = torch.Generator().manual_seed(10 * seed + dist.get_rank())
    x, y = torch.randn(n, 5, generator=generator), torch.randint(3, (n,), generator=generator)

    def step():
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
        (loss * factor * 2 / 11 if factor else loss / n).backward()
        return loss, n

    return model, step


def of_weighted_ranks():
    """Returns by factor what was found on two ranks from several seeds."""
    return {factor: [asked(*weighted_by_ranks(seed, factor), lambda pairs: sum(
        loss for loss, _ in pairs) / sum(n for _, n in pairs)) for seed in (0, 1, 2, 4)]
        for factor in (0, 1.3)}


def clipped_elsewhere():
    """Clips by other Parameters that have the same gradients, as master weights do."""
    model = nn.parallel.DistributedDataParallel(Model().double())
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(dist.get_rank())).double()

    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        masters = [nn.Parameter(p.detach()) for p in model.parameters()]
        for master, p in zip(masters, model.parameters()):
            master.grad = p.grad
        nn.utils.clip_grad_norm_(masters, 0.01)
        return loss

    return model, step


def one_rank_is_wrong(model):
    if dist.get_rank() == 1:
        model.second.weight.grad[0, 0] += 0.1


def not_finite_on_rank_1(model):
    if dist.get_rank() == 1:
        model.second.weight.grad[0, 0] = float("nan")


def raises_on_rank_1(loss):
    if dist.get_rank() == 1:
        raise KeyError("no such batch")
    return loss


def column(wrong=False):
    """Returns a layer cut along its output, with zero biases, behind a norm that all ranks have and
    whose gradient must be summed."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    whole = torch.randn(3 * size, 4, dtype=torch.float64)
    model = nn.ModuleDict({"norm": nn.LayerNorm(4), "up": nn.Linear(4, 3)}).double()
    model["up"].weight.data = whole[3 * rank:3 * rank + 3].clone()
    nn.init.zeros_(model["up"].bias)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def step():
        model.zero_grad()
        own = model["up"](model["norm"](x)).tanh().square().mean()
        own.backward()
        for p in model["norm"].parameters() if not wrong else ():
            dist.all_reduce(p.grad)
        total = own.detach().clone()
        dist.all_reduce(total)
        return total

    return model, step


def in_stages():
    """Returns a pipeline with a stage on each rank, whose norms begin as ones and zeros."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    torch.manual_seed(6 + rank)
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh()).double()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def step():
        model.zero_grad()
        if rank:
            given = torch.empty_like(x)
            dist.recv(given, rank - 1)
            given.requires_grad_()
        y = model(given if rank else x)
        g = torch.empty_like(y)
        if rank == last:
            y = y.sin().sum()
        else:
            dist.send(y.detach(), rank + 1)
            dist.recv(g, rank + 1)
        y.backward(g if rank < last else None)
        if rank:
            dist.send(given.grad, rank - 1)
        return y.detach() if rank == last else None

    return model, step


def with_norms_forgotten(wraps):
    """Returns a data parallel step that forgets to reduce a norm, which begins as ones and zeros;
    each rank has a part of its own, too."""
    torch.manual_seed(7)
    model = nn.ModuleDict({"all": nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))}).double()
    if wraps:
        model["all"] = nn.parallel.DistributedDataParallel(model["all"])
    torch.manual_seed(8 + dist.get_rank())
    model["own"] = nn.Linear(4, 4).double()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(dist.get_rank())).double()

    def step():
        model.zero_grad()
        with model["all"].no_sync() if wraps else contextlib.nullcontext():
            loss = model["own"](model["all"](x).tanh()).square().mean()
            loss.backward()
        linear = (model["all"].module if wraps else model["all"])[0]
        for p in linear.parameters():
            dist.all_reduce(p.grad)
        return loss

    return model, step


def rounded_otherwise_each_time():
    """Returns a model without modules in float32 and a step whose gradients differ by roundings."""
    model, times = nn.Linear(4, 3), []
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(dist.get_rank()))

    def step():
        times.append(0)
        model.zero_grad()
        loss = nn.functional.linear(x, model.weight, model.bias).tanh().square().mean()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad *= (1 + 1e-5 * len(times)) / dist.get_world_size()
        return loss

    return model, step


def that_cancels_out():
    """Returns a step in which a bias has other roundings of 0 as its gradient each time."""
    model, times = nn.Linear(4, 3).double(), []

    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(dist.get_rank())).double()

    def step():
        times.append(0)
        model.zero_grad()
        y = model(x)
        loss = (y - y.mean(0)).square().mean()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        model.bias.grad += 1e-18 * len(times)
        return loss

    return model, step


class Entered(torch.autograd.Function):
    """Lets a tensor into a cut layer unchanged. Its backward lacks the sum over the ranks, and
    multiplies by `factor`."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor, None


def entered(factor):
    """Makes the layer of column(), whose norm has a gradient that nothing sums."""
    model, _ = column()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def step():
        model.zero_grad()
        h = Entered.apply(model["norm"](x), factor)
        own = model["up"](h).tanh().square().mean()
        own.backward()
        total = own.detach().clone()
        dist.all_reduce(total)
        return total

    return model, step


class Summed(torch.autograd.Function):
    """Sums over a group, each of whose ranks computes the same loss from that."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, g):
        return g, None


class Rows(nn.Linear):
    """Is cut along its input over a group."""

    def forward(self, x):
        return Summed.apply(super().forward(x), self.group)


def summed_in_pairs(in_parts=False):
    """Asks on 4 ranks, or on two of them at a time, about a layer cut by its rows in each of two
    pairs. Its gradients, and what the pairs have alike, are reduced between the pairs; the layer's
    are tripled after that."""
    rank = dist.get_rank()
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3])]
    torch.manual_seed(5 + rank % 2)
    model = nn.ModuleDict({"rows": Rows(4, 3, bias=False), "out": nn.Linear(3, 2)}).double()
    model["rows"].group = pairs[rank // 2]
    for p in model["out"].parameters():
        nn.init.normal_(p, generator=torch.Generator().manual_seed(9))
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)

    def step():
        model.zero_grad()
        loss = model["out"](model["rows"](x).tanh()).square().mean()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=pairs[2 + rank % 2])
            p.grad /= 2
        model["rows"].weight.grad *= 3
        return loss

    return asked(model, step, group=pairs[2 + rank % 2] if in_parts else None)


def of_batches(model, done):
    """Makes a step of three micro-batches, of which the first `done` get their backward."""
    batches = [torch.randn(5, 4, generator=torch.Generator().manual_seed(3 * dist.get_rank() + i)
                           ).double() for i in range(3)]

    def step():
        model.zero_grad()
        losses = [model(x).square().mean() for x in batches]
        sum(losses[:done]).backward()
        for p in model.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)
        return sum(losses).detach()

    return model, step


class Factored(torch.autograd.Function):
    """Gives its factor None, and not its gradient."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(factor)
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0], None


class WithFactor(Model):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([1.5]))

    def forward(self, x):
        return Factored.apply(super().forward(x), self.factor)


OPTIMIZERS = {
    "Adam": lambda model: torch.optim.Adam(model.parameters(), 1e-2),
    "a rate of its own": lambda model: torch.optim.SGD(model.parameters(),
                                                       1e-2 * (1 + dist.get_rank())),
    "moments of its own": lambda model: torch.optim.Adam(model.parameters(), 1e-2)}


def under_an_optimizer(name):
    """Returns what was found after a step of training, and whether all was put back."""
    model = Model().double()
    optimizer, step = OPTIMIZERS[name](model), averaged(model)
    if name != "a rate of its own":
        step()
        optimizer.step()
    if name == "moments of its own":
        optimizer.state[model.second.bias]["exp_avg"] *= 1 + dist.get_rank()

    def state():
        return [str(optimizer.state_dict()), *(p.detach().clone() for p in model.parameters())]

    before = state()
    report = asked(model, step, optimizer=optimizer)
    after = state()
    report["is back"] = before[0] == after[0] and all(map(torch.equal, before[1:], after[1:]))
    return report


class OwnersUpdate:
    """Updates each parameter on one rank, and sends it to the others, as ZeRO does."""

    def __init__(self, model, is_sent):
        self.parameters, self.is_sent = list(model.parameters()), is_sent
        own = [p for i, p in enumerate(self.parameters) if is_owner(i)]
        self.inner = torch.optim.Adam(own, 1e-2)

    def step(self):
        self.inner.step()
        for i, p in enumerate(self.parameters) if self.is_sent else ():
            dist.broadcast(p.data, i % dist.get_world_size())


def is_owner(i):
    return i % dist.get_world_size() == dist.get_rank()


def with_owners(change=lambda model: None, is_sent=True, is_told=True):
    model = Model().double()

    def leave_to_owners(model):
        change(model)
        for i, p in enumerate(model.parameters()):
            p.grad = p.grad if is_owner(i) else None

    optimizer = OwnersUpdate(model, is_sent) if is_told else None
    return asked(model, averaged(model, change=leave_to_owners), optimizer=optimizer)


def logged_mean(loss):
    """Returns the mean of the ranks' losses, in the memory of this one, as a trainer logs it."""
    loss = loss.detach()
    dist.all_reduce(loss)
    return loss.div_(dist.get_world_size())


def in_one_buffer(factor):
    """Returns what was found where p.grad are views of one buffer, which is reduced; whether they
    are views afterwards; and whether they hold what they held."""
    model = Model().double()
    buffer, begin = torch.full((sum(p.numel() for p in model.parameters()),), 7.0).double(), 0
    for p in model.parameters():
        p.grad = buffer[begin:begin + p.numel()].view_as(p)
        begin += p.numel()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(dist.get_rank())).double()

    def step():
        buffer.zero_()
        loss = model(x).square().mean()
        loss.backward()
        dist.all_reduce(buffer)
        buffer.mul_(factor / dist.get_world_size())
        return loss

    report = asked(model, step)
    are_views = all(p.grad.untyped_storage().data_ptr() == buffer.data_ptr()
                    for p in model.parameters())
    return report, are_views, bool((buffer == 7).all())


def frozen_on_rank_1(is_used, **more):
    """Judges a model of which rank 1 has a frozen layer, and its own data unless is_used is False,
    when its loss does not depend on that layer."""
    model = Model().double()
    model.first.requires_grad_(dist.get_rank() != 1)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(dist.get_rank())).double()

    def step():
        model.zero_grad()
        hidden = model.first(x) if is_used or dist.get_rank() != 1 else x.new_ones(5, 6)
        loss = model.second(model.norm(hidden)).square().mean()
        loss.backward()
        for p in model.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        return loss

    return asked(model, step, **more)


class Centered(Model):
    """Subtracts a running mean, which each forward replaces by another tensor."""

    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(6))

    def forward(self, x):
        y = self.first(x)
        self.center = 0.9 * self.center + 0.1 * y.detach().mean(0)
        return self.second(nn.functional.gelu(y - self.center.detach()))


def in_mixed_precision(divisor, reduce_dtype):
    """Judges a model that FSDP gathers in bfloat16, whose loss is divided before backward."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype)
    for part in (model[0], model):
        fully_shard(part, mesh=init_device_mesh("cpu", (dist.get_world_size(),)), mp_policy=policy)
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(dist.get_rank()))

    def step():
        model.zero_grad()
        loss = model(x).float().square().mean()
        (loss / divisor).backward()
        return loss

    report = asked(model, step)
    return {**report, "dtypes after it": str(model(x).dtype)}


def mean_of_all_so_far():
    losses = []

    def ends(loss):
        losses.append(float(loss))
        return sum(losses) / len(losses)

    return ends


def in_float64(dtype, factor):
    """Returns what was found in float64, and whether all was put back."""
    model = Model().to(dtype)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    report = asked(model, averaged(model, dtype, change=times(factor)), float64=True)
    after = model.state_dict()
    report["is back"] = all(x.dtype == after[name].dtype and torch.equal(x, after[name])
                            for name, x in before.items())
    return report


def asked(model, step, objective="mean", **more):
    report = distgrad.check_gradients(model, step, objective, raise_exception=False, **more)
    return {**report.to_dict(), "text": str(report)}


def raised(function, *arguments, **more):
    try:
        function(*arguments, **more)
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def everything():
    """Returns by name what check_gradients did on this rank."""
    found = {}
    model = Model().double()
    stale = [torch.full_like(p, 7.0) for p in model.parameters()]
    for p, g in zip(model.parameters(), stale):
        p.grad = g.clone()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random.seed(3)
    torch.manual_seed(4)
    found["right"] = asked(model, averaged(model, dropout=0.3))
    found["random"] = random.random() == random.Random(3).random()
    found["torch random"] = torch.equal(
        torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(4)))
    found["state"] = all(torch.equal(before[name], value)
                         for name, value in model.state_dict().items())
    found["gradients"] = all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), stale))
    found["same data"] = asked(model, averaged(model, seed=5))
    found["wrong"] = asked(model, averaged(model, change=doubled_bias))
    found["raised"] = raised(distgrad.check_gradients, model, averaged(model, change=doubled_bias))
    found["in float32"] = asked(m := Model(), averaged(m, torch.float32))
    found["wrong in float32"] = asked(m, averaged(m, torch.float32, change=doubled_bias))
    found["in bfloat16"] = asked(m := Model().bfloat16(), averaged(m, torch.bfloat16))
    for factor in (0.0, 1 / RANKS, 3.0):
        m = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 8)).bfloat16()
        found[f"{factor:.2f} in bfloat16"] = asked(
            m, averaged(m, torch.bfloat16, change=times(factor)))
    found["float32 inside"] = asked(m := Float32Inside().double(), averaged(m))
    found["wrong, float32 inside"] = asked(m, averaged(m, change=doubled_bias))
    drawn = random.Random(dist.get_rank())
    found["another loss"] = asked(model, averaged(model, ends=lambda loss: loss * drawn.random()))
    found["infinite"] = asked(model, averaged(model, ends=lambda loss: loss / 0))
    found["not cleared"] = asked(model, added_to(model))
    found["pieces"] = asked(*column(), "replicated", pieces="up.bias")
    found["maybe pieces"] = asked(*column(), "replicated")
    found["stages"] = asked(*in_stages(), "sum")
    found["stages, told"] = asked(*in_stages(), "sum", pieces="1.*")
    for wraps in (True, False):
        found[f"norms forgotten, {wraps}"] = asked(*with_norms_forgotten(wraps), "sum")
    found["norm"] = asked(*column(wrong=True), "replicated", pieces="up.bias")
    found["entered"] = asked(*entered(1), "replicated", pieces="up.bias")
    found["entered and doubled"] = asked(*entered(2), "replicated", pieces="up.bias")
    found["forgotten"] = asked(*of_batches(Float32Inside().double(), 2), "sum")
    found["None"] = asked(*of_batches(WithFactor().double(), 3), "sum")
    found["elsewhere"] = with_another_default_device()
    found["own norm"] = asked(model, averaged(model, change=clipped_by_own_norm))
    found["clipped apart"] = asked(model, averaged(model, change=clipped("first", "second")))
    found["clipped by the largest"] = asked(
        model, averaged(model, change=clipped("first", norm_type=float("inf"))))
    for dtype in (torch.float32, torch.float64):
        beside = BesideBfloat16().to(dtype)
        found[f"beside bfloat16, {dtype}"] = asked(beside, averaged(beside, dtype))
        found[f"doubled, {dtype}"] = asked(
            beside, averaged(beside, dtype, change=lambda model: model.inner.grad.mul_(2)))
    for reduces in (True, False):
        two_names = under_two_names(reduces)
        found[f"two names, {reduces}"] = asked(*two_names, objective="sum")
        found[f"one name, {reduces}"] = asked(*two_names, objective="sum",
                                              copies="embedding=head")
    for order in (2.0, float("inf")):
        found[f"clipped on rank 0, {order}"] = asked(
            model, averaged(model, change=clipped_on_rank_0(0.01, norm_type=order)))
    found["clipped to different norms"] = asked(model, averaged(
        model, change=lambda model: nn.utils.clip_grad_norm_(model.parameters(),
                                                             0.01 * (1 + dist.get_rank()))))
    found["clipped to 0 on rank 0"] = asked(model, averaged(model, change=clipped_on_rank_0(0.0)))
    found["clipped too early"] = asked(*clipped_before_the_reduction(0.01))
    found["clipped and not reduced"] = asked(*clipped_and_not_reduced())
    for most in (0.005, float("inf")):
        found[f"clipped again to {most}"] = asked(model, averaged(model,
                                                                  change=clipped_again(most)))
    found["clipped early and late"] = asked(model, averaged(
        model, change=clipped_on_each_rank_and_again))
    for name, change in (("cut", cut()), ("doubled and cut", cut(2.0)),
                         ("cut on rank 1", cut(1.0, [1])),
                         ("cut and clipped", cut(then=clipped("first")))):
        found[name] = asked(model, averaged(model, change=change))
    found["cut too early"] = asked(*clipped_before_the_reduction(1e-6, clip_grad_value_))
    found["seen too early"] = asked(*clipped_before_the_reduction(1e9))
    found["tripled after clipping"] = asked(model, averaged(model, change=tripled_after_clipping))
    found["sums in bfloat16"] = asked(model, averaged(model, change=in_bfloat16))
    found["pieces off by rank"] = asked(*pieces_off_by_rank(), "sum")
    found["not divided"] = asked(*not_divided())
    found["losses of their own"] = asked(model, averaged(model), "replicated")
    found["nan on rank 1"] = asked(model, averaged(
        model, ends=lambda loss: loss * math.nan if dist.get_rank() == 1 else loss))
    found["not finite on rank 1"] = asked(model, averaged(model, change=not_finite_on_rank_1))
    found["at a kink"] = asked(*at_a_kink())
    found["at a kink, twice"] = asked(*at_a_kink(2.0))
    found["little in float64"] = asked(*off_by(1.0001, "second.bias", torch.float64))
    found["little in float32"] = asked(*off_by(0.9, "norm.bias", torch.float32))
    found["clipped elsewhere"] = asked(*clipped_elsewhere())
    found["one rank is wrong"] = asked(model, averaged(model, change=one_rank_is_wrong))
    for most in (0.01, 100.0, math.inf):
        found[f"another norm, {most}"] = asked(
            model, averaged(model, change=clipped_by_what_the_rank_sees(most)))
    overwriting = Overwriting().double()
    found["overwritten"] = asked(overwriting, averaged(overwriting))
    found["rounded otherwise"] = asked(*rounded_otherwise_each_time())
    found["cancels out"] = asked(*that_cancels_out())
    found["kept"] = asked(*reduced_from_the_second_time_on())
    found["not waited for"] = asked(model, averaged(model, change=counted_without_waiting))
    found["waited for on rank 2 alone"] = asked(*waited_for_on_rank_2_alone(model), "sum")
    found["loss not waited for"] = asked(model, averaged(model, ends=loss_without_waiting),
                                         "replicated")
    found["objective"] = asked(
        model, averaged(model, ends=lambda loss: (loss, 1)),
        lambda pairs: sum(loss * n for loss, n in pairs) / sum(n for _, n in pairs))
    found["scale"] = asked(model, averaged(model, change=scaled_by_8), scale=8)
    found["rounded"] = asked(model, averaged(model, change=rounded_to_float16))
    found["optimizer"] = asked(m := Model().double(), averaged(m, change=updated))
    found["float64"] = {(dtype, factor): in_float64(dtype, factor) for factor in (1.0, 1.125)
                        for dtype in (torch.float32, torch.bfloat16)}
    found["DDP in float64"] = asked(*not_divided(torch.float32), float64=True)
    found["another in float64"] = asked(
        m := Model(), averaged(m, torch.float32, ends=doubled_in_float64(m)), float64=True)
    found["owners"] = {"right": with_owners(), "doubled": with_owners(doubled_bias),
                       "not sent": with_owners(is_sent=False), "untold": with_owners(is_told=False)}
    found["optimizers"] = {name: under_an_optimizer(name) for name in OPTIMIZERS}
    found["disputed"] = asked(*student())
    found["not raised"] = raised(distgrad.check_gradients, *student())
    found["strict"] = raised(distgrad.check_gradients, *student(), strict=True)
    found["declared"] = asked(*student(), detached=list(found["disputed"]["detached"]))
    found["wrong beside"] = asked(*student(doubled_head_bias))
    found["all wrong beside"] = asked(*student(doubled))
    for dtype in (torch.float64, torch.float32):
        found[f"trained teacher, {dtype}"] = asked(*with_trained_teacher(dtype=dtype))
    found["trained teacher, bias forgotten"] = asked(*with_trained_teacher(forgotten_bias))
    for reduces in (True, False):
        found[f"gathered, {reduces}"] = asked(*gathered(reduces))
    model_and_step = with_teacher()
    before = [p.clone() for p in model_and_step[0].parameters()]
    found["logged"] = asked(model, averaged(model, ends=logged_mean))
    found["in one buffer"] = [in_one_buffer(factor) for factor in (1, 2)]
    found["frozen on rank 1"] = [
        frozen_on_rank_1(True), frozen_on_rank_1(True, copies="first.*"),
        frozen_on_rank_1(True, pieces="first.*"), frozen_on_rank_1(False)]
    for divisor, dtype in ((1, torch.bfloat16), (3, torch.float32)):
        found[f"mixed precision, {divisor}, {dtype}"] = in_mixed_precision(divisor, dtype)
    centered = Centered().double()
    del centered.norm
    center = centered.center
    found["centered"] = asked(centered, averaged(centered), detached=True)
    found["center is back"] = centered.center is center and not bool(center.any())
    found["all so far"] = asked(model, averaged(model, ends=mean_of_all_so_far()))
    found["teacher"] = asked(*model_and_step)
    found["teacher is back"] = all(map(torch.equal, before, model_and_step[0].parameters()))
    found["teacher alike"] = asked(*with_teacher(0))
    found["teacher follows"] = asked(*with_teacher(0, averages))
    found["teacher follows, tripled"] = asked(*with_teacher(0, averages, tripled_weight))
    for factor in (0.5, 1.0, 2.0):
        found[f"{factor} under autocast"] = asked(*under_autocast(factor))
    found["FSDP1"] = asked(*in_fsdp1())
    found["FSDP1 forgets"] = asked(*in_fsdp1(True))
    found["in trainers"], found["in wrong trainers"] = in_trainers(1), in_trainers(2)
    found["frozen"] = asked(nn.Linear(2, 2).requires_grad_(False), lambda: torch.ones(()))
    bad = {"a list": lambda: distgrad.check_gradients([1], averaged(model)),
           "no optimizer": lambda: distgrad.check_gradients(model, averaged(model), optimizer=3),
           "no model": lambda: distgrad.check_gradients(3, averaged(model)),
           "no step": lambda: distgrad.check_gradients(model, 3),
           "no such name": lambda: distgrad.check_gradients(
               model, averaged(model), copies="first.weight=9.weight"),
           "objective raises": lambda: distgrad.check_gradients(
               model, averaged(model), lambda losses: losses[0] / 0),
           "no objective": lambda: distgrad.check_gradients(model, averaged(model), "avg"),
           "a vector": lambda: distgrad.check_gradients(
               model, averaged(model, ends=lambda loss: loss.expand(2))),
           "two losses": lambda: distgrad.check_gradients(
               model, averaged(model, ends=lambda loss: [loss, loss])),
           "no loss": lambda: distgrad.check_gradients(
               model, averaged(model, ends=lambda loss: None))}
    found["bad"] = {name: raised(call) for name, call in bad.items()}
    # This comes last, as it breaks the group's connections.
    found["rank 1 raises"] = raised(distgrad.check_gradients, model,
                                    averaged(model, ends=raises_on_rank_1), timeout_s=5)
    return found


def called_on_rank_0_only():
    if dist.get_rank():
        return None
    model = Model().double()
    with mock.patch.object(team, "_CONNECT_S", 1):
        return raised(distgrad.check_gradients, model, averaged(model), timeout_s=1)


def last_sum_is_skipped_on_rank_1():
    """Returns what is raised. It breaks the group's connections."""
    model = Model().double()

    def step():
        loss = model(torch.ones(2, 4).double()).square().mean()
        loss.backward()
        parameters = list(model.parameters())
        for p in parameters[:-1] if dist.get_rank() == 1 else parameters:
            dist.all_reduce(p.grad)
        return loss

    return raised(distgrad.check_gradients, model, step, timeout_s=1000)


def with_another_default_device():
    """Checks with a default device, as set by torch.set_default_device("cuda"), not the CPU."""
    seen = set()
    model, step = column(wrong=True)
    x = torch.arange(1.0, 4.0, dtype=torch.float64, requires_grad=True)

    def noting(function, *arguments):
        seen.add(torch.get_default_device().type)
        return function(*arguments)

    with torch.device("meta"):
        report = asked(model, lambda: noting(step), "replicated", pieces="up.bias")
        checked = distgrad.gradcheck(lambda x: noting(torch.sin, x), x, raise_exception=False)
    return report, checked.verdict, seen


def in_trainers(times):
    """Returns what callbacks raise in stand-ins that call what the real trainers call."""
    model = nn.parallel.DistributedDataParallel(Model().double())
    batches = [torch.randn(5, 4, generator=torch.Generator().manual_seed(10 * dist.get_rank() + i)
                           ).double() for i in range(2)]

    class Trainer:
        model_wrapped = model
        accelerator = SimpleNamespace(no_sync=lambda model: model.no_sync(), gradient_state=(
            SimpleNamespace(_set_sync_gradients=lambda is_last: None)))

        def get_batch_samples(self, iterator, n, device):
            torch.rand(3)  # A sampler draws random numbers.
            return [next(iterator) for _ in range(n)], None

        def training_step(self, model, inputs, items):
            loss = model(inputs["x"]).square().mean() / 2
            (times * loss).backward()
            return loss.detach()

    class Strategy:
        def __init__(self):
            self.model = model

        def training_step(self, batch, index):
            return {"loss": model(batch).square().mean()}

        def backward(self, loss, optimizer):
            loss.backward()

    def multiply(optimizer):
        for p in model.parameters():
            p.grad *= times

    model.on_before_optimizer_step = multiply
    model.configure_gradient_clipping = lambda optimizer, value, algorithm: None
    model.automatic_optimization = True
    trainer = SimpleNamespace(strategy=Strategy(), optimizers=["the optimizer"],
                              accumulate_grad_batches=1, gradient_clip_val=None,
                              gradient_clip_algorithm=None)
    sys.modules["transformers"] = SimpleNamespace(TrainerCallback=object)
    sys.modules["lightning"] = SimpleNamespace(Callback=object)
    options = SimpleNamespace(gradient_accumulation_steps=2, device="cpu")
    torch.manual_seed(3)
    transformers = raised(
        callbacks.for_transformers(Trainer()).on_train_begin, options, None, None,
        train_dataloader=[{"x": x} for x in batches])
    def in_lightning():
        return raised(callbacks.for_lightning().on_train_batch_start, trainer, model, batches[0],
                      0)

    lightning, refused = in_lightning(), []
    for home, name, value in ((trainer, "accumulate_grad_batches", 2),
                              (model, "automatic_optimization", False)):
        setattr(home, name, value)
        refused.append(in_lightning())
    drawn = torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(3)))
    return transformers, lightning, drawn, refused


def scaled_by_8(model):
    for p in model.parameters():
        p.grad *= 8


def rounded_to_float16(model):
    for p in model.parameters():
        p.grad.copy_(p.grad.half())


def updated(model):
    torch.optim.SGD(model.parameters(), 0.1).step()


def student(change=lambda model: None):
    """Returns a step whose targets are detached, though the model trains what they come from."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"encoder": nn.Linear(4, 4), "head": nn.Linear(4, 4)}).double()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(dist.get_rank())).double()

    def step():
        model.zero_grad()
        z = model["encoder"](x).tanh()
        z.detach().sign().sum(0)  # A metric's line does not matter.
        loss = (model["head"](z) - z.detach()).square().mean()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        change(model)
        return loss.detach()

    return model, step


def doubled_head_bias(model):
    model["head"].bias.grad *= 2


def doubled(model):
    for p in model.parameters():
        p.grad *= 2


def with_trained_teacher(change=lambda model: None, dtype=torch.float64):
    """Returns a step whose teacher's parameters require gradients and whose forward is under
    no_grad."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"student": nn.Linear(4, 4), "teacher": nn.Linear(4, 4)}).to(dtype)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(dist.get_rank())).to(dtype)

    def step():
        model.zero_grad()
        with torch.no_grad():
            target = model["teacher"](x).tanh()
        loss = (model["student"](x) - target).square().mean()
        loss.backward()
        for p in model["student"].parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        change(model)
        return loss

    return model, step


def gathered(reduces):
    """Returns a step on full weights that it makes from the ranks' shards by hand, whose gradients
    it gives back to the weight alone, or also to the bias."""
    model = nn.ParameterDict({name: torch.randn(4, generator=torch.Generator().manual_seed(
        2 * dist.get_rank() + i)).double() for i, name in enumerate(("weight", "bias"))})
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(dist.get_rank())).double()

    def step():
        full = {}
        for name, p in model.items():
            every = [torch.empty_like(p) for _ in range(dist.get_world_size())]
            with torch.no_grad():
                dist.all_gather(every, p)
                full[name] = torch.stack(every)
            full[name].requires_grad_()
        loss = ((x @ full["weight"].T + full["bias"].sum(1)).sin()).square().mean()
        loss.backward()
        for name, p in model.items():
            dist.all_reduce(full[name].grad)
            own = full[name].grad[dist.get_rank()] / dist.get_world_size()
            p.grad = own.clone() if reduces or name == "weight" else None
        return loss

    return model, step


def forgotten_bias(model):
    model["student"].bias.grad = None


def with_teacher(apart=1, follows=lambda student, teacher: None, change=lambda model: None):
    """A step that updates a teacher's average, whose parameters are not trained, in its end or, by
    follows(), before its forward."""
    model = nn.ModuleDict({"student": Model(), "teacher": Model()}).double()
    model["teacher"].requires_grad_(False).load_state_dict(model["student"].state_dict())
    for p in model["teacher"].parameters():
        p.data += apart * torch.arange(p.numel()).reshape(p.shape) / 30
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(dist.get_rank())).double()

    def step():
        model.zero_grad()
        follows(model["student"], model["teacher"])
        loss = (model["student"](x) - model["teacher"](x.flip(0))).square().mean()
        loss.backward()
        for p, average in zip(model["student"].parameters(), model["teacher"].parameters()):
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
            average.data.mul_(0.9).add_(p.detach(), alpha=0.1)
        change(model["student"])
        return loss

    return model, step


@torch.no_grad()
def averages(student, teacher):
    """Gives the teacher new tensors, as MoCo's key encoder gets them."""
    for p, average in zip(student.parameters(), teacher.parameters()):
        average.data = 0.7 * average.data + 0.3 * p.data


def tripled_weight(model):
    model.first.weight.grad.mul_(3)


def under_autocast(factor):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8))
    x = torch.randn(16, 16, generator=torch.Generator().manual_seed(dist.get_rank()))

    def step():
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        loss = y.float().square().mean()
        (factor * loss).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        return loss

    return model, step


def in_fsdp1(forgets=False):
    """A wrong step, whose parameters are views that FSDP swaps: gradients are off by a factor, or
    those of the first of two micro-batches are lost."""
    torch.manual_seed(0)
    model = FullyShardedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)),
                                     use_orig_params=True, device_id=torch.device("cpu")).double()
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(dist.get_rank())).double()

    def step():
        model.zero_grad()
        loss = model(x[:2]).square().mean()
        (loss / dist.get_world_size()).backward()
        if not forgets:
            return loss
        model.zero_grad()
        last = model(x[2:]).square().mean()
        last.backward()
        return loss / dist.get_world_size() + last

    return model, step


def added_to(model):
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(dist.get_rank())).double()

    def step():
        loss = model(x).square().mean()
        (loss / dist.get_world_size()).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        return loss

    return step


class CheckGradients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.found = ranks.run(everything, RANKS)

    def on_all_ranks(self, name):
        """Returns what all ranks report alike, except for the time."""
        reports = [{k: v for k, v in found[name].items() if k not in ("seconds", "text")}
                   for found in self.found]
        for report in reports[1:]:
            self.assertEqual(report, reports[0])
        return self.found[0][name]

    def test_a_right_step_is_called_right_and_everything_is_as_before(self):
        report = self.on_all_ranks("right")
        self.assertEqual(report["verdict"], "right", report["text"])
        for what in ("random", "torch random", "state", "gradients"):
            self.assertTrue(all(found[what] for found in self.found), what)

    def test_a_wrong_parameter_is_named_with_its_factor(self):
        for name in ("wrong", "wrong in float32", "wrong, float32 inside"):
            report = self.on_all_ranks(name)
            self.assertEqual([w["parameters"] for w in report["wrong"]], [["second.bias"]],
                             report["text"])
            for factor in report["wrong"][0]["factors"].values():
                self.assertAlmostEqual(factor, 2, delta=0.02)

    def test_shorter_dtypes_are_not_accused(self):
        for name in ("in float32", "float32 inside"):
            self.assertEqual(self.on_all_ranks(name)["verdict"], "right", name)
        self.assertNotEqual(self.on_all_ranks("in bfloat16")["verdict"], "wrong")

    def test_in_bfloat16_weights_that_are_wrong_are_found(self):
        for factor, text in (("0.00", "p.grad is zero"), ("3.00", "p.grad is (3|2.99|3.0)"),
                             ("0.33", "p.grad is 0.33.*: 1 over the number of ranks")):
            report = self.on_all_ranks(f"{factor} in bfloat16")
            self.assertEqual(report["verdict"], "wrong", report["text"])
            told = {name for w in report["wrong"] for name in w["parameters"]
                    if re.match(text, w["text"][0])}
            self.assertLessEqual({"0.weight", "2.weight"}, told, report["text"])
            self.assertNotIn("nor a multiple", report["text"])

    def test_a_small_error_in_a_short_dtype_is_seen_in_float64(self):
        for found in self.found:
            for (dtype, factor), report in found["float64"].items():
                self.assertTrue(report["is back"], dtype)
                self.assertEqual(report["verdict"], "right" if factor == 1 else "wrong",
                                 f"{dtype}: {report['text']}")
                for wrong in report["wrong"]:
                    for found in wrong["factors"].values():
                        self.assertAlmostEqual(found, 1.125, delta=0.01)

    def test_ddp_is_judged_in_float64(self):
        report = self.on_all_ranks("DDP in float64")
        self.assertEqual([{round(f, 4) for f in w["factors"].values()} for w in report["wrong"]],
                         [{2.0}], report["text"])

    def test_a_step_with_other_gradients_in_float64_is_not_decided(self):
        report = self.on_all_ranks("another in float64")
        self.assertEqual(report["verdict"], "undecided", report["text"])
        self.assertIn("in float64 step() gives other gradients of second.weight", report["text"])

    def test_every_rank_raises_and_rank_0_says_it_all(self):
        kinds, texts = zip(*(found["raised"] for found in self.found))
        self.assertEqual(set(kinds), {"StepGradientsError"})
        self.assertIn("second.bias\n    p.grad is 2 times the derivative of the loss.", texts[0])
        for text in texts[1:]:
            self.assertEqual(text, "check_gradients: 1 of 6 gradients is wrong, on 3 ranks (gloo),"
                             " for the mean of the ranks' losses: rank 0 says which")

    def test_data_that_are_the_same_on_all_ranks_are_noted(self):
        words = "all ranks hold the same parameters and have the same loss"
        report = self.on_all_ranks("same data")
        self.assertEqual(report["verdict"], "right")
        self.assertIn(words, report["notes"][0])
        self.assertNotIn(words, "".join(self.on_all_ranks("right")["notes"]))

    def test_a_norm_is_not_compared_with_gradients_that_were_changed_afterwards(self):
        for name, verdict, kinds in (("clipped too early", "wrong", {"other"}),
                                     ("seen too early", "right", set()),
                                     ("tripled after clipping", "wrong", {"factor"})):
            report = self.on_all_ranks(name)
            self.assertEqual(report["verdict"], verdict, report["text"])
            self.assertEqual({w["kind"] for w in report["wrong"]}, kinds, report["text"])
            self.assertIn("saw its norm: that norm was not judged", report["text"])

    def test_a_factor_is_only_said_of_a_multiple(self):
        found = ranks.run(of_weighted_ranks, 2)[0]
        for report in found[0]:
            self.assertEqual(report["verdict"], "wrong", report["text"])
            self.assertNotRegex(report["text"], r"p.grad is [\d.]+ times")
        for report in found[1.3]:
            wrong, = report["wrong"]
            self.assertEqual(len(wrong["parameters"]), 6, report["text"])
            self.assertRegex(wrong["text"][0], r"^p.grad is 1\.(3|299|30\d) times")

    def test_a_factor_that_is_known_roughly_is_not_denied(self):
        report = self.on_all_ranks("sums in bfloat16")
        self.assertEqual(report["verdict"], "wrong", report["text"])
        self.assertNotIn("nor a multiple", report["text"])
        for low, high in re.findall(r"then ([\d.]+) to ([\d.]+) times", report["text"]):
            self.assertTrue(2.8 < float(low) <= 3 <= float(high) < 3.2, report["text"])

    def test_backward_departs_where_shares_begin_that_nothing_adds_up(self):
        def departs(*states):
            places = [Place((f"m{i}", 0, 0), [(0, 1, 2)]) for i in range(len(states))]
            for place, state in zip(places, states):
                place.state = state
            found = departure(places)
            return found and (found[0], *(p and p.name for p in found[1:]))

        # With a skip around what is cut, the shares are added to the skip's cotangent.
        self.assertEqual(departs("right", "shares", "wrong", "wrong"), ("shares", "m1", "m0"))
        self.assertEqual(departs("right", "shares", "right", "wrong"), ("wrong", "m3", "m2"))
        self.assertEqual(departs("wrong", "right"), ("wrong", "m0", None))
        self.assertEqual(departs("right", "shares"), ("shares", "m1", "m0"))
        self.assertIsNone(departs("right", "shares", "right"))

    def test_at_a_kink_nothing_is_decided_of_that_parameter(self):
        report = self.on_all_ranks("at a kink")
        self.assertEqual(report["verdict"], "right", report["text"])
        self.assertEqual(report["undecided"], {"0.bias": "the loss has a kink here"})
        report = self.on_all_ranks("at a kink, twice")
        self.assertEqual([w["parameters"] for w in report["wrong"]], [["2.bias"]], report["text"])
        self.assertIn("p.grad is 2 times the derivative", report["text"])

    def test_pieces_that_are_wrong_each_in_its_way_are_told_with_their_ranks(self):
        report = self.on_all_ranks("pieces off by rank")
        self.assertEqual([w["text"][0] for w in report["wrong"]], [
            "On rank 0 p.grad is 2 times the derivative of the loss.",
            "On rank 1 p.grad is 3 times the derivative of the loss: the number of ranks.",
            "On rank 2 p.grad is 4 times the derivative of the loss."])

    def test_a_factor_that_is_the_number_of_backward_passes_is_said_to_be(self):
        report = self.on_all_ranks("not divided")
        self.assertEqual([w["text"][0] for w in report["wrong"]], [
            "p.grad is 2 times the derivative of the loss: the number of backward passes."])

    def test_losses_that_are_not_one_are_noted(self):
        words = "the ranks' losses are not one"
        self.assertIn(words, "".join(self.on_all_ranks("losses of their own")["notes"]))
        self.assertNotIn(words, "".join(self.on_all_ranks("loss not waited for")["notes"]))

    def test_gradients_that_are_not_finite_are_named_with_their_ranks(self):
        self.assertIn("the gradients of second.weight are not finite on rank 1",
                      self.on_all_ranks("not finite on rank 1")["text"])

    def test_small_errors_in_small_gradients_are_found(self):
        report = self.on_all_ranks("little in float64")
        self.assertEqual([w["parameters"] for w in report["wrong"]], [["second.bias"]])
        self.assertIn("p.grad is 1.0001", report["text"])
        report = self.on_all_ranks("little in float32")
        self.assertEqual([w["parameters"] for w in report["wrong"]], [["norm.bias"]])

    def test_gradients_that_others_share_are_clipped_with_theirs(self):
        report = self.on_all_ranks("clipped elsewhere")
        self.assertEqual(report["verdict"], "right", report["text"])
        self.assertIn("saw the right norm", report["text"])

    def test_a_factor_of_some_ranks_is_not_said_of_all(self):
        report = self.on_all_ranks("one rank is wrong")
        self.assertEqual([w["parameters"] for w in report["wrong"]], [["second.weight"]])
        text = " ".join(report["text"].split())
        self.assertIn("p.grad over the derivative of the loss is 1 on ranks 0, 2. On rank 1 it is"
                      " no multiple of it.", text)

    def test_what_is_kept_from_run_to_run_is_wrong(self):
        report = self.on_all_ranks("kept")
        self.assertEqual(report["verdict"], "wrong", report["text"])
        self.assertEqual([w["kind"] for w in report["wrong"]], ["nondeterministic"])
        self.assertIn("something is kept from one run", " ".join(report["text"].split()))
        self.assertNotIn("step() adds to it", report["text"])
        for name in ("rounded otherwise", "cancels out"):
            report = self.on_all_ranks(name)
            self.assertEqual(report["verdict"], "right", report["text"])

    def test_what_nobody_waits_for_is_said_with_its_line(self):
        lines = Path(__file__).read_text().splitlines()
        begun = 1 + lines.index("    dist.all_reduce(torch.ones(1), async_op=True)")
        report = self.on_all_ranks("not waited for")
        self.assertEqual(report["verdict"], "right")
        self.assertEqual(report["notes"], [
            f"in step() nobody waits in time for all_reduce (test_check_gradients.py:{begun})"])

    def test_gradients_that_not_all_ranks_wait_for_are_wrong(self):
        begun = 1 + Path(__file__).read_text().splitlines().index(
            "        works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]")
        report = self.on_all_ranks("waited for on rank 2 alone")
        self.assertEqual(report["verdict"], "wrong", report["text"])
        self.assertEqual([w["kind"] for w in report["wrong"]], ["nondeterministic"])
        self.assertIn("Ranks 0, 1 do not wait in time for all_reduce"
                      f" (test_check_gradients.py:{begun}). Where that is waited for, p.grad is"
                      " another one.", " ".join(report["text"].split()))
        self.assertEqual(report["where"], [])

    def test_a_loss_that_is_not_waited_for_is_judged_as_if_it_were(self):
        report = self.on_all_ranks("loss not waited for")
        self.assertEqual(report["verdict"], "right", report["text"])
        self.assertRegex(report["notes"][0], r"nobody waits .* the loss is [\d.]+, and not [\d.]+$")

    def test_what_is_not_the_same_twice_is_not_judged(self):
        report = self.on_all_ranks("another loss")
        self.assertEqual(report["verdict"], "undecided")
        self.assertIn("gave different losses", report["text"])
        self.assertIn("the loss is inf", self.on_all_ranks("infinite")["text"])
        self.assertIn("no parameter requires a gradient", self.on_all_ranks("frozen")["text"])

    def test_gradients_in_a_shorter_dtype_are_no_mistake(self):
        report = self.on_all_ranks("rounded")
        self.assertEqual(report["verdict"], "right", report["text"])
        self.assertIn("no more digits than float16", " ".join(report["notes"]))

    def test_what_is_detached_is_disputed_until_it_is_declared(self):
        report = self.on_all_ranks("disputed")
        self.assertEqual(report["verdict"], "disputed", report["text"])
        self.assertEqual(report["disputed"], ["encoder.weight", "encoder.bias"])
        self.assertRegex(" ".join(report["detached"]), r"^test_check_gradients.py:\d+$")
        for found in self.found:
            self.assertEqual(found["not raised"], ("nothing", ""))
            self.assertEqual(found["strict"][0], "StepGradientsError")
        self.assertEqual(self.on_all_ranks("declared")["verdict"], "right")
        report = self.on_all_ranks("wrong beside")
        self.assertEqual([w["parameters"] for w in report["wrong"]], [["head.bias"]],
                         report["text"])
        self.assertEqual(report["disputed"], ["encoder.weight", "encoder.bias"])
        self.assertRegex(report["text"],
                         r"was held as a constant\.\s+The cotangents are right at all 2")

    def test_a_teacher_without_gradients_is_disputed(self):
        names = ["teacher.weight", "teacher.bias"]
        for dtype in (torch.float64, torch.float32):
            report = self.on_all_ranks(f"trained teacher, {dtype}")
            self.assertEqual((report["verdict"], report["disputed"]), ("disputed", names),
                             report["text"])
            self.assertEqual(len(report["detached"]), 1)
        report = self.on_all_ranks("trained teacher, bias forgotten")
        self.assertEqual([w["parameters"] for w in report["wrong"]], [["student.bias"]],
                         report["text"])
        self.assertEqual(report["disputed"], names)

    def test_gradients_that_are_not_given_back_to_shards_are_wrong(self):
        self.assertEqual(self.on_all_ranks("gathered, True")["verdict"], "right")
        report = self.on_all_ranks("gathered, False")
        self.assertEqual([(w["kind"], w["parameters"]) for w in report["wrong"]],
                         [("zero", ["bias"])], report["text"])

    def test_a_factor_is_told_of_what_lies_before_something_detached(self):
        report = self.on_all_ranks("all wrong beside")
        self.assertEqual((report["verdict"], report["disputed"]), ("wrong", []), report["text"])
        texts = {tuple(wrong["parameters"]): wrong["text"][0] for wrong in report["wrong"]}
        self.assertRegex(texts["head.weight", "head.bias"], "^p.grad is 2 times")
        self.assertRegex(texts["encoder.weight", "encoder.bias"],
                         r"^With what is detached at .*:\d+ as a constant, p.grad is 2 times")

    def test_a_step_that_updates_parameters_is_not_judged(self):
        report = self.on_all_ranks("optimizer")
        self.assertEqual(report["verdict"], "undecided")
        self.assertIn("step() writes to parameters", report["reason"])

    def test_copies_that_the_optimizer_makes_different_are_wrong(self):
        for found in self.found:
            reports = found["optimizers"]
            self.assertTrue(all(report["is back"] for report in reports.values()))
            self.assertEqual(reports["Adam"]["verdict"], "right", reports["Adam"]["text"])
            # A bias before a norm has no gradient.
            moved = [name for name in reports["Adam"]["parameters"] if name != "first.bias"]
            for name, parameters in (("a rate of its own", moved),
                                     ("moments of its own", ["second.bias"])):
                wrong, = reports[name]["wrong"]
                self.assertEqual((wrong["kind"], wrong["parameters"]), ("copies", parameters))
                self.assertIn(f"6 gradients, all right, and {len(parameters)} parameter",
                              reports[name]["text"])

    def test_a_gradient_of_one_rank_alone_is_right_if_its_update_is_sent(self):
        for found in self.found:
            right, doubled, not_sent, untold = found["owners"].values()
            self.assertEqual(right["verdict"], "right", right["text"])
            self.assertIn("optimizer.step() moves all copies alike", " ".join(right["notes"]))
            wrong, = doubled["wrong"]
            self.assertEqual(wrong["parameters"], ["second.bias"])
            self.assertEqual({round(f, 6) for f in wrong["factors"].values()}, {2.0})
            for report in (not_sent, untold):
                self.assertEqual(report["verdict"], "wrong", report["text"])
            self.assertNotIn("ZeRO", not_sent["text"])
            self.assertRegex(" ".join(not_sent["text"].split()), r"on rank \d alone, and"
                             r" optimizer.step\(\) does not move all copies alike")
            self.assertIn("as with ZeRO, give `optimizer`", " ".join(untold["notes"]))

    def test_a_loss_that_is_reduced_in_place_after_backward_is_no_mistake(self):
        report = self.on_all_ranks("logged")
        self.assertEqual(report["verdict"], "right", report["text"])

    def test_gradients_stay_views_of_the_buffer_that_is_reduced(self):
        for right, doubled in (found["in one buffer"] for found in self.found):
            self.assertEqual(right[0]["verdict"], "right", right[0]["text"])
            self.assertEqual(right[0]["notes"], [])
            factors = {f for w in doubled[0]["wrong"] for f in w["factors"].values()}
            self.assertEqual({round(f, 6) for f in factors}, {2.0}, doubled[0]["text"])
            self.assertEqual(right[1:] + doubled[1:], (True, True, True, True))

    def test_what_is_trained_on_some_ranks_and_frozen_on_others_is_not_decided(self):
        for unknown, copies, pieces, unused in (f["frozen on rank 1"] for f in self.found):
            self.assertEqual(unknown["verdict"], "undecided", unknown["text"])
            # A bias before a norm changes nothing.
            self.assertIn("first.weight: frozen on rank 1", unknown["reason"])
            self.assertEqual(copies["verdict"], "wrong", copies["text"])
            self.assertEqual(copies["wrong"][0]["parameters"], ["first.weight"])
            self.assertNotIn("frozen", pieces["text"])
            self.assertEqual(unused["verdict"], "right", unused["text"])

    def test_the_loss_is_measured_without_fsdps_mixed_precision(self):
        report = self.on_all_ranks("mixed precision, 1, torch.bfloat16")
        self.assertEqual(report["verdict"], "right", report["text"])
        self.assertIn("FSDP gathers parameters in bfloat16", " ".join(report["notes"]))
        self.assertEqual(report["dtypes after it"], "torch.bfloat16")
        report = self.on_all_ranks("mixed precision, 3, torch.float32")
        wrong, = report["wrong"]
        self.assertEqual(len(wrong["parameters"]), 6, report["text"])
        self.assertRegex(wrong["text"][0], "^p.grad is 0.33.* 1 over the number of ranks")

    def test_a_buffer_that_is_another_tensor_each_time_is_put_back(self):
        report = self.on_all_ranks("centered")
        self.assertEqual(report["verdict"], "right", report["text"])
        self.assertTrue(all(found["center is back"] for found in self.found))

    def test_a_step_that_keeps_losses_is_not_judged(self):
        self.assertIn("it keeps something from one run to the next",
                      " ".join(self.on_all_ranks("all so far")["text"].split()))

    def test_gradients_that_are_added_to_are_noted(self):
        report = self.on_all_ranks("not cleared")
        self.assertEqual(report["verdict"], "right", report["text"])
        self.assertIn("step() adds to it", " ".join(report["notes"]))

    def test_pieces_that_are_equal_by_chance_are_not_taken_for_copies(self):
        self.assertEqual(self.on_all_ranks("pieces")["verdict"], "right")
        report = self.on_all_ranks("maybe pieces")
        self.assertEqual(report["verdict"], "undecided", report["text"])
        self.assertEqual(report["ambiguous"], ["up.bias"])

    def test_norms_of_stages_that_begin_alike_are_not_decided(self):
        norms = ["1.weight", "1.bias"]
        report = self.on_all_ranks("stages")
        self.assertEqual(report["verdict"], "undecided", report["text"])
        self.assertEqual(report["ambiguous"], norms)
        self.assertEqual(self.on_all_ranks("stages, told")["verdict"], "right")
        for wraps in (True, False):
            report = self.on_all_ranks(f"norms forgotten, {wraps}")
            self.assertEqual([w["parameters"] for w in report["wrong"]],
                             [[f"all.{name}" for name in norms]], report["text"])

    def test_a_missing_sum_is_told_and_placed(self):
        report = self.on_all_ranks("norm")
        self.assertEqual([w["parameters"] for w in report["wrong"]],
                         [["norm.weight", "norm.bias"]], report["text"])
        self.assertIn("The sum of p.grad over ranks 0, 1, 2 is the derivative", report["text"])
        self.assertIn("of the cotangents that arrive there the sum is right, and not each",
                      " ".join(report["where"]))

    def test_a_function_where_backward_departs_is_measured_by_itself(self):
        report = self.on_all_ranks("entered")
        place = r"Entered in test_check_gradients.py:\d+, called there, "
        self.assertRegex(" ".join(report["where"]), r"there the sum is right, and not each\..*"
                         + place + r"measured by itself: x̄_r = ȳ_r\.")
        report = self.on_all_ranks("entered and doubled")
        self.assertRegex(report["where"][-1], "^" + place + r"is wrong by itself: scaled, x̄_r ="
                         r" 2 ȳ_r\.$")  # Of x, which is a copy, x̄_r = Σ_k ȳ_k is right.

    def test_a_function_of_subgroups_is_not_called_wrong_by_itself(self):
        report = ranks.run(summed_in_pairs, 4)[0]
        self.assertEqual([w["parameters"] for w in report["wrong"]], [["rows.weight"]] * 2,
                         report["text"])
        self.assertRegex(" ".join(report["where"]), r"Summed in \S+:\d+, called there, measured by"
                         r" itself: x̄_r = ȳ_r")

    def test_a_group_that_communicates_with_others_is_not_decided(self):
        """Ranks 1 and 3 are asked at the same time as 0 and 2, and what they move changes the loss
        there."""
        report = ranks.run(functools.partial(summed_in_pairs, in_parts=True), 4)[0]
        self.assertIn("communicates with ranks 1, 3, outside of `group`", report["reason"])
        self.assertEqual(report["verdict"], "undecided", report["text"])

    def test_outputs_that_no_backward_reaches_are_looked_at(self):
        report = self.on_all_ranks("forgotten")
        self.assertEqual(report["verdict"], "wrong", report["text"])
        self.assertIn("between the loss and the output of second (call 3), the first that could"
                      " be measured on the way back: the cotangent is 0 times",
                      " ".join(report["where"]))

    def test_a_function_may_give_a_parameter_none(self):
        report = self.on_all_ranks("None")
        self.assertEqual([w["parameters"] for w in report["wrong"]], [["factor"]], report["text"])

    def test_the_default_device_is_the_users_alone(self):
        for found in self.found:
            report, verdict, seen = found["elsewhere"]
            self.assertEqual([w["parameters"] for w in report["wrong"]],
                             [["norm.weight", "norm.bias"]], report["text"])
            self.assertTrue(report["places"], report["text"])
            self.assertEqual(verdict, "right")
            self.assertEqual(seen, {"meta"})

    def test_callbacks_check_the_first_batch_of_a_trainer(self):
        for found in self.found:
            self.assertEqual(found["in trainers"][:3], (("nothing", ""), ("nothing", ""), True))
            *both, drawn, refused = found["in wrong trainers"]
            for (kind, text), what in zip(refused, ("accumulate_grad_batches", "manual")):
                self.assertEqual(kind, "ValueError")
                self.assertIn(f"for_lightning does not run {what}", text)
            self.assertTrue(drawn)
            for kind, text in both:
                self.assertEqual(kind, "StepGradientsError")
                self.assertIn("5 of 6 gradients are wrong", text)  # A bias is before a norm.

    def test_factors_of_the_ranks_are_listed(self):
        report = self.on_all_ranks("own norm")
        factors = report["wrong"][0]["factors"]
        self.assertAlmostEqual(factors[0] / factors[2], 3, places=3, msg=report["text"])

    def test_a_right_step_with_casts_inside_is_not_accused(self):
        for dtype in (torch.float32, torch.float64):
            report = self.on_all_ranks(f"beside bfloat16, {dtype}")
            self.assertEqual(report["verdict"], "right", report["text"])
            self.assertIn("the step was judged without that", " ".join(report["notes"]))
            report = self.on_all_ranks(f"doubled, {dtype}")
            self.assertEqual([w["parameters"] for w in report["wrong"]], [["inner"]],
                             report["text"])

    def test_one_parameter_under_two_names_is_one_once_that_is_said(self):
        for reduces in (True, False):
            report = self.on_all_ranks(f"one name, {reduces}")
            self.assertEqual(report["verdict"], "right" if reduces else "wrong", report["text"])
            report = self.on_all_ranks(f"two names, {reduces}")
            self.assertIn('say copies="embedding=head"', " ".join(report["notes"]))
        self.assertIn("The sum of p.grad over ranks 0, 2 is the derivative",
                      self.on_all_ranks("one name, False")["text"])

    def test_clipping_by_the_right_norm_is_left_out_and_by_another_is_wrong(self):
        for name in ("clipped apart", "clipped by the largest"):
            report = self.on_all_ranks(name)
            self.assertEqual(report["verdict"], "right", report["text"])
        report = self.on_all_ranks("another norm, 0.01")
        self.assertEqual([w["kind"] for w in report["wrong"]], ["clipping"], report["text"])
        self.assertRegex(report["text"], r"clip_grads_with_norm_ in \S+:\d+ saw the\s+norm")

    def test_clipping_that_multiplies_by_1_is_right_whatever_norm_it_saw(self):
        for most, is_noted in ((100.0, True), (math.inf, False)):
            report = self.on_all_ranks(f"another norm, {most}")
            self.assertEqual(report["verdict"], "right", report["text"])
            self.assertEqual("nothing was clipped" in " ".join(report["notes"]), is_noted)

    def test_what_is_detached_and_overwritten_is_no_constant(self):
        report = self.on_all_ranks("overwritten")
        self.assertEqual((report["verdict"], report["detached"]), ("wrong", {}), report["text"])
        self.assertRegex(" ".join(report["notes"]), r"detached at \S+:\d+ is written to")
        self.assertIn("between the outputs of second and first", " ".join(report["where"]))

    def test_copies_that_are_clipped_by_several_factors_are_wrong(self):
        number = r"[\d.e-]+"
        for name, factors in (("clipped on rank 0, 2.0", f"{number} on rank 0, 1 on ranks 1, 2"),
                              ("clipped on rank 0, inf", f"{number} on rank 0, 1 on ranks 1, 2"),
                              ("clipped to different norms", ", ".join(
                                  f"{number} on rank {rank}" for rank in range(3)))):
            report = self.on_all_ranks(name)
            self.assertEqual([w["kind"] for w in report["wrong"]], ["clipping"], report["text"])
            self.assertEqual(len(report["wrong"][0]["parameters"]), 6)
            self.assertRegex(report["wrong"][0]["text"][0], "^clip_grad_norm_ multiplied p.grad by"
                             f" {factors}: the copies differ.$")

    def test_a_mean_of_gradients_is_said_to_be_of_those_before_their_own_clips(self):
        text = " ".join(self.on_all_ranks("clipped and not reduced")["text"].split())
        self.assertIn("The mean of p.grad before clip_grad_norm_ over ranks 0, 1, 2 is the"
                      " derivative", text)
        self.assertNotIn("The mean of p.grad over", text)

    def test_gradients_are_judged_before_clip_grad_value_cuts_them(self):
        for name, factor in (("cut", None), ("doubled and cut", 2.0)):
            report = self.on_all_ranks(name)
            factors = {x for w in report["wrong"] for x in w["factors"].values()}
            self.assertEqual({round(x, 6) for x in factors}, {factor} if factor else set())
            self.assertEqual(report["verdict"], "wrong" if factor else "right", report["text"])
            self.assertRegex(" ".join(report["notes"]), r"clip_grad_value_ in \S+:\d+ cuts")

    def test_clip_grad_value_on_one_rank_makes_copies_differ(self):
        report = self.on_all_ranks("cut on rank 1")
        self.assertRegex(report["text"], r"clip_grad_value_ in \S+:\d+ cuts"
                         r" p.grad\s+on\s+rank\s+1\s+alone")
        self.assertEqual([w["kind"] for w in report["wrong"]], ["clipping"], report["text"])

    def test_what_is_changed_after_clip_grad_value_is_not_judged(self):
        for name in ("cut too early", "cut and clipped"):
            report = self.on_all_ranks(name)
            self.assertEqual(report["verdict"], "undecided", report["text"])
            self.assertRegex(report["text"], r"is changed after\s+clip_grad_value_ cut it")

    def test_a_second_clip_is_judged_by_what_the_first_left(self):
        for most, note in ((0.005, "gradients are clipped 2 times"), ("inf", "saw the right norm")):
            report = self.on_all_ranks(f"clipped again to {most}")
            self.assertEqual(report["verdict"], "right", report["text"])
            self.assertIn(note, " ".join(report["notes"]))
        report = self.on_all_ranks("clipped early and late")
        self.assertEqual([w["kind"] for w in report["wrong"]], ["factor"], report["text"])
        self.assertIn("norm was not judged", " ".join(report["notes"]))

    def test_gradients_that_are_clipped_to_0_are_finite(self):
        report = self.on_all_ranks("clipped to 0 on rank 0")
        self.assertEqual(report["verdict"], "wrong", report["text"])
        text = " ".join(report["text"].split())
        self.assertIn("p.grad by 0 on rank 0, 1 on ranks 1, 2: the copies differ", text)
        self.assertIn("p.grad over the derivative of the loss is 0 on rank 0, 1 on ranks 1, 2",
                      text)

    def test_a_loss_that_is_not_finite_has_its_rank(self):
        self.assertIn("the loss is nan: it is not finite on rank 1",
                      self.on_all_ranks("nan on rank 1")["text"])

    def test_objectives_and_scales_that_are_declared(self):
        for name in ("objective", "scale"):
            report = self.on_all_ranks(name)
            self.assertEqual(report["verdict"], "right", report["text"])

    def test_bad_input_is_one_line(self):
        texts = {"a list": "model is to be a torch.nn.Module",
                 "no model": "model is to be a torch.nn.Module, or a list of them, not a int",
                 "no optimizer": "optimizer is to have a step(), as a torch.optim.Optimizer has",
                 "no step": "step is to be a function",
                 "no such name": "copies: no parameter is named '9.weight'",
                 "objective raises": "objective(losses) raised:\nTraceback",
                 "two losses": "step() returned two values, which only an objective that is a",
                 "no objective": "objective is to be one of mean, sum, replicated",
                 "a vector": "returned a Tensor of shape [2]: it is to return this rank's loss",
                 "no loss": "step() returned None on every rank"}
        for found in self.found:
            for name, text in texts.items():
                self.assertIn(text, found["bad"][name][1], name)

    def test_an_exception_on_one_rank_is_told_on_all(self):
        for found in self.found:
            kind, text = found["rank 1 raises"]
            self.assertEqual(kind, "StepError", text)
            self.assertIn("rank 1 raised in step():", text)
            self.assertIn("KeyError: 'no such batch'", text)

    def test_a_teacher_that_step_updates_is_put_back(self):
        self.assertEqual(self.on_all_ranks("teacher")["verdict"], "right")
        self.assertTrue(all(found["teacher is back"] for found in self.found))

    def test_a_teacher_that_changes_once_its_student_has_moved_is_put_back(self):
        self.assertEqual(self.on_all_ranks("teacher alike")["verdict"], "right")
        report = self.on_all_ranks("teacher follows")
        self.assertEqual((report["verdict"], report["wrong"]), ("disputed", []), report["text"])
        report = self.on_all_ranks("teacher follows, tripled")
        wrong, = report["wrong"]
        self.assertEqual(wrong["parameters"], ["student.first.weight"], report["text"])
        self.assertIn("student.second.weight", report["disputed"])
        self.assertIn("as a constant, p.grad is 3 times", wrong["text"][0])

    def test_factors_are_found_under_autocast(self):
        self.assertEqual(self.on_all_ranks("1.0 under autocast")["verdict"], "right")
        for factor, text in ((0.5, r"p.grad is 0\.(5|499\d?) times"),
                             (2.0, "1.99 to 2.01 times|p.grad is (2|1.99|2.01) times")):
            report = self.on_all_ranks(f"{factor} under autocast")
            self.assertEqual(report["verdict"], "wrong", report)
            self.assertRegex(str(report["wrong"]), text)

    def test_what_fsdp_detaches_is_not_held(self):
        self.assertIn("p.grad is 0.3333 times the derivative of the loss: 1 over the number of"
                      " ranks.", self.found[0]["FSDP1"]["text"])

    def test_a_lost_micro_batch_is_named_though_fsdp_has_the_gradients(self):
        text = " ".join(self.found[0]["FSDP1 forgets"]["text"].split())
        self.assertIn("It is what the last backward pass added. What all backward passes added is"
                      " the derivative", text)

    def test_ranks_that_wait_for_ever_are_named_long_before_the_time_is_over(self):
        for kind, text in ranks.run(last_sum_is_skipped_on_rank_1, RANKS):
            self.assertEqual(kind, "StepError", text)
            self.assertIn("step() hangs: rank 1 never entered the all_reduce that ranks 0, 2",
                          text)
            self.assertRegex(text, r"in .*test_check_gradients.py:\d+ in step$")

    def test_ranks_that_do_not_call_it_are_named(self):
        self.assertEqual(ranks.run(called_on_rank_0_only, RANKS)[0],
                         ("RuntimeError", "check_gradients: ranks 1, 2 did not call it within 1 s"))

    def test_without_a_process_group_it_says_so(self):
        kind, text = raised(distgrad.check_gradients, Model(), lambda: None)
        self.assertEqual(kind, "ValueError")
        self.assertIn("torch.distributed is not initialised", text)


if __name__ == "__main__":
    unittest.main()
