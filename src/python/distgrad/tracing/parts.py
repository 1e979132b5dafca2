"""The single run's gradient, cut into those of parts of the data.

A part is what one rank computed in one call of the last module: its sequences, its range of tokens,
one micro-batch. The gradient is cut by cutting the cotangent of the last module's output."""

import dataclasses

import torch

from .dtypes import coarsest
from .joined import joined
from .joining import TOLERANCES, noise_of, off, tolerance_of_dtype

_MOST_PARTS = 32


@dataclasses.dataclass
class Part:
    ranks: list
    call: int
    tokens: int
    gradients: dict = dataclasses.field(default_factory=dict)  # by parameter
    is_other_term: bool = False
    name: str = ""  # of a part that is no rank's

    @property
    def rank(self):
        return self.ranks[0] if self.ranks else None  # None: of no rank


class Cutter:
    """Cuts the single run's gradients after each of its backwards; what several give to a part is
    added up."""

    def __init__(self, ranks):
        self._ranks = [trace["outputs"] for trace in ranks]
        self._parts = {}  # by (ranks, call)
        self._other = Part([], 0, 0, is_other_term=True)
        # Of the outputs, and gradients, of this backward
        self._begin, self._before, self._eps = 0, {}, {}
        self._is_lost, self._tolerance = False, 0.0
        self._placed = set()  # what of the ranks was found: (rank, call)
        self.module = ""

    @property
    def parts(self):
        """Such that their sum is the single run's gradient; none where that is not known."""
        calls = {(rank, o["call"]) for rank, outputs in enumerate(self._ranks) for o in outputs
                 if o["module"] == self.module}
        if self._is_lost or self._placed != calls:
            return []
        found = [*self._parts.values(), *([self._other] if self._other.gradients else [])]
        for name in self._noise():
            for part in found:
                part.gradients.pop(name, None)
        found = [part for part in found if not part.is_other_term or part.gradients]
        return found if 1 < len(found) <= _MOST_PARTS else []

    def _noise(self):
        """The parameters whose gradient is zero but for rounding: it is made of nothing."""
        largest = max((float(g.abs().max()) for g in self._before.values() if g.numel()), default=0)
        return [name for name, g in self._before.items() if not g.numel()
                or float(g.abs().max()) <= self._eps[name] * largest]

    def lose(self):
        self._is_lost = True

    def cut(self, recording):
        trace = recording.trace()
        outputs = trace["outputs"]
        self._tolerance = tolerance_of_dtype(coarsest([trace]))
        for truth, output in zip(outputs, recording.outputs):
            truth["output"] = output
        new, self._begin = outputs[self._begin:], len(outputs)
        parameters = {n: p for n, p in recording.parameters().items() if p.grad is not None}
        gradients = {n: p.grad.detach().to("cpu", torch.float64, copy=True)
                     for n, p in parameters.items()}
        gained = {n: g - self._before[n] if n in self._before else g for n, g in gradients.items()}
        self._before = gradients
        self._eps = {n: noise_of(p.dtype) for n, p in parameters.items()}
        recording.paused = True
        try:
            names = [self.module] if self.module else list(
                dict.fromkeys(o["module"] for o in reversed(new) if o["gradient"] is not None))[:3]
            # What is nowhere may be of another backward
            self.module = next((name for all_of_it in (True, False) for name in names
                                if self._cut_at(name, new, parameters, gained, all_of_it)), "")
            self._is_lost = self._is_lost or not self.module
        finally:
            recording.paused = False

    def _cut_at(self, name, outputs, parameters, gained, all_of_it):
        truths = [o for o in outputs if o["module"] == name and o["gradient"] is not None]
        if not truths or any(o["output"].tensor is None for o in truths):
            return False
        together = joined(truths, self._ranks)
        pieces = [(one, piece) for one in together for piece in one.pieces if piece.place]
        if not pieces or any(piece.group for _, piece in pieces) or (
                all_of_it and any(one.differs for one in together)):
            return False
        places = {}
        for one, piece in pieces:
            entry = places.setdefault((one.position, piece.place.key), (one, piece, set()))
            entry[2].add(piece.rank)
        masks = {}  # by the ranks and the call: one for each output
        for one, piece, ranks in places.values():
            mine, whole = masks.setdefault((tuple(sorted(ranks)), piece.record["call"]),
                                           {}), one.truth["value"]
            mine[one.position] = mine.get(one.position,
                                          torch.zeros_like(whole)) + piece.place.mask(whole)
        # The ranks may have no part of a call
        rest = {one.position: sum((-m[one.position] for m in masks.values() if one.position in m),
                                  torch.ones_like(one.truth["value"])) for one in together}
        if any(bool((mask < 0).any()) for mask in rest.values()):
            return False  # they overlap
        if any(bool((mask * truths[at]["gradient"]).any()) for at, mask in rest.items()):
            masks[((), 0)] = rest
        if len(masks) > _MOST_PARTS:
            return False
        self._placed |= {piece.key for _, piece in pieces}
        parts = [self._part(truths, parameters, mask, list(ranks), call)
                 for (ranks, call), mask in masks.items()]
        self._add_other_terms(parts, gained, {n: max(TOLERANCES.get(p.dtype, 0.1), self._tolerance)
                                              for n, p in parameters.items()})
        for part in parts:
            _add(self._parts.setdefault((tuple(part.ranks), part.call),
                                        Part(part.ranks, part.call, 0)), part)
        return True

    @staticmethod
    def _part(truths, parameters, masks, ranks, call):
        cotangents = [t["gradient"] * masks[i].to(t["gradient"].dtype) if i in masks
                      else torch.zeros_like(t["gradient"]) for i, t in enumerate(truths)]
        tensors = [t["output"].tensor for t in truths]
        there = [c.to(x.device) for c, x in zip(cotangents, tensors)]
        found = torch.autograd.grad(tensors, list(parameters.values()), there, retain_graph=True,
                                    allow_unused=True)
        tokens = sum(int((c.flatten(0, -2).abs().amax(-1) > 0).sum()) if c.dim() > 1
                     else int((c != 0).sum()) for c in cotangents)
        return Part(ranks, call, tokens, {n: None if g is None else g.detach().cpu().double()
                                          for n, g in zip(parameters, found)})

    def _add_other_terms(self, parts, gained, slack):
        """What does not go through the module's output: other terms of the loss."""
        found = Part([], 0, 0)
        for name, truth in gained.items():
            known = sum((p.gradients[name] for p in parts if p.gradients[name] is not None),
                        torch.zeros_like(truth))
            left = truth - known
            if float(left.norm()) > slack[name] * float(truth.norm()):
                found.gradients[name] = left
                # Nothing is left of the backwards before: they were zeroed
                whole = self._before[name]
                if bool(known.any()) and off(known, whole) <= slack[name]:
                    self.lose()
        _add(self._other, found)


def _add(part, more):
    part.tokens += more.tokens
    for name, gradient in more.gradients.items():
        before = part.gradients.get(name)
        part.gradients[name] = gradient if before is None else (
            before if gradient is None else before + gradient)
