"""Implements the modes of a subject: what training scripts do around a collective.

    SUBJECT@checkpoint             the whole forward inside torch.utils.checkpoint,
                                   use_reentrant=False
    SUBJECT@checkpoint-reentrant   the same, use_reentrant=True
    SUBJECT@autocast               the whole forward under torch.autocast("cpu", torch.bfloat16)
    SUBJECT@async                  async_op=True, or an asynchronous result; waited for before it is
                                   used
    SUBJECT@compile                each function through torch.compile, backend aot_eager
    SUBJECT@shared                 gets the program's own tensor as its operand, where else it gets
                                   a copy

The backend aot_eager traces forward and backward as the default one does, but runs the trace with
torch's own operators. It needs no C++ compiler and generates no code whose rounding would differ.
"""

import functools
import time

import torch

from .call import SubjectError
from .collectives.traits import TRAITS
from .program import delay_backward
from .subject_text import without_calls

MODES = ("checkpoint", "checkpoint-reentrant", "autocast", "async", "compile", "shared")

# In mode async one rank, for which the others must wait, comes so much later. A result that is used
# too early is then always wrong, and not by luck.
_LATE_S = 0.03

_MOST_COMPILED = 1 << 12


def split_mode(text):
    """Returns (subject, mode) of "SUBJECT@MODE"; the mode is "" if there is none. Raises
    SubjectError."""
    at = without_calls(text).rfind("@")
    subject, mode = text[:at], text[at + 1 :]
    if at < 0 or "/" in mode or "." in mode:  # part of a path, or no mode at all
        return text, ""
    if mode not in MODES:
        raise SubjectError(
            f"unknown mode {mode!r} after '@' in {text!r}: it is one of {', '.join(MODES)}")
    return subject, mode


def begin(mode):
    """Discards what was compiled for the last case's shapes. Call it before the first forward of a
    case."""
    if mode == "compile":
        torch.compiler.reset()
        # torch.compile takes all call sites for one code object, and after this many compilations
        # of one it runs it uncompiled.
        config = torch._dynamo.config
        config.recompile_limit = config.accumulated_recompile_limit = _MOST_COMPILED


def forward_in(mode, forward, leaves):
    """Returns `forward(*leaves)`, a tensor, run in the mode. Under a checkpoint `forward` runs a
    second time in backward."""
    if mode == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            return forward(*leaves)
    if mode.startswith("checkpoint") and leaves:
        from torch.utils.checkpoint import checkpoint

        return checkpoint(forward, *leaves, use_reentrant=mode == "checkpoint-reentrant")
    return forward(*leaves)


def function_in(mode, function):
    """Returns `function` as a script in this mode calls it."""
    if mode != "compile":
        return function

    # A plain function around it is compiled, whatever kind of callable it is.
    @functools.wraps(function, updated=())
    def call_site(*args, **kwargs):
        return function(*args, **kwargs)

    return torch.compile(call_site, backend="aot_eager", dynamic=False)


def come_late(call, value=None):
    """In mode async, sleeps if this rank is the late one. With `value`, sleeps when its backward
    begins instead of now."""
    late = (call.root + 1) % call.group.size if TRAITS[call.kind].only_on_root else call.root
    if not call.is_async or call.group.rank != late:
        return
    if value is None:
        time.sleep(_LATE_S)
    else:
        # Before a hook of the subject, which is part of the call's backward, and before observers
        # that copy what arrives.
        delay_backward(value, _LATE_S)
