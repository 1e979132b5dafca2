"""scatter: each rank's own chunk of root's operand."""

import torch
import torch.distributed as dist

from .exchange import completed, gathered_uneven, on_root, sent_from
from .pieces import chunks_of, group_chunks, joined, own_chunk

NAMES = ("scatter",)
METHODS = {"scatter": 0}


def simulated_scatter(xs, root, dim, splits=None):
    """scatter of the ranks' operands, in one process."""
    return list(chunks_of(xs[root], len(xs), dim, splits))


def scatter_forward(ctx, x, group=None, *, root, dim, splits=None):
    return own_chunk(sent_from(root, x, group), group, dim, splits)


def scatter_adjoint(ctx, g, group=None, *, root, dim, splits=None):
    return on_root(root, joined(gathered_uneven(g, group), dim), group)


def plain_scatter(x, group=None, *, root, dim, splits=None, async_op=False):
    """As a call of torch.distributed does it: autograd sees what it sees."""
    chunks = [chunk.contiguous() for chunk in group_chunks(x, group, dim, splits)]
    y = torch.zeros_like(chunks[dist.get_rank(group)].detach())
    chunks_on_root = chunks if dist.get_rank(group) == root else None
    completed(dist.scatter(y, chunks_on_root, group=group, group_src=root, async_op=async_op))
    return y
