"""A subject in Python, and a hang of its: what a user's file may hold."""

import os
import time

import torch
import torch.distributed as dist
import torch.distributed.nn.functional


class Gather(torch.autograd.Function):
    """Wrong for losses that every rank has: keeps its own slice."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx, g):
        return g[dist.get_rank(ctx.group)], None


def all_gather(x, group=None):
    return Gather.apply(x, group)


def sleep_marked():
    mark = os.environ.get("LAUNCH_TEST_MARK")
    if mark:
        open(mark, "w").close()
    time.sleep(600)


def sleeping_gather(x, group=None):
    """Tells a file, if one is named, that it is there, and stays."""
    if dist.get_rank() == 1:
        sleep_marked()
    return Gather.apply(x, group)


def gather_that_says_where(x, group=None):
    """Raises on rank 1 with the address of its host in a test's network."""
    if dist.get_rank() == 1:
        raise RuntimeError("here is " + next(
            line.split()[-1] for line in open("/proc/net/fib_trie") if "|-- 10.77.0." in line
            and line.split()[-1] in ("10.77.0.1", "10.77.0.2")))
    return Gather.apply(x, group)


def product_that_sleeps_at_zeros(x, op=None, group=None):
    """In the trials of an audit that come when all first ones are through."""
    if dist.get_rank() == 1 and (x == 0).any():
        sleep_marked()
    return torch.distributed.nn.functional.all_reduce(x, op, group or dist.group.WORLD)
