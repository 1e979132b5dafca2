"""Finds what a step casts to dtypes with fewer digits than its parameters have, which finite
differences see as steps."""

import torch

from .running import union
from .seen import Seen
from .widened import fsdp_groups

# Ranks give different tensors to these.
_ONE_SIDED = ("broadcast", "gather", "recv", "recv_any_source", "reduce", "scatter", "send")


class Casts:
    """Finds casts of tensors that require grad, and what FSDP gathers in shorter dtypes. Runs
    step() once; all ranks must make it."""

    def __init__(self, runs):
        with Seen() as seen:
            runs.run()
        mine = runs.parameters.values()
        casts, sent, calls, gathered, own, devices = zip(*runs.gather((
            list(seen.casts.items()), seen.sent, seen.calls_of_users,
            sorted(_gathered(runs.model), key=str), {p.dtype for p in mine},
            {p.device.type for p in mine})))
        own, gathered = set().union(*own), union(gathered)
        self.widest = max((d for d in own if d.is_floating_point), key=lambda d: d.itemsize,
                          default=torch.float32)
        found = {d: where for row in casts for d, where in row if d.itemsize < self.widest.itemsize}
        # Casts for collectives must stay, as buffers have their dtypes.
        self.must_stay = not gathered and bool(found.keys() & set().union(*sent))
        self.dtypes = [*found, *(d for d in gathered if d not in found)]
        self.texts = [f"step() casts to {str(d)[6:]} in {where}" for d, where in found.items()]
        self.texts += [f"FSDP gathers parameters in {str(d)[6:]}" for d in gathered]
        # In float64 some tensors stay as they are, such as buffers that were made before. If a rank
        # sends other bytes than another one expects, Gloo ends the process. Where all ranks call
        # the same at the same lines, and give alike, they give the same dtype.
        self.are_calls_alike = all(row == calls[0] for row in calls) and not any(
            name in _ONE_SIDED for name, _ in calls[0])
        # coarsest is a dtype: the step computes in no coarser one.
        self.coarsest = max([*self.dtypes, *own], key=lambda d: torch.finfo(d).eps,
                            default=torch.float64)
        # is_narrow says that parameters have fewer digits than float64, and can be given as many.
        self.is_narrow = (bool(own - {torch.float64}) and not any(d.is_complex for d in own)
                          and set().union(*devices) <= {"cpu", "cuda"})


def are_likely(runs, dtypes):
    """Returns, alike on all ranks, whether FSDP gathers parameters in a shorter dtype, or modules
    give tensors of one: dtypes has the texts of all that they give."""
    short = {str(d) for d in (torch.bfloat16, torch.float16)}
    own = {str(p.dtype) for p in runs.parameters.values()}
    return any(runs.gather(bool(_gathered(runs.model) or short & dtypes and not short & own)))


def _gathered(model):
    return {p.param_dtype for _, group in fsdp_groups(model) for p in group.fsdp_params
            if p.param_dtype}
