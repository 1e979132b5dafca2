"""check_gradients: is p.grad the derivative of the declared loss? Imports torch when called."""

import math
import re

from .errors import StepError, StepGradientsError

_LINE = re.compile(r":\d+$")


def check_gradients(
    model,
    step,
    objective="mean",
    *,
    group=None,
    copies=(),
    pieces=(),
    detached=(),
    optimizer=None,
    float64=False,
    scale=1.0,
    strict=False,
    search_s=60,
    timeout_s=60,
    raise_exception=True,
):
    """Is p.grad, as step() leaves it, the derivative of the loss that the ranks minimise together?
    Measured on the running ranks, with no second implementation: parameters are moved a little,
    step() is run again, and what the loss does is compared with what p.grad says. Call it on all
    ranks, once, anywhere in a training script:

        distgrad.check_gradients(model, step, objective="mean")

    model: an nn.Module, or a list of them (the chunks of a pipeline); step: does forward and
        backward of one batch, and everything that belongs to it up to and excluding
        optimizer.step(): reductions, unscaling, clipping. It takes no arguments, uses the same
        batch each time, and returns this rank's loss, one number; None on ranks that have none.
    objective: what the ranks' losses are together: "mean" of them, "sum", or "replicated", where
        every rank returns the same loss; or a function of the list of all ranks' losses ((loss,
        count) of a step that returns both) that returns one number.
    group: of the ranks that train together; by default all.
    copies, pieces: patterns of names. Parameters that are equal on several ranks are taken for
        copies of one; `pieces` are not, whatever their values, and `copies` are. One that ranks
        have under different names: "embedding.weight=head.weight".
    detached: lines of step()'s code, as the report names them, where what is detached is a constant
        on purpose: ("byol.py:12",); True: wherever it is.
    optimizer: a torch.optim.Optimizer, or what holds one, whose step() is run once and taken back:
        copies that are equal before it are to be equal after it. A gradient that one rank alone
        has, as with ZeRO, counts for all copies that it moves alike.
    float64: runs step() in float64 even if all seems right in its own dtypes, and judges the
        gradients that it has then, which are to be those of step() as it is but for rounding.
    scale: what p.grad is to be times the derivative: a loss scale that is taken out later.
    search_s: seconds after which no further parameters are told apart once something is wrong;
        timeout_s: seconds for one run of step().

    Everything is left as it was: parameters, buffers, gradients, random generators.

    Returns the report, the same on every rank, or raises StepGradientsError with it, on every rank,
    where gradients are wrong or nothing could be decided; with raise_exception=False it is returned
    then, too. Where they are right only if what step() detaches is meant to be a constant, and
    nobody has said so, the verdict is "disputed", which raises with `strict` alone. StepError where
    a rank raises in step(). ValueError, TypeError for arguments that are wrong."""
    __tracebackhide__ = True
    import torch

    from ..gradient_check.team import Lost, Team
    from .checking import Options, check
    from .running import OBJECTIVES

    parts = list(model) if isinstance(model, (list, tuple)) else [model]
    if wrong := [part for part in parts if not isinstance(part, torch.nn.Module)]:
        raise TypeError(f"model is to be a torch.nn.Module, or a list of them, not a"
                        f" {type(wrong[0]).__name__}")
    if isinstance(model, (list, tuple)):
        model = torch.nn.ModuleList(parts)
    if not callable(step):
        raise TypeError("step is to be a function that does forward and backward of one batch")
    if objective not in OBJECTIVES and not callable(objective):
        raise ValueError(f"objective is to be one of {', '.join(OBJECTIVES)}, or a function of all"
                         f" ranks' losses, not {objective!r}")
    if not (optimizer is None or callable(getattr(optimizer, "step", None))):
        raise TypeError("optimizer is to have a step(), as a torch.optim.Optimizer has, not a"
                        f" {type(optimizer).__name__}")
    _check_group(group, timeout_s)
    detached = detached is True or _names(detached)
    if detached is not True and (bad := [x for x in detached if not _LINE.search(x)]):
        raise ValueError(f"detached: {bad[0]!r} is not a line, such as byol.py:12; True stands for"
                         " whatever is detached")
    if not (math.isfinite(scale) and scale):
        raise ValueError(f"scale is to be what gradients are multiplied by, not {scale!r}")
    options = Options(objective, _names(copies), _names(pieces), detached, float(scale), search_s,
                      optimizer, float64)
    team = Team(group, timeout_s, "check_gradients")
    try:
        with team:
            report = check(model, step, options, team)
    except Lost as lost:
        raise StepError(f"check_gradients: rank {lost.silent} does not answer any more: it died,"
                        f" hangs, or does not call check_gradients ({lost})") from None
    accepted = ("right",) if strict else ("right", "disputed")
    if raise_exception and report.verdict not in accepted:
        raise StepGradientsError(report, team.rank)
    return report


def _names(value):
    return (value,) if isinstance(value, str) else tuple(value)


def _check_group(group, timeout_s):
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise ValueError("check_gradients: torch.distributed is not initialised: call it on the"
                         " ranks of a job that runs, after init_process_group()")
    if not timeout_s > 0:
        raise ValueError(f"timeout_s is to be above 0, not {timeout_s!r}")
    if dist.get_rank(group) < 0:
        raise ValueError("check_gradients: this rank is not in the group")
