"""Compares what modules give on the ranks with what they give in a single process: it is right as
the same tensor on every rank, its pieces along a dimension, a sum over the ranks, or rows of it.
Outputs are matched by their modules' names; what fits none of these is not judged.
"""

import collections
import dataclasses
from typing import Optional

import torch

from ..words import count, ranks_text, some
from .module_names import output_name

# Forward may be off by this part of the norm in these dtypes.
_SLACK = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
_MOST_PRODUCTS = 1 << 26  # Finding rows among others may compare so many numbers.


@dataclasses.dataclass
class Match:
    """Holds a state, "same", "departs" or "unknown", and the ranks on which the output departs.
    missing lists rows of the single run that no rank has; ranks hold pieces along dim."""

    state: str
    ranks: tuple = ()
    missing: tuple = ()
    rows: int = 0
    dim: Optional[int] = None


def compare(single, ranks):
    """Returns {(name, call, index): Match} of modules' outputs, in the single run's order. single
    is {(name, call, index): tensor}, and ranks has such a dict for each rank. Calls are compared
    one by one if there are as many in all processes, else as one, the first."""
    single_calls, rank_calls = _calls(single), [_calls(row) for row in ranks]
    found, dims, seen = {}, set(), collections.Counter()
    for name, call, index in single:
        output, whole = (name, index), single_calls[name, index]
        at, seen[output] = seen[output], seen[output] + 1
        theirs = {rank: row[output] for rank, row in enumerate(rank_calls) if output in row}
        if theirs and all(len(calls) == len(whole) for calls in theirs.values()):
            match = _match_one(whole[at], {rank: calls[at] for rank, calls in theirs.items()}, dims)
        elif at:
            continue
        else:
            match = _match(whole, theirs, dims)
        found[name, call, index] = match
        if match.state == "same" and match.dim is not None:
            dims.add(match.dim)
    return found


def _calls(outputs):
    """Returns {(name, index): what each call gave}."""
    found = {}
    for (name, _, index), x in outputs.items():
        found.setdefault((name, index), []).append(x)
    return found


def _match(whole, theirs, dims):
    if theirs and len(whole) == 1 and whole[0].dim():  # The ranks' calls may be micro-batches.
        shapes = {x.shape[1:] for calls in theirs.values() for x in calls}
        if len(shapes) == 1:
            return _match_one(
                whole[0], {rank: torch.cat(calls) for rank, calls in theirs.items()}, dims)
    return Match("unknown")


def _match_one(x, theirs, dims):
    """Matches the single run's x with theirs, {rank: tensor}. Along dims the ranks hold pieces of
    earlier outputs: if tensors fit as pieces along one of them, but are no rows of the whole, they
    depart on every rank."""
    slack = max(map(slack_of, [x, *theirs.values()]))
    whole, parts = x.double(), {rank: y.double() for rank, y in theirs.items()}
    if not bool(torch.isfinite(whole).all()):
        return Match("unknown")
    if all(y.shape == whole.shape for y in parts.values()):
        off = tuple(rank for rank, y in parts.items() if not _close(y, whole, slack))
        if not off or _close(sum(parts.values()), whole, slack):
            return Match("same")
        first = parts[off[0]]
        if whole.dim() > 1 and (found := _rows(whole, parts, 0, slack)):
            return found
        if len(off) < len(parts) or all(_close(y, first, slack) for y in parts.values()):
            return Match("departs", off)
    for dim in range(whole.dim()):
        if found := _pieces(whole, parts, dim, slack):
            return found
    for dim in range(min(whole.dim(), 2)):
        if found := _rows(whole, parts, dim, slack):
            return found
    if any(_fit(whole, parts, dim) for dim in dims):
        return Match("departs", tuple(parts))
    return Match("unknown")


def _fit(whole, parts, dim):
    """Returns whether tensors of these shapes, one per rank, fit as pieces along the dimension."""
    return all(y.dim() == whole.dim() > dim and _without(y.shape, dim) == _without(
        whole.shape, dim) for y in parts.values()) and whole.shape[dim] == sum(
            y.shape[dim] for y in parts.values())


