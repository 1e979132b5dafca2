"""Holds what step() takes out of autograd, such as a student's target or a momentum encoder's keys,
while parameters move. It shows whether the gradient is right with that as a constant."""

import contextlib
import math
import os
import sys
import traceback

import torch
import torch.distributed

from ..gradient_check.detached import HeldConstants
from ..ranks.narrowing import written_to
from ..ranks.places import is_users
from ..words import some
from .roots import is_in_backward

_SAME = 1e-6  # Losses that differ by less, relatively, are the same.
_WRAPPERS = tuple(os.path.join(os.path.dirname(torch.__file__), *folders, "")
                  for folders in (("distributed", "fsdp"), ("nn", "parallel")))
_MODULE_CALLS = (torch.nn.Module._call_impl.__code__, torch.nn.Module._wrapped_call_impl.__code__)


class HeldInStep(HeldConstants):
    """Wraps runs of step(), of which the first records. Backward's own work is not held, nor is
    that of watchers (inside not_held()), nor that of DDP and FSDP, whose parameters are views that
    it swaps, nor is what a module's making writes into parameters, nor are single numbers, which a
    step detaches to return its loss or to add up micro-batches' losses."""

    is_paused = False

    def written(self, func, args, kwargs):
        return [x for x in written_to(func, args, kwargs) if x.is_leaf]

    def constant(self, x, what):
        if (self.is_paused or is_in_backward() or not isinstance(x, torch.Tensor)
                or x.numel() == 1 or is_by_wrapper()):
            return x
        return super().constant(x, what)


def is_by_wrapper():
    """Returns whether FSDP's or DDP's code runs, and not the user's, or a module, that it
    called."""
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        file = frame.f_code.co_filename
        if file.startswith(_WRAPPERS) or frame.f_code in _MODULE_CALLS or is_users(file):
            return file.startswith(_WRAPPERS)
    return False


@contextlib.contextmanager
def not_held():
    """Keeps what the body detaches out of what is held: it is not the step's."""
    before, HeldInStep.is_paused = HeldInStep.is_paused, True
    try:
        yield
    finally:
        HeldInStep.is_paused = before


@contextlib.contextmanager
def detached_held(runs, *lines):
    """Holds what step() detaches, at HeldInStep's `lines`, in the body's runs. Yields the
    HeldInStep. It is lost if the loss is another one then: step() may write into what it detaches,
    as where it makes its model, and what is held are copies."""
    runs.held = held = HeldInStep(*lines)
    try:
        loss = runs.run()
        if any(runs.gather(bool(held.places))) and loss is not None:
            held.is_lost |= not math.isclose(runs.run(), loss, rel_tol=_SAME)
        yield held
    finally:
        runs.held = contextlib.nullcontext()


def places_with_detached_held(runs, outputs, *lines):
    """Moves outputs that were moved before again, with what is detached at these lines held.
    Returns (their places, the lines that detach); the places are None if it could not be held, or
    nothing is detached."""
    with detached_held(runs, *lines) as held:
        lines = list(dict.fromkeys(line for row in runs.gather(list(held.places)) for line in row))
        again = outputs.places() if lines else None
        return None if any(runs.gather(held.is_lost)) else again, lines


def held_text(lines):
    return f"What is detached at {some(list(lines), 4)} was held as a constant."
