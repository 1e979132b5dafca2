"""Finds and widens casts of float64 to narrower dtypes in the code whose derivative is measured:
loss(logits.float()), a norm in float32.

Finite differences see the rounding of such a cast as noise, or as steps, though its derivative is
that of the identity. So `watching()` notes whether a run has any, and under `widening()` the code
runs as if all its numbers were float64. `lost` notes casts that it cannot reach, such as into a
float32 buffer that is written to.
"""

import contextlib
import os
import sys

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from .places import place
from .rounding import without_dynamo

# A mode's dispatch lies between the engine and an operator, and torch wraps it in these files.
_BETWEEN = (os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
            *(os.path.join(os.path.dirname(torch.__file__), *names)
              for names in (("_ops.py",), ("_compile.py",), ("_dynamo", "eval_frame.py"))))
_FSDP = os.path.join(os.path.dirname(torch.__file__), "distributed", "fsdp", "")
# These draw other numbers in another dtype.
_RANDOM = frozenset("""bernoulli bernoulli_ cauchy_ exponential_ geometric_ log_normal_ multinomial
    native_dropout normal_ rand_like randn_like random_ uniform_""".split())


class Narrowing:
    """Takes values, {address of the storage of narrow parameters: a tensor of the wide dtype that
    counts in its place, element by element}. Code that is given none of them then runs as it is,
    as the engine's, DistributedDataParallel's and the user's work on gradients does."""

    def __init__(self, wide=torch.float64, may_send_narrow=True, values=None):
        self.wide = wide  # the dtype that code runs in under widening()
        self.values = values or {}
        self.may_send_narrow = may_send_narrow  # else a collective given such a buffer raises
        self.dtypes = []  # dtypes that were cast to
        self.casts = []  # texts, "float32 in layer.py:12"
        self.lost = []  # the casts that widening left

    @contextlib.contextmanager
    def watching(self):
        with _Mode(self, widens=False):
            yield

    @contextlib.contextmanager
    def widening(self):
        with _OneDtype(self) if self.values else contextlib.nullcontext(), _Mode(self, True):
            yield

    def narrowest(self, dtype):
        """Returns the name of the least precise dtype: `dtype` or one that was cast to."""
        return str(max([getattr(torch, dtype), *self.dtypes],
                       key=lambda d: torch.finfo(d).eps)).removeprefix("torch.")

    def note(self, dtypes, widens):
        for dtype in dtypes:
            text = f"{str(dtype).removeprefix('torch.')} in {place()}"
            for found in [self.casts] + [self.lost] * widens:
                if text not in found:
                    found.append(text)
            if dtype not in self.dtypes:
                self.dtypes.append(dtype)


class _OneDtype(TorchFunctionMode):
    """Widens what functions are given that insist on one dtype before they call an operator, as
    conv2d and prelu do."""

    def __init__(self, narrowing):
        super().__init__()
        self._wide = narrowing.wide

    def __enter__(self):
        self._check_input = torch.nn.RNNBase.check_input
        torch.nn.RNNBase.check_input = lambda *_: None
        return super().__enter__()

    def __exit__(self, *error):
        torch.nn.RNNBase.check_input = self._check_input
        return super().__exit__(*error)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except RuntimeError:
            name = getattr(func, "__name__", "")
            if name.endswith("_") or name == "backward" or "out" in kwargs:
                raise  # It writes to what it is given, and would write to a copy.
            wide = tree_map(self._widened, (args, kwargs))
            if all(a is b for a, b in zip(tree_flatten(wide)[0], tree_flatten((args, kwargs))[0])):
                raise
        return func(*wide[0], **wide[1])

    def _widened(self, x):
        is_narrow = isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype != self._wide
        return x.to(self._wide) if is_narrow else x


