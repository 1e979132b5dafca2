"""What the ranks' gradients are made of: sums of the single run's, with a weight for each part of the data.

A part is what one rank computed in one call of the last module: its sequences, its range of tokens, one micro-batch. The single
run's gradient is cut into those of the parts by cutting its last module's cotangent. Where the ranks' gradients are a
weighted sum of them the weights say which parts count, and how much.
"""

import dataclasses

import torch

from .joined import joined
from .joining import TOLERANCES

_MOST_PARTS = 32
_FEW = 4  # equations for an unknown
_SPAN = 1e-3  # of the singular values: beyond it parts cannot be told apart


@dataclasses.dataclass
class Part:
    ranks: list
    call: int
    tokens: int
    gradients: dict = dataclasses.field(default_factory=dict)  # by parameter

    @property
    def rank(self):
        return self.ranks[0] if self.ranks else None  # None: of no rank


@dataclasses.dataclass
class Weights:
    """Of parameters: `by_rank`, for each rank the weights of the parts."""

    parameters: list
    by_rank: dict
    precision: float


class Cutter:
    """Cuts the single run's gradients after its backward."""

    def __init__(self, ranks):
        self._ranks = [trace["outputs"] for trace in ranks]
        self.parts = []
        self.module = ""

    def cut(self, recording):
        outputs = recording.trace()["outputs"]
        for truth, output in zip(outputs, recording.outputs):
            truth["output"] = output
        parameters = {n: p for n, p in recording.parameters().items() if p.grad is not None}
        recording.paused = True
        try:
            for name in list(dict.fromkeys(o["module"] for o in reversed(outputs)))[:3]:
                if self._cut_at(name, outputs, parameters):
                    self.module = name
                    return
        finally:
            recording.paused = False

    def _cut_at(self, name, outputs, parameters):
        truths = [o for o in outputs if o["module"] == name and o["gradient"] is not None]
        if not truths or any(o["output"].tensor is None for o in truths):
            return False
        together = joined(truths, self._ranks)
        pieces = [(one, piece) for one in together for piece in one.pieces]
        if not pieces or any(piece.place is None or piece.group for _, piece in pieces):
            return False
        masks = {}
        for one, piece in pieces:
            key = (one.position, piece.place.key)
            if key not in masks:
                masks[key] = (one, piece.place.mask(one.truth["value"]), [], piece.record["call"])
            if piece.rank not in masks[key][2]:
                masks[key][2].append(piece.rank)
        parts = [self._part(truths, parameters, {one.position: mask}, ranks, call) for one, mask, ranks, call in masks.values()]
        if not 1 < len(parts) <= _MOST_PARTS:
            return False
        rest = {one.position: 1 - sum([m for o, m, _, _ in masks.values() if o is one], torch.zeros_like(one.truth["value"]))
                for one in together}
        if any(bool((mask < 0).any()) for mask in rest.values()):
            return False  # they overlap
        if any(bool((mask * truths[at]["gradient"]).any()) for at, mask in rest.items()):
            parts.append(self._part(truths, parameters, rest, [], 0))
        if not self._is_whole(parts, parameters):
            return False
        self.parts = parts
        return True

    @staticmethod
    def _part(truths, parameters, masks, ranks, call):
        cotangents = [t["gradient"] * masks[i].to(t["gradient"].dtype) if i in masks else torch.zeros_like(t["gradient"])
                      for i, t in enumerate(truths)]
        tensors = [t["output"].tensor for t in truths]
        found = torch.autograd.grad(tensors, list(parameters.values()), cotangents, retain_graph=True, allow_unused=True)
        tokens = sum(int((c.flatten(0, -2).abs().amax(-1) > 0).sum()) if c.dim() > 1 else int((c != 0).sum()) for c in cotangents)
        return Part(ranks, call, tokens, {n: None if g is None else g.detach().double() for n, g in zip(parameters, found)})

    @staticmethod
    def _is_whole(parts, parameters):
        """Whether the parts sum up to the gradient; parameters of which they do not are left out."""
        whole = False
        for name, parameter in parameters.items():
            total = sum((p.gradients[name] for p in parts if p.gradients[name] is not None), torch.zeros_like(parameter.grad).double())
            truth = parameter.grad.double()
            if not float((total - truth).norm()) <= TOLERANCES.get(parameter.dtype, 0.1) * float(truth.norm()):
                for part in parts:
                    part.gradients[name] = None
            elif bool(truth.any()):
                whole = True
        return whole


