"""Gradients that are those of other parameters: read at another place of a flat buffer, or added up
over ranks that hold others in the same place."""

import torch

from .joining import TOLERANCES, off
from .parts import Part
from .shares import weights_of

_MOST = 16  # parameters that may be mixed up
_LEAST = 4  # numbers
_MOST_PLACES = 64
_PRECISION = 2e-3  # of coarser dtypes nothing can be said


def taken_from_others(names, truth, observed):
    """[sentences] on parameters that nothing else explains. `truth`: by name, in model order;
    `observed`: by rank {name: (tensor, where it begins)}."""
    sources = {}  # what it is -> whose gradient it is
    for name in names:
        if name in truth and (said := _mixed(name, truth, observed)
                              or _elsewhere(name, truth, observed)):
            sources.setdefault(said, []).append(name)
    return [f"{', '.join(whose)}: what is returned is {said}." for said, whose in sources.items()]


def _mixed(name, truth, observed):
    others = [n for n, x in truth.items() if x.numel() == truth[name].numel()]
    if not 1 < len(others) <= _MOST:
        return ""
    parts = [Part([], 0, 0, {name: truth[n].double().reshape(truth[name].shape)}, name=n)
             for n in others]
    for found in weights_of(parts, observed, [name]):
        rows = list(found.by_rank.values())
        chosen = [i for i, x in enumerate(rows[0]) if x]
        if found.precision > 0.01 or any(_differ(row, rows[0]) for row in rows) or not chosen or [
                others[i] for i in chosen] == [name]:
            return ""
        weights = [rows[0][i] for i in chosen]
        if max(weights) - min(weights) > 0.01 * max(map(abs, weights)):
            return ""
        times = "" if abs(weights[0] - 1) <= 0.01 else f"{weights[0]:.4g} times "
        whose = ", ".join(others[i] for i in chosen)
        return (f"{times}the gradient of {whose}" if len(chosen) == 1 else
                f"{times}the sum of the gradients of {whose}")
    return ""


def _differ(row, other):
    return any(abs((x or 0) - (y or 0)) > 0.01 for x, y in zip(row, other))


def _elsewhere(name, truth, observed):
    """Where it is a run of the gradients of all parameters one behind another."""
    mine = [rank[name][0] for rank in observed if name in rank]
    if not mine or any(x.shape != truth[name].shape or not x.equal(mine[0]) for x in mine):
        return ""
    wanted = mine[0].flatten().double()
    limit = TOLERANCES.get(mine[0].dtype, 0.1)
    if wanted.numel() < _LEAST or limit > _PRECISION or not bool(wanted.any()):
        return ""
    for order, text in ((list(truth), ""), (list(truth)[::-1], ", in reverse order")):
        flat = torch.cat([truth[n].flatten().double() for n in order])
        begin = sum(truth[n].numel() for n in order[:order.index(name)])
        for at in _matches(wanted, flat, limit):
            if at != begin:
                where = "before" if at < begin else "behind"
                return (f"what lies {abs(at - begin)} numbers {where} its place in a flat buffer of"
                        f" all gradients{text}")
    return ""


def _matches(wanted, flat, limit):
    starts = flat[:len(flat) - len(wanted) + 1]
    near = ((starts - wanted[0]).abs() <= limit * float(wanted.abs().max())).nonzero().flatten()
    return [at for at in near[:_MOST_PLACES].tolist()
            if off(wanted, flat[at:at + len(wanted)]) <= limit]
