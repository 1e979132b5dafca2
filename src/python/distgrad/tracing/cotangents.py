"""How the gradient of the last output differs, token by token: tokens that do not count, other
factors, other labels."""

import dataclasses

import torch

from .joining import off, tolerance_of

_MOST = 8  # places that are listed
_FEW_CLASSES = 4  # of fewer nothing can be said of labels


@dataclasses.dataclass
class Tokens:
    """By row of the last dimension, over all ranks; `where`: indices of the leading dimensions in
    the whole."""

    zero: list
    other_label: list
    factors: list  # (factor, how many tokens)
    unexplained: int
    total: int
    # Where each token's factor is one over the tokens of its row that count: how many these are,
    # the fewest and the most
    means_over: tuple = ()


def tokens_of(one):
    """None where the rows do not tell: another shape, or nearly all unexplained."""
    truth = one.truth["gradient"]
    if truth is None or truth.dim() < 2 or any(p.place is None or p.group or p.gradient is None
                                               or not p.place.indices for p in one.pieces):
        return None
    if truth.shape[-1] < _FEW_CLASSES or any(len(p.place.indices[-1]) < truth.shape[-1]
                                             for p in one.pieces):
        return None
    found = Tokens([], [], [], 0, 0)
    is_cross_entropy = _is_of_cross_entropy(truth, one.truth["value"])
    for piece in one.pieces:
        mine, right = (x.double().flatten(0, -2) for x in (piece.gradient, piece.place.of(truth)))
        slack = tolerance_of(piece.gradient, truth)
        places = torch.cartesian_prod(*piece.place.indices[:-1]).reshape(len(mine), -1).tolist()
        for g, t, place in zip(mine, right, places):
            if not bool(t.any()):
                found.unexplained += bool(g.any())
                continue
            found.total += 1
            _judge(found, g, t, slack, place, is_cross_entropy)
    if not found.total or found.unexplained > found.total // 8:
        return None
    found.means_over = _means_over_rows(found, one)
    return found


def _means_over_rows(found, one):
    """Of tokens of several rows, which may be divided by their own number in each row."""
    truth = one.truth["gradient"]
    if truth.dim() < 3 or found.zero or found.other_label or found.unexplained:
        return ()
    counts = truth.flatten(1, -2).any(-1).sum(1)  # by row of the first dimension
    products, rows = [], set()
    for piece in one.pieces:
        right, mine = piece.place.of(truth).double(), piece.gradient.double()
        for row, g, t in zip(piece.place.indices[0].tolist(), mine, right):
            if bool(t.any()):
                factor = float((g * t).sum() / (t * t).sum())
                if not factor or off(g / factor, t) > tolerance_of(piece.gradient, truth):
                    return ()
                products.append(factor * int(counts[row]))
                rows.add(int(counts[row]))
    if len(rows) < 2 or max(products) - min(products) > 0.01 * max(map(abs, products)):
        return ()
    return min(rows), max(rows)


def _is_of_cross_entropy(gradient, logits):
    """Whether each row is a multiple of softmax(logits) minus 1 at one class."""
    g, x = (t.double().flatten(0, -2) for t in (gradient, logits))
    g, x = g[g.any(-1)], x[g.any(-1)]
    if not len(g):
        return False
    found = x.softmax(-1)
    found[torch.arange(len(g)), g.argmin(-1)] -= 1
    found *= (g * found).sum(-1, keepdim=True) / (found * found).sum(-1, keepdim=True)
    return bool(
        ((g - found).norm(dim=-1) <= 4 * tolerance_of(gradient, logits) * g.norm(dim=-1)).all())


def _judge(found, g, t, slack, place, is_cross_entropy):
    if not bool(g.any()):
        found.zero.append(place)
        return
    factor = float((g @ t) / (t @ t))
    if factor and float((g / factor - t).norm()) <= slack * float(t.norm()):
        _count(found, factor, slack)
        return
    if not is_cross_entropy:
        found.unexplained += 1
        return
    # With another label a cross-entropy's gradient, softmax minus 1 at the label, differs in two
    # classes, by one number both ways.
    factor = float((g / t).median())
    rest = g - factor * t
    order = rest.abs().argsort(descending=True)
    a, b = rest[order[0]], rest[order[1]]
    if factor > 0 and float(a * b) < 0 and float((a + b).abs()) <= 2 * slack * float(a.abs()) and (
            float(rest[order[2:]].norm()) <= slack * float(a.abs())):
        found.other_label.append(place)
        _count(found, factor, slack)
    else:
        found.unexplained += 1


def _count(found, factor, slack):
    for i, (known, many) in enumerate(found.factors):
        if abs(known - factor) <= max(0.01, 2 * slack) * abs(known):
            found.factors[i] = known, many + 1
            return
    found.factors.append((factor, 1))


def sentences(found, shape):
    """Lines; none where the tokens say no more than one factor does."""
    said = []
    dims = "row" if len(shape) == 2 else "token"
    if found.other_label:
        said.append(f"At {len(found.other_label)} of {found.total} {dims}s the gradient is that of"
                    f" another label{_where(found.other_label, shape)}.")
    if found.zero:
        said.append(f"{len(found.zero)} of {found.total} {dims}s do not count: they have no"
                    f" gradient{_where(found.zero, shape)}.")
    if found.means_over:
        fewest, most = found.means_over
        said.append(f"Each row of dimension 0 counts in inverse proportion to its number of"
                    f" {dims}s, {fewest} to {most} of them.")
    elif len(found.factors) > 1 and len(found.factors) <= _MOST:
        said.append(f"The {dims}s count differently: " + ", ".join(
            f"{many} of them {factor:.4g} times" for factor, many in sorted(found.factors)) + ".")
    return said


def _where(places, shape):
    """Those of one dimension, where it decides."""
    for dim in range(len(shape) - 1):
        chosen = sorted({place[dim] for place in places})
        others = 1
        for d, n in enumerate(shape[:-1]):
            others *= n if d != dim else 1
        if len(places) == len(chosen) * others and len(chosen) < shape[dim]:
            word = "index" if len(chosen) == 1 else "indices"
            listed = ", ".join([*map(str, chosen[:_MOST]), *["..."][:len(chosen) > _MOST]])
            return f" ({word} {listed} of dimension {dim})"
    if len(places) <= _MOST and len(shape) > 2:
        return f" ({', '.join(str(place) for place in places)})"
    return ""
