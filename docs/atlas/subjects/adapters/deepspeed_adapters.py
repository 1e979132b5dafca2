"""deepspeed.comm hands calls on to torch.distributed, but builds extensions first, which takes
minutes: the modules get torch.distributed itself. Groups are passed, or global state. Tokens are
gathered into a flat buffer, which NCCL takes of operands of any shape and Gloo of flat ones."""

import deepspeed
import torch.distributed as dist
from deepspeed.module_inject import layers
from deepspeed.moe import mappings, sharded_moe
from deepspeed.sequence import cross_entropy, layer

dist.reduce_scatter_fn = dist.reduce_scatter_tensor  # deepspeed's name for it


class _Comm:
    def all_gather_into_tensor(self, flat, x, group):
        return dist.all_gather_into_tensor(flat, x.view(-1), group)


deepspeed.comm = _Comm()
for module in (layers, layers.pg_utils, mappings, sharded_moe, cross_entropy, layer):
    module.dist = dist


class _Mpu:
    """What deepspeed asks for the tensor parallel group."""

    def __init__(self, group):
        self.get_tensor_model_parallel_group = lambda: group
        self.get_tensor_model_parallel_world_size = group.size
        self.get_tensor_model_parallel_rank = group.rank


def gather_tokens(x, group, dim=0):
    deepspeed.utils.groups.mpu = _Mpu(group)
    return mappings._GatherTokens.apply(x, dim)


def drop_tokens(x, group, dim=0):
    deepspeed.utils.groups.mpu = _Mpu(group)
    return mappings._DropTokens.apply(x, dim)


def moe_exchange(x, group):
    return sharded_moe._AllToAll.apply(group, x)


def exchange_heads_for_sequence(x, group, scatter_dim, gather_dim):
    """Of (batch, sequence, heads, width) it cuts the heads and joins the sequence."""
    x = x if scatter_dim > gather_dim else x.transpose(0, 1)
    given = layer._SeqAllToAll.apply(group, x.reshape(1, *x.shape, 1), 2, 1, 0)[0, :, :, 0]
    return given if scatter_dim > gather_dim else given.transpose(0, 1)


def row_parallel(x, group):
    return layers.RowParallel.apply(group, x, False)


def column_parallel(x, group):
    return layers.ColumnParallel.apply(group, x)


def gather_from_region(x, group):
    return layers.GatherFromTensorParallelRegion.apply(group, x, [x.shape[-1]] * group.size())


def scatter_to_region(x, group):
    sizes = [x.shape[-1] // group.size()] * group.size()
    return layers.ScatterToTensorParallelRegion.apply(group, x, sizes, group.rank())


def gather_loss(x, group):
    return cross_entropy._GatherSequenceLoss.apply(x, group, True)


def gather_loss_of_one(x, group):
    return cross_entropy._GatherSequenceLoss.apply(x, group, False)
