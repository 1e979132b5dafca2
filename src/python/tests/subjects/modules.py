"""torch.nn.Modules as subjects: a class, made once for each call site, and an instance."""

import torch
import torch.distributed as dist


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.group = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class AllReduce(torch.nn.Module):
    made = 0

    def __init__(self, process_group=None, scale: float = 1.0):
        super().__init__()
        type(self).made += 1
        self.group, self.scale = process_group, scale

    def forward(self, x):
        return self.scale * _Sum.apply(x, self.group)


all_reduce = AllReduce(scale=3.0)
sum_with_context = _Sum.apply
