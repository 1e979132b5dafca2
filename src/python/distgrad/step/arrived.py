"""Says what becomes of what backward brought: the gradient that a step returns, and the right one,
as sums of what each backward pass brought on each rank.
"""

import torch

from ..words import ranks_text, some
from .forward import slack_of

_MOST_ELEMENTS = 4096  # So many evenly spaced elements of a parameter are compared.
_LEAST_APART = 1e-3  # If columns' singular values have a lower ratio, several sums are the same.
_NEAR = 0.05  # What differs by less, relatively, may do so by rounding in a short dtype.
_SAME = 2e-3  # Weights that differ by less, relatively, are the same.


def told(wrong, right, arrived, returned, truth, rows=None):
    """Returns (sentences on the parameters `wrong`, those that they explain, whether all mistakes
    come after backward). They do if the single run's gradients are the same sums of what backward
    brought as those of the parameters `right`. By rank, arrived has {name: [tensor or None of each
    pass]} and returned {name: tensor}; truth is {name: tensor}; rows is (output's name, by rank how
    many of its rows have a gradient). Parameters in pieces, or with several possible sums, are left
    out."""
    groups = {}
    for name in wrong:
        if _is_rounding(name, truth):
            continue
        if (found := _sums(name, arrived, returned, truth)) is not None:
            groups.setdefault(next((other for other in groups if _are_alike(found, other)), found),
                              []).append(name)
    lines, explained = [], {name for names in groups.values() for name in names}
    for (columns, weights, seen), names in groups.items():
        if len(names) == 1 and not _are_simple(weights):
            explained.discard(names[0])
            continue
        text = (f"{some(names, 4)}: the single run's gradient is {_text(columns, weights)}; p.grad"
                f" is {_seen_text(columns, seen)}.")
        alike = " and of ".join(ranks_text(ranks) for ranks, i in columns
                                if len(ranks) > 1 and i == columns[0][1])
        lines.append(text + (f" What it brought is the same on each of {alike}." if alike else "")
                     + _proportion(columns, weights, rows))
    usual = [found for name in right
             if (found := _sums(name, arrived, returned, truth, True)) is not None]
    is_after = all(any(_are_alike(found[:2], other[:2]) for other in usual) for found in groups)
    left = [name for name in wrong if name not in explained and not _is_rounding(name, truth)]
    return lines, explained, not left and (not right or is_after)


def _are_simple(weights):
    """Returns whether weights may be counts over their sum, or all the same: columns of one
    parameter with fewer dimensions than elements add up to anything with some weights."""
    return min(weights) >= 0 and (max(weights) == min(weights) or any(
        all(abs(w * n - round(w * n)) <= _SAME * n * w for w in weights) for n in range(1, 65)))


def _is_rounding(name, truth):
    """Returns whether its gradient is 0 on paper, as for the bias of attention's keys."""
    largest = max((float(x.abs().max()) for x in truth.values() if x.numel()), default=0.0)
    return name in truth and float(truth[name].abs().max()) <= 1e-2 * slack_of(
        truth[name]) * largest


def _are_alike(a, b):
    """Returns whether two answers of _sums() have the same columns and, but for rounding,
    weights."""
    if a[0] != b[0] or not _alike(a[1], b[1]):
        return False
    return len(a) < 3 or all((x is None) == (y is None) and (x is None or _alike(x, y))
                             for x, y in zip(a[2], b[2]))


def told_of_losses(wrong, terms, returned, truth):
    """Returns sentences on how much each loss counts. terms is {name: {a loss of the single run:
    its gradient}}; returned and truth are as in told()."""
    groups = {}
    for name in wrong:
        rows = [row.get(name) for row in returned]
        if name not in terms or any(x is None or x.shape != truth[name].shape or
                                    not torch.equal(x, rows[0]) for x in rows):
            continue
        labels = tuple(label for label, x in terms[name].items() if bool(x.any()))
        if not labels or 2 * len(labels) > truth[name].numel():
            continue
        matrix = torch.stack([_flat(terms[name][label]) for label in labels], 1)
        slack = max(10 * slack_of(truth[name]), 1e-6)
        right, seen = (_weights(matrix, _flat(x), slack) for x in (truth[name], rows[0]))
        if right and seen and all(right) and not _alike(right, seen):
            counts = tuple(float(f"{s / r:.3g}") for s, r in zip(seen, right))
            groups.setdefault((labels, counts), []).append(name)
    return [f"{some(names, 4)}: beside what it counts in the single run's gradient, "
            + ", ".join(f"{some(chosen, 6)} {'counts' if len(chosen) == 1 else 'count'} {n:.4g}"
                        " times" for n, chosen in _by_count(labels, counts).items()) + "."
            for (labels, counts), names in groups.items()
            if len(_by_count(labels, counts)) > 1]


def _by_count(labels, counts):
    found = {}
    for label, n in zip(labels, counts):
        found.setdefault(next((m for m in found if _alike((m,), (n,))), n), []).append(label)
    return found


