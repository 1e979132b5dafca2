"""all_to_all: the chunks that the ranks send here, joined in their order."""

import math

import torch
import torch.distributed as dist

from .exchange import completed, exchanged, gathered_shapes
from .pieces import chunk_sizes, chunks_of, dim_of, group_chunks

NAMES = ("all_to_all", "alltoall", "all_to_all_single", "all_to_all_tensor",
         "all_to_all_single_autograd")
METHODS = {"alltoall": 1, "alltoall_base": 1, "all_to_all_single": 1}


def simulated_all_to_all(xs, dim, splits=None):
    """all_to_all of the ranks' operands, in one process."""
    cut = [chunks_of(x, len(xs), dim, splits, rank) for rank, x in enumerate(xs)]
    return [torch.cat([chunks[to] for chunks in cut], dim) for to in range(len(xs))]


def received_shapes(x, group, dim, splits):
    """Of what each rank sends here."""
    shapes = [list(shape) for shape in gathered_shapes(x, group)]
    for source, shape in enumerate(shapes):
        sizes = chunk_sizes(shape[dim], len(shapes), splits, source)
        shape[dim] = sizes[dist.get_rank(group)]
    return shapes


def all_to_all_forward(ctx, x, group=None, *, dim, splits=None):
    chunks, dim = group_chunks(x, group, dim, splits), dim_of(x, dim)
    shapes = received_shapes(x, group, dim, splits)
    ctx.sent, ctx.sizes = [chunk.shape for chunk in chunks], [shape[dim] for shape in shapes]
    return torch.cat(exchanged(chunks, shapes, group), dim)


def all_to_all_adjoint(ctx, g, group=None, *, dim, splits=None):
    dim = dim_of(g, dim)
    return torch.cat(exchanged(g.split(ctx.sizes, dim), ctx.sent, group), dim)


def plain_all_to_all(x, group=None, *, dim, splits=None, async_op=False):
    """As a call of torch.distributed does it: autograd sees what it sees. Gloo has no list form."""
    chunks, dim = group_chunks(x, group, dim, splits), dim_of(x, dim)
    shapes = received_shapes(x, group, dim, splits)
    sent, received = [chunk.numel() for chunk in chunks], [math.prod(shape) for shape in shapes]
    flat = torch.cat([chunk.reshape(-1) for chunk in chunks])
    y = torch.zeros(sum(received), dtype=x.dtype, device=x.device)
    completed(dist.all_to_all_single(y, flat, received, sent, group=group, async_op=async_op))
    return torch.cat([part.reshape(shape) for part, shape in zip(y.split(received), shapes)], dim)
