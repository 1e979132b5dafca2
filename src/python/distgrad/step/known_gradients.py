"""Finds the gradient that the ranks could make of what they have, such as a sum over the ranks, if
the loss's derivative is one of these."""

import dataclasses
import math

import torch

from ..words import ranks_text
from .subgroups import partitions, subgroups

HOLDERS = "the ranks that hold it"
CONFIRMED_BY = 4  # An error counts if it is so many times the resolution, or another one's.
_WHOLE = 1e-3  # In float32 a sum over all parameters may be off by this part.
_CONFIRMED = 3  # A sum of gradients must be right along so many directions to be called right.
_OWN, _ADDED = "p.grad itself", "what all backward passes added"


class _ByRank(dict):
    """Holds {(key, rank): what a sum over this rank's group says}."""


@dataclasses.dataclass
class Known:
    """Holds a gradient that is the derivative along several directions: its words, Measurements
    along these, and {words: {key: what they say}} of all that was tried, along each."""

    words: str
    measurements: list
    every: list

    def says(self, key):
        """Returns what the gradient says of each direction."""
        return [values[self.words][key] for values in self.every]

    def own(self, key, rank):
        """Returns what p.grad says of each direction, before the move is rounded."""
        return [values[_OWN][key, rank] for values in self.every]

    def what_p_grad_is(self, key):
        """Returns words for what all ranks have in p.grad of a piece, if it is another sum of what
        the ranks have; else ""."""
        def is_it(words):
            return all(mine and abs(mine - _of_rank(values[words], key, rank)) <= 1e-5 * max(
                abs(mine), said.size / 10) for m, values in zip(self.measurements, self.every)
                for rank, said in m.said[key].items() for mine in [values[_OWN][key, rank]])

        # Each rank's own gradient comes before sums, which mean nothing where all ranks have it
        # alike. p.grad is what all passes added unless something changes it afterwards.
        asked = [words for words in self.every[0] if "p.grad" not in words]
        if _ADDED in asked and is_it(_ADDED):
            asked = [words for words in asked if _ADDED not in words]
        return next(filter(is_it, asked), "")


class KnownGradients:
    """Tries sums of what alternatives() returns: gradients that may be right, as {words: {name:
    tensor or None}}. All ranks must call every method."""

    def __init__(self, measuring, alternatives):
        self._measuring, self._alternatives = measuring, alternatives
        self._sums, self._partitions = None, {}
        self._made = {}  # {words for a gradient: (which of _sums, "sum", "mean" or the rank)}

    def derivative_of(self, keys, is_wrong):
        """Returns the Known of these pieces, or None. is_wrong says that p.grad, as the copies'
        mean, is known to be wrong."""
        if self._sums is None:
            runs, self._sums = self._measuring.runs, self._alternatives()
            self._partitions = partitions(subgroups(runs), runs.team.size)
        is_float32 = self._measuring.dtype == torch.float32
        candidates, measurements, every = None, [], []
        for seed in range(31, 31 + _CONFIRMED):
            # In float32 the last direction is across the gradients' own, where curvature hides
            # nothing.
            alike = None if seed == 30 + _CONFIRMED and is_float32 else False
            found = self._measuring.measure(keys, seed, alike=alike)
            values = self._values_of(keys, seed, alike)
            totals = {words: sum(by_key.values()) for words, by_key in values.items()
                      if not isinstance(by_key, _ByRank)}
            scale = max([abs(found.measured), *map(abs, totals.values())], default=0.0)
            found.resolution += scale * (_WHOLE if is_float32 else self._measuring.room())
            candidates = [words for words in (totals if candidates is None else candidates)
                          if abs(totals[words] - found.measured) <= found.resolution]
            if not candidates:
                return None
            measurements.append(found)
            every.append(values)
        if is_wrong:
            candidates = _better(candidates, measurements, every)
        # If the loss was not seen to change, whatever is small would seem to be the derivative.
        if not candidates or not any(abs(m.measured) > CONFIRMED_BY * m.resolution
                                     for m in measurements):
            return None
        return Known(candidates[0], measurements, every)

    def gradients_of(self, words, keys):
        """Returns {name: the gradient that `words` name} of the pieces that this rank holds."""
        source, how = self._made[words]
        found, runs = {}, self._measuring.runs
        for key in keys:
            piece = self._measuring.pieces[key]
            is_asked = runs.rank in piece.holders and how in ("sum", "mean", runs.rank)
            mine = self._sums[source].get(piece.name) if is_asked else None
            every = [x for x in runs.gather(None if mine is None else mine.cpu()) if x is not None]
            if every and runs.rank in piece.holders:
                total = sum(every) / (len(piece.holders) if how == "mean" else 1)
                found[piece.name] = total.to(runs.parameters[piece.name].device)
        return found

    def _values_of(self, keys, seed, alike):
        """Returns {words: {key: what that gradient says of the move}} for what the ranks have, and
        for sums and means of it over the ranks that hold a piece, and single ranks'."""
        mine = {words: self._measuring.dots(keys, seed, tensors, alike=alike)
                for words, tensors in (*self._sums.items(), (_OWN, self._measuring.gradients))}
        every = self._measuring.runs.gather(mine)
        pieces = [self._measuring.pieces[key] for key in keys]
        holders = {piece.holders for piece in pieces}
        whose = f"over {ranks_text(pieces[0].holders) if len(holders) == 1 else HOLDERS}"
        found = {words: _ByRank({(p.key, rank): every[rank][words][p.key] for p in pieces
                                 for rank in p.holders}) for words in mine}
        self._made = {}

        def add(text, words, how, by_key):
            found[text], self._made[text] = by_key, (words, how)

        for words in self._sums:
            by_key = {p.key: [every[rank][words][p.key] for rank in p.holders] for p in pieces}
            sums = {key: sum(values) for key, values in by_key.items()}
            if all(len(p.holders) == 1 for p in pieces):
                add(words, words, "sum", sums)
                continue
            add(f"the sum of {words} {whose}", words, "sum", sums)
            add(f"the mean of {words} {whose}", words, "mean",
                {key: sums[key] / len(by_key[key]) for key in sums})
            found |= self._over_groups(words, pieces, every)
            for i, rank in enumerate(pieces[0].holders if len(holders) == 1 else ()):
                add(f"{words} on rank {rank}", words, rank,
                    {key: values[i] for key, values in by_key.items()})
        return found

    def _over_groups(self, words, pieces, every):
        return {f"the {how} of {words} over {text}": _ByRank({
            (p.key, rank): sum(every[r][words][p.key] for r in ranks)
            / (len(ranks) if how == "mean" else 1)
            for p in pieces if len(p.holders) == len(groups) for rank, ranks in groups.items()})
            for text, groups in self._partitions.items() for how in ("sum", "mean")}


def _better(candidates, measurements, every):
    """Returns the candidates that are much nearer to what was measured than p.grad is. Their room
    is a share of the whole, of which only a small part may be wrong."""
    off = {words: sum(abs(sum(values[words].values()) - m.measured)
                      for m, values in zip(measurements, every)) for words in candidates}
    most = sum(abs(m.total() - m.measured) for m in measurements) / CONFIRMED_BY
    return [words for words in candidates if off[words] <= most]


def _of_rank(values, key, rank):
    return values.get((key, rank), math.nan) if isinstance(values, _ByRank) else values[key]
