"""Whole steps of a program, with and without what they mean for all ranks at once."""
import torch
import torch.distributed as dist


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return g


def layer(x, w, scale):
    x.mul_(1)  # in place, on what others see
    return torch.nn.functional.dropout(_Sum.apply(x) * w, 0.5) * scale + torch.rand(())


def rows(x, w, scale):
    return _Sum.apply(x).sin() * w * scale


def all_rows(xs, ws, scales):
    total = torch.stack(xs).sum(0).sin()
    return [total * w * scale for w, scale in zip(ws, scales)]


def detached(x):
    return _Sum.apply(x * x.detach()).sum()


def kinked(x):
    return _Sum.apply(x.abs()).sum()


def narrowed(x):
    return (x.bfloat16().to(x.dtype) ** 2).sum()


def square(x):
    return _Sum.apply(x * x).sum()
