"""What a function takes out of autograd on purpose, held while its inputs are moved: codes that are
computed under no_grad, the keys of a momentum encoder."""

import sys

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ..ranks.places import place
from ..ranks.rounding import without_dynamo


class Held(TorchDispatchMode):
    """Around calls of the function. The first records what detach() gives and what is computed with
    under no_grad, of tensors in the graph; the others get these values again, in the same order.
    What autograd.Functions do inside is theirs. `places`: where; `is_lost`: whether a call detached
    other tensors than the first."""

    def __init__(self):
        super().__init__()
        self.places, self.is_lost = [], False
        self._values, self._next, self._is_first = [], 0, True
        self._detaching = _Detaching(self._constant)

    def __enter__(self):
        self._next = 0
        self._detaching.__enter__()
        return super().__enter__()

    def __exit__(self, *raised):
        self._detaching.__exit__(*raised)
        self.is_lost = self.is_lost or (not self._is_first and self._next < len(self._values))
        self._is_first = False
        return super().__exit__(*raised)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not torch.is_grad_enabled():
            args, kwargs = tree_map(lambda x: self._constant(x) if _is_cut(x) else x,
                                    (args, kwargs))
        return func(*args, **kwargs)

    without_dynamo(__torch_dispatch__)

    def _constant(self, x):
        if self._is_first:
            self._values.append(x.detach().clone())
            if (where := place()) not in self.places:
                self.places.append(where)
            return x
        at, self._next = self._next, self._next + 1
        if at >= len(self._values) or self._values[at].shape != x.shape:
            self.is_lost = True
            return x
        return self._values[at].clone()


class _Detaching(TorchFunctionMode):
    """Calls of detach(). Below autograd, it detaches what backward needs, too."""

    def __init__(self, held):
        super().__init__()
        self._held = held

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        detaches = func in (torch.Tensor.detach, torch.detach) and _is_cut(args[0])
        return self._held(result) if detaches else result

    without_dynamo(__torch_function__)


def _is_cut(x):
    return isinstance(x, torch.Tensor) and x.requires_grad and not _in_a_function()


def _in_a_function():
    """Whether an autograd.Function's forward is on the stack, where nothing is in a graph."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_argcount and isinstance(
                frame.f_locals.get(code.co_varnames[0]), torch.autograd.function.FunctionCtx):
            return True
        frame = frame.f_back
    return False
