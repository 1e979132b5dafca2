"""A tensor-parallel layer: each rank has a part of a and b, and a copy of x."""

import torch
import torch.distributed as dist


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return g


def layer(x, a, b):
    return Leave.apply((x @ a).tanh() @ b)


def inputs(rank):
    x = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3)
    generator = torch.Generator().manual_seed(rank)
    a, b = (torch.randn(*shape, generator=generator, dtype=torch.float64)
            for shape in ((3, 2), (2, 3)))
    return tuple(t.requires_grad_() for t in (x, a, b))
