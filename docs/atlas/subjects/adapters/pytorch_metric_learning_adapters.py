import torch
import torch.distributed as dist
from pytorch_metric_learning.utils import distributed


def in_order_of_ranks(x):
    """`gather` puts the own embeddings first."""
    if dist.get_world_size() == 1:
        return x
    own, *others = distributed.gather(x, None)[0].split(len(x))
    return torch.cat([*others[:dist.get_rank()], own, *others[dist.get_rank():]])
