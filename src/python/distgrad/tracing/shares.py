"""What the ranks' gradients are made of: sums of the single run's, with a weight for each part of
the data.

The single run's is cut into those of parts of the data (parts.py). Where the ranks' gradients are a
weighted sum of them the weights say which parts count, and how much.
"""

import dataclasses

import torch

from ..words import ranks_text
from .backward_search import are_alike
from .joining import TOLERANCES

_FEW = 4  # equations for an unknown
_PRECISION = 0.01  # of weights, at best
_SPAN = 1e-3  # of the singular values: beyond it parts cannot be told apart


@dataclasses.dataclass
class Weights:
    """Of parameters: `by_rank`, for each rank the weights of the parts, None of a part that they
    have nothing of."""

    parameters: list
    by_rank: dict
    precision: float


def weights_of(parts, observed, wrong):
    """[Weights]: of wrong parameters that are a sum of parts. `observed`: by rank {name: (tensor,
    where it begins)}."""
    found = []
    for name in wrong:
        by_rank, precision = {}, 0.0
        for rank, gradients in enumerate(observed):
            if name in gradients:
                solved, precision = _solved(parts, name, *gradients[name])
                if solved is None:
                    break
                if solved is not _NOTHING:
                    by_rank[rank] = solved
        else:
            if by_rank:
                _gather(found, name, by_rank, precision)
    return found


def are_of_the_losses(weights, departure, parts):
    """Whether the wrong parameters before the departure are what right backwards make of losses
    that do not weigh alike: where ranks exchange in forward, all gradients before that are sums of
    several ranks' shares, and no multiple of the truth's."""
    by_rank = departure.factors
    if len(by_rank) < 2 or are_alike(by_rank.values()):  # but for rounding
        return False
    explained = {name for w in weights if _weigh_as(w, by_rank, parts) for name in w.parameters}
    few = _FEW * len(parts)
    return bool(explained) and all(
        name in explained for name in departure.upstream
        if max((p.gradients[name].numel() for p in parts
                if p.gradients.get(name) is not None), default=0) >= few)


def _weigh_as(weights, by_rank, parts):
    """Whether each part counts as its rank's loss does, or a multiple of that, on all ranks."""
    for row in weights.by_rank.values():
        if any(x is not None and part.rank not in by_rank and x for x, part in zip(row, parts)):
            return False
        ratios = [
            x / by_rank[part.rank] for x, part in zip(row, parts)
            if x is not None and part.rank in by_rank
        ]
        if len(ratios) < 2 or max(ratios) - min(ratios) > 3 * weights.precision * max(
                map(abs, ratios)):
            return False
    return True


_NOTHING = object()


def _solved(parts, name, tensor, at):
    chosen = [i for i, p in enumerate(parts)
              if p.gradients.get(name) is not None and bool(p.gradients[name].any())]
    columns = [parts[i].gradients[name] for i in chosen]
    if not columns or at == "partial":
        return None, 0
    if isinstance(at, tuple):
        if tensor.numel() == 0:
            return _NOTHING, 0
        columns = [c[tuple(slice(b, b + n) for b, n in zip(at, tensor.shape))] for c in columns]
    if any(c.shape != tensor.shape for c in columns) or tensor.numel() < _FEW * len(columns):
        return None, 0
    a = torch.stack([c.reshape(-1) for c in columns], 1)
    b, precision = tensor.double().reshape(-1), TOLERANCES.get(tensor.dtype, 0.1)
    if not bool(torch.isfinite(b).all()):
        return None, 0
    sizes = a.norm(dim=0)
    if not bool((sizes > 0).all()):
        return None, 0
    values = torch.linalg.svdvals(a / sizes)
    if float(values[-1]) < max(_SPAN, precision) * float(values[0]):
        return None, 0
    solution = torch.linalg.lstsq(a, b[:, None]).solution[:, 0]
    if not float((a @ solution - b).norm()) <= precision * max(float(b.norm()),
                                                               float(a.sum(1).norm()) * 1e-6):
        return None, 0
    weights, least = [None] * len(parts), precision * float(solution.abs().max())
    for i, x in zip(chosen, solution):
        weights[i] = float(x) if abs(float(x)) > least else 0.0
    return weights, max(_PRECISION, precision)


