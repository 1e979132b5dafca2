"""all_gather: the operands, on every rank; stacked, or joined along a dim."""

import torch.distributed as dist

from .exchange import completed, gathered, gathered_uneven, summed
from .pieces import dim_of, empty_pieces, joined, own_piece

NAMES = ("all_gather", "allgather", "all_gather_single", "all_gather_into_tensor",
         "all_gather_tensor", "all_gather_base", "all_gather_single_autograd",
         "all_gather_tensor_autograd", "all_gather_with_grad", "all_gather_with_gradient",
         "all_gather_with_backprop", "all_gather_batch_with_grad", "concat_all_gather",
         "gather_from_all", "gather_all", "gather_layer", "gather_from_model_parallel_region",
         "gather_from_tensor_model_parallel_region", "gather_from_parallel_region",
         "all_gather_from_model_parallel_region", "all_gather_from_tensor_model_parallel_region")
METHODS = {"allgather": 1, "_allgather_base": 1, "all_gather_single": 1,
           "allgather_into_tensor_coalesced": 1}


def simulated_all_gather(xs, dim):
    """all_gather of the ranks' operands, in one process."""
    return [joined(xs, dim)] * len(xs)


def all_gather_forward(ctx, x, group=None, *, dim):
    parts = gathered(x, group) if dim is None else gathered_uneven(x, group)
    ctx.sizes = None if dim is None else [part.size(dim_of(x, dim)) for part in parts]
    return joined(parts, dim)


def all_gather_adjoint(ctx, g, group=None, *, dim):
    return own_piece(summed(g, group), ctx.sizes, dim, group)


def plain_all_gather(x, group=None, *, dim, async_op=False):
    """As a call of torch.distributed does it: autograd sees what it sees."""
    parts = empty_pieces(x, group, dim)
    completed(dist.all_gather(parts, x.contiguous(), group=group, async_op=async_op))
    return joined(parts, dim)
