"""broadcast: root's operand, on every rank."""

import torch
import torch.distributed as dist

from .exchange import completed, natively_reduced_to, sent_from

NAMES = ("broadcast",)
METHODS = {"broadcast": 0}


def simulated_broadcast(xs, root):
    """broadcast of the ranks' operands, in one process."""
    return [xs[root]] * len(xs)


def broadcast_forward(ctx, x, group=None, *, root):
    return sent_from(root, x, group)


def broadcast_adjoint(ctx, g, group=None, *, root):
    return natively_reduced_to(root, g, "sum", group)


def plain_broadcast(x, group=None, *, root, async_op=False):
    """As a call of torch.distributed does it: autograd sees what it sees."""
    y = x.clone(memory_format=torch.contiguous_format)
    completed(dist.broadcast(y, group=group, group_src=root, async_op=async_op))
    return y