def weights_of(parts, observed, wrong):
    """[Weights]: of wrong parameters that are a sum of parts. `observed`: by rank {name: (tensor, where it begins)}."""
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


_NOTHING = object()


def _solved(parts, name, tensor, at):
    columns = [p.gradients.get(name) for p in parts]
    if any(c is None for c in columns) or at == "partial":
        return None, 0
    if isinstance(at, tuple):
        if tensor.numel() == 0:
            return _NOTHING, 0
        columns = [c[tuple(slice(b, b + n) for b, n in zip(at, tensor.shape))] for c in columns]
    if any(c.shape != tensor.shape for c in columns) or tensor.numel() < _FEW * len(parts):
        return None, 0
    a = torch.stack([c.reshape(-1) for c in columns], 1)
    b, precision = tensor.double().reshape(-1), TOLERANCES.get(tensor.dtype, 0.1)
    if not bool(torch.isfinite(b).all()):
        return None, 0
    sizes = a.norm(dim=0)
    used = sizes > 0
    if not bool(used.all()):
        return None, 0
    values = torch.linalg.svdvals(a / sizes)
    if float(values[-1]) < max(_SPAN, precision) * float(values[0]):
        return None, 0
    solution = torch.linalg.lstsq(a, b[:, None]).solution[:, 0]
    if not float((a @ solution - b).norm()) <= precision * max(float(b.norm()), float(a.sum(1).norm()) * 1e-6):
        return None, 0
    return [float(x) for x in solution], max(0.01, precision)


def _gather(found, name, by_rank, precision):
    for group in found:
        if group.by_rank.keys() == by_rank.keys() and all(_alike(group.by_rank[r], by_rank[r], precision) for r in by_rank):
            group.parameters.append(name)
            return
    found.append(Weights([name], by_rank, precision))


def _alike(a, b, precision):
    return max(abs(x - y) for x, y in zip(a, b)) <= 2 * precision * max(map(abs, a + b))


# --- In words


def meaning(weights, parts, world_size):
    """What the weights say; empty where they say no more than a factor does."""
    rows = list(weights.by_rank.values())
    if all(_alike(row, rows[0], weights.precision) for row in rows):
        return _meaning_of(rows[0], parts, weights.precision)
    own = all(_is_of(row, [p.rank is not None and rank in p.ranks for p in parts], weights.precision)
              for rank, row in weights.by_rank.items())
    return "on each rank the gradient of its own data alone: not reduced over the ranks that have other data" if own else ""


def _is_of(row, chosen, precision):
    """Whether the chosen parts alone count, and alike."""
    most = max(map(abs, row))
    inside = [x for x, c in zip(row, chosen) if c]
    outside = [x for x, c in zip(row, chosen) if not c]
    return (bool(inside) and all(abs(x) <= 3 * precision * most for x in outside)
            and all(abs(x - inside[0]) <= 3 * precision * most for x in inside))


def _meaning_of(row, parts, precision):
    most = max(map(abs, row))
    if max(row) - min(row) <= 3 * precision * most:
        return ""
    rest = [p.rank is None for p in parts]
    if any(rest) and _is_of(row, [not r for r in rest], precision):
        return "only a part of the data counts: the rest is on no rank"
    tokens = [x * p.tokens for x, p in zip(row, parts)]
    if max(tokens) - min(tokens) <= 3 * precision * max(map(abs, tokens)):
        return "each part is divided by its own number of tokens: " + ", ".join(f"{_of(p, parts)} {p.tokens}" for p in parts)
    chosen = [abs(x) > most / 2 for x in row]
    if _is_of(row, chosen, precision):
        return _counting(chosen, parts)
    return "weights " + ", ".join(f"{x:.3g} ({_of(p, parts)})" for x, p in zip(row, parts))


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
    if part.rank is None:
        return "data of no rank"
    name = ("rank " if len(part.ranks) == 1 else "ranks ") + ", ".join(map(str, part.ranks))
    return name + (f" micro-batch {part.call + 1}" if max(p.call for p in parts) > 0 else "")