def _pieces(whole, parts, dim, slack):
    """Returns the Match of pieces one behind the other along a dimension, without copies, or None
    if they do not make up the whole's shape, or no piece is right."""
    apart = []  # [(ranks, piece)]
    for rank, y in parts.items():
        if y.dim() != whole.dim():
            return None
        same = next((ranks for ranks, other in apart
                     if other.shape == y.shape and _close(y, other, slack)), None)
        if same is None:
            apart.append(([rank], y))
        else:
            same.append(rank)
    sizes = [y.shape[dim] for _, y in apart]
    if sum(sizes) != whole.shape[dim] or any(
            _without(y.shape, dim) != _without(whole.shape, dim) for _, y in apart):
        return None
    off = [rank for (ranks, y), piece in zip(apart, whole.split(sizes, dim))
           if not _close(y, piece, slack) for rank in ranks]
    if not off:
        return Match("same", dim=dim)
    return Match("departs", tuple(off)) if len(off) < len(parts) else None


def _rows(whole, parts, dim, slack):
    """Returns the Match of rows in any order, or None if a rank has a row that the whole has not,
    or if there are fewer rows although none is missing."""
    rows = whole.movedim(dim, 0).flatten(1) if whole.dim() > 1 else whole[:, None]
    covered, total = torch.zeros(len(rows), dtype=torch.bool), 0
    for y in parts.values():
        if y.dim() != whole.dim() or _without(y.shape, dim) != _without(whole.shape, dim):
            return None
        mine = y.movedim(dim, 0).flatten(1) if y.dim() > 1 else y[:, None]
        if len(mine) * rows.numel() > _MOST_PRODUCTS:
            return None
        near = _near(mine, rows, slack)
        if not bool(near.any(1).all()):
            return None
        covered |= near.any(0)
        total += len(mine)
    missing = tuple((~covered).nonzero().flatten().tolist())
    return Match("same", (), missing, len(rows)) if missing or total >= len(rows) else None


def _near(a, b, slack):
    """Returns [i, j]: whether row i of a is row j of b."""
    size = b.norm(dim=1).clamp_min(1e-300)
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist") <= slack * size


def _close(a, b, slack):
    return a.shape == b.shape and float((a - b).norm()) <= slack * float(b.norm())


def _without(shape, dim):
    return [*shape[:dim], *shape[dim + 1:]]


def slack_of(x):
    return _SLACK.get(x.dtype, 1e-9)


def told(matches):
    """Returns (sentences, the module at which forward departs or None) for what compare() found in
    runs whose losses differ."""
    states = list(matches.items())
    lines, lacking = _missing(states)
    # An output that lacks rows is not right, though those that there are may be.
    last = max((i for i, (_, m) in enumerate(states[:lacking]) if m.state == "same"), default=-1)
    departs = next(((key, m) for key, m in states[last + 1:lacking] if m.state == "departs"), None)
    # An output that comes earlier may lie on another way to the one that departs.
    earlier = [(key, m) for key, m in states[:max(last, 0)] if m.state != "same"]
    if departs and earlier:
        first = next(((key, m) for key, m in earlier if m.state == "departs"), departs)
        open_ = dict.fromkeys(output_name(*key) for key, m in earlier if m.state == "unknown")
        return [*lines, f"The output of {output_name(*first[0])} is not the single run's on"
                f" {ranks_text(first[1].ranks)}. That of {output_name(*states[last][0])} is"
                + ("." if first is departs else f", and that of {output_name(*departs[0])} is not.")
                + (f" Those of {some(list(open_), 4)} could not be compared." if open_ else "")
                ], first[0][0]
    if departs:
        key, match = departs
        before = (f"is right up to the output of {output_name(*states[last][0])}, and departs in"
                  f" that of {output_name(*key)}" if last >= 0
                  else f"departs at once, in the output of {output_name(*key)}")
        return [*lines, f"Forward {before}, on {ranks_text(match.ranks)}."], key[0]
    if lines:
        return lines, states[lacking][0][0]
    off = {name for (name, *_), m in states if m.state != "same"}
    names = dict.fromkeys(name for (name, *_), _ in states)
    same = [output_name(name) for name in names if name not in off]
    if same:
        lines.append(f"The outputs of {some(same, 4)} are the single run's;"
                     f" {count(len(off), 'other')} could not be compared." if off else
                     f"All that the ranks' {count(len(same), 'module')} give is in the single run,"
                     " too: the ranks make another loss of it.")
    return lines, None


def _missing(states):
    """Returns ([a sentence on the first output that lacks rows], its index), or ([], None)."""
    for i, (key, match) in enumerate(states):
        if match.missing:
            return [f"In forward, rows {_spans(match.missing)} of {match.rows} of the output of"
                    f" {output_name(*key)} are computed by no rank."], i
    return [], None


def _spans(numbers):
    """Returns text such as "4-6, 9"."""
    spans = []
    for n in numbers:
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)
