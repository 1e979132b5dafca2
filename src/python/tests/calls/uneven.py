"""Calls that one rank makes otherwise than the others, each so that they wait for it or die of it.
Rank 2 is the odd one of three."""

import os
import signal
import time

import torch
import torch.distributed as dist

ODD = 2


def is_odd():
    return dist.get_rank() == ODD


class _Sum(torch.autograd.Function):
    """A sum whose backward makes `before()` first, and is a sum."""

    @staticmethod
    def forward(ctx, x, before):
        ctx.before = before
        return total(x)

    @staticmethod
    def backward(ctx, g):
        ctx.before()
        return total(g), None


def total(x):
    y = x.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(y)
    return y


def plain(x, w):
    return _Sum.apply(x * w, lambda: None)


def _sleep():
    if is_odd():
        time.sleep(1000)  # the odd one


def _spin():
    while is_odd():
        pass  # the odd one


def _stop():
    if is_odd():
        os.kill(os.getpid(), signal.SIGSTOP)  # the odd one


def sleeps(x, w):
    _sleep()
    return plain(x, w)


def sleeps_in_backward(x, w):
    return _Sum.apply(x * w, _sleep)


def spins(x, w):
    _spin()
    return plain(x, w)


def stops(x, w):
    _stop()
    return plain(x, w)


def stops_in_backward(x, w):
    return _Sum.apply(x * w, _stop)


def stays_away(x, w):
    return x * w if is_odd() else plain(x, w)


def stays_away_in_backward(x, w):
    return (x * w).detach().requires_grad_() * 1.0 if is_odd() else plain(x, w)


def another_kind(x, w):
    if is_odd():
        dist.broadcast(x.detach().clone(), 0)  # the odd one
    return plain(x, w)


def another_size(x, w):
    total(x[:2] if is_odd() else x)
    return plain(x, w)


def another_dtype(x, w):
    total(x.float() if is_odd() else x.double())
    return plain(x, w)


def another_root(x, w):
    dist.broadcast(x.detach().clone(), 1 if is_odd() else 0)
    return plain(x, w)


def another_op(x, w):
    y = x.detach().clone()
    dist.all_reduce(y, dist.ReduceOp.MAX if is_odd() else dist.ReduceOp.SUM)
    return plain(x, w)


def another_group(x, w):
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [1, 2])]
    if is_odd():
        dist.all_reduce(x.detach().clone(), group=pairs[1])  # the odd one
    return plain(x, w)


def one_more(x, w):
    if is_odd():
        total(x)
    return plain(x, w)


def is_slow(x, w):
    if is_odd():
        time.sleep(1.5)
    return plain(x, w)
