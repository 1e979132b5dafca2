"""deepspeed.comm hands calls on to torch.distributed, but builds extensions first, which takes
minutes: the modules get torch.distributed itself. Groups are passed, or global state."""

import torch.distributed as dist
from deepspeed.module_inject import layers
from deepspeed.moe import mappings, sharded_moe
from deepspeed.sequence import cross_entropy, layer

dist.reduce_scatter_fn = dist.reduce_scatter_tensor  # deepspeed's name for it
for module in (layers, mappings, sharded_moe, cross_entropy, layer):
    module.dist = dist


class _Mpu:
    """What deepspeed asks for the tensor parallel group."""

    def __init__(self, group):
        self.get_tensor_model_parallel_group = lambda: group
        self.get_tensor_model_parallel_world_size = group.size
        self.get_tensor_model_parallel_rank = group.rank


def gather_tokens(x, group, dim=0):
    mappings.groups.mpu = _Mpu(group)
    return mappings._GatherTokens.apply(x, dim)


def drop_tokens(x, group, dim=0):
    mappings.groups.mpu = _Mpu(group)
    return mappings._DropTokens.apply(x, dim)


def moe_exchange(x, group):
    return sharded_moe._AllToAll.apply(group, x)


def sequence_exchange(x, group, scatter_dim, gather_dim):
    return layer._SeqAllToAll.apply(group, x, scatter_dim, gather_dim, 0)


def row_parallel(x, group):
    return layers.RowParallel.apply(group, x, False)


def column_parallel(x, group):
    return layers.ColumnParallel.apply(group, x)


def gather_from_region(x, group):
    return layers.GatherFromTensorParallelRegion.apply(group, x, None)


def scatter_to_region(x, group):
    sizes = [x.shape[-1] // group.size()] * group.size()
    return layers.ScatterToTensorParallelRegion.apply(group, x, sizes, group.rank())


def gather_loss(x, group):
    return cross_entropy._GatherSequenceLoss.apply(x, group, True)


def gather_loss_of_one(x, group):
    return cross_entropy._GatherSequenceLoss.apply(x, group, False)
