import torch.distributed as dist
from vector_quantize_pytorch import lookup_free_quantization
from vector_quantize_pytorch import vector_quantize_pytorch as module


def gathered(x):
    return module.all_gather_variably_sized(x, [x.shape[0]] * dist.get_world_size())


def averaged(x, average=True):
    return lookup_free_quantization.maybe_distributed_mean(x)
