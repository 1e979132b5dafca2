"""Runs the two built-in subjects, which others are compared with.

`reference` is right: its forward is the definition and its backward the exact adjoint. `in_place`
is a plain torch.distributed call, whatever that does to autograd.
"""

import torch

from .adapters import reduce_op
from .collectives import MODULES, TRAITS, options_of


def reference(call, x):
    """Returns the result of `call` for this rank's operand `x`. Every rank's backward must reach
    it, as the backward communicates."""
    return _Adjoint.apply(x, call)


def in_place(call, x):
    """Returns the call's result and leaves `x` as it is: the call works on a copy."""
    options = options_of(call)
    if "op" in options:
        options["op"] = reduce_op(call)
    if TRAITS[call.kind].has_async:
        options["async_op"] = call.is_async
    return _function("plain_", call, "")(x, call.group.process_group, **options)


def _function(before, call, after):
    return getattr(MODULES[call.kind], before + call.kind + after)


class _Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, call):
        ctx.call = call
        forward = _function("", call, "_forward")
        return forward(ctx, x.detach(), call.group.process_group, **options_of(call))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        adjoint = _function("", ctx.call, "_adjoint")
        return adjoint(ctx, g, ctx.call.group.process_group, **options_of(ctx.call)), None
