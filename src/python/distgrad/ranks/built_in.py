"""The two subjects that are there to be compared with, and the truth.

`reference` is right: forward by its definition, backward its exact adjoint. `in_place` is what a
plain torch.distributed call gives, whose effect on autograd is whatever it is. `joint` is the
collective on all ranks of a group at once.
"""

import torch

from .adapters import reduce_op
from .collectives import MODULES, TRAITS, options_of


def reference(call, x):
    """The collective `call` of this rank's operand `x`. Every rank's backward must reach it."""
    return _Adjoint.apply(x, call)


def in_place(call, x):
    """`x` is left as it is: the call works on a copy."""
    options = options_of(call)
    if "op" in options:
        options["op"] = reduce_op(call)
    if TRAITS[call.kind].has_async:
        options["async_op"] = call.is_async
    return _function("plain_", call, "")(x, call.group.process_group, **options)


def joint(call, operands):
    """The results by rank of the group; `call.group.process_group` is not used."""
    return _function("simulated_", call, "")(operands, **options_of(call))


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
