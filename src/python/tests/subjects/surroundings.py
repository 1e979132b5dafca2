"""all_reduce sums that are right by themselves, and wrong in one of the surroundings that `distgrad
audit --aspects` tries."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch.autograd.function import once_differentiable


class _Sum(torch.autograd.Function):
    """Differentiable as often as one likes: its backward is itself."""

    @staticmethod
    def forward(ctx, x):
        y = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return _Sum.apply(g)


def right(x):
    return _Sum.apply(x)


def skips_when_recomputed(x):
    """In a backward, so it must be a recomputation, whose value "nobody needs"."""
    return x.clone() if torch._C._current_graph_task_id() != -1 else _Sum.apply(x)


def casts(x):
    """To save bandwidth, but only where mixed precision is asked for."""
    if not torch.is_autocast_enabled("cpu"):
        return _Sum.apply(x)
    return _Sum.apply(x.to(torch.bfloat16)).to(x.dtype)


class _Started(torch.autograd.Function):
    """Appends the handle to `pending`."""

    @staticmethod
    def forward(ctx, x, pending):
        y = x.clone(memory_format=torch.contiguous_format)
        pending.append(dist.all_reduce(y, async_op=True))
        return y

    @staticmethod
    def backward(ctx, g):
        return _Sum.apply(g), None


def returns_handle(x, async_op=False):
    pending = []
    y = _Started.apply(x, pending)
    if async_op:
        return y, pending[0]
    pending[0].wait()
    return y


def returns_before_wait(x, async_op=False):
    pending = []
    y = _Started.apply(x, pending)
    if async_op:
        return y
    pending[0].wait()
    return y


def local_when_compiled(x):
    return (x.clone() if torch.compiler.is_compiling()
            else torch.distributed.nn.functional.all_reduce(x))


class _PlainBackward(torch.autograd.Function):
    """As most code has it: right, and a constant to who differentiates it again."""

    @staticmethod
    def forward(ctx, x):
        y = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, g):
        total = g.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


def detached_backward(x):
    return _PlainBackward.apply(x)


class _Once(_PlainBackward):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return _PlainBackward.backward(ctx, g)


def differentiable_once(x):
    return _Once.apply(x)
