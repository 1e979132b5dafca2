"""reduce_scatter: each rank's own chunk of the reduction."""

import torch
import torch.distributed as dist

from .exchange import completed, gathered_uneven
from .pieces import chunks_of, group_chunks, joined, own_chunk

NAMES = ("reduce_scatter", "reducescatter", "reduce_scatter_single", "reduce_scatter_tensor",
         "reduce_scatter_base", "reduce_scatter_single_autograd", "reduce_scatter_tensor_autograd",
         "reduce_scatter_to_sequence_parallel_region")
METHODS = {"reduce_scatter": 1, "_reduce_scatter_base": 1, "reduce_scatter_single": 1,
           "reduce_scatter_tensor_coalesced": 1}


def simulated_reduce_scatter(xs, op, dim, splits=None):
    """reduce_scatter of the ranks' operands, in one process."""
    return list(chunks_of(op.jointly(xs), len(xs), dim, splits))


def reduce_scatter_forward(ctx, x, group=None, *, op, dim, splits=None):
    ctx.x = x
    return own_chunk(op.reduced(x, group), group, dim, splits)


def reduce_scatter_adjoint(ctx, g, group=None, *, op, dim, splits=None):
    return op.adjoint(joined(gathered_uneven(g, group), dim), ctx.x, group)


def plain_reduce_scatter(x, group=None, *, op, dim, splits=None, async_op=False):
    """As a call of torch.distributed does it: autograd sees what it sees."""
    chunks = [chunk.contiguous() for chunk in group_chunks(x, group, dim, splits)]
    y = torch.zeros_like(chunks[dist.get_rank(group)].detach())
    completed(dist.reduce_scatter(y, chunks, op, group=group, async_op=async_op))
    return y
