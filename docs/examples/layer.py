"""A layer whose all-reduce passes the cotangent on."""

import torch
import torch.distributed as dist


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return g


def rows(x, w, factor):
    return Sum.apply(factor * torch.sin(x) * w) + w
