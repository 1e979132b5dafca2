"""Keeps the ranks' graphs alike. If one rank's backward skips a collective, the ranks that reach it
wait for ever."""

import torch


def anchored(loss, reached, weight):
    """Returns the loss. Its backward starts with the cotangent `weight` and also reaches the values
    `reached`."""
    return _Anchor.apply(weight, loss, *_left_out(loss, reached))


def attached(x):
    """Returns a copy of `x` that depends on a tensor that requires grad."""
    return _Attach.apply(x, torch.zeros((), dtype=x.dtype, device=x.device, requires_grad=True))


def _left_out(loss, values):
    """Returns the `values` that the loss's backward does not reach. Adding zeros to the cotangents
    of the others would change no number but their strides, which subjects stumble on."""
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return [value for value in values if value.grad_fn not in seen]


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, anchor):
        return x.clone()

    @staticmethod
    def backward(ctx, cotangent):
        return None, torch.zeros((), dtype=cotangent.dtype, device=cotangent.device)


class _Anchor(torch.autograd.Function):
    """Gives the loss. Its backward starts with the cotangent `weight` and also reaches `also`, the
    collectives' outputs that this rank's loss does not use. (Passing a cotangent to Tensor.backward
    would import torch.compile's modules for a second.)"""

    @staticmethod
    def forward(ctx, weight, loss, *also):
        ctx.weight = weight
        ctx.shapes = [(x.shape, x.dtype, x.device) for x in also]
        return loss.clone()

    @staticmethod
    def backward(ctx, one):
        return (None, torch.full_like(one, ctx.weight),
                *(torch.zeros(s, dtype=d, device=on) for s, d, on in ctx.shapes))
