"""all_reduce: the reduction of the operands, on every rank."""

import torch
import torch.distributed as dist

from .exchange import completed, summed

NAMES = ("all_reduce", "allreduce", "all_reduce_tensor", "all_reduce_autograd", "all_reduce_sum",
         "reduce_from_model_parallel_region", "reduce_from_tensor_model_parallel_region",
         "reduce_from_parallel_region")
METHODS = {"allreduce": 0, "allreduce_coalesced": 0}


def simulated_all_reduce(xs, op):
    """all_reduce of the ranks' operands, in one process."""
    return [op.jointly(xs)] * len(xs)


def all_reduce_forward(ctx, x, group=None, *, op):
    ctx.x = x
    return op.reduced(x, group)


def all_reduce_adjoint(ctx, g, group=None, *, op):
    return op.adjoint(summed(g, group), ctx.x, group)


def plain_all_reduce(x, group=None, *, op, async_op=False):
    """As a call of torch.distributed does it: autograd sees what it sees."""
    y = x.clone(memory_format=torch.contiguous_format)
    completed(dist.all_reduce(y, op, group=group, async_op=async_op))
    return y
