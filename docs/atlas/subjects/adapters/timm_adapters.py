import torch.distributed as dist
from timm.utils import distributed


def averaged(x, average):
    return distributed.reduce_tensor(x, dist.get_world_size() if average else 1)
