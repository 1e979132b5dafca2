"""Functions of one op, which no parameter tells."""

import torch
import torch.distributed as dist


class _Reduced(torch.autograd.Function):
    """Reduces by the op, times `times`. Backward sums the cotangents and divides them by the ranks
    that have the maximum, or by `by`."""

    @staticmethod
    def forward(ctx, x, op, times, by):
        y = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(y, op)
        holds = (x == y).to(x.dtype) if op == dist.ReduceOp.MAX else torch.ones_like(x)
        count = holds.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(count)
        ctx.save_for_backward(holds / count if op == dist.ReduceOp.MAX else holds / by)
        return y * times

    @staticmethod
    def backward(ctx, g):
        g = g.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(g)
        return g * ctx.saved_tensors[0], None, None, None


def mean(x):
    size = dist.get_world_size()
    return _Reduced.apply(x, dist.ReduceOp.SUM, 1 / size, size)


def mean_of_a_sum(x):
    return _Reduced.apply(x, dist.ReduceOp.SUM, 1 / dist.get_world_size(), 1)


def maximum(x):
    return _Reduced.apply(x, dist.ReduceOp.MAX, 1, 1)


def half(x):
    """A sum that is halved by mistake: in a world of two, it is the mean."""
    return _Reduced.apply(x, dist.ReduceOp.SUM, 0.5, 1)


def total(x):
    return _Reduced.apply(x, dist.ReduceOp.SUM, 1, 1)
