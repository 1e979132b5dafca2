"""distgrad.gradcheck and what it raises. Imports torch when it is called."""

from .report import GradcheckReport


class GradcheckError(AssertionError):
    """The gradients are wrong, or could not be checked. The text is the report, `.report` has it as
    data."""

    def __init__(self, report):
        super().__init__(str(report))
        self.report = report


def gradcheck(
    fn,
    inputs,
    group=None,
    *,
    kwargs=None,
    rtol=None,
    basis=None,
    directions=16,
    float64=True,
    constant=(),
    detached=(),
    objective=None,
    copies=None,
    strict=False,
    timeout_s=60,
    raise_exception=True,
) -> GradcheckReport:
    """torch.autograd.gradcheck for all ranks of a process group together: is the backward of `fn`
    the transpose of what its forward does, from every rank to every rank? Call it on all ranks of
    the group, as `fn` is called there:

        distgrad.gradcheck(GatherLayer.apply, torch.randn(4, 3, requires_grad=True))

    inputs: a tuple of positional arguments, or the one argument; kwargs: a dict of keyword
        arguments. Tensors in them that require grad, also in nested lists, tuples and dicts, are
        moved; parameters of modules (fn may be one) are inputs, too. All else is passed on as it
        is. They may differ from rank to rank, in shape too. `fn` gets copies.
    rtol: what rounding may do, relative to the largest element of a gradient; by default 4096 eps
        of float64, 512 of float32, 8 of half precision. basis: whether every element is tried; by
        default where there are few, else `directions` random directions. float64: whether inputs in
        narrower dtypes are tried in float64, too. timeout_s: how long a rank may wait for another.

    constant: names of inputs, and of modules, that have no gradient on purpose: ("k", "encoder_k").
    detached: lines, as the report names them, where what is detached is a constant on purpose:
        ("moco.py:12",); True: wherever it is.
    objective: what the ranks' losses are together: "sum" (each its own), "mean" (likewise, and each
        rank calls backward on its own undivided; not inside DistributedDataParallel, which averages
        itself), "replicated" (all ranks compute one and the same loss). copies: names of inputs
        that are copies of one tensor on all ranks: ("x", "norm"). Where the objective is given and
        copies are not, inputs that are equal on all ranks are taken for them.

    Returns the report, the same on every rank, or raises GradcheckError with it, on every rank,
    where the gradients are wrong or could not be judged; with raise_exception=False it is returned
    then, too. Where they are right only if what is detached is meant to be a constant, and nobody
    has said so, the verdict is "disputed", which raises with `strict` alone. ValueError, TypeError
    for arguments of this function that are wrong."""
    __tracebackhide__ = True
    team = _team(group, timeout_s)
    from .conventions import OBJECTIVES
    from .leading import check
    from .passes import Options
    from .team import Lost

    if objective not in (None, *OBJECTIVES):
        raise ValueError(f"objective is to be one of {', '.join(OBJECTIVES)}, not {objective!r}")
    if rtol is not None and not 0 <= rtol < 1:
        raise ValueError(f"rtol is to be from 0 to 1, not {rtol!r}")
    options = Options(rtol, basis, directions, float64,
                      detached if detached is True else _names(detached, "detached"), objective,
                      None if copies is None else _names(copies, "copies"))
    try:
        with team:
            report = check(fn, inputs, dict(kwargs or {}), team, options,
                           _names(constant, "constant"))
    except Lost as lost:
        report = lost.report(team)
    accepted = ("right",) if strict else ("right", "disputed")
    if raise_exception and report.verdict not in accepted:
        raise GradcheckError(report)
    return report


def _names(value, what):
    names = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"{what} is to be names, not {value!r}")
    return names


def _team(group, timeout_s):
    import torch.distributed as dist

    from .team import Team

    if not dist.is_available() or not dist.is_initialized():
        raise ValueError("gradcheck: torch.distributed is not initialised: call"
                         " init_process_group() first, or use `python -m distgrad.gradcheck"
                         " FILE:FUNCTION --ranks 4`, which starts ranks itself")
    if not timeout_s > 0:
        raise ValueError(f"timeout_s is to be above 0, not {timeout_s!r}")
    if dist.get_rank(group) < 0:
        raise ValueError("gradcheck: this rank is not in the group")
    return Team(group, timeout_s)
