"""Runs a step without what it casts to dtypes with fewer digits than its parameters have."""

import contextlib
import dataclasses

import torch

from ..ranks.narrowing import Narrowing
from .running import union
from .seen import Seen

_ABSENT = object()


class Casts:
    """Finds casts of tensors that require grad, which finite differences see as steps, and what
    FSDP gathers in such dtypes. Runs step() once; all ranks must call every method."""

    def __init__(self, runs):
        self._model = runs.model
        with Seen() as seen:
            runs.run()
        self._widest = max((p.dtype for p in runs.parameters.values()
                            if p.dtype.is_floating_point), key=lambda d: d.itemsize,
                           default=torch.float32)
        found, sent = {}, set()
        for casts, of_rank in runs.gather((list(seen.casts.items()), seen.sent)):
            found.update((d, where) for d, where in casts if d.itemsize < self._widest.itemsize)
            sent |= of_rank
        gathered = union(runs.gather(sorted(_gathered(runs.model), key=str)))
        # Casts for collectives must stay, as buffers have their dtypes.
        self.must_stay = bool(sent & set(found)) and not gathered
        self.dtypes = [*found, *(d for d in gathered if d not in found)]
        self.texts = [f"step() casts to {str(d)[6:]} in {where}" for d, where in found.items()]
        self.texts += [f"FSDP gathers parameters in {str(d)[6:]}" for d in gathered]

    def coarsest(self):
        return max(self.dtypes, key=lambda d: torch.finfo(d).eps)

    @contextlib.contextmanager
    def gone(self):
        with Narrowing(self._widest).widening(), _whole_precision(self._model):
            yield


def are_likely(runs, dtypes):
    """Returns, alike on all ranks, whether FSDP gathers parameters in a shorter dtype, or modules
    give tensors of one: dtypes has the texts of all that they give."""
    short = {str(d) for d in (torch.bfloat16, torch.float16)}
    own = {str(p.dtype) for p in runs.parameters.values()}
    return any(runs.gather(bool(_gathered(runs.model) or short & dtypes and not short & own)))


def _gathered(model):
    return {p.param_dtype for _, group in _groups(model) for p in group.fsdp_params
            if p.param_dtype}


@contextlib.contextmanager
def _whole_precision(model):
    """Runs FSDP's modules in their parameters' own dtypes, without their mixed precision. No module
    may hold what it gathered. These attributes are torch's own, in 2.11 to 2.15."""
    kept = []

    def put(home, name, value):
        kept.append((home, name, getattr(home, name, _ABSENT)))
        _set(home, name, value)

    try:
        for state, group in _groups(model):
            put(state, "_mp_policy", dataclasses.replace(state._mp_policy, param_dtype=None))
            put(group, "_reduce_dtype", None)
            for p in group.fsdp_params:
                for name, value in (("param_dtype", None), ("reduce_dtype", None),
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


def _groups(model):
    """Yields (state, FSDPParamGroup) of the modules that fully_shard() wraps."""
    for module in model.modules():
        if hasattr(module, "_get_fsdp_state"):
            state = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None)
            for group in [state._fsdp_param_group] if groups is None else groups:
                if group:
                    yield state, group
