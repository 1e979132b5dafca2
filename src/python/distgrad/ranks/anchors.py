"""What keeps the ranks' graphs alike: all of them must reach the backward of every collective, or
some wait for ever."""

import torch


def anchored(loss, reached, weight):
    """The loss, whose backward starts with the cotangent `weight`, and also comes to the values
    `reached`."""
    return _Anchor.apply(weight, loss, *_left_out(loss, reached))


def attached(x):
    """`x`, as if it depended on something that wants a gradient."""
    return _Attach.apply(x, torch.zeros((), dtype=x.dtype, device=x.device, requires_grad=True))


def _left_out(loss, values):
    """Those of `values` that the loss's backward does not come by. Zeros added to the cotangents of
    the others would change no number, but their strides, on which subjects stumble."""
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
    """The loss; backward starts with the cotangent `weight`, and also reaches the collectives'
    outputs `also` that this rank's loss happens not to use. (Given a cotangent, Tensor.backward
    imports torch.compile's modules for a second.)"""

    @staticmethod
    def forward(ctx, weight, loss, *also):
        ctx.weight = weight
        ctx.shapes = [(x.shape, x.dtype, x.device) for x in also]
        return loss.clone()

    @staticmethod
    def backward(ctx, one):
        return (None, torch.full_like(one, ctx.weight),
                *(torch.zeros(s, dtype=d, device=on) for s, d, on in ctx.shapes))
