"""Notes in which dtypes a process computes while its step runs, and what it calls that
communicates. Values stay unchanged."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from ..gradient_check.detached import functions_called_by
from ..ranks.places import place
from ..ranks.rounding import without_dynamo
from .holding import is_by_wrapper
from .roots import is_in_backward

_HALVES = ("float16", "bfloat16")
_SILENT = ("barrier", "wait_tensor", "monitored_barrier_", "_wrap_tensor_autograd")
_SPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


def functions_noted(note):
    """Calls note(class, arguments) inside this context before each autograd.Function that is
    applied in forward. If that returns a function, it is called with the results."""
    def noted(cls, apply, args, kwargs):
        done = None if is_in_backward() else note(cls, args)
        made = apply(*args, **kwargs)
        if done:
            done(made)
        return made

    return functions_called_by(noted)


class Seen(TorchDispatchMode):
    """Notes collectives and the user's autograd.Functions inside this context: `calls` has (name,
    line of the user's code, is in backward) in order of time."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.casts = {}  # {narrower dtype: where a tensor that requires grad is converted to it}
        self.dtypes = {}  # {dtype of a floating-point tensor: where the first of it was}
        self.calls_of_users = []  # (name, line) of collectives that are not DDP's nor FSDP's
        self.sent = set()  # Collectives are given tensors of these dtypes.

    @classmethod
    def ignore_compile_internals(cls):
        """Lets what the user has compiled run compiled; it would round differently otherwise."""
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
                if not is_by_wrapper():
                    self.calls_of_users.append(self.calls[-1][:2])
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


# Processes exchange {"casts", "dtypes", "modules"} with names of dtypes, where "modules" is {dtype:
# the first module that gave a tensor of it}.


def computed_in(single, ranks):
    """Returns {dtype: (whose, where)} of coarse dtypes that explain errors of gradients in a wider
    dtype: float32 in the single run, half precisions on either side."""
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
    """Returns {half precision: where one process computes in it}. It does not count what is only
    communicated in it, as that may be a mistake."""
    found = {dtype: where for dtype, where in seen["casts"].items() if dtype in _HALVES}
    for dtype, module in seen["modules"].items():
        if dtype in _HALVES:
            found.setdefault(dtype, f"as in the output of {module}")
    return found


def named(by_dtype):
    return {str(dtype).removeprefix("torch."): value for dtype, value in by_dtype.items()}
