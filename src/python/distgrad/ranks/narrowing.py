"""Finds and widens casts of float64 to narrower dtypes in the code whose derivative is measured:
loss(logits.float()), a norm in float32.

Finite differences see the rounding of such a cast as noise, or as steps, though its derivative is
that of the identity. So `watching()` notes whether a run has any, and under `widening()` the code
runs as if all its numbers were float64. `lost` notes casts that it cannot reach, such as into a
float32 buffer that is written to.
"""

import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from .places import place
from .rounding import without_dynamo


class Narrowing:
    def __init__(self, wide=torch.float64, may_send_narrow=True):
        self.wide = wide  # the dtype that code runs in under widening()
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
        with _Mode(self, widens=True):
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
        given = {x.dtype for x in tree_flatten((args, kwargs))[0]
                 if isinstance(x, torch.Tensor) and x.is_floating_point()}
        written = written_to(func, args, kwargs)
        if not self._widens:
            result = func(*args, **kwargs)
            self._narrowing.note([d for d in self._narrow_dtypes(result, written)
                                  if _is_narrower(d, given)], widens=False)
            return result
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
        is_kept = not self._is_narrow(x) or any(x is y for y in written)
        return x if is_kept else x.to(self._narrowing.wide)

    def _narrow_dtypes(self, result, written):
        return [x.dtype for x in tree_flatten((result, written))[0] if self._is_narrow(x)]


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