def _gather(found, name, by_rank, precision):
    for group in found:
        if group.by_rank.keys() == by_rank.keys() and all(
                _alike(group.by_rank[r], by_rank[r], precision) for r in by_rank):
            group.parameters.append(name)
            for rank, row in by_rank.items():
                group.by_rank[rank] = [y if x is None else x
                                       for x, y in zip(group.by_rank[rank], row)]
            return
    found.append(Weights([name], by_rank, precision))


def _alike(a, b, precision):
    both = [(x, y) for x, y in zip(a, b) if x is not None and y is not None]
    most = max((abs(x) for pair in both for x in pair), default=0.0)
    return bool(both) and all(abs(x - y) <= 2 * precision * most for x, y in both)


# --- In words


def meaning(weights, parts, module):
    """What the weights say; empty where they say no more than a factor does. `module`: at whose
    output the gradient was cut."""
    ranks = list(weights.by_rank)
    rows, precision = [weights.by_rank[r] for r in ranks], weights.precision
    data = [i for i, p in enumerate(parts) if not p.is_other_term and rows[0][i] is not None]
    said = []
    if data:
        of_data = [[row[i] for i in data] for row in rows]
        theirs = [parts[i] for i in data]
        if all(_alike(row, of_data[0], precision) for row in of_data):
            said.append(_clipping(weights.parameters, of_data[0], theirs, precision)
                        or meaning_of(of_data[0], theirs, precision))
        else:
            said.append(_meaning_by_rank(dict(zip(ranks, of_data)), theirs, precision))
    said.append(_meaning_of_other_term(rows, data, parts, precision, module))
    return "; ".join(filter(None, said))


def _clipping(names, row, parts, precision):
    """Where the weights are what makes the norms of the parts alike."""
    slack = 2e-3 if precision <= _PRECISION else precision
    norms = [abs(x) * sum(float(p.gradients[n].square().sum()) for n in names)**0.5
             for x, p in zip(row, parts) if all(p.gradients.get(n) is not None for n in names)]
    if len(norms) < max(3, len(row)) or max(row) - min(row) <= 3 * precision * max(map(abs, row)):
        return ""
    if max(norms) - min(norms) > slack * max(norms):
        return ""
    return "each part's gradient counts in inverse proportion to its norm"


def _meaning_of_other_term(rows, data, parts, precision, module):
    at = next((i for i, p in enumerate(parts) if p.is_other_term), None)
    if at is None or rows[0][at] is None or not data:
        return ""
    other, mean = rows[0][at], sum(rows[0][i] for i in data) / len(data)
    if other and not any(row[i] for row in rows for i in data):
        return f"only the term of the loss that does not go through the output of {module} counts"
    if any(abs(row[i] - mean) > 3 * precision * abs(mean) for row in rows for i in data):
        return ""  # against a part of the data nothing can be said
    if not mean or any(abs(row[at] - other) > 3 * precision * max(abs(mean), abs(other))
                       for row in rows):
        return ""
    ratio = other / mean
    if abs(ratio - 1) <= 5 * precision:
        return ""
    many = ("does not count" if abs(ratio) <= precision / 3 else f"counts {ratio:.3g} times as much"
            " as the rest")
    return f"the term of the loss that does not go through the output of {module} {many}"