def _sums(name, arrived, returned, truth, is_right=False):
    """Returns (columns, weights of the truth, by rank the weights of what was returned or None), or
    None if the truth is no such sum, or of more than one. A column is (ranks on which backward
    brought the same, number of the pass from 1)."""
    whole = truth.get(name)
    parts = {(rank, i + 1): x for rank, row in enumerate(arrived)
             for i, x in enumerate(row.get(name) or ())
             if x is not None and x.shape == getattr(whole, "shape", None) and bool(x.any())}
    if not parts or any(getattr(row.get(name), "shape", None) != whole.shape for row in returned):
        return None
    slack = max(10 * slack_of(whole), 1e-6)
    columns, vectors = _apart({column: _flat(x) for column, x in parts.items()})
    if 2 * len(columns) > len(vectors[0]):
        return None
    matrix = torch.stack(vectors, 1)
    right = _weights(matrix, _flat(whole), slack)
    seen = tuple(_weights(matrix, _flat(row[name]), slack) for row in returned)
    if right is None or not is_right and all(w is not None and _alike(right, w) for w in seen):
        return None
    if any(w is None and _is_near(row[name], whole) for w, row in zip(seen, returned)):
        return None  # It may be the right sum, but for rounding.
    return columns, right, seen


def _is_near(x, truth):
    return float((_flat(x) - _flat(truth)).norm()) <= _NEAR * float(_flat(truth).norm())


def _apart(vectors):
    """Joins the columns of one pass that are the same on several ranks."""
    columns, found = [], []
    for (rank, i), x in vectors.items():
        same = next((n for n, (ranks, other) in enumerate(columns)
                     if other == i and float((found[n] - x).norm()) <= 1e-6 * float(x.norm())),
                    None)
        if same is None:
            columns.append(((rank,), i))
            found.append(x)
        else:
            columns[same] = (*columns[same][0], rank), i
    return tuple(columns), found


def _flat(x):
    x = (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).double().flatten()
    return x[::max(1, len(x) // _MOST_ELEMENTS)]


def _weights(matrix, target, slack):
    """Returns the weights, in four digits, with which the columns add up to the target, or None if
    they do not, if several weights do, or if a short dtype leaves that open."""
    sizes = matrix.norm(dim=0)
    u, s, v = torch.linalg.svd(matrix / sizes, full_matrices=False)
    if float(s[-1]) < _LEAST_APART * float(s[0]) or slack > _SAME:
        return None
    found = (v.T @ ((u.T @ target) / s)) / sizes
    if float((matrix @ found - target).norm()) > slack * max(float(target.norm()), 1e-300):
        return None
    largest = float(found.abs().max())
    return tuple(0.0 if abs(w) < _SAME * largest else float(f"{w:.4g}") for w in found.tolist())


def _alike(a, b):
    return all(abs(x - y) <= _SAME * max(abs(x), abs(y)) for x, y in zip(a, b))


def _seen_text(columns, seen):
    if all(w is None for w in seen):
        return "no sum of that"
    if None not in seen:
        if all(_alike(w, seen[0]) for w in seen):
            return _text(columns, seen[0])
        if all((w == 1) == (rank in ranks) and w in (0, 1) for rank, weights in enumerate(seen)
               for w, (ranks, _) in zip(weights, columns)):
            return "what it brought on each rank alone"
    texts = {}
    for rank, weights in enumerate(seen):
        text = "no sum of that" if weights is None else _text(columns, weights)
        texts.setdefault(text, []).append(rank)
    return ", ".join(f"on {ranks_text(ranks)} {text}" for text, ranks in texts.items())


def _text(columns, weights):
    """Returns text such as "0.25 times what backward brought, added up over all ranks" or "0.5, 1
    times what backward brought on ranks 0, 1, added up"."""
    groups = []  # [(weight, columns that have it)]
    for column, weight in zip(columns, weights):
        same = next((chosen for other, chosen in groups if _alike((other,), (weight,))), None)
        if same is None:
            groups.append((weight, [column]))
        else:
            same.append(column)
    groups = [(weight, chosen) for weight, chosen in groups if weight]
    if not groups:
        return "0"
    if len(groups) > 1 and columns[-1][1] == columns[0][1]:
        listed = ", ".join(f"{w:.4g}" for w in weights)
        return (f"{listed} times what backward brought on"
                f" {ranks_text([ranks[0] for ranks, _ in columns])}, added up")
    return " plus ".join(f"{'' if weight == 1 else f'{weight:.4g} times '}what backward brought"
                         f"{_of(chosen, columns)}" for weight, chosen in groups)


def _of(chosen, columns):
    first = list(dict.fromkeys(ranks[0] for ranks, _ in chosen))
    if len(chosen) == len(columns) and len(first) == 1:
        return ""
    is_every = all(len(ranks) == 1 for ranks, _ in columns)
    numbers = list(dict.fromkeys(i for _, i in chosen))
    passes = max(i for _, i in columns)
    where = (f" on rank {first[0]}" if len(first) == 1 else ", added up over all ranks"
             if is_every and len(first) == len({ranks[0] for ranks, _ in columns})
             else f", added up over {ranks_text(first)}")
    if len(chosen) != len(first) * len(numbers):
        return ", added up over " + ", ".join(f"rank {ranks[0]}'s backward pass {i}"
                                              for ranks, i in chosen)
    if len(numbers) == passes:
        return where
    which = "backward pass " if len(numbers) == 1 else "backward passes "
    return f" in {which}{', '.join(map(str, numbers))} of {passes} alone{where}"


def _proportion(columns, right, rows):
    """Returns a sentence if the right weights are proportional to the numbers of rows, else ""."""
    if not rows or len(columns) < 2 or any(len(ranks) > 1 for ranks, _ in columns):
        return ""
    name, counts = rows
    counts = [counts[ranks[0]] for ranks, _ in columns]
    if len(set(counts)) == 1 or not all(counts) or not all(right):
        return ""
    ratios = [w / n for w, n in zip(right, counts)]
    if max(ratios) - min(ratios) > _SAME * max(ratios):
        return ""
    return (" That is in proportion to how many rows of the output of"
            f" {name or 'the model'} have a gradient: {', '.join(map(str, counts))}.")
