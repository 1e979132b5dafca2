"""Functions that an audit need not try in full: one always raises, others work along one dim
alone."""

import os

import torch
import torch.distributed as dist


class _Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if dist.get_rank() == 0:
            with open(os.environ["CALLS"], "a", encoding="utf-8") as calls:
                calls.write(f"{dist.get_world_size()}\n")
        y = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, g):
        raise KeyError("bucket 7")


def raises_in_backward(x):
    return _Raises.apply(x)


class _AlongOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        pieces = [torch.empty_like(x, memory_format=torch.contiguous_format)
                  for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, x.contiguous())
        return torch.cat(pieces, 1)

    @staticmethod
    def backward(ctx, g):
        total = g.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size(), 1)[dist.get_rank()]


def along_one(x):
    return _AlongOne.apply(x)


class _Scattered(torch.autograd.Function):
    """A right reduce_scatter of one op along the first dimension, which Gloo refuses others for."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        rows, size = x.shape[0], dist.get_world_size(group)
        out = x.new_empty(rows // size, *x.shape[1:])
        dist.reduce_scatter_tensor(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx, g):
        out = g.new_empty(g.shape[0] * dist.get_world_size(ctx.group), *g.shape[1:])
        dist.all_gather_into_tensor(out, g.contiguous(), group=ctx.group)
        return out, None


def reduce_scatter(x, group=None):
    return _Scattered.apply(x, group)