def _meaning_by_rank(rows, parts, precision):
    """Where the ranks' differ."""
    calls = sorted({p.call for p in parts})
    states = {}
    for call in calls:
        mine = [i for i, p in enumerate(parts) if p.call == call]
        groups = {tuple(r for i in mine if abs(row[i]) > 3 * precision * max(map(abs, row))
                        for r in parts[i].ranks) for rank, row in rows.items()}
        own = all(_is_of([row[i] for i in mine], [rank in parts[i].ranks for i in mine], precision)
                  for rank, row in rows.items())
        states[call] = "own" if own else "all" if len(groups) == 1 else tuple(sorted(groups))
    if set(states.values()) == {"own"}:
        return "on each rank the gradient of its own data alone"
    if set(states.values()) == {"own", "all"}:
        names = {state: ", ".join(str(c + 1) for c in calls if states[c] == state)
                 for state in ("own", "all")}
        return (f"of micro-batch {names['own']} each rank has its own data's gradient alone, of"
                f" micro-batch {names['all']} that of all")
    groups = states[calls[0]]
    if len(calls) == 1 and isinstance(groups, tuple) and all(len(g) > 1 for g in groups):
        return "the sum over " + " and the sum over ".join("ranks " + ", ".join(map(str, g))
                                                           for g in groups) + " alone"
    return ""


def _is_of(row, chosen, precision):
    """Whether the chosen parts alone count, and alike."""
    most = max(map(abs, row))
    inside = [x for x, c in zip(row, chosen) if c]
    outside = [x for x, c in zip(row, chosen) if not c]
    return (bool(inside) and all(abs(x) <= 3 * precision * most for x in outside)
            and all(abs(x - inside[0]) <= 3 * precision * most for x in inside))


def meaning_of(row, parts, precision):
    most = max(map(abs, row))
    if max(row) - min(row) <= 3 * precision * most:
        return ""
    rest = [p.rank is None and not p.name for p in parts]
    if any(rest) and _is_of(row, [not r for r in rest], precision):
        return "only a part of the data counts: the rest is on no rank"
    tokens = [x * p.tokens for x, p in zip(row, parts)]
    if max(tokens) - min(tokens) <= 3 * precision * max(map(abs, tokens)):
        return "each part counts in inverse proportion to its number of tokens: " + ", ".join(
            f"{name} {n}" for name, n in _by_part([p.tokens for p in parts], parts))
    usual = sorted(row)[len(row) // 2]
    others = [i for i, x in enumerate(row) if abs(x - usual) > 3 * precision * most]
    if len(row) > 2 and len(others) == 1 and usual and row[others[0]]:
        times = row[others[0]] / usual
        return f"{_of(parts[others[0]], parts)} counts {times:.3g} times as much as the rest"
    chosen = [abs(x) > most / 2 for x in row]
    if _is_of(row, chosen, precision):
        return _counting(chosen, parts)
    return "weights " + ", ".join(f"{x} ({name})"
                                  for name, x in _by_part([f"{x:.3g}" for x in row], parts))


def _by_part(values, parts):
    """[(name, value)]: of micro-batches, where the ranks' are the same."""
    found = {}
    for value, part in zip(values, parts):
        found.setdefault(part.call, set()).add(value if part.ranks else None)
    if len(found) > 1 and all(len(of_call) == 1 and None not in of_call
                              for of_call in found.values()):
        return [(f"micro-batch {call + 1}", of_call.pop())
                for call, of_call in sorted(found.items())]
    return [(_of(part, parts), value) for value, part in zip(values, parts)]


def _counting(chosen, parts):
    calls = {p.call for p, c in zip(parts, chosen) if c}
    last = max(p.call for p in parts)
    if all(c == (p.call in calls) for p, c in zip(parts, chosen)) and len(calls) == 1 and last > 0:
        which = "last" if calls == {last} else "first" if calls == {0} else f"{calls.pop() + 1}."
        return f"only the {which} of {last + 1} micro-batches counts"
    missing = [p for p, c in zip(parts, chosen) if not c]
    if len(missing) <= len(parts) - len(missing):
        return "what does not count: " + ", ".join(_of(p, parts) for p in missing)
    return "what counts alone: " + ", ".join(_of(p, parts) for p, c in zip(parts, chosen) if c)


def _of(part, parts):
    if part.name:
        return part.name
    if part.rank is None:
        return "data of no rank"
    return ranks_text(part.ranks) + (f" micro-batch {part.call + 1}"
                                     if max(p.call for p in parts) > 0 else "")
