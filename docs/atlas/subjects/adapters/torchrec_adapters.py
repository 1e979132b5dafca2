"""What comes back is waited for. Gradients are divided by the number of ranks unless the module is
set not to (`undivided`); `sync` is the path that torch.compile takes.

No release of fbgemm_gpu loads beside torch 2.15. comm_ops is torch alone but for the permutation in
alltoall_sequence, so torchrec is imported without fbgemm_gpu's operators."""

import contextlib
import logging
import sys
from types import ModuleType

import torch

load_library = torch.ops.load_library


def load_what_is_there(path):
    with contextlib.suppress(OSError):
        load_library(path)


logging.disable(logging.ERROR)  # a page of warnings from each rank
torch.ops.load_library = load_what_is_there
sys.modules["fbgemm_gpu.sparse_ops"] = ModuleType("sparse_ops")
from torchrec.distributed import comm_ops  # noqa: E402


def using(sync=False, divided=True):
    comm_ops.set_use_sync_collectives(sync)
    comm_ops.set_gradient_division(divided)
    return comm_ops


def gathered(x, group):
    return using().all_gather_base_pooled(x, group).wait()


def gathered_undivided(x, group):
    return using(divided=False).all_gather_base_pooled(x, group).wait()


def gathered_sync(x, group):
    return using(sync=True).all_gather_base_pooled(x, group).wait()


def reduce_scattered(x, group):
    return using().reduce_scatter_base_pooled(x, group).wait()


def reduce_scattered_undivided(x, group):
    return using(divided=False).reduce_scatter_base_pooled(x, group).wait()


def reduce_scattered_sync(x, group):
    return using(sync=True).reduce_scatter_base_pooled(x, group).wait()


def reduce_scattered_chunks(tensors, group):
    return using().reduce_scatter_pooled(tensors, group).wait()


def reduce_scattered_by_splits(x, splits, group):
    return using().reduce_scatter_v_pooled(x, splits, group).wait()


def exchanged_pooled(x, group, scatter_dim, gather_dim):
    return pooled(using(), x, group, scatter_dim)


def exchanged_pooled_undivided(x, group, scatter_dim, gather_dim):
    return pooled(using(divided=False), x, group, scatter_dim)


def pooled(ops, x, group, scatter_dim):
    """It cuts the first dimension and joins the second."""
    two = x if scatter_dim == 0 else x.T.contiguous()
    ranks = group.size()
    y = ops.alltoall_pooled(two, [len(two) // ranks] * ranks, [two.shape[1]] * ranks, group=group)
    return y.wait() if scatter_dim == 0 else y.wait().T


def exchanged_batches(x, output_split_sizes, input_split_sizes, group):
    """One feature on each rank, of as many rows for each other one as are sent there, all flat."""
    widths, rows = [[x.shape[1]]] * group.size(), [[size] for size in input_split_sizes]
    made = using().variable_batch_alltoall_pooled(
        x.reshape(-1), rows, output_split_sizes, widths, group)
    return made.wait().view(-1, x.shape[1])


def exchanged_sequence(x, output_split_sizes, input_split_sizes, group):
    """One table on each rank: its rows are in the order of the ranks already."""
    order, lengths = torch.arange(group.size()).int(), torch.tensor([input_split_sizes])
    return using().alltoall_sequence(x, order, order, lengths, output_split_sizes,
                                     input_split_sizes, group=group).wait()
