"""reduce: the reduction of the operands on root, zeros elsewhere."""

import torch
import torch.distributed as dist

from .exchange import completed, sent_from
from .pieces import attached_zeros

NAMES = ("reduce",)
METHODS = {"reduce": 0}


def simulated_reduce(xs, op, root):
    """reduce of the ranks' operands, in one process."""
    y = op.jointly(xs)
    return [y if rank == root else torch.zeros_like(y) for rank in range(len(xs))]


def reduce_forward(ctx, x, group=None, *, op, root):
    ctx.x = x
    return op.reduced_to(root, x, group)


def reduce_adjoint(ctx, g, group=None, *, op, root):
    return op.adjoint(sent_from(root, g, group), ctx.x, group)


def plain_reduce(x, group=None, *, op, root, async_op=False):
    """As a call of torch.distributed does it: autograd sees what it sees."""
    y = x.clone(memory_format=torch.contiguous_format)
    completed(dist.reduce(y, op=op, group=group, group_dst=root, async_op=async_op))
    return y if dist.get_rank(group) == root else attached_zeros(y)  # what is left is no result