class _Mode(TorchDispatchMode):
    def __init__(self, narrowing, widens):
        super().__init__()
        self._narrowing = narrowing
        self._widens = widens

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.namespace != "aten":
            if self._widens and not self._narrowing.may_send_narrow and self._narrow_dtypes(
                    None, (args, kwargs)):
                raise RuntimeError(f"{func} is given a tensor in a narrower dtype")
            return func(*args, **kwargs)
        tensors = [x for x in tree_flatten((args, kwargs))[0]
                   if isinstance(x, torch.Tensor) and x.is_floating_point()]
        given = set(map(self._dtype_of, tensors))
        written = written_to(func, args, kwargs)
        if not self._widens:
            result = func(*args, **kwargs)
            self._narrowing.note([d for d in self._narrow_dtypes(result, written)
                                  if _is_narrower(d, given)], widens=False)
            return result
        if self._narrowing.values and self._is_left_alone(func, tensors, given, kwargs):
            return func(*args, **kwargs)
        if self._narrowing.values and func._schema.name.partition("::")[2] in _RANDOM:
            return self._as_narrow(func, args, kwargs, written)
        if self._narrowing.wide in given:
            if self._is_narrow_dtype(kwargs.get("dtype")):
                self._narrowing.note([kwargs["dtype"]], widens=False)
                kwargs = {**kwargs, "dtype": self._narrowing.wide}
            self._narrowing.note(self._narrow_dtypes(None, written), widens=True)
            args, kwargs = tree_map(lambda x: self._widened(x, written), (args, kwargs))
        result = func(*args, **kwargs)
        return result if _gives_alias(func) else tree_map(lambda x: self._widened(x, written),
                                                          result)

    without_dynamo(__torch_dispatch__)

    def _is_narrow_dtype(self, dtype):
        return (isinstance(dtype, torch.dtype) and dtype.is_floating_point
                and _is_narrower(dtype, [self._narrowing.wide]))

    def _is_narrow(self, x):
        return isinstance(x, torch.Tensor) and self._is_narrow_dtype(x.dtype)

    def _widened(self, x, written):
        if not self._is_narrow(x) or any(x is y for y in written):
            return x
        value = self._value_of(x)
        return x.to(self._narrowing.wide) if value is None else value

    def _as_narrow(self, func, args, kwargs, written):
        """Draws the random numbers that the code draws where nothing is wide."""
        wide, given = self._narrowing.wide, args
        args, kwargs = tree_map(lambda x: x.to(torch.float32) if isinstance(
            x, torch.Tensor) and x.dtype == wide else x, (args, kwargs))
        result = func(*args, **kwargs)
        if func._schema.name == "aten::native_dropout":
            x, p, is_train = given
            left = 1 - p if is_train and p < 1 else 1
            return self._widened(x, ()) * result[1] / left, result[1]
        for x in written:
            x.copy_(result)
        return written[0] if written else tree_map(lambda x: self._widened(x, ()), result)

    def _is_left_alone(self, func, tensors, given, kwargs):
        if "dtype" in kwargs and _is_engines():
            return True
        if _gives_alias(func):  # A parameter's view is found by its storage, too.
            given = {x.dtype for x in tensors}
        return bool(given) and self._narrowing.wide not in given

    def _dtype_of(self, x):
        return x.dtype if self._value_of(x) is None else self._narrowing.wide

    def _value_of(self, x):
        """Returns what counts in the place of a parameter or of a view of it, or None."""
        local = getattr(x, "_local_tensor", x)
        if not self._narrowing.values or local.layout != torch.strided or not self._is_narrow(x):
            return None
        whole = self._narrowing.values.get(local.untyped_storage().data_ptr())
        if whole is None:
            return None
        return placed_as(x, whole.as_strided(local.shape, local.stride(), local.storage_offset()))

    def _narrow_dtypes(self, result, written):
        return [x.dtype for x in tree_flatten((result, written))[0] if self._is_narrow(x)]


def placed_as(x, local):
    """Returns this process's part of a tensor that lies as x does, which may be a DTensor."""
    if not (hasattr(x, "placements") and hasattr(x, "device_mesh")):
        return local
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(local, x.device_mesh, x.placements, run_check=False, shape=x.shape,
                              stride=x.stride())


def _is_engines():
    """Returns whether the autograd engine itself, or FSDP, calls an operator: they give gradients
    the dtypes of parameters, and need them so."""
    caller = sys._getframe(1).f_back
    while caller is not None and caller.f_code.co_filename.startswith(_BETWEEN):
        caller = caller.f_back
    return (caller is None or caller.f_code.co_filename.startswith(_FSDP)
            or caller.f_code is torch.autograd.graph._engine_run_backward.__code__)


def _is_narrower(dtype, than):
    """Returns whether `dtype` is narrower than some of `than`. So a cast from float32 to bfloat16,
    as autocast makes, counts too."""
    return any(torch.finfo(dtype).eps > torch.finfo(other).eps for other in than)


def written_to(func, args, kwargs):
    """Returns the tensors that the operator writes to."""
    if not func._schema.is_mutable:
        return []
    names = func._schema.arguments
    given = dict(zip((a.name for a in names), args)) | kwargs
    found = [given[a.name] for a in names
             if a.alias_info is not None and a.alias_info.is_write and a.name in given]
    return [x for x in tree_flatten(found)[0] if isinstance(x, torch.Tensor)]


def _gives_alias(func):
    """Returns whether the result shares memory with an argument. A widened copy of it would not be
    written through."""
    name = func._schema.name
    return name != "aten::lift_fresh" and any(r.alias_info is not None
                                              for r in func._schema.returns)
