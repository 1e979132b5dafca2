"""Gather layers as they are found in contrastive losses."""

import torch
import torch.distributed as dist


class GatherLayer(torch.autograd.Function):
    """SimCLR's: all_gather, with a backward that keeps the own slice of the cotangent."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        parts = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        return tuple(parts)

    @staticmethod
    def backward(ctx, *grads):
        (x,) = ctx.saved_tensors
        grad = torch.zeros_like(x)
        grad[:] = grads[dist.get_rank()]
        return grad


class VisslGather(torch.autograd.Function):
    """VISSL's: all_gather, with a backward that sums the cotangents over the ranks first."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x)
        return tuple(parts)

    @staticmethod
    def backward(ctx, *grads):
        all_grads = torch.stack(grads)
        dist.all_reduce(all_grads)
        return all_grads[dist.get_rank()]
