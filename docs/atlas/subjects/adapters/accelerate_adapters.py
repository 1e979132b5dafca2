"""accelerate asks its own state, which its launcher makes."""

import torch.distributed as dist
from accelerate.utils import DistributedType, operations


def gathered(x):
    operations.PartialState().num_processes = dist.get_world_size()
    return operations._gpu_gather(x)


def reduced(x):
    operations.PartialState().distributed_type = DistributedType.MULTI_CPU
    return operations.reduce(x, "sum")
