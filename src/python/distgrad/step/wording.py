"""Turns what was measured into the sentences of a report."""

import math

from ..words import capitalized, ranks_text
from .findings import same_number
from .report import Wrong, by_ranks, factor_text


def described(finding, counts, holders=()):
    """Returns the Wrong of a findings.Finding. counts is {what a factor may count: number}; holders
    are ranks to be named."""
    text = []
    on = f"On {ranks_text(holders)} " if holders else ""
    if finding.held:
        on = f"With what is detached at {finding.held} as a constant, {on[:1].lower() + on[1:]}"
    factor, ranks = finding.factor, sorted(finding.factors)
    counts = {**counts, "ranks that hold it": len(finding.said) if ranks else 0}
    if counts["ranks that hold it"] == counts["ranks"]:
        del counts["ranks that hold it"]
    if len(finding.said) == 1:  # A reduction over a group would have made copies.
        counts.pop("ranks in a group", None)
    if finding.kind == "zero":
        text.append(f"{on}p.grad is zero, or None, and the derivative of the loss is not.")
    elif factor is not None:
        text.append(f"{on}p.grad is {factor_text(factor, counts)}.")
    elif finding.factors:
        text.append(f"{on}p.grad over the derivative of the loss is {by_ranks(finding.factors)}.")
        if finding.is_no_multiple and (missing := sorted(set(finding.said) - set(ranks))):
            text.append(f"On {ranks_text(missing)} it is no multiple of it.")
    elif finding.are_unlike:
        text.append(f"{on}p.grad is another one on each rank: at most one of them is the derivative"
                    " of the loss.")
    elif finding.is_no_multiple:
        text.append(f"{on}p.grad is not the derivative of the loss, nor a multiple of it.")
    elif finding.between:
        low, high = finding.between
        digits = 3 if f"{low:.3g}" != f"{high:.3g}" else 5
        text.append(f"{on}p.grad is not the derivative of the loss. If it is a multiple of it, then"
                    f" {low:.{digits}g} to {high:.{digits}g} times.")
    else:
        text.append(f"{on}p.grad is not the derivative of the loss.")
    if finding.instead:
        text.append(f"It is {finding.instead}.")
    if right := finding.told_right():
        text.append(f"{_capital(right)} is the derivative, along all directions that were"
                    " measured.")
    if finding.assumed:
        text.append(f"They are taken for copies of one parameter: {finding.assumed}. If they are"
                    " pieces, name them in `pieces`.")
    return Wrong(finding.kind, list(finding.names), dict(finding.factors), text, finding.assumed)


def is_clipped(findings, names, norm):
    """Returns whether gradients seem clipped by hand: all are one number below 1 times the
    derivative, and their norm is a number that a person would write down."""
    if len(findings) != 1 or set(findings[0].names) != set(names):
        return False
    factor = findings[0].factor
    return factor is not None and 0 < factor < 1 and is_round(norm)


def is_round(norm):
    """Returns whether norm has two digits, but for rounding and the 1e-6 that torch adds."""
    if not norm > 0 or not math.isfinite(norm):
        return False
    digits = 1 - math.floor(math.log10(norm))
    return abs(round(norm, digits) - norm) <= 1e-5 * norm


def clipping_text(call, seen, norm):
    """Returns text on the norms that a clipping call saw, or "" if these are the right norm, which
    counts each element once."""
    if all(same_number(n, norm) for n in seen):
        return ""
    listed = ", ".join(f"{n:.4g} on rank {rank}" for rank, n in enumerate(seen[:8]))
    return (f"{call} saw the norm {listed}; that of these gradients on all ranks, each"
            f" element once, is {norm:.4g}.")


def uneven_text(factors):
    """Returns text on {rank: what clipping multiplied a copy's gradient by}."""
    ranks = {}
    for rank, factor in factors.items():
        ranks.setdefault(f"{factor:.4g}", []).append(rank)
    listed = ", ".join(f"{factor} on {ranks_text(some)}" for factor, some in ranks.items())
    return f"clip_grad_norm_ multiplied p.grad by {listed}: the copies differ."


def _capital(text):
    return text if text.startswith("p.grad") else capitalized(text)
