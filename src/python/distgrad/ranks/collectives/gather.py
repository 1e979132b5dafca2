"""gather: as all_gather on root, zeros elsewhere."""

import torch
import torch.distributed as dist

from .all_gather import all_gather_forward
from .exchange import completed, on_root, sent_from
from .pieces import empty_pieces, joined, own_piece

NAMES = ("gather",)
METHODS = {"gather": 1}


def simulated_gather(xs, root, dim):
    """gather of the ranks' operands, in one process."""
    y = joined(xs, dim)
    return [y if rank == root else torch.zeros_like(y) for rank in range(len(xs))]


def gather_forward(ctx, x, group=None, *, root, dim):
    return on_root(root, all_gather_forward(ctx, x, group, dim=dim), group)


def gather_adjoint(ctx, g, group=None, *, root, dim):
    return own_piece(sent_from(root, g, group), ctx.sizes, dim, group)


def plain_gather(x, group=None, *, root, dim, async_op=False):
    """As a call of torch.distributed does it: autograd sees what it sees."""
    parts = empty_pieces(x, group, dim)  # zeros, and they stay so but on root
    parts_on_root = parts if dist.get_rank(group) == root else None
    completed(dist.gather(x.contiguous(), parts_on_root, group=group, group_dst=root,
                          async_op=async_op))
    return joined(parts, dim)
