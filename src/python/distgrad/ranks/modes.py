"""The modes in which a subject can be run: what training scripts do around a collective.

    SUBJECT@checkpoint             the whole forward inside torch.utils.checkpoint,
                                   use_reentrant=False
    SUBJECT@checkpoint-reentrant   the same, use_reentrant=True
    SUBJECT@autocast               the whole forward under torch.autocast("cpu", torch.bfloat16)
    SUBJECT@async                  async_op=True, or an asynchronous result; waited for before it is
                                   used
    SUBJECT@compile                each function through torch.compile, backend aot_eager
    SUBJECT@shared                 gets the program's own tensor as its operand, where else it gets
                                   a copy

aot_eager is the backend that traces forward and backward as the default one does, but runs what it
traced with torch's own operators: it needs no C++ compiler, and generates no code whose rounding
would differ.
"""

import functools
import time

import torch

from .call import SubjectError
from .collectives.traits import TRAITS
from .observing import register_first
from .subject_text import without_calls

MODES = ("checkpoint", "checkpoint-reentrant", "autocast", "async", "compile", "shared")

# In mode async one rank, for which the others must wait, comes so much later: a result that is used
# too early is then wrong always and not by luck.
_LATE_S = 0.03

_MOST_COMPILED = 1 << 12


def split_mode(text):
    """(subject, mode) of "SUBJECT@MODE"; the mode is "" where there is none."""
    at = without_calls(text).rfind("@")
    subject, mode = text[:at], text[at + 1 :]
    if at < 0 or "/" in mode or "." in mode:  # of a path, or of no mode
        return text, ""
    if mode not in MODES:
        raise SubjectError(
            f"unknown mode {mode!r} after '@' in {text!r}: it is one of {', '.join(MODES)}")
    return subject, mode


def begin(mode):
    """Before the first forward of a case: what was compiled for the last one's shapes is nothing to
    it."""
    if mode == "compile":
        torch.compiler.reset()
        # All call sites are one code object to torch.compile, and after so many compilations of one
        # it runs it as it is.
        config = torch._dynamo.config
        config.recompile_limit = config.accumulated_recompile_limit = _MOST_COMPILED


def forward_in(mode, forward, leaves):
    """`forward(*leaves)`, a tensor, as the mode has it. Under a checkpoint `forward` runs a second
    time in backward."""
    if mode == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            return forward(*leaves)
    if mode.startswith("checkpoint") and leaves:
        from torch.utils.checkpoint import checkpoint

        return checkpoint(forward, *leaves, use_reentrant=mode == "checkpoint-reentrant")
    return forward(*leaves)


def function_in(mode, function):
    """`function` as a script in this mode calls it."""
    if mode != "compile":
        return function

    # What is compiled is a plain function that calls it, whatever kind of callable it is.
    @functools.wraps(function, updated=())
    def call_site(*args, **kwargs):
        return function(*args, **kwargs)

    return torch.compile(call_site, backend="aot_eager", dynamic=False)


def come_late(call, value=None):
    """In mode async: lets the others wait, now and when the backward of `value` begins, if this
    rank is the late one."""
    late = (call.root + 1) % call.group.size if TRAITS[call.kind].only_on_root else call.root
    if not call.is_async or call.group.rank != late:
        return
    if value is None:
        time.sleep(_LATE_S)
    elif value.requires_grad:
        # Before a hook of the subject's, which is of the call's backward, and whoever copies what
        # comes.
        register_first(value, lambda _: time.sleep(_LATE_S))
