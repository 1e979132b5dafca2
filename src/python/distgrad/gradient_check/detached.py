"""Holds what a function takes out of autograd while its inputs are moved, such as codes that are
computed under no_grad or the keys of a momentum encoder."""

import contextlib
import functools
import inspect
import sys

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ..ranks.places import place
from ..ranks.rounding import without_dynamo

_TENSOR = torch.Tensor
_DETACHES = {_TENSOR.detach: "detach()", torch.detach: "detach()", _TENSOR.data.__get__: ".data"}
_NUMBERS = {_TENSOR.item: ".item()", _TENSOR.__float__: "float()", _TENSOR.tolist: ".tolist()"}
_COLLECTIVES = {"allgather": "all_gather", "_allgather": "all_gather", "allreduce": "all_reduce",
                "reduce_scatter": "reduce_scatter", "broadcast": "broadcast"}


@contextlib.contextmanager
def functions_called_by(act):
    """Calls act(class, its apply(), args, kwargs) inside this context in place of the apply() of
    each autograd.Function, but for those that a name was bound to before."""
    original = vars(torch.autograd.Function)["apply"]

    def apply(cls, *args, **kwargs):
        return act(cls, original.__get__(None, cls), args, kwargs)

    apply.__name__, apply.__qualname__ = "apply", original.__get__(
        None, torch.autograd.Function).__qualname__
    torch.autograd.Function.apply = classmethod(apply)
    try:
        yield
    finally:
        torch.autograd.Function.apply = original


class HeldConstants(TorchDispatchMode):
    """Wraps calls of the function. The first call records the tensors of the graph that leave it
    through detach(), .data, .item() or operators under no_grad; later calls get these values again,
    in the same order. What happens inside an autograd.Function is not held.

    only names the lines that are held (None: all), and but those that are not. places is {line:
    what it does}; is_lost says that a call detached other tensors than the first."""

    def __init__(self, only=None, but=()):
        super().__init__()
        self.places, self.is_lost = {}, False
        self.overwritten = []  # Lines at which the first call detaches what it writes to later.
        self._only, self._but = only, but
        self._values, self._next, self._is_first = [], 0, True
        self._given = []  # (line, what detach() or .data gave there, its version) of the first call
        self._functions = _Functions(self.constant)

    def __enter__(self):
        self._next = 0
        self._functions.__enter__()
        self._applies = functions_called_by(self._applied)
        self._applies.__enter__()
        return super().__enter__()

    def __exit__(self, *raised):
        self._applies.__exit__(None, None, None)
        self._functions.__exit__(*raised)
        self.overwritten += [where for where, x, version in self._given if x._version != version]
        self._given = []
        is_whole = not self._is_first and raised[0] is None
        self.is_lost |= bool(self.overwritten) or is_whole and self._next < len(self._values)
        self._is_first = False
        return super().__exit__(*raised)

    def _applied(self, _, apply, args, kwargs):
        """Calls a Function, which has no backward under no_grad; inside, nothing else is held."""
        if not torch.is_grad_enabled():
            args, kwargs = tree_map(lambda x: self._cut(x) if _is_cut(x) else x, (args, kwargs))
        return apply(*args, **kwargs)

    def _cut(self, x):
        """Returns what is held in place of `x`, without a graph. What is done for that is not
        seen."""
        self._functions.gives_itself = True
        with torch._C.DisableTorchFunction():
            kept = self.constant(x, "no_grad").detach()
        self._functions.gives_itself = False
        return kept

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self._functions.is_no_grad() and not self._functions.gives_itself:
            what, written = _under_no_grad(func), self.written(func, args, kwargs)
            args, kwargs = tree_map(
                lambda x: self.constant(x, what) if _is_cut(x) and not any(
                    x is y for y in written) else x, (args, kwargs))
        return func(*args, **kwargs)

    without_dynamo(__torch_dispatch__)

    def written(self, func, args, kwargs):
        """Returns arguments of an operator under no_grad that are not taken out of the graph, as
        they are only written to."""
        return ()

    def constant(self, x, what):
        """Returns what is held in place of `x`, a tensor or a number."""
        where = place()
        if where in self._but or self._only is not None and where not in self._only:
            return x
        if self._is_first:
            self._values.append(x.detach().clone() if isinstance(x, _TENSOR) else x)
            self.places.setdefault(where, what)
            if what in _DETACHES.values() and not x.is_inference():
                self._given.append((where, x, x._version))
            return x
        at, self._next = self._next, self._next + 1
        kept = self._values[at] if at < len(self._values) else None
        if getattr(kept, "shape", type(kept)) != getattr(x, "shape", type(x)):
            self.is_lost = True
            return x
        return kept.clone() if isinstance(kept, _TENSOR) else kept


class _Functions(TorchFunctionMode):
    """Catches detach() and the like above autograd, which itself detaches what backward needs."""

    def __init__(self, held):
        super().__init__()
        self._held = held
        # True while autograd makes its view of an input that a Function's forward returns
        # unchanged. That view is in the graph afterwards, so it is not detached.
        self.gives_itself = False
        self._is_asked = not torch.is_grad_enabled()  # Whether Python code has asked for no_grad.

    def is_no_grad(self):
        """Returns whether Python code has turned gradients off. An autograd.Function in C++ turns
        them off, too, while its forward runs, which takes nothing out of the graph."""
        return not torch.is_grad_enabled() and (self._is_asked or torch.is_inference_mode_enabled())

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch._C._set_grad_enabled or torch.is_grad_enabled():
            self._is_asked = func is torch._C._set_grad_enabled and not args[0]
        self.gives_itself = func is _TENSOR.view_as and args[0] is args[1]
        result = func(*args, **(kwargs or {}))
        self.gives_itself = False
        what = _DETACHES.get(func) or _NUMBERS.get(func)
        return self._held(result, what) if what and _is_cut(args[0]) else result

    without_dynamo(__torch_function__)


def _under_no_grad(func):
    if func.namespace not in ("c10d", "_c10d_functional"):
        return "no_grad"
    name = func._schema.name.partition("::")[2]
    known = next((said for start, said in _COLLECTIVES.items() if name.startswith(start)), name)
    return f"{known} under no_grad"


def _is_cut(x):
    return isinstance(x, _TENSOR) and x.requires_grad and not _in_a_function()


def _in_a_function():
    """Returns whether an autograd.Function's forward runs, where nothing is in a graph."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_argcount and isinstance(
                frame.f_locals.get(code.co_varnames[0]), torch.autograd.function.FunctionCtx):
            return True
        if _has_no_context(code):
            return True
        frame = frame.f_back
    return False


@functools.lru_cache(maxsize=None)
def _has_no_context(code):
    """Returns whether this is the forward of an autograd.Function that has a setup_context() and so
    gets no context. No frame shows the call of apply(), which is in C."""
    return any(getattr(inspect.unwrap(function.forward), "__code__", None) is code
               for function in _functions(torch.autograd.Function)
               if function.setup_context is not torch.autograd.Function.setup_context)


def _functions(base):
    for function in base.__subclasses__():
        yield function
        yield from _functions(function)
