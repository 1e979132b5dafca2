"""What an audit need not ask of in full: one that always raises, and one that works along dim 1
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
