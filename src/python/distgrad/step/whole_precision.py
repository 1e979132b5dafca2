"""Runs FSDP's modules in their parameters' own dtypes, without their mixed precision."""

import contextlib
import dataclasses

_ABSENT = object()


def short_dtypes(model):
    """Returns the dtypes, shorter than the parameters' own, in which FSDP gathers parameters."""
    return {p.param_dtype for _, group in _groups(model) for p in group.fsdp_params
            if p.param_dtype}


@contextlib.contextmanager
def whole_precision(model):
    """All ranks enter it between runs, while no module holds what it gathered. These attributes are
    torch's own, in 2.11 to 2.15."""
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
