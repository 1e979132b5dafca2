"""An all_reduce whose group is global state, as Megatron's is; the file has the name of a function
that a script has."""
import torch
import torch.distributed as dist

_GROUP = None


def setup(groups):
    global _GROUP
    _GROUP = groups["tp"]
    return ["tp"]


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.all_reduce(y, group=_GROUP)
        return y

    @staticmethod
    def backward(ctx, g):
        return g


def all_reduce(x):
    return _Sum.apply(x)
