"""Takes its time to be imported, and to be set up, longer than a case may take; but its collective
does not."""

import os
import time

import torch
import torch.distributed as dist

time.sleep(7)


def setup(groups):
    time.sleep(1)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return _Sum.forward(None, g)


def all_reduce(x):
    return _Sum.apply(x)


def all_reduce_that_hangs(x):
    if dist.get_rank() == 1:
        time.sleep(100)
    return _Sum.apply(x)


def all_reduce_that_dies(x):
    if x.numel() > 2 and dist.get_rank() == 1:
        os._exit(3)
    return _Sum.apply(x)
