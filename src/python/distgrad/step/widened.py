"""Runs a step in float64, whatever the dtypes of its parameters are and whatever it casts to."""

import contextlib
import dataclasses

import torch

from ..ranks.narrowing import Narrowing
from .variables import local_of

# Gradients in float64 may differ from those in the parameters' own dtype by this, relatively, and
# by this part of the model's largest gradient; and losses by this, relatively.
_ROUNDED = {torch.float32: (0.02, 1e-4, 1e-3), torch.float16: (0.1, 0.02, 0.05),
            torch.bfloat16: (0.25, 0.1, 0.2)}
_ABSENT = object()


class Widened:
    """Runs a step in a wide dtype, inside running(), in which it counts for these parameters what
    `values` has. The parameters themselves, and their gradients, keep their dtypes."""

    def __init__(self, model, parameters, dtype):
        self._model, self._dtype = model, dtype
        self.values = {}  # {name: this rank's part of it}
        self._storages = {}  # {address: what the storage there holds}
        for name, p in parameters.items():
            local = local_of(p.detach())
            if local.dtype not in _ROUNDED or local.layout != torch.strided:
                continue
            storage = local.untyped_storage()
            if storage.data_ptr() not in self._storages:
                whole = torch.empty(0, dtype=local.dtype, device=local.device).set_(storage)
                self._storages[storage.data_ptr()] = whole.to(dtype)
            self.values[name] = self._storages[storage.data_ptr()].as_strided(
                local.shape, local.stride(), local.storage_offset())

    @contextlib.contextmanager
    def running(self):
        with Narrowing(self._dtype, values=self._storages).widening(), _fsdp_in(
                self._dtype, self._model):
            yield


@contextlib.contextmanager
def ddp_alone(model):
    """Lets DistributedDataParallel reduce nothing: it could not go on after an exception in the
    middle of backward. Yields whether there is any."""
    kept = [(module, module.require_backward_grad_sync) for module in model.modules()
            if isinstance(module, torch.nn.parallel.DistributedDataParallel)]
    try:
        for module, _ in kept:
            module.require_backward_grad_sync = False
        yield bool(kept)
    finally:
        for module, is_on in kept:
            module.require_backward_grad_sync = is_on


def differ(own, wide, largest, dtype=None):
    """Returns whether a gradient of a step in float64, or None, differs from that of the step as it
    is by more than rounding; largest is the largest norm of any gradient, and dtype the coarsest in
    which the step computes, if that is not the gradient's own."""
    if own is None or wide is None:
        return own is not wide
    share, left, _ = _ROUNDED.get(dtype or own.dtype, (1e-6, 1e-9, 0.0))
    return not float((own - wide).norm()) <= max(share * float(wide.norm()), left * largest)


def are_one_loss(own, wide, dtype):
    """Returns whether a step in float64 has the loss of the step as it is, which computes in no
    coarser dtype than this one."""
    return abs(own - wide) <= _ROUNDED.get(dtype, (0, 0, 1e-6))[2] * max(abs(own), abs(wide))


def fsdp_groups(model):
    """Yields (state, FSDPParamGroup) of the modules that fully_shard() wraps."""
    for module in model.modules():
        if hasattr(module, "_get_fsdp_state"):
            state = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None)
            for group in [state._fsdp_param_group] if groups is None else groups:
                if group:
                    yield state, group


@contextlib.contextmanager
def _fsdp_in(dtype, model):
    """Lets FSDP gather and reduce in this dtype, whatever its mixed precision is. No module may
    hold what it gathered. These attributes are torch's own, in 2.11 to 2.15."""
    kept = []

    def put(home, name, value):
        kept.append((home, name, getattr(home, name, _ABSENT)))
        _set(home, name, value)

    try:
        for state, group in fsdp_groups(model):
            put(state, "_mp_policy", dataclasses.replace(state._mp_policy, param_dtype=dtype))
            put(group, "_reduce_dtype", dtype)
            for p in group.fsdp_params:
                for name, value in (("param_dtype", dtype), ("reduce_dtype", dtype),
                                    ("all_gather_outputs", []), ("_unsharded_inner_tensors", []),
                                    ("_unsharded_param", _ABSENT)):
                    put(p, name, value)
        yield
    finally:
        for home, name, value in reversed(kept):
            _set(home, name, value)


def _set(home, name, value):
    if value is not _ABSENT:
        setattr(home, name, value)
    elif hasattr(home, name):
        delattr(home, name)
