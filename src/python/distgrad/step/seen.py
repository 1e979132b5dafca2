"""What a process computes in, and what it calls that communicates, while its step runs. Values are
left as they are."""

import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from ..ranks.places import place
from ..ranks.rounding import without_dynamo
from .roots import is_in_backward

_HALVES = ("float16", "bfloat16")
_SILENT = ("barrier", "wait_tensor", "monitored_barrier_", "_wrap_tensor_autograd")
_SPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


@contextlib.contextmanager
def functions_noted(note):
    """Inside it, note(class, arguments) comes before each autograd.Function that is applied in
    forward."""
    original = vars(torch.autograd.Function)["apply"]

    def apply(cls, *args, **kwargs):
        if not is_in_backward():
            note(cls, args)
        return original.__get__(None, cls)(*args, **kwargs)

    apply.__name__, apply.__qualname__ = "apply", original.__get__(
        None, torch.autograd.Function).__qualname__
    torch.autograd.Function.apply = classmethod(apply)
    try:
        yield
    finally:
        torch.autograd.Function.apply = original


class Seen(TorchDispatchMode):
    """Inside it, `calls` are (name, line of the user's code, is in backward) of collectives and of
    the user's own autograd.Functions, in the order of time."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.casts = {}  # {narrower dtype: where a tensor in a gradient's way is converted to it}
        self.dtypes = {}  # {of all floating-point tensors: where each was first}
        self.sent = set()  # dtypes of what collectives are given

    @classmethod
    def ignore_compile_internals(cls):
        """Else what the user has compiled would run uncompiled, and round otherwise."""
        return True

    def __enter__(self):
        self._functions = functions_noted(self._note)
        self._functions.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        self._functions.__exit__(*error)
        return super().__exit__(*error)

    def _note(self, function, _):
        if not function.__module__.startswith("torch."):
            self.calls.append((function.__name__, place(), False))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.namespace in _SPACES:
            self.sent |= {x.dtype for x in tree_flatten((args, kwargs))[0]
                          if isinstance(x, torch.Tensor)}
            name = func._schema.name.partition("::")[2]
            if name not in _SILENT:
                self.calls.append((name.strip("_"), place(), is_in_backward()))
        if func is torch.ops.aten._to_copy.default and _narrows(args[0], kwargs.get("dtype")):
            self.casts.setdefault(kwargs["dtype"], place())
        result = func(*args, **kwargs)
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype not in self.dtypes:
                self.dtypes[x.dtype] = place()
        return result

    without_dynamo(__torch_dispatch__)


def _narrows(x, dtype):
    return (dtype is not None and dtype.is_floating_point and x.is_floating_point()
            and x.requires_grad and torch.finfo(dtype).eps > torch.finfo(x.dtype).eps)


# `seen` below: {"casts", "dtypes", "modules"} of one process, with names of dtypes; modules:
# {dtype: the first module that gave a tensor of it}


def computed_in(single, ranks):
    """{dtype: (whose, where)} of what is coarser than gradients may be that are saved in a wider
    dtype: float32 of the single run, half precisions of either side."""
    found = {}
    if "float32" in single["casts"]:
        found["float32"] = "The single run computes", single["casts"]["float32"]
    theirs = [_halves(seen) for seen in ranks]
    for dtype in _HALVES:
        mine = _halves(single).get(dtype)
        other = next((places[dtype] for places in theirs if dtype in places), None)
        if mine or other:
            whose = ("Both runs compute" if mine and other else "The single run computes" if mine
                     else "The ranks compute")
            found[dtype] = whose, mine or other
    return found


def _halves(seen):
    """{a half precision: where one process computes in it}. What only communicates in it may be a
    mistake."""
    found = {dtype: where for dtype, where in seen["casts"].items() if dtype in _HALVES}
    for dtype, module in seen["modules"].items():
        if dtype in _HALVES:
            found.setdefault(dtype, f"as in the output of {module}")
    return found


def named(by_dtype):
    return {str(dtype).removeprefix("torch."): value for dtype, value in by_dtype.items()}
