"""slice: the rank's own chunk of its own operand."""

import torch
import torch.distributed as dist

from .pieces import chunks_of, group_chunks, own_chunk

NAMES = ("slice", "split", "scatter_to_model_parallel_region",
         "scatter_to_tensor_model_parallel_region", "scatter_to_parallel_region")


def simulated_slice(xs, dim, splits=None):
    """slice of the ranks' operands, in one process."""
    return [chunks_of(x, len(xs), dim, splits)[rank] for rank, x in enumerate(xs)]


def slice_forward(ctx, x, group=None, *, dim, splits=None):
    ctx.x = x
    return own_chunk(x, group, dim, splits)


def slice_adjoint(ctx, g, group=None, *, dim, splits=None):
    whole = torch.zeros_like(ctx.x, memory_format=torch.contiguous_format)
    group_chunks(whole, group, dim, splits)[dist.get_rank(group)].copy_(g)
    return whole


def plain_slice(x, group=None, *, dim, splits=None):
    return group_chunks(x, group, dim, splits)[dist.get_rank(group)]
