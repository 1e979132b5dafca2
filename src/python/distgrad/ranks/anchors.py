"""Keeps the ranks' graphs alike. If one rank's backward skips a collective, the ranks that reach it
wait for ever."""

import torch


def attached(x):
    """Returns a copy of `x` that depends on a tensor that requires grad."""
    return _Attach.apply(x, torch.zeros((), dtype=x.dtype, device=x.device, requires_grad=True))


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, anchor):
        return x.clone()

    @staticmethod
    def backward(ctx, cotangent):
        return None, torch.zeros((), dtype=cotangent.dtype, device=cotangent.device)
