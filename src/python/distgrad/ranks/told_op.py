"""Finds out whether a function that takes no op computes the one that a call asks for."""

import dataclasses

import torch

from .call import NotOffered
from .collectives import MODULES, options_of
from .collectives.exchange import summed

_ROUNDINGS = 64  # A result may be off by so many of the largest element.


def check_op(call, operands, value, world):
    """Raises NotOffered on all ranks of the process group `world`, unless `value` is the result of
    call.op for the operands of the call's group, by rank, and no sum where these differ."""
    is_asked, is_sum = (_is_result(dataclasses.replace(call, op=op), operands, value)
                        for op in (call.op, "sum"))
    is_told = not is_sum or call.group.size == 1 or value.numel() == 0
    # Off the root of a reduce, any op gives zeros.
    others, unlike_sum = summed(value.new_tensor([not is_asked, is_told]), world).tolist()
    if others or not unlike_sum:
        raise NotOffered("the function has no parameter for the op and does not compute the"
                         f" {call.op}")


def _is_result(call, operands, value):
    simulated = getattr(MODULES[call.kind], f"simulated_{call.kind}")
    right = simulated(operands, **options_of(call))[call.group.rank]
    room = _ROUNDINGS * torch.finfo(right.dtype).eps * right.abs().max() if right.numel() else 0
    return right.shape == value.shape and bool(((value.detach() - right).abs() <= room).all())
