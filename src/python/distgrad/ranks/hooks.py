"""Watches hooks that the user's code puts on gradients: Tensor.register_hook,
Module.register_full_backward_hook and its pre-hook.

A hook's change of a gradient is the user's word, as a detach() is. `noting()` tells which hooks
changed one while a backward ran; `leaving_out()` runs a backward without those. If that gives the
derivative, the hooks alone make the difference. A hook that communicates is never left out, as it
may be the collective that the forward's adjoint needs.

Hooks of torch itself (FSDP's, checkpoint's) and of these modules are not the user's and run as they
are.
"""

import contextlib
import functools
import os
import sys

import torch
from torch.distributed import distributed_c10d as c10d
from torch.utils._pytree import tree_flatten, tree_map

from .places import place

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep

_noted = None  # the Noted that this rank's one thread runs under
_left_out = frozenset()  # texts; None: all
_any = False


class Noted:
    def __init__(self):
        self.changing = []  # texts, "register_hook in layer.py:12"
        self.communicating = []

    def call(self, text, hook, arguments):
        before, kept = _exchanges(), tree_map(_copy, arguments)
        result = hook(*arguments)
        if _exchanges() != before:
            self.communicating.append(text)
        elif result is not None or not _same(kept, arguments):
            self.changing.append(text)
        return result


def any_registered():
    return _any


@contextlib.contextmanager
def noting():
    global _noted
    _noted = Noted()
    try:
        yield _noted
    finally:
        _noted = None


@contextlib.contextmanager
def leaving_out(texts=None):
    """Runs without the hooks of these texts, or without any hook if `texts` is None."""
    global _left_out
    _left_out = texts if texts is None else frozenset(texts)
    try:
        yield
    finally:
        _left_out = frozenset()


def _watch(owner, name):
    original = getattr(owner, name)

    @functools.wraps(original)
    def register(self, hook, *args, **kwargs):
        file = os.path.abspath(sys._getframe(1).f_code.co_filename)
        if not file.startswith((_HERE, _TORCH)):
            hook = _watched(hook, f"{name} in {place()}")
        return original(self, hook, *args, **kwargs)

    setattr(owner, name, register)


def _watched(hook, text):
    global _any
    _any = True

    def called(*arguments):  # torch names it if it returns the wrong shape
        if _left_out is None or text in _left_out:
            return None
        return hook(*arguments) if _noted is None else _noted.call(text, hook, arguments)

    return functools.update_wrapper(called, hook)


def _exchanges():
    """Returns how many collectives and messages this rank has begun, in all its groups."""
    return sum(group._get_sequence_number_for_group() for group in list(c10d._world.pg_map))


def _copy(x):
    return x.detach().clone() if isinstance(x, torch.Tensor) else x


def _same(before, after):
    pairs = zip(tree_flatten(before)[0], tree_flatten(after)[0])
    return all(torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in pairs
               if isinstance(x, torch.Tensor))


for _owner, _name in ((torch.Tensor, "register_hook"), (torch.nn.Module,
                                                        "register_full_backward_hook"),
                      (torch.nn.Module, "register_full_backward_pre_hook")):
    _watch(_owner, _name)
