"""Collectives with a root, with what people return off it."""

import torch
import torch.distributed as dist


class ReduceToRoot(torch.autograd.Function):
    """Off the root the buffer is left as it happens to be: here NaN."""

    @staticmethod
    def forward(ctx, x, dst, group):
        ctx.dst, ctx.group = dst, group
        x = x.clone()
        dist.reduce(x, dst, group=group)
        return x if dist.get_rank() == dst else torch.full_like(x, float("nan"))

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.broadcast(grad, ctx.dst, group=ctx.group)
        return grad, None, None


def reduce(x, dst=0, group=None):
    return ReduceToRoot.apply(x, dst, group)


class GatherToRoot(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, root, group):
        ctx.root, ctx.group, ctx.shape = dist.get_global_rank(group, root), group, x.shape
        mine = dist.get_rank() == ctx.root
        pieces = [torch.empty_like(x) for _ in range(dist.get_world_size(group))] if mine else None
        dist.gather(x.contiguous(), pieces, ctx.root, group=group)
        return torch.stack(pieces) if mine else x.new_empty(0)

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(ctx.shape)
        mine = dist.get_rank() == ctx.root
        dist.scatter(out, [g.contiguous() for g in grad] if mine else None, ctx.root,
                     group=ctx.group)
        return out, None, None


gather = GatherToRoot.apply


def broadcast(x, group_src, group=None):
    x = x.clone()
    dist.broadcast(x, dist.get_global_rank(group or dist.group.WORLD, group_src), group=group)
    return x
